// A whole plugin in Go: it answers requests with a greeting, counts them, and remembers the count.
//
// What it is started with and what each call means is in docs/writing-plugins.md.
package main

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
)

// greeter is the plugin. Calls come from several goroutines at once, so what changes is behind the mutex.
type greeter struct {
	plugin.Base

	mutex    sync.Mutex
	greeting string
	state    plugin.StateDir
	count    int
}

// Start comes once. Return when the work has begun, not when it is done.
func (g *greeter) Start(ctx context.Context, start plugin.Start) error {
	if err := g.Apply(ctx, start.Config); err != nil {
		return err
	}
	// This directory is the plugin's alone and survives restarts and upgrades.
	data, _, err := start.State.Read("count")
	if err != nil {
		return err // the agent shows the text in its events and tries again
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.state = start.State
	g.count, _ = strconv.Atoi(string(data))    // none, or a damaged one, counts from 0
	slog.Info("started", "greetings", g.count) // `guest-agent logs NAME` shows it
	return nil
}

// Apply brings another configuration. An error refuses it: the agent reports that the old one is still in use.
func (g *greeter) Apply(_ context.Context, config plugin.Config) error {
	text, err := config.Text()
	if err != nil {
		return err
	}
	if strings.ContainsRune(text, '\n') {
		return plugin.BadConfigf("a greeting is one line")
	}
	if text == "" {
		text = "hello"
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.greeting = text
	return nil
}

// Answer answers a question. Health checks are answered by plugin.Base.
func (g *greeter) Answer(_ context.Context, name string) plugin.Status {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.count++
	if err := g.state.Write("count", []byte(strconv.Itoa(g.count))); err != nil {
		return plugin.Unhealthy(1, err.Error()) // unhealthy, but alive
	}
	return plugin.Answerf("%s, %s", g.greeting, name)
}

// Stop comes before a restart, an upgrade, and with cleanup before the plugin is removed for good: then wipe what is outside
// of the state directory, which the agent deletes itself.
func (g *greeter) Stop(_ context.Context, stop plugin.Stop) error {
	slog.Info("stopping", "cleanup", stop.Cleanup)
	return nil
}

func main() {
	slog.SetDefault(plugin.Logger())
	plugin.Main(&greeter{})
}
