package registry

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/host"
)

// Kind is what an [Update] is about.
type Kind int

// The kinds of updates.
const (
	// Snapshot holds all entries; it replaces those of earlier updates.
	Snapshot Kind = iota + 1
	// Registered is a new entry.
	Registered
	// Updated is a known entry that has changed, or whose socket answers now.
	Updated
	// Withdrawn is an entry that its plugin deregistered.
	Withdrawn
	// PluginEnded is an entry whose process has ended.
	PluginEnded
)

// Update is a message of a watch.
type Update struct {
	Kind Kind
	// Entry is the entry after the change; of a removed one, the last one.
	Entry Entry
	// Entries are those of a snapshot, sorted by type and name, the newest of each name first.
	Entries []Entry
}

// Watch is a watch of the registry. Changes arrive in order and without a gap; after a gap, such as a restart of the agent, a
// snapshot arrives instead. It is used by one goroutine.
type Watch struct {
	registry *Registry
	request  *wire.WatchRequest
	stream   grpc.ServerStreamingClient[wire.WatchResponse]
	end      context.CancelFunc
	known    []Entry
	pauses   pauses
}

// Watch watches the entries of one type, or of all where it is empty, and of one name or of all. It begins with a snapshot.
// Close it in the end.
func (r *Registry) Watch(kind, name string) *Watch {
	return &Watch{registry: r, request: &wire.WatchRequest{Type: kind, Name: name}, end: func() {}}
}

// Next is the next update; the first is a snapshot. While the agent is away it connects again and again, in longer and longer
// intervals, until ctx ends. The watch ends with the context of the call that connected it: give all calls the same one.
// Otherwise an error says that the agent refused the watch, and would again.
func (w *Watch) Next(ctx context.Context) (Update, error) {
	for {
		response, err := w.receive(ctx)
		if err == nil {
			w.pauses = pauses{}
			if update, ok := updateOf(response); ok {
				w.remember(update)
				return update, nil
			}
			continue
		}
		w.Close()
		if ctx.Err() != nil {
			return Update{}, ctx.Err()
		}
		// A watch waits for a place as well as for the agent. The end of a stream is the end of an agent.
		if !isTransient(err) && status.Code(err) != codes.ResourceExhausted {
			return Update{}, errorOf(err)
		}
		if err := w.pauses.pause(ctx); err != nil {
			return Update{}, err
		}
	}
}

// Close ends the watch; [Watch.Next] begins it again.
func (w *Watch) Close() {
	w.end()
	w.stream, w.end = nil, func() {}
}

// Known are the entries that the watch has received, the newest of each name first.
func (w *Watch) Known() []Entry { return slices.Clone(w.known) }

// Current is the current entry of the watched name, if its socket answers.
func (w *Watch) Current() (Entry, bool) {
	if len(w.known) == 0 {
		return Entry{}, false
	}
	newest := slices.MaxFunc(w.known, func(a, b Entry) int { return cmp.Compare(a.Order, b.Order) })
	return newest, newest.Verified
}

func (w *Watch) receive(ctx context.Context) (*wire.WatchResponse, error) {
	if w.stream == nil {
		ctx, end := context.WithCancel(ctx)
		stream, err := w.registry.reader.Watch(ctx, w.request)
		if err != nil {
			end()
			return nil, err
		}
		w.stream, w.end = stream, end
	}
	return w.stream.Recv()
}

func (w *Watch) remember(update Update) {
	if update.Kind == Snapshot {
		w.known = slices.Clone(update.Entries)
	} else {
		w.known = slices.DeleteFunc(w.known, update.Entry.isSameInstance)
		if update.Kind == Registered || update.Kind == Updated {
			w.known = append(w.known, update.Entry)
		}
	}
	slices.SortFunc(w.known, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), cmp.Compare(b.Order, a.Order))
	})
}

// updateOf is the message as an update; false for a kind that only later agents send.
func updateOf(response *wire.WatchResponse) (Update, bool) {
	if snapshot := response.GetSnapshot(); snapshot != nil {
		entries, err := entriesOf(snapshot.GetEntries())
		return Update{Kind: Snapshot, Entries: entries}, err == nil
	}
	change := response.GetChange()
	entry, err := entryOf(change.GetEntry())
	if err != nil {
		return Update{}, false
	}
	update := Update{Entry: entry}
	switch change.GetKind() {
	case wire.Change_REGISTERED:
		update.Kind = Registered
	case wire.Change_UPDATED:
		update.Kind = Updated
	case wire.Change_DEREGISTERED:
		update.Kind = Withdrawn
		if change.GetReason() == wire.Change_PLUGIN_ENDED {
			update.Kind = PluginEnded
		}
	}
	return update, update.Kind != 0
}
