package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// Schema holds the business rows in PostgreSQL.
const Schema = "unavez_torture"

// IsPostgres tells a URL of PostgreSQL from a file of SQLite.
func IsPostgres(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}

// row is one effect.
type row struct {
	id        int64
	operation string
}

// place is the database as the count sees it: beside the workers, by no proxy.
type place struct {
	rows  func(ctx context.Context) ([]row, error)
	audit func(ctx context.Context) ([]store.Proof, error)
	close func()
}

// openPlace makes the tables of the product, and that of the effects anew.
func openPlace(ctx context.Context, database string, target func() (network, address string)) (*place, error) {
	if IsPostgres(database) {
		return openPostgres(ctx, database, target)
	}
	return openSQLite(ctx, database)
}

func openPostgres(ctx context.Context, database string, target func() (network, address string)) (*place, error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	if target != nil {
		config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			network, address := target()
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err = postgres.Migrate(ctx, pool, nil); err == nil {
		_, err = pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+Schema+"; DROP TABLE IF EXISTS "+Schema+".made; CREATE TABLE "+Schema+
			".made (id bigint GENERATED ALWAYS AS IDENTITY, operation text NOT NULL)")
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &place{
		close: pool.Close,
		audit: func(ctx context.Context) ([]store.Proof, error) { return postgres.Audit(ctx, pool, nil) },
		rows: func(ctx context.Context) ([]row, error) {
			found, err := pool.Query(ctx, "SELECT id, operation FROM "+Schema+".made ORDER BY id")
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(found, func(r pgx.CollectableRow) (one row, err error) {
				return one, r.Scan(&one.id, &one.operation)
			})
		},
	}, nil
}

func openSQLite(ctx context.Context, file string) (*place, error) {
	db, err := sqlite.OpenDB(&modernc.Driver{}, file, sqliteOptions())
	if err != nil {
		return nil, err
	}
	if _, err = sqlite.New(db, nil); err == nil {
		_, err = db.ExecContext(ctx, "DROP TABLE IF EXISTS made; CREATE TABLE made (id INTEGER PRIMARY KEY AUTOINCREMENT, operation TEXT NOT NULL)")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &place{
		close: func() { _ = db.Close() }, // what it wrote is durable
		audit: func(ctx context.Context) ([]store.Proof, error) {
			return sqlite.Audit(ctx, &modernc.Driver{}, file, nil)
		},
		rows: func(ctx context.Context) (all []row, err error) {
			found, err := db.QueryContext(ctx, "SELECT id, operation FROM made ORDER BY id")
			if err != nil {
				return nil, err
			}
			defer found.Close()
			for found.Next() {
				var one row
				if err := found.Scan(&one.id, &one.operation); err != nil {
					return nil, err
				}
				all = append(all, one)
			}
			return all, found.Err()
		},
	}, nil
}

// sqliteOptions leave a slow machine its time: that is no fault here.
func sqliteOptions() *sqlite.Options {
	return &sqlite.Options{HandlerLimit: workLimit, TransactionLimit: workLimit, BusyTimeout: time.Second}
}

// connections of a worker to the database.
const connections = 8

// through is the URL of the same database by a proxy on loopback, which speaks
// no TLS.
func through(database, address string) (string, error) {
	config, err := pgx.ParseConfig(database)
	if err != nil {
		return "", err
	}
	query := url.Values{"sslmode": {"disable"}, "pool_max_conns": {strconv.Itoa(connections)}}
	for name, value := range config.RuntimeParams {
		if !strings.HasPrefix(name, "pool_") {
			query.Set(name, value)
		}
	}
	if at, err := url.Parse(database); err == nil {
		if mode := at.Query().Get("default_query_exec_mode"); mode != "" {
			query.Set("default_query_exec_mode", mode)
		}
	}
	to := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: address, Path: "/" + config.Database, RawQuery: query.Encode()}
	return to.String(), nil
}

// insertPostgres writes an effect.
func insertPostgres(ctx context.Context, tx pgx.Tx, operation string) (id int64, err error) {
	err = tx.QueryRow(ctx, "INSERT INTO "+Schema+".made (operation) VALUES ($1) RETURNING id", operation).Scan(&id)
	return id, err
}

// insertSQLite writes an effect.
func insertSQLite(ctx context.Context, tx *sql.Tx, operation string) (id int64, err error) {
	err = tx.QueryRowContext(ctx, "INSERT INTO made (operation) VALUES (?) RETURNING id", operation).Scan(&id)
	if err != nil {
		err = fmt.Errorf("effect of %s: %w", operation, err)
	}
	return id, err
}
