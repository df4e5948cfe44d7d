package sqlite_test

import (
	"database/sql/driver"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/unavez/unavez/store/sqlite"
)

func TestFilesAreMadeForTheirOwnerAndTheModeOfAFileThatIsThereIsKept(t *testing.T) {
	// Not parallel: the umask is the process's.
	defer syscall.Umask(syscall.Umask(0o022))
	for driverName, drv := range drivers() {
		for name, c := range map[string]struct{ before, db, gate fs.FileMode }{
			"new":              {0, 0o600, 0o600},
			"there":            {0o644, 0o644, 0o644},
			"of a group":       {0o660, 0o660, 0o660},
			"by a link to one": {0, 0o600, 0o600},
		} {
			t.Run(driverName+" "+name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "shop.db")
				opened := path
				if c.before != 0 {
					if err := os.WriteFile(path, nil, c.before); err != nil {
						t.Fatal(err)
					}
					if err := os.Chmod(path, c.before); err != nil {
						t.Fatal(err)
					}
				}
				if name == "by a link to one" {
					opened = filepath.Join(t.TempDir(), "link.db")
					if err := os.Symlink(path, opened); err != nil {
						t.Fatal(err)
					}
				}
				openFile(t, drv, opened)
				modes(t, path, c.db, c.gate)
			})
		}
	}
}

// openFile makes a store on a file and leaves it open until the test's end.
func openFile(t *testing.T, drv driver.Driver, path string) {
	t.Helper()
	db, err := sqlite.OpenDB(drv, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := sqlite.New(db, nil); err != nil {
		t.Fatal(err)
	}
}

func modes(t *testing.T, path string, db, gate fs.FileMode) {
	t.Helper()
	for suffix, want := range map[string]fs.FileMode{"": db, "-wal": db, "-shm": db, "-gate": gate} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %v, want %v", suffix, got, want)
		}
	}
}
