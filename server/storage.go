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

func (s *storage) close() error { return s.db.Close() }
