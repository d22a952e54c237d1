package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type settings struct {
	Port  uint16
	Names []string
}

func (s *settings) Validate() error {
	if s.Port == 0 {
		return errors.New("port is missing")
	}
	return nil
}

func TestTextAndStructureDecodeAlikeOverDefaults(t *testing.T) {
	structure, err := StructConfig(map[string]any{"port": 8080, "names": []any{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range []Config{TextConfig(`{"port":8080,"names":["a"]}`), structure} {
		var it settings
		if err := config.Decode(&it); err != nil || it.Port != 8080 || it.Names[0] != "a" {
			t.Error(it, err)
		}
	}
	kept := settings{Port: 7}
	for _, config := range []Config{{}, TextConfig("{}")} {
		if err := config.Decode(&kept); err != nil || kept.Port != 7 {
			t.Error(kept, err)
		}
	}
}

func TestErrorsOfConfigurationsNameThePlaceAndNeverAValue(t *testing.T) {
	structure, err := StructConfig(map[string]any{"port": "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		config Config
		want   string
	}{
		{TextConfig("{\n\"port\":\"hunter2\"}"), "Port has to be a whole number from 0 on that fits (line 2, column"},
		{TextConfig(`{"port":70000}`), "Port has to be a whole number"},
		{structure, "Port has to be a whole number"},
		{TextConfig("hunter2"), "not valid JSON (line 1"},
		{TextConfig(""), "it ends too early"},
		{TextConfig(`{"port":1} hunter2`), "more after the JSON value"},
		{TextConfig(`{"port":1,"prot":2}`), `there is no field "prot"`},
		{TextConfig(`{"names":[]}`), "port is missing"},
	}
	for _, it := range cases {
		err := it.config.DecodeStrict(&settings{})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "port has", "Port has"), it.want) {
			t.Errorf("%v, and not %q", err, it.want)
			continue
		}
		var bad *BadConfig
		if !errors.As(err, &bad) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "70000") {
			t.Error(err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		text := fmt.Sprintf(format, TextConfig("hunter2")) + fmt.Sprintf(format, Environment{Ticket: "hunter2"})
		if strings.Contains(text, "hunter2") {
			t.Error(text)
		}
	}
}

func TestVMEventsAreToldFromConfigurations(t *testing.T) {
	for text, want := range map[string]VMEvent{
		`{"Command":"VmEvent","Event":"startup"}`:          VMStartup,
		`{"command":"VmEvent","EVENT":"shutdown"}`:         VMShutdown,
		`{"Command":"VmEvent","Event":"moon","x":1}`:       "moon",
		`{"Command":"agent.config.getoption","Event":"x"}`: "",
		`{"Event":"startup"}`:                              "",
		`["VmEvent"]`:                                      "",
		"startup":                                          "",
		"null":                                             "",
	} {
		event, ok := TextConfig(text).vmEvent()
		if ok != (want != "") || ok && event != want {
			t.Errorf("%s: %q %t", text, event, ok)
		}
	}
}

func TestTheAgentsArgumentsAreTheLastOnes(t *testing.T) {
	line := "serve --protocol=http --address 1.2.3.4:80 --greeting=hi --complain --protocol unix --address=/s --errorlogfile=/e"
	got, err := ParseArguments(strings.Fields(line))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Join(got.Own, " ")
	if own != "serve --protocol=http --address 1.2.3.4:80 --greeting=hi --complain" || got.ErrorLog != "/e" || got.Address.path != "/s" {
		t.Error(own, got)
	}
	for line, missing := range map[string]string{"": "--protocol", "--protocol=unix --address": "--address", "--protocol --address=/s": "--protocol"} {
		if _, err := ParseArguments(strings.Fields(line)); err == nil || !strings.HasPrefix(err.Error(), missing+" is missing") {
			t.Error(line, err)
		}
	}
}

func TestOnlyThisMachineIsListenedTo(t *testing.T) {
	for given, want := range map[string]string{
		"127.0.0.1:7": "tcp:127.0.0.1 port 7", "localhost:7": "tcp:127.0.0.1 port 7", "[::1]:7": "tcp:::1 port 7",
		"[::]:7": "tcp:::1 port 7 and tcp:127.0.0.1 port 7", "0.0.0.0:7": "tcp:::1 port 7 and tcp:127.0.0.1 port 7",
	} {
		if address, err := ParseAddress("tcp", given); err != nil || address.String() != want {
			t.Error(given, address, err)
		}
	}
	for _, given := range []string{"10.0.0.1:7000", "[::2]:7000", "[::ffff:8.8.8.8]:7000"} {
		if _, err := ParseAddress("tcp", given); err == nil || !strings.Contains(err.Error(), "use 127.0.0.1:7000, or better --protocol=unix") {
			t.Error(given, err)
		}
	}
	for _, given := range []string{"", "localhost", "example.org:80", "127.0.0.1"} {
		if _, err := ParseAddress("tcp", given); err == nil || !strings.Contains(err.Error(), "is not an address and a port") {
			t.Error(given, err)
		}
	}
	if _, err := ParseAddress("unix", "/"+strings.Repeat("x", maxSocketPath)); err == nil {
		t.Error("too long")
	}
	chosen, err := ParseAddress("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	bound, err := listen(chosen)
	if err != nil {
		t.Fatal(err)
	}
	defer bound.close()
	for _, port := range bound.address.ports {
		if !port.Addr().IsLoopback() || port.Port() == 0 || port.Port() != bound.address.ports[0].Port() {
			t.Error(bound.address)
		}
	}
}

func TestHealthRemembersWhatIsWrong(t *testing.T) {
	now := time.Unix(0, 0)
	health := &Health{now: func() time.Time { return now }}
	if health.Status().Code != 0 {
		t.Error("nothing is wrong yet")
	}
	beat := health.Expect("worker", time.Minute)
	health.Fail("database", "cannot connect")
	now = now.Add(61 * time.Second)
	want := "database: cannot connect; worker: silent for 1m1s, expected within 1m0s"
	if got := health.Status(); got.Code != 1 || strings.Join(got.Results, "; ") != want {
		t.Error(got)
	}
	beat.Beat()
	health.Check("database", nil)
	if got := health.Status(); got.Code != 0 {
		t.Error(got)
	}
	now = now.Add(time.Hour)
	beat.End()
	if got := health.Status(); got.Code != 0 {
		t.Error("its silence is no problem any more", got)
	}
	for number := range 100 {
		health.Fail(fmt.Sprint(number), strings.Repeat("ü", 1000))
	}
	if got := health.Status(); len(got.Results) != maxProblems+1 || got.Results[maxProblems] != "and 68 more" {
		t.Error(len(got.Results))
	}
}

func TestStateIsReplacedAsAWhole(t *testing.T) {
	state := StateDir(t.TempDir())
	if _, ok, err := state.Read("count"); ok || err != nil {
		t.Error(ok, err)
	}
	for _, text := range []string{"first", "second"} {
		if err := state.Write("count", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if data, ok, err := state.Read("count"); string(data) != text || !ok || err != nil {
			t.Error(string(data), ok, err)
		}
	}
	files, err := os.ReadDir(string(state))
	if err != nil || len(files) != 1 {
		t.Error("nothing is left beside", files, err)
	}
	if err := errors.Join(state.Remove("count"), state.Remove("count")); err != nil {
		t.Error(err)
	}
	if err := state.Write("no/such/folder", nil); err == nil {
		t.Error("a folder that is not there")
	}
}

func TestTheErrorLogIsBoundedAndItsEntriesHaveTheirTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	line := "an entry of an earlier day\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, maxErrorLog/len(line)+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ErrorLog(path).Append("first\nsecond line\n"); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(path)
	if err != nil || len(kept) > keptErrorLog+100 || !strings.HasPrefix(string(kept), line) {
		t.Error(len(kept), err)
	}
	if !strings.HasSuffix(string(kept), "Z first\n    second line\n") {
		t.Error(string(kept[len(kept)-80:]))
	}
}

func TestLinesOfTheLogHaveALevelAndNoTime(t *testing.T) {
	var written bytes.Buffer
	logger := newLogger(&written)
	logger.Debug("too low")
	logger.Warn("the disk is nearly full", "left", 7)
	if written.String() != "level=WARN msg=\"the disk is nearly full\" left=7\n" {
		t.Error(written.String())
	}
}

func TestARunHasItsConfigurationFromAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(`{"port":8}`), 0o600); err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{EnvConfig: path, EnvTrigger: "interval", EnvStateDir: "/s"}
	run, err := runOf(ReadEnvironment(func(name string) string { return variables[name] }), []string{"--own", "--protocol=unix", "--address=/x"})
	if err != nil || run.State != "/s" || run.Environment.Trigger != TriggerInterval || strings.Join(run.Arguments, " ") != "--own" {
		t.Error(run, err)
	}
	var it settings
	if err := run.Config.Decode(&it); err != nil || it.Port != 8 {
		t.Error(it, err)
	}
	variables[EnvConfig] = path + "x"
	if _, err := runOf(ReadEnvironment(func(name string) string { return variables[name] }), nil); err == nil {
		t.Error("there is no such file")
	}
}
