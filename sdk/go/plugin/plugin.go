package plugin

import (
	"context"
	"fmt"
	"time"
)

// A Plugin is what guest-agent calls. Embed [Base] to have all methods but Start, which has to be written.
//
// Methods are called from several goroutines, so what changes belongs behind a mutex. About the calls the SDK promises:
//
//   - Start, Apply and VMEvent never run at the same time as each other, and the last two never before a Start that
//     succeeded.
//   - Status and Answer may be called at any time, before Start too, and several times at once. Their context ends when the
//     agent no longer waits. Start, Apply, VMEvent and Stop go on when their caller gives up.
//   - Stop is called at most once, at any time, also while another method runs or when Start never succeeded. Nothing is
//     started or applied after it.
//   - A panic in a method fails that one call.
type Plugin interface {
	// Start begins the plugin's work and returns when it is running, not when it is done. Its context ends when the plugin
	// is asked to stop, so lasting work in goroutines can use it.
	//
	// An error is shown in the agent's events, which end the process and try again; it must not hold secrets. A start that
	// succeeded is not repeated: when a restarted agent asks again, the SDK answers with success.
	Start(ctx context.Context, start Start) error

	// Stop ends the plugin's work. When it returns, with or without an error, the process is about to exit. Its context ends
	// at the deadline, at which the agent kills the process.
	Stop(ctx context.Context, stop Stop) error

	// Status answers a health check. Answer from memory, such as with [Health]: a plugin that does not answer within two
	// seconds (by default) several times in a row is taken for hung.
	Status(ctx context.Context) Status

	// Answer answers a question that only this plugin understands, from an operator or the control plane.
	Answer(ctx context.Context, question string) Status

	// Apply takes over a new configuration while running; it is absent where it was cleared. [ErrUnsupported] makes the agent
	// restart the plugin with it. Any other error is a refusal: the plugin keeps the configuration it had.
	Apply(ctx context.Context, config Config) error

	// VMEvent is news of the machine. [ErrUnsupported] means "not interested".
	VMEvent(ctx context.Context, event VMEvent) error
}

// Start is the argument of [Plugin.Start].
type Start struct {
	// State is a directory that belongs to this plugin alone and survives restarts and upgrades. It exists already.
	State StateDir
	// Config is the configuration that came with the order to install the plugin, or the latest one since.
	Config Config
}

// Stop is the argument of [Plugin.Stop].
type Stop struct {
	// Cleanup is true when the plugin is being removed: delete what it made outside of its own directories. Otherwise it will
	// run again.
	Cleanup bool
	// Deadline is how long stopping may take.
	Deadline time.Duration
}

// Status is a code and lines of text: the health of a plugin, or its answer to a question.
type Status struct {
	// Code is zero where the plugin is healthy. Anything else is unhealthy but alive; the plugin defines the numbers.
	Code int32
	// Results are lines for people that explain the code, or the answer to a question.
	Results []string
}

// VMEvent is news of the machine. A later agent may send others than the ones named here.
type VMEvent string

// The events of a machine.
const (
	// VMStartup says that the machine has started.
	VMStartup VMEvent = "startup"
	// VMShutdown says that the machine is about to shut down. After success, the plugin may exit with code 0 when its work
	// is over.
	VMShutdown VMEvent = "shutdown"
	// VMSpecialize says that the machine is a fresh instance made from an image.
	VMSpecialize VMEvent = "specialize"
)

// Base has the methods of [Plugin] that need not be written. Embed it.
type Base struct{}

// Stop does nothing.
func (Base) Stop(context.Context, Stop) error { return nil }

// Status answers healthy.
func (Base) Status(context.Context) Status { return Healthy() }

// Answer answers no question.
func (Base) Answer(context.Context, string) Status {
	return Unhealthy(1, "this plugin answers no questions")
}

// Apply asks for a restart with the new configuration.
func (Base) Apply(context.Context, Config) error { return ErrUnsupported }

// VMEvent is not interested.
func (Base) VMEvent(context.Context, VMEvent) error { return ErrUnsupported }

// Healthy is code 0 with these lines.
func Healthy(lines ...string) Status { return Status{Results: lines} }

// Unhealthy is a code other than zero with its reason. Code 0 would mean healthy and becomes 1.
func Unhealthy(code int32, reason string) Status {
	if code == 0 {
		code = 1
	}
	return Status{Code: code, Results: []string{reason}}
}

// Answerf is code 0 with one line: the answer to a question.
func Answerf(format string, arguments ...any) Status {
	return Healthy(fmt.Sprintf(format, arguments...))
}
