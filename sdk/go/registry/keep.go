package registry

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Registration is an offer that is kept: it is registered again if the agent loses it, because its store was damaged, say.
type Registration struct {
	registry *Registry
	// Entry is the entry at the time of its registration.
	Entry Entry
	end   context.CancelFunc
	ended chan struct{}
}

// Offer offers something until the process ends or [Registration.Withdraw] is called. The plugin must listen on the socket
// already. It returns when the agent has made the entry durable; ctx is about that call alone.
func (r *Registry) Offer(ctx context.Context, offer Offer) (*Registration, error) {
	entry, err := r.Register(ctx, offer)
	if err != nil {
		return nil, err
	}
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	kept := &Registration{registry: r, Entry: entry, end: end, ended: make(chan struct{})}
	go kept.keep(keeping, offer)
	return kept, nil
}

// Withdraw deregisters the offer.
func (k *Registration) Withdraw(ctx context.Context) error {
	k.end()
	<-k.ended
	return k.registry.Deregister(ctx, k.Entry.Type, k.Entry.Name, k.Entry.Instance)
}

// keep registers the offer again when it vanishes while the process lives.
func (k *Registration) keep(ctx context.Context, offer Offer) {
	defer close(k.ended)
	watch := k.registry.Watch(offer.Type, offer.Name)
	defer watch.Close()
	var pauses pauses
	for {
		update, err := watch.Next(ctx)
		if err != nil {
			return // a refusal is final: the ticket is no longer this process's, so the entry is not either
		}
		isThere := false
		for _, known := range watch.known {
			isThere = isThere || known.isSameInstance(k.Entry)
		}
		if isThere {
			pauses.step = 0
			continue
		}
		vanished := (update.Kind == Withdrawn || update.Kind == PluginEnded) && update.Entry.isSameInstance(k.Entry)
		if update.Kind == Snapshot || vanished {
			if pauses.pause(ctx) != nil {
				return
			}
			_, _ = k.registry.Register(ctx, offer) // one that fails is tried again with the next snapshot
		}
	}
}

// drain is how long calls of a former instance may take to their end.
const drain = 30 * time.Second

func isSameProcess(a, b Entry) bool {
	return a.isSameInstance(b) && a.Plugin == b.Plugin && a.Epoch == b.Epoch && a.Socket == b.Socket
}

// Following is always connected to the current instance of a name, while providers change, restart or are upgraded.
type Following struct {
	kind, name string
	end        context.CancelFunc
	ended      chan struct{}

	mutex   sync.Mutex
	current *Connection
	refused error
	changed chan struct{} // closed by the next change
}

// Follow follows the current instance of a name until [Following.Close].
func (r *Registry) Follow(kind, name string) *Following {
	ctx, end := context.WithCancel(context.Background())
	f := &Following{kind: kind, name: name, end: end, ended: make(chan struct{}), changed: make(chan struct{})}
	go f.follow(ctx, r.Watch(kind, name))
	return f
}

// Connection is the connection to the current instance, waiting until a plugin offers one or ctx ends. It is closed soon after
// another instance became current: ask for it before every use, and do not close it.
func (f *Following) Connection(ctx context.Context) (*Connection, error) {
	for {
		f.mutex.Lock()
		current, refused, changed := f.current, f.refused, f.changed
		f.mutex.Unlock()
		if current != nil || refused != nil {
			return current, refused
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("no %s of the name %s was offered: %w", f.kind, f.name, ctx.Err())
		}
	}
}

// Now is the connection to the current instance; nil where no plugin offers one now.
func (f *Following) Now() *Connection {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.current
}

// Close ends the following and its connection.
func (f *Following) Close() {
	f.end()
	<-f.ended
}

func (f *Following) follow(ctx context.Context, watch *Watch) {
	defer close(f.ended)
	defer watch.Close()
	for {
		if _, err := watch.Next(ctx); err != nil {
			f.set(nil, err)
			return
		}
		newest, ok := watch.Current()
		// A restarted agent has not tried the socket yet; the connection to the same process is as good as before.
		if before := f.Now(); before != nil && isSameProcess(before.Entry, newest) {
			continue
		}
		var connection *Connection
		var err error
		if ok {
			connection, err = connect(newest)
		}
		f.set(connection, err)
	}
}

func (f *Following) set(connection *Connection, refused error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.current != nil {
		old := f.current
		time.AfterFunc(drain, func() { _ = old.Close() }) // of an instance that is not current any more
	}
	f.current, f.refused = connection, refused
	close(f.changed)
	f.changed = make(chan struct{})
}
