package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// ownMode is the mode of the files that this package makes: they hold what
// requests were answered, and are no business of other users of the host.
const ownMode fs.FileMode = 0o600

// resolve gives the one name of a file that all workers find, whichever links
// they come by: two names would be two gate files.
func resolve(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // as many links as Linux follows
		if folder, err := filepath.EvalSymlinks(filepath.Dir(full)); err == nil {
			full = filepath.Join(folder, filepath.Base(full))
		}
		// A link whose file is not there yet is followed, too.
		target, err := os.Readlink(full)
		if err != nil {
			return full, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(full), target)
		}
		full = target
	}
	return "", errors.New("too many links")
}

// modeOf is the mode of the database file, which the gate file takes, too, as
// SQLite's log does: whoever may work on the one must be able to lock the other.
func modeOf(path string) fs.FileMode {
	info, err := os.Stat(path)
	if err != nil {
		return ownMode
	}
	return info.Mode().Perm() | ownMode
}

// openShared opens a file that is locked by bytes, and makes it with a mode,
// whatever the umask, where it is missing. The mode of one that is there is
// left alone.
func openShared(path string, mode fs.FileMode) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if err == nil {
			if info, err := f.Stat(); err == nil && info.Mode()&mode != mode { // the umask took some
				if err := f.Chmod(mode); err != nil {
					return nil, errors.Join(err, f.Close())
				}
			}
			return f, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		} // removed meanwhile
	}
}

// shareMode gives the log and its index the mode of the file. SQLite does it by
// itself, a driver with a file layer of its own may not. Nothing has been
// written to a log that was just made; of one that belongs to another user the
// mode is that user's affair.
func shareMode(path string) error {
	mode := modeOf(path)
	for _, suffix := range []string{"-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err == nil && info.Mode().Perm() != mode {
			err = os.Chmod(path+suffix, mode)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}
