// Package plugintest tests plugins without an agent: it calls them as guest-agent does, over a real socket, and it has a
// registry and an agent that asks admission plugins.
//
//	func TestGreets(t *testing.T) {
//		tested := plugintest.New(t, &greeter{})
//		if err := tested.Start(map[string]any{"greeting": "salut"}); err != nil {
//			t.Fatal(err)
//		}
//		if answer := tested.Ask("you"); answer.Results[0] != "salut, you" {
//			t.Error(answer)
//		}
//	}
package plugintest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/plugincomm"
	"github.com/guest-agent/guest-agent/sdk/go/plugin"
)

// patience is longer than anything takes here that is not broken.
const patience = 30 * time.Second

// Plugin is a plugin that is being served on a socket of the test, with an agent that calls it.
type Plugin struct {
	// State is the plugin's own directory.
	State plugin.StateDir

	t      testing.TB
	client wire.GuestAgentPluginClient
	served chan error
	end    context.CancelFunc
}

// New serves a plugin until the test ends. It is not started yet.
func New(t testing.TB, tested plugin.Plugin) *Plugin {
	t.Helper()
	// Paths of sockets have to be short, and those of t.TempDir have the test's name in them.
	folder, err := os.MkdirTemp("", "plugin")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	state := filepath.Join(folder, "state")
	check(t, os.Mkdir(state, 0o700))
	address, err := plugin.UnixAddress(filepath.Join(folder, "plugin.sock"))
	check(t, err)
	server, err := plugin.Bind(tested, address, "")
	check(t, err)
	connection, err := grpc.NewClient(address.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	check(t, err)
	ctx, end := context.WithCancel(context.Background())
	p := &Plugin{
		State: plugin.StateDir(state), t: t, client: wire.NewGuestAgentPluginClient(connection), served: make(chan error, 1), end: end,
	}
	go func() { p.served <- server.Run(ctx) }()
	t.Cleanup(func() {
		_ = connection.Close()
		end()
		p.Ended()
	})
	return p
}

// Start starts the plugin with a configuration: nil for none, a string for text, a map for a structure. The error is a status of
// gRPC, as the agent gets it.
func (p *Plugin) Start(config any) error {
	p.t.Helper()
	request := &wire.StartRequest{Config: &wire.StartRequest_Config{StateDirectoryPath: string(p.State)}}
	switch given := config.(type) {
	case nil:
	case string:
		request.ServiceConfig = &wire.StartRequest_StringConfig{StringConfig: given}
	case map[string]any:
		request.ServiceConfig = &wire.StartRequest_StructConfig{StructConfig: p.structure(given)}
	default:
		p.t.Fatalf("a configuration is a string or a map, and not %T", config)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := p.client.Start(ctx, request)
	return err
}

// Apply hands over a configuration, as in [Plugin.Start].
func (p *Plugin) Apply(config any) error {
	p.t.Helper()
	request := &wire.ApplyRequest{}
	switch given := config.(type) {
	case nil:
	case string:
		request.ServiceConfig = &wire.ApplyRequest_StringConfig{StringConfig: given}
	case map[string]any:
		request.ServiceConfig = &wire.ApplyRequest_StructConfig{StructConfig: p.structure(given)}
	default:
		p.t.Fatalf("a configuration is a string or a map, and not %T", config)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := p.client.Apply(ctx, request)
	return err
}

// VMEvent sends news of the machine.
func (p *Plugin) VMEvent(event plugin.VMEvent) error {
	p.t.Helper()
	return p.Apply(`{"Command":"VmEvent","Event":"` + string(event) + `"}`)
}

// Health makes a health check.
func (p *Plugin) Health() plugin.Status {
	p.t.Helper()
	return p.status(&wire.GetStatusRequest{})
}

// Ask asks a question.
func (p *Plugin) Ask(question string) plugin.Status {
	p.t.Helper()
	return p.status(&wire.GetStatusRequest{Data: &question})
}

func (p *Plugin) status(request *wire.GetStatusRequest) plugin.Status {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := p.client.GetStatus(ctx, request)
	check(p.t, err)
	return plugin.Status{Code: answer.GetCode(), Results: answer.GetResults()}
}

// Stop stops the plugin as the agent does, with this deadline.
func (p *Plugin) Stop(stop plugin.Stop) error {
	p.t.Helper()
	request := &wire.StopRequest{Cleanup: stop.Cleanup, Deadline: durationpb.New(stop.Deadline)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := p.client.Stop(ctx, request)
	return err
}

// Signal stops the plugin as SIGTERM does, and waits for its end.
func (p *Plugin) Signal() error {
	p.t.Helper()
	p.end()
	return p.Ended()
}

// Ended waits until the plugin's server has ended, and returns its error.
func (p *Plugin) Ended() error {
	p.t.Helper()
	select {
	case err := <-p.served:
		p.served <- err // for the next who asks
		return err
	case <-time.After(patience):
		p.t.Fatal("the plugin does not end")
		return nil
	}
}

func (p *Plugin) structure(fields map[string]any) *structpb.Struct {
	p.t.Helper()
	made, err := structpb.NewStruct(fields)
	check(p.t, err)
	return made
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
