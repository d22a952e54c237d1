// A plugin that uses what another one offers, through restarts of that plugin. ../provider is the other half.
//
// Its own argument is the name that it follows. Questions: "greet" asks the current provider for its greeting, "heard" lists
// the changes of the type since the start.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
	"github.com/guest-agent/guest-agent/sdk/go/registry"
)

var words = map[registry.Kind]string{
	registry.Snapshot: "SNAPSHOT", registry.Registered: "REGISTERED", registry.Updated: "UPDATED",
	registry.Withdrawn: "WITHDRAWN", registry.PluginEnded: "PLUGIN_ENDED",
}

type consumer struct {
	plugin.Base
	name      string
	following *registry.Following

	mutex sync.Mutex
	heard []string
}

// Start follows the greeter, and watches all of them.
func (c *consumer) Start(ctx context.Context, _ plugin.Start) error {
	agent, err := registry.FromEnv()
	if err != nil {
		return err
	}
	c.following = agent.Follow("greeter", c.name)
	go c.watch(ctx, agent.Watch("greeter", ""))
	return nil
}

// watch writes down every change.
func (c *consumer) watch(ctx context.Context, watch *registry.Watch) {
	defer watch.Close()
	for {
		update, err := watch.Next(ctx)
		if err != nil {
			return
		}
		what := update.Entry.Name
		if update.Kind == registry.Snapshot {
			what = fmt.Sprint(len(update.Entries))
		}
		c.mutex.Lock()
		c.heard = append(c.heard, words[update.Kind]+" "+what)
		c.mutex.Unlock()
	}
}

// Answer answers a question.
func (c *consumer) Answer(ctx context.Context, question string) plugin.Status {
	if question == "heard" {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		return plugin.Healthy(c.heard...)
	}
	greeting, err := c.greet(ctx)
	if err != nil {
		return plugin.Unhealthy(1, err.Error())
	}
	return plugin.Healthy(greeting)
}

func (c *consumer) greet(ctx context.Context) (string, error) {
	// Shorter than the agent waits for an answer.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	provider, err := c.following.Connection(ctx)
	if err != nil {
		return "", err
	}
	// A gRPC client would be made of the connection: pb.NewGreeterClient(provider).
	var dialer net.Dialer
	client, err := dialer.DialContext(ctx, "unix", provider.Entry.Socket)
	if err != nil {
		return "", err
	}
	defer client.Close()
	greeting, err := io.ReadAll(io.LimitReader(client, 1024))
	return string(greeting), err
}

func main() {
	arguments, err := plugin.ProcessArguments()
	if err != nil || len(arguments.Own) != 1 {
		fmt.Fprintln(os.Stderr, "one argument: the name to follow;", err)
		os.Exit(1)
	}
	plugin.Main(&consumer{name: arguments.Own[0]})
}
