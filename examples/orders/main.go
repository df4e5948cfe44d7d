// Command orders is a small shop whose requests take effect once. Orders,
// payments and the ledger live in one database, SQLite or PostgreSQL, so an
// order and the answer that its client gets are committed together:
//
//	go run .            # prints requests to try
//
// Send one of them twice, or kill the program in the middle of it, start it
// again and repeat: there is one order, and the answer is the same to the byte.
//
// Start with create, in shop.go. The handler writes on the transaction it is
// given and returns; it never commits, and it has no code for duplicates.
package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

func main() {
	c := config{sqlite: &modernc.Driver{}, parcel: parcel}
	addr := c.parse(os.Args[1:])
	p, err := open(context.Background(), c)
	if err == nil {
		err = serve(addr, p.handler)
		err = errors.Join(err, p.close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// config is where orders are kept and how.
type config struct {
	store, with, lease string
	leaseLength        time.Duration
	sqlite             driver.Driver
	parcel             carrier
}

// parse reads the flags. One that is wrong ends the program.
func (c *config) parse(args []string) (addr string) {
	flags := flag.NewFlagSet("orders", flag.ExitOnError)
	flags.StringVar(&addr, "addr", "127.0.0.1:8080", "`address` to listen on")
	flags.StringVar(&c.store, "store", "orders.db", "SQLite `file`, or postgres://… for any number of workers")
	flags.StringVar(&c.with, "with", "pgx", "how to talk to PostgreSQL: `pgx`, sql (database/sql) or gorm")
	flags.StringVar(&c.lease, "lease", "", "redis://… in front of the shipments, a `URL`; may be lost at any time")
	flags.DurationVar(&c.leaseLength, "lease-length", unavez.DefaultLease, "how long a worker that is gone keeps a shipment")
	_ = flags.Parse(args) // it exits instead
	return addr
}

// program is the shop, whatever its transactions are made of.
type program struct {
	handler http.Handler
	close   func() error // running requests come first
}

// open wires the shop: the database with our tables, the ledger in the same
// database, and the shop over both.
func open(ctx context.Context, c config) (*program, error) {
	options := &unavez.Options{SingleTenant: true, Lease: c.leaseLength}
	where := openSQLite
	if strings.HasPrefix(c.store, "postgres://") || strings.HasPrefix(c.store, "postgresql://") {
		where = openPostgres
	}
	if c.lease == "" {
		return where(ctx, c, options)
	}
	fast, err := redis.Open(c.lease, nil)
	if err != nil {
		return nil, err
	}
	options.Leaser = fast
	p, err := where(ctx, c, options)
	if err != nil {
		return nil, errors.Join(err, fast.Close())
	}
	inner := p.close
	p.close = func() error { return errors.Join(inner(), fast.Close()) }
	return p, nil
}

func openSQLite(ctx context.Context, c config, options *unavez.Options) (*program, error) {
	// A handler may hold the writer this long; the default of 100 ms is for a
	// machine that is not busy with other things.
	db, err := sqlite.OpenDB(c.sqlite, c.store, &sqlite.Options{HandlerLimit: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schemaSQLite); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return newShop(ledger, &sqlRows{db}, c.parcel, options, db.Close)
}

func openPostgres(ctx context.Context, c config, options *unavez.Options) (_ *program, err error) {
	pool, err := pgxpool.New(ctx, c.store)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	if err := postgres.Migrate(ctx, pool, nil); err != nil { // the ledger's tables; in production by a role that may
		return nil, err
	}
	if err := createTables(ctx, pool); err != nil {
		return nil, err
	}
	closed := func() error { pool.Close(); return nil }
	db := postgres.OpenDB(pool)
	switch c.with {
	case "pgx":
		ledger, err := postgres.New(pool, nil)
		if err != nil {
			return nil, err
		}
		return newShop(ledger, &pgxRows{pool}, c.parcel, options, closed)
	case "sql":
		ledger, err := postgres.NewSQL(db, pool, nil)
		if err != nil {
			return nil, err
		}
		return newShop(ledger, &sqlRows{db}, c.parcel, options, closed)
	case "gorm":
		ledger, err := postgres.NewSQL(db, pool, nil)
		if err != nil {
			return nil, err
		}
		rows, err := newGormRows(db)
		if err != nil {
			return nil, err
		}
		return newShop(ledger, rows, c.parcel, options, closed)
	}
	return nil, fmt.Errorf("-with: %q, want pgx, sql or gorm", c.with)
}
