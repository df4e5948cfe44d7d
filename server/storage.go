package server

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// storage is the open store of a process.
type storage struct {
	db    *sql.DB
	store *sqlite.Store
}

var (
	_ store.Operations = (*sqlite.Store)(nil)
	_ store.Upkeep     = (*sqlite.Store)(nil)
)

// openStorage opens the file, makes it where it is missing, and brings its
// tables to this version.
func openStorage(path string) (*storage, error) {
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("store sqlite:%s: the folder %s does not exist (make it, or name another path)", path, filepath.Dir(path))
	}
	if err := fdatasync(); err != nil {
		return nil, err
	}
	db, err := sqlite.OpenDB(&modernc.Driver{}, path, nil)
	if err != nil {
		return nil, fmt.Errorf("store sqlite:%s: %w", path, err)
	}
	s, err := sqlite.New(db, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store sqlite:%s: %w", path, err), db.Close())
	}
	return &storage{db: db, store: s}, nil
}

// fdatasync makes the driver commit with fdatasync(2) where there is one, as
// SQLite's own builds do: half the time, and nothing less durable.
func fdatasync() error {
	if _, err := modernc.Fdatasync(true); err != nil && !errors.Is(err, modernc.ErrFdatasyncUnavailable) {
		return fmt.Errorf("store sqlite: fdatasync: %w", err)
	}
	return nil
}

func (s *storage) close() error { return s.db.Close() }
