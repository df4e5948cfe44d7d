package sqlite

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Locks of the open file description: man 2 fcntl. They have no names in
// package syscall.
const (
	getOFDLock = 36
	setOFDLock = 37
)

func openLockFile(path string, mode fs.FileMode) (*os.File, error) {
	return openShared(path, mode)
}

// lockByte locks one byte, or reports that another worker has it.
func lockByte(file *os.File, offset int64) (bool, error) {
	err := fcntl(file, setOFDLock, &syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: offset, Len: 1})
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return false, nil
	}
	return err == nil, err
}

func unlockByte(file *os.File, offset int64) error {
	return fcntl(file, setOFDLock, &syscall.Flock_t{Type: syscall.F_UNLCK, Whence: io.SeekStart, Start: offset, Len: 1})
}

// byteLocked reports whether another worker has locked a byte.
func byteLocked(file *os.File, offset int64) (bool, error) {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: offset, Len: 1}
	err := fcntl(file, getOFDLock, &l)
	return l.Type != syscall.F_UNLCK && err == nil, err
}

// fcntl never waits, so the runtime need not hear of it.
func fcntl(file *os.File, command int, l *syscall.Flock_t) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			if failed = syscall.FcntlFlock(fd, command, l); !errors.Is(failed, syscall.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, failed)
}
