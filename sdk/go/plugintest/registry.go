package plugintest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/host"
	"github.com/guest-agent/guest-agent/sdk/go/plugin"
	"github.com/guest-agent/guest-agent/sdk/go/registry"
)

// Registry is an agent's registry in this process. It does not try whether sockets answer, and remembers nothing on a disk.
type Registry struct {
	wire.UnimplementedRegistrarServer
	wire.UnimplementedRegistryServer

	t      testing.TB
	socket string
	server *grpc.Server

	mutex    sync.Mutex
	entries  []*wire.Entry
	watchers []chan *wire.Change
	changed  chan struct{}
	sequence uint64
}

// NewRegistry serves a registry until the test ends.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	folder, err := os.MkdirTemp("", "registry")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	r := &Registry{t: t, socket: filepath.Join(folder, "host.sock"), changed: make(chan struct{})}
	r.listen()
	t.Cleanup(func() { r.server.Stop() })
	return r
}

// Of is the registry as a plugin of this name sees it.
func (r *Registry) Of(name string) *registry.Registry {
	r.t.Helper()
	made, err := registry.New(r.socket, plugin.Ticket(name))
	check(r.t, err)
	r.t.Cleanup(func() { _ = made.Close() })
	return made
}

// SetEnv sets the environment of the test as that of a plugin of this name, so that [registry.FromEnv] works.
func (r *Registry) SetEnv(t *testing.T, name string) {
	t.Helper()
	t.Setenv(plugin.EnvName, name)
	t.Setenv(plugin.EnvHostSocket, r.socket)
	t.Setenv(plugin.EnvTicket, name)
}

// Restart ends all connections and forgets nothing, as a restart of the agent does.
func (r *Registry) Restart() {
	r.t.Helper()
	r.server.Stop()
	r.listen()
}

// Lose forgets all entries without notice, as a damaged store does, and restarts.
func (r *Registry) Lose() {
	r.t.Helper()
	r.server.Stop()
	r.mutex.Lock()
	r.entries = nil
	r.mutex.Unlock()
	r.listen()
}

func (r *Registry) listen() {
	r.t.Helper()
	_ = os.Remove(r.socket) // of the former server
	listener, err := net.Listen("unix", r.socket)
	check(r.t, err)
	r.server = grpc.NewServer()
	wire.RegisterRegistrarServer(r.server, r)
	wire.RegisterRegistryServer(r.server, r)
	go func(server *grpc.Server) { _ = server.Serve(listener) }(r.server)
}

// caller is the plugin that calls: tickets are names here.
func caller(ctx context.Context) (string, error) {
	given, _ := metadata.FromIncomingContext(ctx)
	for _, value := range given.Get("authorization") {
		if name, ok := strings.CutPrefix(value, "Bearer "); ok {
			return name, nil
		}
	}
	return "", status.Error(codes.Unauthenticated, "no ticket")
}

// Register is a call of a plugin.
func (r *Registry) Register(ctx context.Context, request *wire.RegisterRequest) (*wire.RegisterResponse, error) {
	name, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	offer := request.GetOffer()
	if offer.GetType() == "" || offer.GetName() == "" || offer.GetSocketPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "an offer has a type, a name and a socket")
	}
	if offer.GetInstance() == "" {
		offer.Instance = name
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sequence++
	entry := &wire.Entry{Offer: offer, Plugin: name, Epoch: 1, Verified: true, Order: r.sequence}
	if at := r.find(offer.GetType(), offer.GetName(), offer.GetInstance()); at >= 0 {
		entry.Order = r.entries[at].GetOrder()
		r.entries[at] = entry
		r.tell(&wire.Change{Kind: wire.Change_UPDATED, Entry: entry})
	} else {
		r.entries = append(r.entries, entry)
		r.tell(&wire.Change{Kind: wire.Change_REGISTERED, Entry: entry})
	}
	return &wire.RegisterResponse{Entry: entry}, nil
}

