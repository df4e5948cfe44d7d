package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/unavez/unavez/store"
)

// StoreOptions of a store. The zero value of a field means its default.
type StoreOptions struct {
	// NoMigrate refuses a file whose schema is older than this program's,
	// instead of bringing it up to date.
	NoMigrate bool
}

// Store is the ledger, the attempts and the upkeep in one SQLite file. Its
// methods may be called concurrently.
type Store struct {
	db *sql.DB
	c  *connector
}

// Compile-time guards.
var (
	_ store.Ledger[*sql.Tx]   = (*Store)(nil)
	_ store.Attempts[*sql.Tx] = (*Store)(nil)
	_ store.Operations        = (*Store)(nil)
	_ store.Upkeep            = (*Store)(nil)
)

// New makes a store on a database that [OpenDB] has opened, and brings its
// schema up to date. A file that a newer program has migrated is refused.
func New(db *sql.DB, opts *StoreOptions) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlite store: no database (open one with sqlite.OpenDB)")
	}
	o, ok := db.Driver().(opened)
	if !ok {
		return nil, errors.New("sqlite store: database was not opened by sqlite.OpenDB: open it so, with the driver you use")
	}
	if err := o.migrate(context.Background(), opts == nil || !opts.NoMigrate); err != nil {
		return nil, err
	}
	return &Store{db: db, c: o.connector}, nil
}

// Close waits until the group that is open is durable. It leaves the database
// open: that is its opener's to close, after the store.
func (s *Store) Close() error {
	if s.c.closed.Load() {
		return nil
	}
	u := s.c.writer.unit(unitInternal)
	if err := s.c.writer.ask(context.Background(), u); err != nil {
		return err
	}
	s.c.writer.flush()
	s.c.writer.pass(u)
	return nil
}

// now is SQLite's clock, in milliseconds. Within one statement it stands still.
const now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"

// instant is a stored time.
func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// read runs fn on a connection for the store's own reads.
func (s *Store) read(ctx context.Context, fn func(r *raw) error) error {
	return s.c.gates.read(ctx, fn)
}

// snapshot runs fn on one state of the database.
func (s *Store) snapshot(ctx context.Context, fn func(r *raw) error) error {
	return s.read(ctx, func(r *raw) error {
		if _, err := r.exec("BEGIN"); err != nil {
			return err
		}
		err := fn(r)
		if _, e := r.exec("ROLLBACK"); e != nil {
			r.broken = true
			err = errors.Join(err, e)
		}
		return err
	})
}

// write runs fn as a unit, durable when write returns. ctx ends the wait for
// the writer, when nothing has happened, and the wait for the group's commit,
// with store.ErrCommitUnknown.
func (s *Store) write(ctx context.Context, fn func(r *raw) error) error {
	return s.c.writer.write(ctx, nil, fn)
}
