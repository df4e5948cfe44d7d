package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed roles.sql
var roles string

//go:embed grants.sql
var grants string

// protocol is the version of what workers on one database must agree on.
const protocol = "1"

// Settings are what all workers on one database agree on. They live in the
// database, and changing them there changes them for every worker.
type Settings struct {
	// Ring is the longest retention that goes into the ring of slots, which is
	// purged as a whole; longer ones go into one table. A slot is written to
	// for half of it. Default 48 h; at least twice the longest transaction.
	Ring time.Duration
	// NoRing keeps all outcomes in one table, purged by DELETE. Transactions
	// above READ COMMITTED need it.
	NoRing bool
	// Doubt is for how long after a change of the database's history (a
	// failover, a restore) a first claim becomes unknown instead of being
	// granted: the claim before it may have been lost, and its outside call
	// made. Default 5 min; negative means not at all.
	Doubt time.Duration
	// Lanes is how many lanes the queue has, at most 65,536; 0 leaves them as they
	// are, which is 256 at first. They can be changed only while nothing waits in
	// the queue and no worker lives that holds lanes: an entry knows its lane.
	Lanes int
	// Payloads is for how long an entry may be kept after it was done, with its
	// payload. A slot of the queue is written to for half of it, and emptied half of
	// it later, or as soon as its room is needed. Default 7 days; at least twice
	// the longest transaction.
	Payloads time.Duration
	// Room is how many bytes of entries the queue holds, about, without indexes;
	// what comes then is refused with store.ErrFull until some of it is done.
	// Default 16 GiB; at least 64 MiB.
	Room int64
}

// defaultRing is the retention of HTTP requests.
const defaultRing = 48 * time.Hour

// defaultDoubt outlasts the retries of a request.
const defaultDoubt = 5 * time.Minute

// The defaults of the queue, and their bounds.
const (
	defaultPayloads = 7 * 24 * time.Hour
	defaultRoom     = 16 << 30
	minRoom         = 64 << 20
	maxLanes        = 1 << 16
)

// minRing is twice the longest limit of a transaction.
const minRing = 20 * time.Minute

// Roles is the SQL that makes the roles unavez_migrate and unavez_app.
func Roles() string { return roles }

// Migrate brings the schema unavez up to date, or makes it. Each migration is
// one transaction; workers that start together do it once. It needs the rights
// of unavez_migrate. Settings are changed where they are given; nil leaves them
// as they are.
func Migrate(ctx context.Context, pool *pgxpool.Pool, settings *Settings) error {
	all, err := steps()
	if err != nil {
		return err
	}
	for done := false; !done; {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			var err error
			done, err = migrate(ctx, tx, all)
			return err
		})
		if err != nil {
			return classify(err)
		}
	}
	return classify(pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := exclusive(ctx, tx); err != nil {
			return err
		}
		if settings != nil {
			if err := set(ctx, tx, *settings); err != nil {
				return err
			}
		}
		var app bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'unavez_app')").Scan(&app); err != nil || !app {
			return err
		}
		_, err := tx.Exec(ctx, grants)
		return err
	}))
}

// exclusive lets one worker migrate at a time; the lock goes with the transaction.
func exclusive(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", migrateLock)
	return err
}

// The locks of this package beside those of operations.
const (
	migrateLock = 0x756e6176657a0001
	purgeLock   = 0x756e6176657a0002
)

// migrate applies the next migration; done says that there is none.
func migrate(ctx context.Context, tx pgx.Tx, all []migration) (done bool, err error) {
	if err := exclusive(ctx, tx); err != nil {
		return false, err
	}
	at, err := version(ctx, tx)
	switch {
	case err != nil:
		return false, err
	case at > len(all):
		return false, newer(at, len(all))
	case at == len(all):
		return true, nil
	}
	if at == 0 {
		// IF NOT EXISTS asks for the right to create even where the schema exists.
		const text = "DO $$ BEGIN IF pg_catalog.to_regnamespace('unavez') IS NULL THEN CREATE SCHEMA unavez; END IF; END $$;" +
			"CREATE TABLE unavez.migration (version integer PRIMARY KEY, name text NOT NULL, at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp())"
		if _, err := tx.Exec(ctx, text); err != nil {
			return false, err
		}
	}
	m := all[at]
	// Nothing in a migration may be found by a search path of the caller's.
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, m.sql); err != nil {
		return false, fmt.Errorf("postgres store: migration %s: %w", m.name, err)
	}
	_, err = tx.Exec(ctx, "INSERT INTO unavez.migration (version, name) VALUES ($1, $2)", m.version, m.name)
	return false, err
}

