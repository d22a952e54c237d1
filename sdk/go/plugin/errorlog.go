package plugin

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

const (
	// maxErrorLog is the size beyond which only the newest entries are kept. A plugin that panics at every health check would
	// otherwise fill the disk.
	maxErrorLog = 1 << 20
	// keptErrorLog is how much is kept: more than the agent shows in an event.
	keptErrorLog = 64 << 10
	// maxEntry is the longest text of one entry.
	maxEntry = 16 << 10
)

// ErrorLog is the file to which a plugin writes its panics and fatal errors; the agent puts its last lines into crash events.
// The empty path writes nothing.
type ErrorLog string

// Append adds an entry: the time and the text, cut at 16 KiB. Further lines of the text are indented.
func (e ErrorLog) Append(text string) error {
	if e == "" {
		return nil
	}
	file, err := os.OpenFile(string(e), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	entry := strings.ReplaceAll(strings.TrimRight(cut(text, maxEntry), "\n"), "\n", "\n    ")
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	err = shorten(file)
	if err == nil {
		// One write: entries of several goroutines do not mix.
		_, err = fmt.Fprintf(file, "%s %s\n", now, entry)
	}
	return errors.Join(err, file.Close())
}

// recordCrashes makes the Go runtime write a panic that ends the process there as well. Methods of a plugin do not come
// that far.
func (e ErrorLog) recordCrashes() error {
	if e == "" {
		return nil
	}
	file, err := os.OpenFile(string(e), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	// The runtime has a copy of the descriptor.
	return errors.Join(debug.SetCrashOutput(file, debug.CrashOptions{}), file.Close())
}

// shorten keeps the newest whole lines of a file that has grown too large.
func shorten(file *os.File) error {
	about, err := file.Stat()
	if err != nil || about.Size() <= maxErrorLog {
		return err
	}
	kept, err := io.ReadAll(io.NewSectionReader(file, about.Size()-keptErrorLog, keptErrorLog))
	if err != nil {
		return err
	}
	if _, whole, ok := strings.Cut(string(kept), "\n"); ok {
		kept = []byte(whole)
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.Write(kept)
	return err
}
