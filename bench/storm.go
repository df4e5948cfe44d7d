package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/postgres"
)

// The storm: so many callers with one key whose work takes so long, again and
// again, beside others with keys of their own, on a pool of so many connections.
const (
	stormCallers = 32
	stormWork    = 50 * time.Millisecond
	stormPool    = 16
	calmCallers  = 4
)

// keyed does the work of a key once: an order, after a pause.
type keyed func(ctx context.Context, key string, work time.Duration) error

// measureStorm asks what a storm of duplicates leaves to unrelated operations:
// with the claim inserted first, which makes duplicates wait for the first one's
// commit on a connection each, and with the engine, at one worker and at two.
func measureStorm(s settings) error {
	if s.postgres == "" {
		return errors.New("storm: needs -postgres URL of a server that may be filled")
	}
	ctx := context.Background()
	open := func(connections int32) (*pgxpool.Pool, error) {
		config, err := pgxpool.ParseConfig(s.postgres)
		if err != nil {
			return nil, err
		}
		config.MaxConns = connections
		return pgxpool.NewWithConfig(ctx, config)
	}
	pool, err := open(stormPool)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, nil); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS bench_orders (id bigserial PRIMARY KEY, customer text, amount int, note text);"+
		" CREATE TABLE IF NOT EXISTS bench_claims (key text PRIMARY KEY, response bytea)"); err != nil {
		return err
	}
	ways := map[string]keyed{"INSERT ON CONFLICT first": conflicting(pool)}
	for _, workers := range []int{1, 2} {
		var engines []*unavez.Engine[pgx.Tx]
		for range workers {
			own, err := open(stormPool / int32(workers))
			if err != nil {
				return err
			}
			defer own.Close()
			ledger, err := postgres.New(own, nil)
			if err != nil {
				return err
			}
			engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true, CacheSize: -1})
			if err != nil {
				return err
			}
			engines = append(engines, engine)
		}
		ways[fmt.Sprintf("unavez, %d workers", workers)] = through(engines)
	}
	const base = "INSERT ON CONFLICT first"
	names := []string{base, "unavez, 1 workers", "unavez, 2 workers"}
	found := map[string]*figures{}
	for _, name := range names {
		found[name] = &figures{}
	}
	for range s.rounds {
		for _, name := range names {
			rate := stormed(ways[name], s.sample)
			found[name].rate = append(found[name].rate, rate)
			found[name].cpu = append(found[name].cpu, 1)
		}
	}
	fmt.Printf("unrelated operations beside %d callers of one key whose work takes %v, %d connections\n", stormCallers, stormWork, stormPool)
	for _, name := range names {
		fmt.Printf("  %-28s %8.0f/s   rate %5.2f\n", name, median(found[name].rate), ratio(found[name].rate, found[base].rate))
	}
	fmt.Println()
	return nil
}

// stormed is the rate of unrelated operations while it storms.
func stormed(do keyed, length time.Duration) float64 {
	ctx, stop := context.WithCancel(context.Background())
	run := rand.Text()
	var storm sync.WaitGroup
	storm.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			var callers sync.WaitGroup
			for range stormCallers {
				callers.Go(func() { must(0, do(context.Background(), fmt.Sprint(run, "/storm/", n), stormWork)) })
			}
			callers.Wait()
		}
	})
	var at atomic.Int64
	calm := variant{cpu: ownCPU, op: func(ctx context.Context) error {
		return do(ctx, run+strconv.FormatInt(at.Add(1), 10), 0)
	}}
	n, took, _ := sample(calm, load{callers: calmCallers}, length)
	stop()
	storm.Wait()
	return float64(n) / took.Seconds()
}

// busy is work of so long that is done elsewhere.
func busy(work time.Duration) {
	if work > 0 {
		timer := time.NewTimer(work)
		<-timer.C
	}
}

// conflicting is the protocol as it is often written: the claim first.
func conflicting(pool *pgxpool.Pool) keyed {
	return func(ctx context.Context, key string, work time.Duration) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, "INSERT INTO bench_claims (key) VALUES ($1) ON CONFLICT DO NOTHING", key)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				var response []byte
				return tx.QueryRow(ctx, "SELECT response FROM bench_claims WHERE key = $1", key).Scan(&response)
			}
			busy(work)
			if err := order(ctx, tx); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "UPDATE bench_claims SET response = $2 WHERE key = $1", key, answer)
			return err
		})
	}
}

// through is the engine, callers spread over its workers.
func through(engines []*unavez.Engine[pgx.Tx]) keyed {
	var turn atomic.Int64
	return func(ctx context.Context, key string, work time.Duration) error {
		engine := engines[int(turn.Add(1))%len(engines)]
		_, err := engine.Do(ctx, unavez.Operation{Effect: "bench", Key: []string{key}}, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
			busy(work)
			return unavez.Result{Code: 201, Body: answer}, order(ctx, tx)
		})
		if unavez.CodeOf(err) == unavez.CodeInFlight {
			return nil // a duplicate's answer
		}
		return err
	}
}