// Deregister is a call of a plugin.
func (r *Registry) Deregister(ctx context.Context, request *wire.DeregisterRequest) (*wire.DeregisterResponse, error) {
	name, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	instance := request.GetInstance()
	if instance == "" {
		instance = name
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if at := r.find(request.GetType(), request.GetName(), instance); at >= 0 {
		entry := r.entries[at]
		r.entries = slices.Delete(r.entries, at, at+1)
		r.tell(&wire.Change{Kind: wire.Change_DEREGISTERED, Reason: wire.Change_ASKED, Entry: entry})
	}
	return &wire.DeregisterResponse{}, nil
}

// List is a call of a plugin.
func (r *Registry) List(ctx context.Context, request *wire.ListRequest) (*wire.ListResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	answer := &wire.ListResponse{Sequence: r.sequence}
	for _, entry := range r.selected(request.GetType(), "") {
		names := func(other *wire.Entry) bool { return other.GetOffer().GetName() == entry.GetOffer().GetName() }
		if request.GetAllInstances() || !slices.ContainsFunc(answer.GetEntries(), names) {
			answer.Entries = append(answer.Entries, entry)
		}
	}
	return answer, nil
}

// Get is a call of a plugin.
func (r *Registry) Get(ctx context.Context, request *wire.GetRequest) (*wire.GetResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, entry := range r.selected(request.GetType(), request.GetName()) {
		if request.GetInstance() == "" || request.GetInstance() == entry.GetOffer().GetInstance() {
			return &wire.GetResponse{Entry: entry}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no %s of the name %s is registered", request.GetType(), request.GetName())
}

// Wait is a call of a plugin.
func (r *Registry) Wait(ctx context.Context, request *wire.WaitRequest) (*wire.WaitResponse, error) {
	for {
		r.mutex.Lock()
		changed := r.changed
		r.mutex.Unlock()
		get := &wire.GetRequest{Type: request.GetType(), Name: request.GetName(), Instance: request.GetInstance()}
		found, err := r.Get(ctx, get)
		if status.Code(err) != codes.NotFound {
			return &wire.WaitResponse{Entry: found.GetEntry()}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// Watch is a call of a plugin.
func (r *Registry) Watch(request *wire.WatchRequest, stream wire.Registry_WatchServer) error {
	if _, err := caller(stream.Context()); err != nil {
		return err
	}
	changes := make(chan *wire.Change, 1024)
	r.mutex.Lock()
	snapshot := &wire.Snapshot{Entries: slices.Clone(r.selected(request.GetType(), request.GetName())), Sequence: r.sequence}
	r.watchers = append(r.watchers, changes)
	r.mutex.Unlock()
	defer func() {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(other chan *wire.Change) bool { return other == changes })
	}()
	if err := stream.Send(&wire.WatchResponse{Told: &wire.WatchResponse_Snapshot{Snapshot: snapshot}}); err != nil {
		return err
	}
	for {
		select {
		case change := <-changes:
			if !isSelected(change.GetEntry(), request.GetType(), request.GetName()) {
				continue
			}
			if err := stream.Send(&wire.WatchResponse{Told: &wire.WatchResponse_Change{Change: change}}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Dispense is a call of a plugin.
func (r *Registry) Dispense(ctx context.Context, request *wire.DispenseRequest) (*wire.DispenseResponse, error) {
	get := &wire.GetRequest{Type: request.GetType(), Name: request.GetName(), Instance: request.GetInstance()}
	found, err := r.Get(ctx, get)
	if err != nil {
		return nil, err
	}
	return &wire.DispenseResponse{Target: "unix:" + found.GetEntry().GetOffer().GetSocketPath(), Entry: found.GetEntry()}, nil
}

// The mutex is held in what follows.

func (r *Registry) tell(change *wire.Change) {
	r.sequence++
	change.Sequence = r.sequence
	for _, watcher := range r.watchers {
		watcher <- change
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Registry) find(kind, name, instance string) int {
	return slices.IndexFunc(r.entries, func(entry *wire.Entry) bool {
		return isSelected(entry, kind, name) && entry.GetOffer().GetInstance() == instance
	})
}

// selected are the entries of a type and name, or of all where they are empty, the newest first.
func (r *Registry) selected(kind, name string) []*wire.Entry {
	var found []*wire.Entry
	for _, entry := range slices.Backward(r.entries) {
		if isSelected(entry, kind, name) {
			found = append(found, entry)
		}
	}
	slices.SortStableFunc(found, func(a, b *wire.Entry) int {
		return strings.Compare(a.GetOffer().GetType()+"\x00"+a.GetOffer().GetName(), b.GetOffer().GetType()+"\x00"+b.GetOffer().GetName())
	})
	return found
}

func isSelected(entry *wire.Entry, kind, name string) bool {
	offer := entry.GetOffer()
	return (kind == "" || offer.GetType() == kind) && (name == "" || offer.GetName() == name)
}
