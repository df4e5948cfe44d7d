//go:build !linux && !windows && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package sqlite

import (
	"errors"
	"io/fs"
	"os"
)

// openLockFile refuses: a second worker could not be kept out.
func openLockFile(string, fs.FileMode) (*os.File, error) {
	return nil, errors.New("this platform has no file locks that keep a second worker out")
}
