//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openLockFile locks the whole file: this platform has no locks that belong to
// an open file and cover one byte, so one worker is all there may be.
func openLockFile(path string, mode fs.FileMode) (*os.File, error) {
	file, err := openShared(path, mode)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another worker uses the file: %w", err), file.Close())
	}
	return file, nil
}
