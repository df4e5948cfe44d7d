package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// Options of a store. The zero value of every field means its default.
type Options struct {
	// Isolation of the transactions that Begin and Finish open. Default READ
	// COMMITTED. At a higher level outcomes must be kept in one table: migrate
	// with Settings.NoRing.
	Isolation pgx.TxIsoLevel
	// Lazy lets the gate wait for the handler's first statement and go ahead of
	// it in the same trip, which makes a transaction one round trip shorter than a
	// bare one. What a handler does before its first statement then also runs for a
	// duplicate; the first statement of a duplicate fails with store.ErrRefused,
	// nothing behind it runs, and the engine answers with what was found, whatever
	// the handler makes of that error. Needs READ COMMITTED.
	Lazy bool
	// Lanes is how many lanes the queue has, where a program counts on that
	// number: New refuses a database with another one. 0 takes the database's,
	// which Settings.Lanes changes.
	Lanes int
}

// Store is the ledger, the attempts and the upkeep in one PostgreSQL database.
// Its methods may be called concurrently. There is nothing to close: the pool
// is its opener's to close, after the engine.
type Store struct {
	pool    *pgxpool.Pool
	opts    Options
	seen    atomic.Pointer[texts] // the statements for the layout seen last
	fixed   fixed                 // those that do not depend on it
	lanes   int
	hearing hearing
	history                  // what is known of the database's history
	small   map[string]int64 // a slot of this ring with less bytes is purged row by row
}

// Compile-time guards.
var (
	_ store.Ledger[pgx.Tx]   = (*Store)(nil)
	_ store.Attempts[pgx.Tx] = (*Store)(nil)
	_ store.Operations       = (*Store)(nil)
	_ store.Upkeep           = (*Store)(nil)
	_ store.Incarnated       = (*Store)(nil)
	_ store.Incarnations     = (*Store)(nil)
	_ store.Queue            = (*Store)(nil)
	_ store.Lanes            = (*Store)(nil)
	_ store.Enqueuer[pgx.Tx] = (*Store)(nil)
	_ store.Versions[pgx.Tx] = (*Store)(nil)
	_ store.Batches[pgx.Tx]  = (*Store)(nil)
	_ store.Quarantine       = (*Store)(nil)
	_ store.Positions        = (*Store)(nil)
	_ store.Privacy          = (*Store)(nil)
	_ store.QueueCounter     = (*Store)(nil)
	_ store.Signal           = (*Store)(nil)
)

// smallSlot is the size from which a slot is emptied as a whole.
const smallSlot = 1 << 20

// New makes a store on a database that [Migrate] has brought up to date; an
// older or newer schema is refused, and so are settings that contradict the
// options. nil options mean the defaults.
func New(pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("postgres store: no pool (open one with pgxpool.New)")
	}
	s := &Store{pool: pool, fixed: newFixed(), hearing: hearing{30 * time.Second, 10 * time.Second}, small: map[string]int64{ringOutcome: smallSlot, ringTombstone: smallSlot}}
	if opts != nil {
		s.opts = *opts
	}
	switch s.opts.Isolation {
	case "":
		s.opts.Isolation = pgx.ReadCommitted
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		return nil, fmt.Errorf("postgres store: Isolation: %q, want read committed, repeatable read or serializable", s.opts.Isolation)
	}
	if s.opts.Lazy && s.above() {
		return nil, fmt.Errorf("postgres store: Lazy: needs Isolation read committed, not %s", s.opts.Isolation)
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
	defer cancel()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// checkLimit bounds what New asks of the database, and what is done to leave a
// connection clean.
const checkLimit = 10 * time.Second

// check compares schema and settings with this program's.
func (s *Store) check(ctx context.Context) error {
	all, err := steps()
	if err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return classify(err)
	}
	defer conn.Release()
	at, err := version(ctx, conn)
	switch newest := len(all); {
	case err != nil:
		return classify(err)
	case at < newest:
		return fmt.Errorf("postgres store: schema is at version %d, this program wants %d: run unavez migrate", at, newest)
	case at > newest:
		return newer(at, newest)
	}
	var spoken, encoding string
	var l layout
	var incarnation int64
	var position string
	const text = "SELECT (SELECT value FROM unavez.setting WHERE name = 'protocol'), (SELECT value::pg_catalog.int4 FROM unavez.setting WHERE name = 'lanes'), slot, live, tombstone_live, ring," +
		" pg_catalog.current_setting('server_encoding'), unavez.new_incarnation(false), pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text FROM unavez.ledger"
	if err := conn.QueryRow(ctx, text).Scan(&spoken, &s.lanes, &l.slot, &l.live, &l.tombstone, &l.ring, &encoding, &incarnation, &position); err != nil {
		return classify(err)
	}
	s.statements(l)
	s.changed(incarnation, place(position))
	switch {
	case spoken != protocol:
		return fmt.Errorf("postgres store: database follows protocol %q, this program %s: they would not exclude each other's operations", spoken, protocol)
	case s.opts.Lanes != 0 && s.opts.Lanes != s.lanes:
		return fmt.Errorf("postgres store: Lanes: %d, but the database has %d: workers would not agree on whose an ordering key is", s.opts.Lanes, s.lanes)
	case encoding != "UTF8":
		return fmt.Errorf("postgres store: database has encoding %s, want UTF8", encoding)
	case s.above() && l.slot >= 0:
		return fmt.Errorf("postgres store: Isolation: %s, but outcomes are kept in a ring, which needs read committed: run postgres.Migrate with Settings.NoRing", s.opts.Isolation)
	}
	return nil
}

// above reports whether transactions run above READ COMMITTED.
func (s *Store) above() bool { return s.opts.Isolation != pgx.ReadCommitted }

// uuid is a key as the driver sends it in every mode.
func uuid(key store.Key) pgtype.UUID { return pgtype.UUID{Bytes: key, Valid: true} }

// microseconds is a duration as the functions take it.
func microseconds(d time.Duration) int64 { return max(d, 0).Microseconds() }

// detached is a context for leaving a connection clean, whatever became of the caller.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), checkLimit)
}

// row runs one statement by itself, which is one transaction, and reads its
// row if it has one.
func (s *Store) row(ctx context.Context, text string, args []any, dest ...any) error {
	return classify(s.pool.QueryRow(ctx, text, args...).Scan(dest...))
}
