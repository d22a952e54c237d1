package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
)

const asPlugin = "TEST_AS_PLUGIN"

// TestMain makes a plugin of this program where a test asks for one.
func TestMain(m *testing.M) {
	switch os.Getenv(asPlugin) {
	case "":
		os.Exit(m.Run())
	case "crash":
		plugin.Main(&crashing{})
	}
	plugin.Main(&scripted{})
}

// crashing crashes in a goroutine of its own as soon as it is asked to stop.
type crashing struct{ onlyStart }

func (*crashing) Stop(context.Context, plugin.Stop) error {
	go panic("a goroutine of the plugin's own")
	select {}
}

// launch starts this program as a plugin.
func launch(t *testing.T, kind string, arguments ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	command := exec.Command(os.Args[0], arguments...)
	command.Env = append(os.Environ(), asPlugin+"="+kind)
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command, &said
}

// terminate sends SIGTERM to a plugin that listens; signals are caught before that.
func terminate(t *testing.T, command *exec.Cmd, socket string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not listen")
		}
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func TestSigtermEndsAProcessWithCode0AndItsSocketGoes(t *testing.T) {
	folder := t.TempDir()
	socket, log := filepath.Join(folder, "s"), filepath.Join(folder, "log")
	command, said := launch(t, "plugin", "--protocol=unix", "--address="+socket, "--errorlogfile="+log)
	terminate(t, command, socket)
	if err := command.Wait(); err != nil {
		t.Error(err, said)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is still there", err)
	}
}

func TestAWrongAddressIsInTheErrorLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	command, said := launch(t, "plugin", "--protocol=tcp", "--address=10.0.0.1:7", "--errorlogfile="+log)
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Error(err)
	}
	written, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{said.String(), string(written)} {
		if !strings.Contains(text, "error: 10.0.0.1:7 can be reached from other machines") {
			t.Error(text)
		}
	}
}

func TestAPanicOfAnyGoroutineIsInTheErrorLog(t *testing.T) {
	folder := t.TempDir()
	socket, log := filepath.Join(folder, "s"), filepath.Join(folder, "log")
	command, _ := launch(t, "crash", "--protocol=unix", "--address="+socket, "--errorlogfile="+log)
	terminate(t, command, socket)
	if err := command.Wait(); err == nil {
		t.Error("it crashes")
	}
	written, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(written), "a goroutine of the plugin's own") {
		t.Error(string(written), err)
	}
}
