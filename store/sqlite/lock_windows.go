package sqlite

import (
	"io/fs"
	"os"
	"syscall"
)

// openLockFile opens the file for nobody else: this platform has no locks that
// suit, so one worker is all there may be.
func openLockFile(path string, _ fs.FileMode) (*os.File, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	handle, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(handle), path), nil
}
