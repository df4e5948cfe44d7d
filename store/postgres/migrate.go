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
}

// defaultRing is the retention of HTTP requests.
const defaultRing = 48 * time.Hour

// defaultDoubt outlasts the retries of a request.
const defaultDoubt = 5 * time.Minute

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
	if settings.Ring < minRing {
		return fmt.Errorf("postgres store: Ring: %v, want at least %v", settings.Ring, minRing)
	}
	if settings.Doubt == 0 {
		settings.Doubt = defaultDoubt
	}
	// The slot that was current before the ring was left is current again when
	// it is taken up.
	// Above READ COMMITTED no gate may have to write down what is written to.
	const text = "UPDATE unavez.ledger SET ring = $1, doubt = $3, live = CASE WHEN $2 THEN live | 48 ELSE live END, slot = CASE WHEN $2 THEN -1 ELSE" +
		" (SELECT number FROM unavez.slot WHERE ring = 'outcome' AND state = 'current') END"
	_, err := tx.Exec(ctx, text, microseconds(settings.Ring), settings.NoRing, microseconds(settings.Doubt))
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
