package plugin

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"
)

// LogLevel is the lowest level that [Logger] writes: [slog.LevelInfo] until it is set.
var LogLevel slog.LevelVar

// Logger writes lines with a level to standard error, which the agent keeps: `guest-agent logs NAME` shows them with their
// times. Lines hold no secrets.
//
//	slog.SetDefault(plugin.Logger())
//	slog.Warn("the disk is nearly full", "left", left)
func Logger() *slog.Logger { return newLogger(os.Stderr) }

func newLogger(to io.Writer) *slog.Logger {
	withoutTime := func(groups []string, attribute slog.Attr) slog.Attr {
		if len(groups) == 0 && attribute.Key == slog.TimeKey {
			return slog.Attr{} // the agent keeps the time of every line
		}
		return attribute
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: &LogLevel, ReplaceAttr: withoutTime}))
}

// cut shortens a text to at most so many bytes, between characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// validText replaces what is not UTF-8, which a message cannot hold.
func validText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func valid(lines []string) []string {
	made := make([]string, 0, len(lines))
	for _, line := range lines {
		made = append(made, validText(line))
	}
	return made
}
