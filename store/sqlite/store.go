package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// StoreOptions of a store. The zero value of a field means its default.
type StoreOptions struct {
	// NoMigrate refuses a file whose schema is older than this program's,
	// instead of bringing it up to date.
	NoMigrate bool
	// Lanes is how many lanes the file's queue has, 1 to 4096. The first worker on
	// a file decides it for ever, 256 by default; one that wants another number
	// is refused, and 0 takes what there is.
	Lanes int
	// Payloads is how long an entry stays in the queue after it was done, with its
	// payload, but no longer than the result of its operation is kept; Purge
	// removes it then. Default 7 days; negative means as long as the result.
	Payloads time.Duration
	// Versions is how long the last version of an ordering key is remembered since
	// it was written. One that was forgotten lets an older version take effect, so
	// it must be longer than the sender may be late. At least a day; default 400
	// days.
	Versions time.Duration
	// Room is how many entries that are not done the queue holds. One more is
	// refused with store.ErrFull. Default 1,000,000.
	Room int
}

// The defaults of what the queue keeps.
const (
	defaultLanes    = 256
	maxLanes        = 4096
	defaultPayloads = 7 * 24 * time.Hour
	defaultVersions = 400 * 24 * time.Hour
	maxKept         = 10 * 365 * 24 * time.Hour
	defaultRoom     = 1_000_000
)

// withDefaults returns a copy of o, complete and checked.
func (o *StoreOptions) withDefaults() (StoreOptions, error) {
	var out StoreOptions
	if o != nil {
		out = *o
	}
	out.Payloads = cmp.Or(out.Payloads, defaultPayloads)
	out.Versions = cmp.Or(out.Versions, defaultVersions)
	out.Room = cmp.Or(out.Room, defaultRoom)
	var faults []error
	wrong := func(is bool, name string, found any, want string) {
		if is {
			faults = append(faults, fmt.Errorf("%s: %v, want %s", name, found, want))
		}
	}
	wrong(out.Lanes < 0 || out.Lanes > maxLanes, "Lanes", out.Lanes, fmt.Sprintf("1 to %d, or 0 for what the file has", maxLanes))
	wrong(out.Payloads > maxKept, "Payloads", out.Payloads, fmt.Sprintf("at most %v", maxKept))
	wrong(out.Versions < 24*time.Hour || out.Versions > maxKept, "Versions", out.Versions, fmt.Sprintf("24h to %v", maxKept))
	wrong(out.Room < 1, "Room", out.Room, "1 or more")
	return out, errors.Join(faults...)
}

// Store is the ledger, the attempts, the queue and the upkeep in one SQLite file.
// Its methods may be called concurrently.
type Store struct {
	db       *sql.DB
	c        *connector
	lanes    int
	payloads time.Duration
	versions time.Duration
	room     room
	sweep    sweep
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
	set, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("sqlite store: options: %w", err)
	}
	o, ok := db.Driver().(opened)
	if !ok {
		return nil, errors.New("sqlite store: database was not opened by sqlite.OpenDB: open it so, with the driver you use")
	}
	ctx := context.Background()
	if err := o.migrate(ctx, !set.NoMigrate); err != nil {
		return nil, err
	}
	s := &Store{db: db, c: o.connector, payloads: set.Payloads, versions: set.Versions, room: room{limit: int64(set.Room)}}
	if s.lanes, err = o.bindLanes(ctx, set.Lanes); err != nil {
		return nil, err
	}
	err = s.read(ctx, func(r *raw) error {
		s.room.last, err = r.number(newest)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
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
