package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	callticket "github.com/guest-agent/guest-agent/sdk/go/internal/ticket"
	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/host"
	"github.com/guest-agent/guest-agent/sdk/go/plugin"
)

const (
	// patience is how long a call is tried again while the agent cannot be reached.
	patience = 20 * time.Second
	// callTimeout is the timeout of one try; only a wait may take longer.
	callTimeout = 15 * time.Second
	// waitSlice is the longest wait in one request, so that a connection that broke unseen delays it no longer than this.
	waitSlice = time.Minute
	// keepAlive is how long a connection may be silent before the agent is pinged.
	keepAlive = 20 * time.Second
)

// Registry is the agent's registry, as one plugin sees it. It may be used from several goroutines; they share one connection,
// which is made on first use and again after each break.
type Registry struct {
	connection *grpc.ClientConn
	registrar  wire.RegistrarClient
	reader     wire.RegistryClient
}

// FromEnv is the registry of the agent that started this plugin. It does not connect yet.
func FromEnv() (*Registry, error) {
	environment := plugin.Env()
	if environment.HostSocket == "" || environment.Ticket == "" {
		return nil, fmt.Errorf("%w: %s and %s are not set", ErrNotUnderAgent, plugin.EnvHostSocket, plugin.EnvTicket)
	}
	return New(environment.HostSocket, environment.Ticket)
}

// New is the registry behind a host socket, with the ticket of a plugin.
func New(socket string, ticket plugin.Ticket) (*Registry, error) {
	connection, err := dial(socket, callticket.Options("authorization", "Bearer "+ticket.Reveal())...)
	if err != nil {
		return nil, err
	}
	return &Registry{
		connection: connection, registrar: wire.NewRegistrarClient(connection), reader: wire.NewRegistryClient(connection),
	}, nil
}

// dial makes a connection to a unix socket, which is made on first use.
func dial(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	toSocket := func(ctx context.Context, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	pauses := backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.5, MaxDelay: longestPause}
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(toSocket),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: callTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAlive}),
	)
	// A name that nobody resolves; the servers of unix sockets are called localhost.
	connection, err := grpc.NewClient("passthrough:///localhost", options...)
	if err != nil {
		return nil, fmt.Errorf("the socket %s cannot be used: %w", socket, err)
	}
	return connection, nil
}

// Close closes the connection. Entries stay until the process ends.
func (r *Registry) Close() error { return r.connection.Close() }

// Register registers an instance once, or changes an instance of this plugin. Most plugins want [Registry.Offer].
func (r *Registry) Register(ctx context.Context, offer Offer) (Entry, error) {
	answer, err := call(ctx, func(ctx context.Context) (*wire.RegisterResponse, error) {
		return r.registrar.Register(ctx, &wire.RegisterRequest{Offer: offer.wire()})
	})
	if err != nil {
		return Entry{}, err
	}
	return entryOf(answer.GetEntry())
}

// Deregister deregisters an instance; an empty instance is the one with this plugin's own name. An unknown instance is no
// error; a type that no plugin ever offered is.
func (r *Registry) Deregister(ctx context.Context, kind, name, instance string) error {
	_, err := call(ctx, func(ctx context.Context) (*wire.DeregisterResponse, error) {
		return r.registrar.Deregister(ctx, &wire.DeregisterRequest{Type: kind, Name: name, Instance: instance})
	})
	return err
}

// List is the current instance of every name of a type, or of all types where it is empty.
func (r *Registry) List(ctx context.Context, kind string) ([]Entry, error) {
	answer, err := call(ctx, func(ctx context.Context) (*wire.ListResponse, error) {
		return r.reader.List(ctx, &wire.ListRequest{Type: kind})
	})
	if err != nil {
		return nil, err
	}
	return entriesOf(answer.GetEntries())
}

// Get is one entry: an instance exactly, or the current one where it is empty. [ErrNotFound] says what is unknown.
func (r *Registry) Get(ctx context.Context, kind, name, instance string) (Entry, error) {
	answer, err := call(ctx, func(ctx context.Context) (*wire.GetResponse, error) {
		return r.reader.Get(ctx, &wire.GetRequest{Type: kind, Name: name, Instance: instance})
	})
	if err != nil {
		return Entry{}, err
	}
	return entryOf(answer.GetEntry())
}

// Wait waits until a name is offered and its socket answers, or until ctx ends.
func (r *Registry) Wait(ctx context.Context, kind, name string) (Entry, error) {
	var pauses pauses
	for {
		slice := waitSlice
		if deadline, ok := ctx.Deadline(); ok {
			slice = min(slice, time.Until(deadline))
		}
		request := &wire.WaitRequest{Type: kind, Name: name, TimeoutMs: uint64(max(slice.Milliseconds(), 1))}
		// A little longer than the agent's own deadline, so that its answer arrives first.
		one, cancel := context.WithTimeout(ctx, slice+time.Second)
		answer, err := r.reader.Wait(one, request)
		cancel()
		switch {
		case err == nil:
			return entryOf(answer.GetEntry())
		case ctx.Err() != nil:
		case status.Code(err) == codes.DeadlineExceeded:
			continue
		case !isTransient(err):
			return Entry{}, errorOf(err)
		}
		if pauses.pause(ctx) != nil {
			return Entry{}, fmt.Errorf("no %s of the name %s was offered: %w", kind, name, ctx.Err())
		}
	}
}

// Dispense connects to the current instance of a name. Close the connection when it is not needed any more. A client is made
// of it as of every connection: pb.NewNodeClient(connection).
func (r *Registry) Dispense(ctx context.Context, kind, name string) (*Connection, error) {
	entry, err := r.Get(ctx, kind, name, "")
	if err != nil {
		return nil, err
	}
	return connect(entry)
}

// Connection is a connection to an instance, made on first use.
type Connection struct {
	*grpc.ClientConn
	// Entry is the entry of the instance.
	Entry Entry
}

func connect(entry Entry) (*Connection, error) {
	connection, err := dial(entry.Socket)
	if err != nil {
		return nil, err
	}
	return &Connection{ClientConn: connection, Entry: entry}, nil
}

// call tries again for a while until the agent answers.
func call[T any](ctx context.Context, once func(context.Context) (T, error)) (T, error) {
	deadline := time.Now().Add(patience)
	var pauses pauses
	for {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := once(one)
		cancel()
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, errors.Join(ctx.Err(), errorOf(err))
		}
		if !isTransient(err) || time.Now().After(deadline) {
			return answer, errorOf(err)
		}
		if pauses.pause(ctx) != nil {
			return answer, errors.Join(ctx.Err(), errorOf(err))
		}
	}
}

func entriesOf(entries []*wire.Entry) ([]Entry, error) {
	made := make([]Entry, 0, len(entries))
	for _, entry := range entries {
		one, err := entryOf(entry)
		if err != nil {
			return nil, err
		}
		made = append(made, one)
	}
	return made, nil
}
