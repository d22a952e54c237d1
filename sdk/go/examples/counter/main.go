// A whole plugin: a typed configuration, state that survives, health from memory, news of the machine.
//
// Questions: "count" counts, "settings" shows the configuration, "events" the news so far.
package main

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
)

// settings is what an operator may set.
type settings struct {
	Step int    `json:"step"`
	Unit string `json:"unit"`
}

// Validate checks what was decoded.
func (s *settings) Validate() error {
	if s.Step < 1 {
		return errors.New("step has to be 1 or more")
	}
	return nil
}

// counter counts, and remembers how far. Its methods are called from several goroutines.
type counter struct {
	plugin.Base
	health plugin.Health
	worker sync.WaitGroup

	mutex    sync.Mutex
	settings settings
	state    plugin.StateDir
	count    int
	events   []string
}

// Start begins, and returns when the work has begun.
func (c *counter) Start(ctx context.Context, start plugin.Start) error {
	if err := c.take(start.Config); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.state = start.State
	data, ok, err := c.state.Read("count")
	if err != nil {
		return err
	}
	if ok {
		if c.count, err = strconv.Atoi(string(data)); err != nil {
			return err
		}
	}
	c.worker.Go(func() { c.work(ctx) }) // ctx ends when the plugin is asked to stop
	slog.Info("started", "count", c.count)
	return nil
}

// work stands for lasting work. A worker that hangs makes the plugin unhealthy.
func (c *counter) work(ctx context.Context) {
	beat := c.health.Expect("worker", time.Minute)
	for ticks := time.Tick(5 * time.Second); ; beat.Beat() {
		select {
		case <-ticks:
		case <-ctx.Done():
			return
		}
	}
}

// take uses a configuration, or refuses it and keeps the former one.
func (c *counter) take(config plugin.Config) error {
	fresh := settings{Step: 1, Unit: "things"}
	if err := config.DecodeStrict(&fresh); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.settings = fresh
	return nil
}

// Apply takes over a configuration.
func (c *counter) Apply(_ context.Context, config plugin.Config) error { return c.take(config) }

// VMEvent is news of the machine.
func (c *counter) VMEvent(_ context.Context, event plugin.VMEvent) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.events = append(c.events, string(event))
	return nil
}

// Status answers from memory.
func (c *counter) Status(context.Context) plugin.Status { return c.health.Status() }

// Answer answers a question.
func (c *counter) Answer(_ context.Context, question string) plugin.Status {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch question {
	case "count":
		c.count += c.settings.Step
		if err := c.state.Write("count", []byte(strconv.Itoa(c.count))); err != nil {
			return plugin.Unhealthy(1, err.Error())
		}
		return plugin.Answerf("%d %s", c.count, c.settings.Unit)
	case "settings":
		return plugin.Answerf("%d %s", c.settings.Step, c.settings.Unit)
	case "events":
		return plugin.Healthy(c.events...)
	default:
		return plugin.Unhealthy(1, "I do not understand that")
	}
}

// Stop ends; the process exits afterwards.
func (c *counter) Stop(_ context.Context, stop plugin.Stop) error {
	c.worker.Wait()
	slog.Info("stopped", "cleanup", stop.Cleanup)
	return nil
}

func main() {
	slog.SetDefault(plugin.Logger())
	plugin.Main(&counter{})
}
