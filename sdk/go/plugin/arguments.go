package plugin

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Arguments is the command line: the plugin's own arguments first, then the agent's three. Because the agent's come last, the
// last occurrence of each counts; an earlier one is an argument of the plugin.
type Arguments struct {
	// Own are the plugin's own arguments, in their order.
	Own []string
	// Address is where to listen.
	Address Address
	// ErrorLog is the file for panics and fatal errors; empty where the agent gave none.
	ErrorLog string
}

// ProcessArguments is the command line of this process.
func ProcessArguments() (Arguments, error) { return ParseArguments(os.Args[1:]) }

// ParseArguments reads a command line without the program's name. The agent's arguments may be written --key=value or
// --key value.
func ParseArguments(line []string) (Arguments, error) {
	own := slices.Clone(line)
	protocol, err := required(&own, "--protocol")
	if err != nil {
		return Arguments{}, err
	}
	named, err := required(&own, "--address")
	if err != nil {
		return Arguments{}, err
	}
	address, err := ParseAddress(protocol, named)
	if err != nil {
		return Arguments{}, err
	}
	errorLog, _ := take(&own, "--errorlogfile")
	return Arguments{Own: own, Address: address, ErrorLog: errorLog}, nil
}

func required(line *[]string, name string) (string, error) {
	value, ok := take(line, name)
	if !ok {
		return "", fmt.Errorf("%s is missing: guest-agent adds it when it launches a plugin; to try one by hand, add "+
			"--protocol=unix --address=/tmp/plugin.sock", name)
	}
	return value, nil
}

// take removes the last occurrence of an argument.
func take(line *[]string, name string) (string, bool) {
	for at := len(*line) - 1; at >= 0; at-- {
		argument := (*line)[at]
		if value, ok := strings.CutPrefix(argument, name+"="); ok {
			*line = slices.Delete(*line, at, at+1)
			return value, true
		}
		// A following argument with dashes is not a value: the plugin's own may only look like one of the agent's.
		if argument == name && at+1 < len(*line) && !strings.HasPrefix((*line)[at+1], "--") {
			value := (*line)[at+1]
			*line = slices.Delete(*line, at, at+2)
			return value, true
		}
	}
	return "", false
}

// errorLogOf is the error log named on a command line that is otherwise wrong.
func errorLogOf(line []string) string {
	line = slices.Clone(line)
	path, _ := take(&line, "--errorlogfile")
	return path
}
