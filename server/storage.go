package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/admin"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// storage is the open store of a process, whichever database that is.
type storage struct {
	store interface {
		store.Operations
		store.Upkeep
	}
	// engine makes the engine over it.
	engine func(*unavez.Options) (engine, error)
	// name is the same for every worker on one database, and for no other.
	name  string
	db    *sql.DB // of SQLite, for the built-in example
	close func() error
}

// queue is that of the store, nil where it has none.
func (s *storage) queue() store.Queue {
	q, _ := s.store.(store.Queue)
	return q
}

// received is what operators see of the queue, nil where the store has none.
func (s *storage) received() admin.Queue {
	q, _ := s.store.(admin.Queue)
	return q
}

// engine is an unavez.Engine, whatever its transactions are.
type engine interface {
	// proxy makes a proxy in front of an upstream.
	proxy(scope httpkey.ScopeFunc, upstream *url.URL, o *httpkey.ProxyOptions) (proxy, error)
	// inbox makes an inbox over the queue of the engine's store.
	inbox(queue store.Queue, sources []inbox.Source, effects []effect, o *inbox.Options) (running, error)
	// once runs an operation of the server's own in lease mode.
	once(ctx context.Context, op unavez.Operation, run func(context.Context, *unavez.Attempt) (unavez.Result, error)) (unavez.Outcome, error)
	Close(ctx context.Context) error
}

// proxy is an httpkey.Proxy, whatever its transactions are.
type proxy interface {
	http.Handler
	Close()
}

// engineOf is the engine over a store whose transactions are Tx.
type engineOf[Tx any] struct{ *unavez.Engine[Tx] }

func (e engineOf[Tx]) proxy(scope httpkey.ScopeFunc, upstream *url.URL, o *httpkey.ProxyOptions) (proxy, error) {
	p, err := httpkey.NewProxy(e.Engine, scope, upstream, o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// engineFor makes engines over a ledger.
func engineFor[Tx any](ledger store.Ledger[Tx]) func(*unavez.Options) (engine, error) {
	return func(o *unavez.Options) (engine, error) {
		e, err := unavez.New(ledger, o)
		if err != nil {
			return nil, err
		}
		return engineOf[Tx]{e}, nil
	}
}

// openStorage opens the store that a configuration names.
func openStorage(ctx context.Context, at config.Place) (*storage, error) {
	if at.Path == "" {
		return openPostgres(ctx, at.URL)
	}
	return openSQLite(at.Path, nil)
}

// openSQLite opens the file, makes it where it is missing, and brings its
// tables to this version.
func openSQLite(path string, o *sqlite.Options) (*storage, error) {
	return openSQLiteAfter(path, o, func(*sql.DB) error { return nil })
}

// openSQLiteAfter looks at the file as it was found before it changes it.
func openSQLiteAfter(path string, o *sqlite.Options, look func(*sql.DB) error) (*storage, error) {
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("store sqlite:%s: the folder %s does not exist (make it, or name another path)", path, filepath.Dir(path))
	}
	if err := fdatasync(); err != nil {
		return nil, err
	}
	db, err := sqlite.OpenDB(&modernc.Driver{}, path, o)
	if err != nil {
		return nil, fmt.Errorf("store sqlite:%s: %w", path, err)
	}
	if err := look(db); err != nil {
		return nil, errors.Join(fmt.Errorf("store sqlite:%s: %w", path, err), db.Close())
	}
	s, err := sqlite.New(db, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store sqlite:%s: %w", path, err), db.Close())
	}
	name, err := filepath.Abs(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store sqlite:%s: %w", path, err), db.Close())
	}
	return &storage{store: s, engine: engineFor(s), name: name, db: db, close: db.Close}, nil
}

// fdatasync makes the driver commit with fdatasync(2) where there is one, as
// SQLite's own builds do: half the time, and nothing less durable.
func fdatasync() error {
	if _, err := modernc.Fdatasync(true); err != nil && !errors.Is(err, modernc.ErrFdatasyncUnavailable) {
		return fmt.Errorf("store sqlite: fdatasync: %w", err)
	}
	return nil
}
