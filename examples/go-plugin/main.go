// A whole plugin in Go: it answers requests with a greeting, counts them, and remembers the count.
//
// guest-agent is the client, the plugin is the server of four calls. What it is started with and what
// each call means is in docs/writing-plugins.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "example.com/greeter/plugincomm"
)

//go:generate protoc -I ../../proto/proto --go_out=. --go_opt=module=example.com/greeter --go_opt=Mplugin_comm.proto=example.com/greeter/plugincomm --go-grpc_out=. --go-grpc_opt=module=example.com/greeter --go-grpc_opt=Mplugin_comm.proto=example.com/greeter/plugincomm plugin_comm.proto

// greeter is the plugin. Calls come from several goroutines at once, so what changes is behind the mutex.
type greeter struct {
	pb.UnimplementedGuestAgentPluginServer

	stopped chan struct{} // closed by the first Stop
	once    sync.Once

	mutex    sync.Mutex
	greeting string
	counted  string // the file with the count, in the plugin's own directory
	count    int
}

// Start comes once, when the socket answers. Return when the work has begun, not when it is done.
func (g *greeter) Start(_ context.Context, request *pb.StartRequest) (*pb.StartResponse, error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if err := g.take(request.GetStringConfig()); err != nil {
		return nil, err
	}
	// This directory is the plugin's alone and survives restarts and upgrades.
	g.counted = filepath.Join(request.GetConfig().GetStateDirectoryPath(), "count")
	if data, err := os.ReadFile(g.counted); err == nil {
		g.count, _ = strconv.Atoi(string(data)) // a damaged file counts from 0 again
	} else if !errors.Is(err, os.ErrNotExist) {
		// The agent shows the text in its events and tries again.
		return nil, status.Errorf(codes.Internal, "cannot read my count: %v", err)
	}
	fmt.Printf("started; %d greetings so far\n", g.count) // `guest-agent logs NAME` shows it
	return &pb.StartResponse{}, nil
}

// Apply brings another configuration. UNIMPLEMENTED asks to be restarted with it; any other error
// refuses it, and the agent reports that the old one is still in use.
func (g *greeter) Apply(_ context.Context, request *pb.ApplyRequest) (*pb.ApplyResponse, error) {
	if isVMEvent(request.GetStringConfig()) {
		return nil, status.Error(codes.Unimplemented, "not interested in the machine")
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if err := g.take(request.GetStringConfig()); err != nil {
		return nil, err
	}
	return &pb.ApplyResponse{}, nil
}

// GetStatus is a health check without data, and a question with data. Answer both quickly: a plugin that
// does not is taken for hung after a few times.
func (g *greeter) GetStatus(_ context.Context, request *pb.GetStatusRequest) (*pb.Status, error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if request.Data == nil {
		return &pb.Status{Results: []string{fmt.Sprintf("%d greetings so far", g.count)}}, nil
	}
	g.count++
	if err := os.WriteFile(g.counted, []byte(strconv.Itoa(g.count)), 0o600); err != nil {
		// Not zero: unhealthy, but alive.
		return &pb.Status{Code: 1, Results: []string{"cannot write my count: " + err.Error()}}, nil
	}
	return &pb.Status{Results: []string{g.greeting + ", " + request.GetData()}}, nil
}

// Stop comes before a restart, an upgrade, and with cleanup before the plugin is removed for good: then
// wipe what is outside of the state directory, which the agent deletes itself.
func (g *greeter) Stop(_ context.Context, request *pb.StopRequest) (*pb.StopResponse, error) {
	fmt.Printf("stopping; cleanup: %t\n", request.GetCleanup())
	g.once.Do(func() { close(g.stopped) })
	return &pb.StopResponse{}, nil
}

// take uses a configuration. No configuration is an empty text. The mutex is held.
func (g *greeter) take(config string) error {
	if strings.ContainsRune(config, '\n') {
		return status.Error(codes.InvalidArgument, "a greeting is one line")
	}
	g.greeting = config
	if config == "" {
		g.greeting = "hello"
	}
	return nil
}

// isVMEvent tells news about the machine from a configuration: both come through Apply.
func isVMEvent(config string) bool {
	var news struct{ Command, Event string }
	return json.Unmarshal([]byte(config), &news) == nil && news.Command == "VmEvent"
}

// listen opens the address that the agent named: its arguments come after the plugin's own.
func listen(arguments []string) ([]net.Listener, error) {
	network, address := "", ""
	for _, argument := range arguments {
		if value, ok := strings.CutPrefix(argument, "--protocol="); ok {
			network = value
		} else if value, ok := strings.CutPrefix(argument, "--address="); ok {
			address = value
		}
	}
	if network != "unix" && network != "tcp" {
		return nil, fmt.Errorf("no --protocol=unix or --protocol=tcp; guest-agent starts this program")
	}
	syscall.Umask(0o077) // no other user may open the socket
	var listeners []net.Listener
	var failed error
	for _, address := range local(network, address) {
		listener, err := net.Listen(network, address)
		if err != nil {
			failed = err // a machine without IPv6 has one of the two
			continue
		}
		listeners = append(listeners, listener)
	}
	if len(listeners) == 0 {
		return nil, failed
	}
	return listeners, nil
}

// local gives the addresses of this machine for "[::]:PORT", which Google's guest agent passes to every
// plugin: other machines must not call it.
func local(network, address string) []string {
	host, port, err := net.SplitHostPort(address)
	if network != "tcp" || err != nil {
		return []string{address}
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return []string{address}
	}
	return []string{net.JoinHostPort("::1", port), net.JoinHostPort("127.0.0.1", port)}
}

func main() {
	listeners, err := listen(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	plugin := &greeter{stopped: make(chan struct{})}
	pb.RegisterGuestAgentPluginServer(server, plugin)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		select {
		case <-plugin.stopped:
		case <-signals:
		}
		server.GracefulStop() // answers what it was asked before it goes
	}()
	ended := make(chan error)
	for _, listener := range listeners {
		go func() { ended <- server.Serve(listener) }()
	}
	for range listeners {
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
	}
}
