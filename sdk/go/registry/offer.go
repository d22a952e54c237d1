package registry

import (
	"fmt"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/host"
)

// Offer is what a plugin offers. Types, names and instances consist of letters, digits, '.', '_' and '-'. Every plugin may
// read it, so it must not hold secrets.
type Offer struct {
	// Type is the type of the offer, such as csi-node.
	Type string
	// Name is unique within the type.
	Name string
	// Instance is unique within the name; empty for the plugin's own name.
	Instance string
	// Version may be empty.
	Version string
	// Socket is the absolute path of the unix socket on which it answers.
	Socket string
	// Options are for consumers.
	Options map[string]string
}

// Entry is an offer in the registry.
type Entry struct {
	Offer
	// Plugin is the plugin that offers it.
	Plugin string
	// Epoch is the life of that plugin: a later process has a higher number.
	Epoch uint64
	// Verified says whether the socket has answered since the agent started.
	Verified bool
	// Order is the number of the entry: of the instances of a name the one with the highest number is current.
	Order uint64
}

func (o Offer) wire() *wire.Offer {
	return &wire.Offer{
		Type: o.Type, Name: o.Name, Instance: o.Instance, Version: o.Version, SocketPath: o.Socket, Options: o.Options,
	}
}

func entryOf(entry *wire.Entry) (Entry, error) {
	offer := entry.GetOffer()
	if offer == nil {
		return Entry{}, fmt.Errorf("%w: it answered without an entry", ErrUnreachable)
	}
	return Entry{
		Offer: Offer{
			Type: offer.GetType(), Name: offer.GetName(), Instance: offer.GetInstance(), Version: offer.GetVersion(),
			Socket: offer.GetSocketPath(), Options: offer.GetOptions(),
		},
		Plugin: entry.GetPlugin(), Epoch: entry.GetEpoch(), Verified: entry.GetVerified(), Order: entry.GetOrder(),
	}, nil
}

func (e Entry) isSameInstance(other Entry) bool {
	return e.Type == other.Type && e.Name == other.Name && e.Instance == other.Instance
}
