package plugin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/plugincomm"
)

const (
	// signalDeadline is how long Stop may take when a signal asks for it, which names no deadline.
	signalDeadline = 10 * time.Second
	// After the end, calls in flight get until the stop's deadline, but no less and no more than these two.
	shortestDrain = 200 * time.Millisecond
	longestDrain  = 2 * time.Second
	// maxCalls is how many calls a connection may have at once; further ones wait.
	maxCalls = 64
)

// Server is a plugin bound to its address. It leaves the process alone: no signal handler, no exit. [Main] and [Serve] use
// it for whole processes.
type Server struct {
	life      *life
	listening *listening
}

// Bind listens on an address. Connections wait until [Server.Run].
func Bind(plugin Plugin, address Address, log ErrorLog) (*Server, error) {
	listening, err := listen(address)
	if err != nil {
		return nil, err
	}
	return &Server{life: newLife(plugin, log), listening: listening}, nil
}

// Address is where the plugin listens; for port 0 with the port that the kernel chose.
func (s *Server) Address() Address { return s.listening.address }

// Run serves until the agent stopped the plugin, or until ctx ends, which stops it as well (keeping its traces, within 10
// s). Calls in flight are finished. An error of Stop is returned only where ctx asked for it: the agent gets the others.
func (s *Server) Run(ctx context.Context) error {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(maxCalls))
	wire.RegisterGuestAgentPluginServer(server, &service{life: s.life})
	defer s.listening.close()
	served := make(chan error, len(s.listening.sockets))
	for _, socket := range s.listening.sockets {
		go func() { served <- server.Serve(socket) }()
	}
	var stopped error
	select {
	case err := <-served:
		return fmt.Errorf("the server broke: %w", err)
	case <-ctx.Done():
		if err := s.life.end(Stop{Deadline: signalDeadline}); err != nil {
			stopped = fmt.Errorf("stopping on a signal failed: %w", err)
		}
	case <-s.life.ended:
	}
	drained := make(chan struct{})
	go func() { server.GracefulStop(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(min(max(time.Until(s.life.deadline), shortestDrain), longestDrain)):
		server.Stop()
	}
	return stopped
}
