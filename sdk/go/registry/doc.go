// Package registry offers things of a plugin to other plugins, and finds what they offer.
//
//	registry, err := registry.FromEnv()
//	// A provider listens on a socket first, then registers it.
//	kept, err := registry.Offer(ctx, registry.Offer{Type: "greeter", Name: "hello", Socket: "/run/hello.sock"})
//	// A consumer waits for it, wherever and whenever it is offered.
//	entry, err := registry.Wait(ctx, "greeter", "hello")
//
// What to use:
//
//	offer something for as long as the plugin runs      Registry.Offer
//	look once                                           Registry.List, Registry.Get
//	wait until it is there                              Registry.Wait
//	receive every change                                Registry.Watch
//	connect to the current provider                     Registry.Dispense
//	always be connected to the current provider         Registry.Follow
//	test it without an agent                            plugintest.NewRegistry
//
// An entry ends with the process that registered it, and survives restarts of the agent. While the agent cannot be reached,
// calls are tried again for a while, and a watch connects again by itself and begins with a snapshot of all entries.
package registry
