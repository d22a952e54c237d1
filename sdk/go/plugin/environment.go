package plugin

import (
	"log/slog"
	"os"
)

// The variables that the agent sets for a plugin.
const (
	EnvName       = "GUEST_AGENT_PLUGIN"
	EnvRevision   = "GUEST_AGENT_REVISION"
	EnvStateDir   = "GUEST_AGENT_STATE_DIR"
	EnvHostSocket = "GUEST_AGENT_HOST_SOCKET"
	EnvTicket     = "GUEST_AGENT_TICKET"
	EnvTrigger    = "GUEST_AGENT_TRIGGER"
	EnvConfig     = "GUEST_AGENT_CONFIG"
)

// Environment is what the agent tells a plugin through variables. A process that was started by hand, or by another agent
// of the same protocol, has none of them, and their fields are empty.
type Environment struct {
	// Name is the plugin's name.
	Name string
	// Revision is the revision of this process.
	Revision string
	// State is the plugin's own directory, the same as in [Start].
	State StateDir
	// HostSocket is the socket on which the agent answers its plugins.
	HostSocket string
	// Ticket is the secret that identifies the plugin there.
	Ticket Ticket
	// Trigger is why this run of a plugin that runs to completion began.
	Trigger Trigger
	// ConfigFile is where a plugin that runs to completion has its configuration.
	ConfigFile string
}

// Trigger is why the agent began a run of a plugin that runs to completion. Later agents may have others.
type Trigger string

// The triggers of this version.
const (
	// TriggerInstall is an order that installed a revision, or changed how it runs.
	TriggerInstall Trigger = "install"
	// TriggerStartup is the start of the machine.
	TriggerStartup Trigger = "startup"
	// TriggerFirstBoot is a new instance of the machine.
	TriggerFirstBoot Trigger = "firstboot"
	// TriggerInterval is the end of the plugin's interval.
	TriggerInterval Trigger = "interval"
	// TriggerRule is a rule that did not hold before.
	TriggerRule Trigger = "rule"
	// TriggerPerson is a person who asked for the run.
	TriggerPerson Trigger = "run"
)

// Ticket is the secret with which a plugin introduces itself to the agent. Printing it shows nothing of it. Children inherit
// the environment: start those that must not call in the plugin's name without [EnvTicket].
type Ticket string

// Reveal is the secret itself, to be sent to the host socket and nowhere else.
func (t Ticket) Reveal() string { return string(t) }

// String hides the secret.
func (Ticket) String() string { return "Ticket(hidden)" }

// GoString hides the secret.
func (Ticket) GoString() string { return "Ticket(hidden)" }

// LogValue hides the secret.
func (Ticket) LogValue() slog.Value { return slog.StringValue("Ticket(hidden)") }

// Env is the environment of this process.
func Env() Environment { return ReadEnvironment(os.Getenv) }

// ReadEnvironment is the environment that a lookup gives, for tests.
func ReadEnvironment(lookup func(name string) string) Environment {
	return Environment{
		Name:       lookup(EnvName),
		Revision:   lookup(EnvRevision),
		State:      StateDir(lookup(EnvStateDir)),
		HostSocket: lookup(EnvHostSocket),
		Ticket:     Ticket(lookup(EnvTicket)),
		Trigger:    Trigger(lookup(EnvTrigger)),
		ConfigFile: lookup(EnvConfig),
	}
}
