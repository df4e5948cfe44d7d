//go:build !linux

package sqlite

import (
	"errors"
	"io/fs"
	"os"
)

// makeFile makes the empty database file where it is missing, for its owner
// only. The gate file is open for nobody else here, so that no other worker has
// the file open when this closes it: that would drop SQLite's locks.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, ownMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// writable tells why a file cannot be written to, by its mode.
func writable(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o222 == 0 {
		err = &os.PathError{Op: "write", Path: path, Err: fs.ErrPermission}
	}
	return err
}
