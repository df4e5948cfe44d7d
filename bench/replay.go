package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/postgres"
)

// measureReplay compares replays that no cache answers, one after another, with
// the first runs that they replay.
func measureReplay(s settings) error {
	if s.postgres == "" {
		return errors.New("replay: needs -postgres URL of a server that may be filled")
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
	const kept = 500
	run := rand.Text()
	way := func(name string, key func(n int64) int64) (variant, error) {
		ledger, err := postgres.New(pool, nil)
		if err != nil {
			return variant{}, err
		}
		engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true, CacheSize: -1})
		if err != nil {
			return variant{}, err
		}
		var n atomic.Int64
		return variant{name: name, cpu: ownCPU, op: func(ctx context.Context) error {
			op := unavez.Operation{Effect: "bench", Key: []string{run, strconv.FormatInt(key(n.Add(1)), 10)}}
			_, err := engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				return unavez.Result{Code: 201, Body: answer}, order(ctx, tx)
			})
			return err
		}}, nil
	}
	first, err := way("first run", func(n int64) int64 { return n })
	if err != nil {
		return err
	}
	for range kept {
		if err := first.op(ctx); err != nil {
			return err
		}
	}
	replay, err := way("replay without a cache", func(n int64) int64 { return n%kept + 1 })
	if err != nil {
		return err
	}
	fmt.Println("PostgreSQL: replays in a row that no cache answers")
	for _, callers := range []int{1, 8} {
		found := compare(s, load{callers: callers}, []variant{first, replay})
		fmt.Printf("%d callers\n", callers)
		row(first.name, found[first.name], found[first.name])
		row(replay.name, found[replay.name], found[first.name])
		fmt.Printf("  time of a replay to that of a first run: %.2f\n", ratio(found[first.name].rate, found[replay.name].rate))
	}
	fmt.Println()
	return nil
}
