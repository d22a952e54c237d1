package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main serves the plugin until it is stopped, and ends the process: the whole main of a plugin. The exit code is 0 after a
// stop; otherwise the error is printed and appended to the error log, and the exit code is 1.
func Main(plugin Plugin) {
	if err := Serve(context.Background(), plugin); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Serve serves the plugin until it is stopped, with the arguments of the process: for a main with work of its own before or
// after. SIGTERM, SIGINT and the end of ctx stop the plugin as the agent's Stop would. Return from main then. An error has
// been appended to the error log already.
func Serve(ctx context.Context, plugin Plugin) error {
	arguments, err := ProcessArguments()
	if err != nil {
		return logged(ErrorLog(errorLogOf(os.Args[1:])), err)
	}
	return ServeWith(ctx, plugin, arguments)
}

// ServeWith is [Serve] with the arguments given.
func ServeWith(ctx context.Context, plugin Plugin, arguments Arguments) error {
	log := ErrorLog(arguments.ErrorLog)
	if err := log.recordCrashes(); err != nil {
		Logger().Warn("panics are not recorded", "error", err) // the plugin can work without
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server, err := Bind(plugin, arguments.Address, log)
	if err != nil {
		return logged(log, err)
	}
	return logged(log, server.Run(ctx))
}

func logged(log ErrorLog, err error) error {
	if err != nil {
		if failed := log.Append("error: " + err.Error()); failed != nil {
			Logger().Warn("cannot write the error log", "error", failed)
		}
	}
	return err
}
