package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Run is the argument of the work of a plugin that runs to completion.
type Run struct {
	// State is the plugin's own directory; the current directory where the process was started by hand.
	State StateDir
	// Config is the configuration. A structure is JSON text here.
	Config Config
	// Arguments are the plugin's own arguments.
	Arguments []string
	// Environment has the plugin's name, revision and trigger.
	Environment Environment
}

// RunOnce runs a plugin that runs to completion, and ends the process: the whole main of one. The exit code is its answer: 0
// where work returns nil, otherwise 1, and the error is printed, where the agent finds it. The context of work ends with
// SIGTERM: because its time is over, another revision is installed, or the plugin is removed.
func RunOnce(work func(ctx context.Context, run Run) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	run, err := runOf(Env(), os.Args[1:])
	if err == nil {
		err = work(ctx, run)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runOf(environment Environment, line []string) (Run, error) {
	run := Run{State: environment.State, Arguments: line, Environment: environment}
	if run.State == "" {
		run.State = "."
	}
	if arguments, err := ParseArguments(line); err == nil {
		run.Arguments = arguments.Own
	}
	if environment.ConfigFile != "" {
		text, err := os.ReadFile(environment.ConfigFile)
		if err != nil {
			return Run{}, fmt.Errorf("the configuration cannot be read: %w", err)
		}
		run.Config = TextConfig(string(text))
	}
	return run, nil
}
