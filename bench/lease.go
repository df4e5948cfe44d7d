package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store/postgres"
)

// measureLease compares lease mode on PostgreSQL with the bare transaction: with
// a durable claim, with Redis in front of it, and with Redis in its place. The
// work between claim and finish is nothing, so that what is left is the price.
func measureLease(s settings) error {
	if s.postgres == "" || s.redis == "" {
		return errors.New("lease: needs -postgres URL and -redis URL of servers that may be filled")
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, nil); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS bench_orders (id bigserial PRIMARY KEY, customer text, amount int, note text)"); err != nil {
		return err
	}
	var fsync, durable, version string
	if err := pool.QueryRow(ctx, "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_version')").Scan(&fsync, &durable, &version); err != nil {
		return err
	}
	fmt.Printf("PostgreSQL %s, fsync %s, synchronous_commit %s: lease mode with nothing to do outside\n", version, fsync, durable)
	fast, err := redis.Open(s.redis, &redis.Options{Prefix: "bench:"})
	if err != nil {
		return err
	}
	defer fast.Close()
	bare := variant{name: "bare transaction", cpu: ownCPU, op: func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return order(ctx, tx) })
	}}
	variants := []variant{bare}
	for _, way := range []struct {
		name    string
		leaser  bool
		byLease bool
	}{
		{"claim", false, false}, {"Redis in front of the claim", true, false}, {"Redis in the claim's place", true, true},
	} {
		opts := &unavez.Options{SingleTenant: true}
		if way.leaser {
			opts.Leaser = fast
		}
		v, err := leased(pool, opts, way.name, way.byLease)
		if err != nil {
			return err
		}
		variants = append(variants, v)
	}
	for _, callers := range []int{1, 8} {
		found := compare(s, load{callers: callers}, variants)
		fmt.Printf("%d callers\n", callers)
		for _, v := range variants {
			row(v.name, found[v.name], found[bare.name])
		}
		for _, v := range variants[1:] {
			fmt.Printf("  time of %q to that of the bare transaction: %.2f\n", v.name, ratio(found[bare.name].rate, found[v.name].rate))
		}
	}
	fmt.Println()
	return nil
}

// ballast is that of a row, as text.
var ballast = strings.Repeat("x", len(note))

func order(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO bench_orders (customer, amount, note) VALUES ('c-1', 42, $1)", ballast)
	return err
}

// leased is the engine in lease mode.
func leased(pool *pgxpool.Pool, opts *unavez.Options, name string, byLease bool) (variant, error) {
	ledger, err := postgres.New(pool, nil)
	if err != nil {
		return variant{}, err
	}
	engine, err := unavez.New(ledger, opts)
	if err != nil {
		return variant{}, err
	}
	var n atomic.Int64
	run := rand.Text()
	return variant{name: name, cpu: ownCPU, op: func(ctx context.Context) error {
		op := unavez.Operation{
			Effect: "bench", Key: []string{run, strconv.FormatInt(n.Add(1), 10)},
			Unknown: unavez.Retry, ClaimByLease: byLease,
		}
		_, err := engine.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return unavez.Result{Code: 201, Body: answer}, nil
		}, func(ctx context.Context, tx pgx.Tx, _ *unavez.Result) error { return order(ctx, tx) })
		return err
	}}, nil
}
