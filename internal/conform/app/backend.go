package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/internal/conform"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// unit is what a store is to the engine: both modes.
type unit[Tx any] interface {
	store.Ledger[Tx]
	store.Attempts[Tx]
}

// backend is a store with the business table beside it. A new kind of store is
// a new function that makes one.
type backend[Tx any] struct {
	unit[Tx]
	upkeep store.Upkeep
	// name of the kind of store.
	name string
	// timeout is how long a request waits for a store that does not answer.
	timeout time.Duration
	// insert writes a business row of a path in the transaction.
	insert func(ctx context.Context, tx Tx, op string) error
	// end ends the engine's transaction, as no handler should.
	end func(ctx context.Context, tx Tx, how string) error
	// insertOnce writes one outside any transaction; one with the same once is
	// written already when once is not empty.
	insertOnce func(ctx context.Context, op, once string) error
	// rows counts the committed ones.
	rows func(ctx context.Context, op string) (int, error)
	// close closes the database.
	close func() error
}

// storeTimeout is how long SQLite waits for the writer of another process.
const storeTimeout = time.Second

// openSQLite opens the database file and makes the business table.
func openSQLite(ctx context.Context, path string) (*backend[*sql.Tx], error) {
	db, err := sqlite.OpenDB(&modernc.Driver{}, path, &sqlite.Options{
		BusyTimeout: storeTimeout, HandlerLimit: limit, // a busy machine is no fault of a handler
	})
	if err != nil {
		return nil, err
	}
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	const schema = `
		CREATE TABLE IF NOT EXISTS business (
			op   TEXT NOT NULL,
			once TEXT,
			UNIQUE (op, once)
		)`
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &backend[*sql.Tx]{
		unit: ledger, upkeep: ledger, name: "sqlite", timeout: storeTimeout, close: db.Close,
		insert: func(ctx context.Context, tx *sql.Tx, op string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO business (op) VALUES (?)`, op)
			return err
		},
		end: func(ctx context.Context, tx *sql.Tx, how string) error {
			if how == conform.EndCall {
				return tx.Commit()
			}
			_, err := tx.ExecContext(ctx, "COMMIT")
			return err
		},
		insertOnce: func(ctx context.Context, op, once string) error {
			_, err := db.ExecContext(ctx, `INSERT INTO business (op, once) VALUES (?, nullif(?, '')) ON CONFLICT DO NOTHING`, op, once)
			return err
		},
		rows: func(ctx context.Context, op string) (n int, err error) {
			err = db.QueryRowContext(ctx, `SELECT count(*) FROM business WHERE op = ?`, op).Scan(&n)
			return n, err
		},
	}, nil
}
