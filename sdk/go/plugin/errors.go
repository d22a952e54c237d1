package plugin

import (
	"errors"
	"fmt"
)

// ErrUnsupported is the answer of a plugin that does not support a call. From Apply it makes the agent restart the plugin
// with the new configuration.
var ErrUnsupported = errors.New("not supported by this plugin")

var (
	errNotStarted = errors.New("the plugin has not been started")
	errStopping   = errors.New("the plugin is stopping")
)

// BadConfig is the error of a configuration that cannot be used. The reason is shown to operators: it must not hold values
// that are secret.
type BadConfig struct {
	// Reason says what is wrong with the configuration.
	Reason string
}

// BadConfigf makes the error of a configuration that cannot be used.
func BadConfigf(format string, arguments ...any) error {
	return &BadConfig{Reason: fmt.Sprintf(format, arguments...)}
}

// Error says what is wrong with the configuration.
func (b *BadConfig) Error() string { return "bad configuration: " + b.Reason }

// panicked is a panic of a method, as an error.
type panicked struct {
	method string
	value  any
	stack  string
}

func (p *panicked) Error() string { return fmt.Sprintf("%s panicked: %v", p.method, p.value) }

// tooLate is a stop that reached its deadline.
type tooLate struct{ allowed string }

func (t *tooLate) Error() string { return "stop did not end within " + t.allowed }
