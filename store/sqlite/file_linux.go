package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// makeFile makes the empty database file where it is missing: SQLite would make
// it readable by everybody, as far as the umask lets it. Mknod opens nothing:
// closing a file that SQLite has open drops the locks of this process on it.
// https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
func makeFile(path string) error {
	err := syscall.Mknod(path, syscall.S_IFREG|uint32(ownMode), 0)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return &os.PathError{Op: "mknod", Path: path, Err: err}
}

// writable tells why a file cannot be written to. It opens nothing, as makeFile.
func writable(path string) error {
	const readAndWrite = 4 | 2
	if err := syscall.Access(path, readAndWrite); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}
