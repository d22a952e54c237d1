package registry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/guest-agent/guest-agent/sdk/go/plugintest"
	"github.com/guest-agent/guest-agent/sdk/go/registry"
)

var hello = registry.Offer{Type: "greeter", Name: "hello", Socket: "/run/hello.sock", Version: "1", Options: map[string]string{"a": "b"}}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestAnOfferIsFoundUntilItIsWithdrawn(t *testing.T) {
	ctx, agent := patience(t), plugintest.NewRegistry(t)
	provider, consumer := agent.Of("provider"), agent.Of("consumer")
	if _, err := consumer.Get(ctx, "greeter", "hello", ""); !errors.Is(err, registry.ErrNotFound) {
		t.Error(err)
	}
	waited := make(chan registry.Entry, 1)
	go func() {
		entry, _ := consumer.Wait(ctx, "greeter", "hello") // an empty entry is not the one below
		waited <- entry
	}()
	kept := must[*registry.Registration](t)(provider.Offer(ctx, hello))
	if entry := <-waited; entry.Plugin != "provider" || entry.Instance != "provider" || entry.Options["a"] != "b" {
		t.Error(entry)
	}
	if listed := must[[]registry.Entry](t)(consumer.List(ctx, "")); len(listed) != 1 || listed[0].Socket != "/run/hello.sock" {
		t.Error(listed)
	}
	if err := kept.Withdraw(ctx); err != nil {
		t.Error(err)
	}
	if listed := must[[]registry.Entry](t)(consumer.List(ctx, "greeter")); len(listed) != 0 {
		t.Error(listed)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := consumer.Wait(short, "greeter", "hello"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestAWatchTellsEveryChangeAndSurvivesARestart(t *testing.T) {
	ctx, agent := patience(t), plugintest.NewRegistry(t)
	provider := agent.Of("provider")
	watch := agent.Of("consumer").Watch("greeter", "")
	defer watch.Close()
	next := func(kind registry.Kind) registry.Update {
		t.Helper()
		update := must[registry.Update](t)(watch.Next(ctx))
		if update.Kind != kind {
			t.Fatalf("%+v is not of kind %d", update, kind)
		}
		return update
	}
	next(registry.Snapshot)
	must[registry.Entry](t)(provider.Register(ctx, hello))
	next(registry.Registered)
	changed := hello
	changed.Version = "2"
	must[registry.Entry](t)(provider.Register(ctx, changed))
	if next(registry.Updated); watch.Known()[0].Version != "2" {
		t.Error(watch.Known())
	}
	agent.Restart()
	if snapshot := next(registry.Snapshot); len(snapshot.Entries) != 1 {
		t.Error(snapshot)
	}
	if err := provider.Deregister(ctx, "greeter", "hello", ""); err != nil {
		t.Error(err)
	}
	if next(registry.Withdrawn); len(watch.Known()) != 0 {
		t.Error(watch.Known())
	}
}

func TestAKeptOfferComesBackWhenTheAgentLostIt(t *testing.T) {
	ctx, agent := patience(t), plugintest.NewRegistry(t)
	must[*registry.Registration](t)(agent.Of("provider").Offer(ctx, hello))
	agent.Lose()
	must[registry.Entry](t)(agent.Of("consumer").Wait(ctx, "greeter", "hello"))
}

func TestFollowingChangesWithTheProvider(t *testing.T) {
	ctx, agent := patience(t), plugintest.NewRegistry(t)
	following := agent.Of("consumer").Follow("greeter", "hello")
	defer following.Close()
	if following.Now() != nil {
		t.Error("nobody offers it yet")
	}
	must[registry.Entry](t)(agent.Of("one").Register(ctx, hello))
	if first := must[*registry.Connection](t)(following.Connection(ctx)); first.Entry.Plugin != "one" {
		t.Error(first.Entry)
	}
	must[registry.Entry](t)(agent.Of("two").Register(ctx, hello))
	for must[*registry.Connection](t)(following.Connection(ctx)).Entry.Plugin != "two" {
		if ctx.Err() != nil {
			t.Fatal("it does not follow")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestARefusalIsNotTriedAgain(t *testing.T) {
	ctx, agent := patience(t), plugintest.NewRegistry(t)
	_, err := agent.Of("provider").Register(ctx, registry.Offer{})
	var refused *registry.Refused
	if !errors.As(err, &refused) || refused.Code != codes.InvalidArgument {
		t.Error(err)
	}
}

func TestWithoutAnAgentThereIsNoRegistry(t *testing.T) {
	if _, err := registry.FromEnv(); !errors.Is(err, registry.ErrNotUnderAgent) {
		t.Error(err)
	}
	agent := plugintest.NewRegistry(t)
	agent.SetEnv(t, "me")
	own := must[*registry.Registry](t)(registry.FromEnv())
	if entry := must[registry.Entry](t)(own.Register(patience(t), hello)); entry.Plugin != "me" {
		t.Error(entry)
	}
}