// set writes the settings.
func set(ctx context.Context, tx pgx.Tx, settings Settings) error {
	if settings.Ring == 0 {
		settings.Ring = defaultRing
	}
	if settings.Doubt == 0 {
		settings.Doubt = defaultDoubt
	}
	if settings.Payloads == 0 {
		settings.Payloads = defaultPayloads
	}
	if settings.Room == 0 {
		settings.Room = defaultRoom
	}
	if err := settings.check(); err != nil {
		return err
	}
	for name, value := range map[string]int64{"queue_payload": microseconds(settings.Payloads), "queue_bytes": settings.Room} {
		if _, err := tx.Exec(ctx, "UPDATE unavez.setting SET value = $2::pg_catalog.int8 WHERE name = $1", name, value); err != nil {
			return err
		}
	}
	if err := setLanes(ctx, tx, settings.Lanes); err != nil {
		return err
	}
	// The slot that was current before the ring was left is current again when
	// it is taken up.
	// Above READ COMMITTED no gate may have to write down what is written to.
	const text = "UPDATE unavez.ledger SET ring = $1, doubt = $3, live = CASE WHEN $2 THEN live | 48 ELSE live END, slot = CASE WHEN $2 THEN -1 ELSE" +
		" (SELECT number FROM unavez.slot WHERE ring = 'outcome' AND state = 'current') END"
	_, err := tx.Exec(ctx, text, microseconds(settings.Ring), settings.NoRing, microseconds(settings.Doubt))
	return err
}

// check tells every value that is out of its bounds.
func (s Settings) check() error {
	var faults []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf("postgres store: "+format, args...))
		}
	}
	wrong(s.Ring < minRing, "Ring: %v, want at least %v", s.Ring, minRing)
	wrong(s.Payloads < minRing, "Payloads: %v, want at least %v", s.Payloads, minRing)
	wrong(s.Room < minRoom, "Room: %d bytes, want at least %d", s.Room, minRoom)
	wrong(s.Lanes < 0 || s.Lanes > maxLanes, "Lanes: %d, want 1 to %d, or 0 to leave them", s.Lanes, maxLanes)
	return errors.Join(faults...)
}

// setLanes changes the number of lanes, while nothing waits and nobody holds one.
func setLanes(ctx context.Context, tx pgx.Tx, lanes int) error {
	var now int
	if err := tx.QueryRow(ctx, "SELECT value::pg_catalog.int4 FROM unavez.setting WHERE name = 'lanes'").Scan(&now); err != nil || lanes == 0 || lanes == now {
		return err
	}
	// No append is under way, and none comes before this is committed.
	const lock = "SET LOCAL lock_timeout = '10s'; LOCK TABLE unavez.queue_0, unavez.queue_1, unavez.queue_2, unavez.queue_3, unavez.blocked, unavez.worker IN SHARE ROW EXCLUSIVE MODE"
	if _, err := tx.Exec(ctx, lock); err != nil {
		return err
	}
	var busy bool
	const text = "SELECT EXISTS (SELECT FROM unavez.worker WHERE expires > pg_catalog.clock_timestamp()) OR EXISTS (SELECT FROM unavez.blocked)" +
		" OR EXISTS (SELECT FROM unavez.queue q WHERE NOT EXISTS (SELECT FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived))"
	if err := tx.QueryRow(ctx, text).Scan(&busy); err != nil {
		return err
	}
	if busy {
		return fmt.Errorf("postgres store: Lanes: %d, but the database has %d and something waits in its queue, or a worker lives: let the queue run empty and stop the workers first", lanes, now)
	}
	// Lanes that are not used any more keep their rows: an epoch only grows.
	const change = "WITH s AS (UPDATE unavez.setting SET value = $1::pg_catalog.int4 WHERE name = 'lanes')," +
		" kept AS (UPDATE unavez.lane SET epoch = epoch + 1, holder = '', expires = '-infinity', clean = true, cursor = '')" +
		" INSERT INTO unavez.lane (number, epoch, expires, clean, holder, cursor) SELECT n, 0, '-infinity', true, '', ''" +
		" FROM pg_catalog.generate_series(0, $1::pg_catalog.int4 - 1) n ON CONFLICT (number) DO NOTHING"
	_, err := tx.Exec(ctx, change, lanes)
	return err
}

// migration is one numbered step of the schema.
type migration struct {
	version int
	name    string
	sql     string
}

// steps are the migrations in order; their numbers have no gaps.
func steps() ([]migration, error) {
	entries, err := fs.ReadDir(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	var out []migration
	for i, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".sql")
		number, _, ok := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != i+1 {
			return nil, fmt.Errorf("postgres store: migration %s: want number %04d", e.Name(), i+1)
		}
		sql, err := fs.ReadFile(migrations, "migrations/"+e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, migration{version, name, string(sql)})
	}
	return out, nil
}

// querier is what a pool's connection and a transaction have in common.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// version is the number of the last migration, 0 for a database without any.
func version(ctx context.Context, q querier) (at int, err error) {
	var exists bool
	if err := q.QueryRow(ctx, "SELECT pg_catalog.to_regclass('unavez.migration') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = q.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM unavez.migration").Scan(&at)
	return at, err
}

func newer(at, newest int) error {
	return errors.New("postgres store: schema is at version " + strconv.Itoa(at) + ", newer than this program's " + strconv.Itoa(newest) +
		": start a newer program, or restore the backup made before it was")
}
