package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StateDir is the directory that belongs to a plugin alone: it survives restarts and upgrades and goes with a removal.
type StateDir string

// Path is the path of a file of this name.
func (s StateDir) Path(name string) string { return filepath.Join(string(s), name) }

// Read reads a file. ok is false where there is none.
func (s StateDir) Read(name string) (data []byte, ok bool, err error) {
	data, err = os.ReadFile(s.Path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	return data, err == nil, err
}

// Write replaces a file so that nobody ever reads half of it, also after a crash of the machine: it writes beside, syncs and
// renames. Only the owner can read the file.
func (s StateDir) Write(name string, data []byte) error {
	beside, err := os.CreateTemp(string(s), "."+filepath.Base(name)+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	_, err = beside.Write(data)
	if err == nil {
		err = beside.Sync()
	}
	if closed := beside.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(beside.Name(), s.Path(name))
	}
	if err != nil {
		_ = os.Remove(beside.Name()) // the first error is the one to report
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return syncDir(filepath.Dir(s.Path(name)))
}

// Remove deletes a file; a file that is not there is no error.
func (s StateDir) Remove(name string) error {
	if err := os.Remove(s.Path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
