// A plugin that offers a greeting to other plugins, on a socket of its own. ../consumer is the other half.
//
// Its own arguments are the name in the registry and the greeting.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
	"github.com/guest-agent/guest-agent/sdk/go/registry"
)

type provider struct {
	plugin.Base
	name, greeting string
}

// Start listens first: the agent tries whether the socket answers.
func (p *provider) Start(ctx context.Context, start plugin.Start) error {
	if err := start.State.Remove("greet.sock"); err != nil {
		return err
	}
	socket := start.State.Path("greet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go p.greet(listener)
	agent, err := registry.FromEnv()
	if err != nil {
		return err
	}
	// The entry goes with the process.
	_, err = agent.Offer(ctx, registry.Offer{Type: "greeter", Name: p.name, Socket: socket, Version: "1"})
	return err
}

// greet greets every client. The agent connects as well, to see whether somebody listens, and leaves.
func (p *provider) greet(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = client.Write([]byte(p.greeting))
		_ = client.Close()
	}
}

func main() {
	arguments, err := plugin.ProcessArguments()
	if err != nil || len(arguments.Own) != 2 {
		fmt.Fprintln(os.Stderr, "two arguments: the name and the greeting;", err)
		os.Exit(1)
	}
	plugin.Main(&provider{name: arguments.Own[0], greeting: arguments.Own[1]})
}
