package main

import (
	"strings"
	"testing"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
	"github.com/guest-agent/guest-agent/sdk/go/plugintest"
)

func TestItCountsAndRemembers(t *testing.T) {
	tested := plugintest.New(t, &counter{})
	if err := tested.State.Write("count", []byte("40")); err != nil {
		t.Fatal(err)
	}
	if err := tested.Start(map[string]any{"step": 2, "unit": "sheep"}); err != nil {
		t.Fatal(err)
	}
	if answer := tested.Ask("count"); answer.Results[0] != "42 sheep" {
		t.Error(answer)
	}
	if err := tested.Apply(`{"step":0}`); err == nil || !strings.Contains(err.Error(), "step has to be 1 or more") {
		t.Error(err)
	}
	if err := tested.VMEvent(plugin.VMStartup); err != nil || tested.Ask("events").Results[0] != "startup" {
		t.Error(err)
	}
	if tested.Health().Code != 0 || tested.Ask("settings").Results[0] != "2 sheep" {
		t.Error("healthy, with the former configuration")
	}
}
