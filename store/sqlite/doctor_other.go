//go:build !linux

package sqlite

import "errors"

// fileSystem is not looked at here.
func fileSystem(string) (v volume, known bool, err error) { return v, false, nil }

// lockExcludes tells whether a lock of one open file keeps another one out.
func lockExcludes(path string) error {
	first, err := openLockFile(path, ownMode)
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := openLockFile(path, ownMode)
	if err == nil {
		second.Close() // nothing was written to it
		return errors.New("a lock that is held is granted again")
	}
	return nil
}
