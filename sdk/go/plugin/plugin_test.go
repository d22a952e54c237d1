package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guest-agent/guest-agent/sdk/go/plugin"
	"github.com/guest-agent/guest-agent/sdk/go/plugintest"
)

// scripted does as its configurations and questions say, and writes down what it was asked.
type scripted struct {
	plugin.Base
	mutex sync.Mutex
	heard []string
	lives context.Context
}

func (s *scripted) hear(what string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.heard = append(s.heard, what)
}

func (s *scripted) all() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return strings.Join(s.heard, "; ")
}

func (s *scripted) Start(ctx context.Context, start plugin.Start) error {
	text, err := start.Config.Text()
	s.hear("start " + text)
	s.lives = ctx
	switch text {
	case "fail":
		return errors.New("no such licence")
	case "panic":
		panic("start gone wrong")
	}
	return err
}

func (s *scripted) Apply(_ context.Context, config plugin.Config) error {
	text, err := config.Text()
	s.hear("apply " + text)
	switch text {
	case "unsupported":
		return plugin.ErrUnsupported
	case "bad":
		return plugin.BadConfigf("no port")
	}
	return err
}

func (s *scripted) VMEvent(_ context.Context, event plugin.VMEvent) error {
	s.hear("event " + string(event))
	if event == plugin.VMSpecialize {
		return plugin.ErrUnsupported
	}
	return nil
}

func (s *scripted) Answer(ctx context.Context, question string) plugin.Status {
	switch question {
	case "panic":
		panic("status gone wrong")
	case "not text":
		return plugin.Healthy("\xff")
	}
	return plugin.Unhealthy(0, question)
}

func (s *scripted) Stop(ctx context.Context, stop plugin.Stop) error {
	s.hear("stop")
	if stop.Deadline == 50*time.Millisecond {
		<-ctx.Done()
		<-time.After(time.Hour)
	}
	return nil
}

func expect(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%v, and not %v with %q", err, code, text)
	}
}

func TestCallsComeInTheirOrder(t *testing.T) {
	it := &scripted{}
	tested := plugintest.New(t, it)
	if health := tested.Health(); health.Code != 0 {
		t.Error("it is healthy before its start", health)
	}
	expect(t, tested.Apply("early"), codes.FailedPrecondition, "not been started")
	expect(t, tested.Start("fail"), codes.Internal, "no such licence")
	expect(t, tested.Start("panic"), codes.Internal, "start panicked: start gone wrong")
	expect(t, tested.Start("first"), codes.OK, "")
	expect(t, tested.Start("again"), codes.OK, "")
	expect(t, tested.Apply("second"), codes.OK, "")
	expect(t, tested.Apply("unsupported"), codes.Unimplemented, "not supported")
	expect(t, tested.Apply("bad"), codes.InvalidArgument, "bad configuration: no port")
	expect(t, tested.Apply(nil), codes.OK, "")
	expect(t, tested.VMEvent(plugin.VMStartup), codes.OK, "")
	expect(t, tested.VMEvent(plugin.VMSpecialize), codes.Unimplemented, "")
	if it.lives.Err() != nil {
		t.Error("the context of Start lives as long as the plugin")
	}
	expect(t, tested.Stop(plugin.Stop{Cleanup: true, Deadline: 10 * time.Second}), codes.OK, "")
	if it.lives.Err() == nil {
		t.Error("the context of Start ends with the plugin")
	}
	if err := tested.Ended(); err != nil {
		t.Error(err)
	}
	want := "start fail; start panic; start first; apply second; apply unsupported; apply bad; apply ; event startup; event specialize; stop"
	if it.all() != want {
		t.Error(it.all())
	}
}

func TestAnswersAreValidTextAndNeverHealthyByMistake(t *testing.T) {
	tested := plugintest.New(t, &scripted{})
	if answer := tested.Ask("what"); answer.Code != 1 || answer.Results[0] != "what" {
		t.Error(answer)
	}
	if answer := tested.Ask("not text"); answer.Results[0] != "\uFFFD" {
		t.Error(answer)
	}
}

func TestAStopThatHangsEndsAtItsDeadline(t *testing.T) {
	tested := plugintest.New(t, &scripted{})
	err := tested.Stop(plugin.Stop{Deadline: 50 * time.Millisecond})
	expect(t, err, codes.DeadlineExceeded, "stop did not end within 50ms")
	if err := tested.Ended(); err != nil {
		t.Error("the agent got the error already:", err)
	}
}

func TestASignalStopsAsTheAgentDoes(t *testing.T) {
	it := &scripted{}
	tested := plugintest.New(t, it)
	if err := tested.Signal(); err != nil || it.all() != "stop" {
		t.Error(err, it.all())
	}
}

func TestTheDefaultsAskForARestartAndAreHealthy(t *testing.T) {
	tested := plugintest.New(t, &onlyStart{})
	expect(t, tested.Start(nil), codes.OK, "")
	expect(t, tested.Apply("x"), codes.Unimplemented, "")
	expect(t, tested.VMEvent(plugin.VMShutdown), codes.Unimplemented, "")
	if tested.Health().Code != 0 || tested.Ask("x").Code == 0 {
		t.Error("healthy, and without answers")
	}
}

type onlyStart struct{ plugin.Base }

func (*onlyStart) Start(context.Context, plugin.Start) error { return nil }

func TestTheSocketIsTheOwnersAloneAndStaleOnesAreReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	address, err := plugin.UnixAddress(path)
	if err != nil {
		t.Fatal(err)
	}
	first, err := plugin.Bind(&onlyStart{}, address, "")
	if err != nil {
		t.Fatal(err)
	}
	about, err := os.Stat(path)
	if err != nil || about.Mode().Perm() != 0o600 {
		t.Error(about, err)
	}
	if _, err := plugin.Bind(&onlyStart{}, address, ""); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Error(err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if err := first.Run(ended); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file goes with the server")
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := plugin.Bind(&onlyStart{}, address, ""); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Error(err)
	}
}
