package torture

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// Schemas are those that a run makes in a database, and removes.
const Schemas = "unavez, unavez_torture"

// mark says whose the schemas are, to who finds them.
const mark = "made by unavez torture, and so is the schema unavez beside it"

// ErrTaken means that a database has one of the [Schemas] already.
var ErrTaken = errors.New("the database is not empty")

// Scratch are schemas of a run's own in a database of PostgreSQL.
type Scratch struct {
	// URL names the database, with an application_name of the run's own.
	URL string

	name string
}

// scratchLimit bounds the making and the dropping.
const scratchLimit = 2 * time.Minute

// NewScratch makes the schemas in a database that has neither of them, or
// returns ErrTaken. name tells the run's connections from others.
func NewScratch(ctx context.Context, database, name string) (*Scratch, error) {
	at, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	query := at.Query()
	query.Set("application_name", name)
	at.RawQuery = query.Encode()
	s := &Scratch{URL: at.String(), name: name}
	err = s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var product, business, ours bool
			const look = "SELECT pg_catalog.to_regnamespace('unavez') IS NOT NULL, pg_catalog.to_regnamespace('unavez_torture') IS NOT NULL," +
				" coalesce(pg_catalog.obj_description(pg_catalog.to_regnamespace('unavez_torture')::oid, 'pg_namespace') = $1, false)"
			if err := tx.QueryRow(ctx, look, mark).Scan(&product, &business, &ours); err != nil {
				return err
			}
			switch {
			case ours:
				return fmt.Errorf("%w: it holds what a run that was killed has left, or one that is still running: if none is, DROP SCHEMA %s CASCADE", ErrTaken, Schemas)
			case product:
				return fmt.Errorf("%w: it has the schema unavez, which may be in use: give a database of its own (CREATE DATABASE unavez_torture)", ErrTaken)
			case business:
				return fmt.Errorf("%w: it has a schema unavez_torture, which is none of unavez torture: give a database of its own", ErrTaken)
			}
			// Who comes second fails here, and has made nothing.
			_, err := tx.Exec(ctx, "CREATE SCHEMA unavez_torture; COMMENT ON SCHEMA unavez_torture IS '"+mark+"'; CREATE SCHEMA unavez")
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Drop removes the schemas, with all that they hold, and ends the connections of
// the run that still have it.
func (s *Scratch) Drop(ctx context.Context) error {
	return s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		const end = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity" +
			" WHERE application_name = $1 AND usename = current_user AND datname = current_database() AND pid <> pg_catalog.pg_backend_pid()"
		if _, err := conn.Exec(ctx, end, s.name); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "DROP SCHEMA "+Schemas+" CASCADE")
		return err
	})
}

// on works on a connection of its own.
func (s *Scratch) on(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, scratchLimit)
	defer cancel()
	config, err := pgx.ParseConfig(s.URL)
	if err != nil {
		return err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // behind a pooler, too
	for name := range config.RuntimeParams {
		if strings.HasPrefix(name, "pool_") { // those are of a pool
			delete(config.RuntimeParams, name)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return errors.Join(store.ErrUnavailable, err)
	}
	defer func() { _ = conn.Close(ctx) }() // its answers are here
	return f(ctx, conn)
}
