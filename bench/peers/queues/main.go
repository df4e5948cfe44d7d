// Command queues gives the inbox and other queues on PostgreSQL the same work:
// take N events, insert one order for each, and have all of them acknowledged.
// The systems take turns, round by round, in another order each time, so that
// all meet the same noise; ratios are medians over the rounds.
//
//	go run ./queues -postgres URL
//
// The server should run on this machine, with fsync on, and do nothing else;
// its own CPU is counted then. The measurement makes a database of its own there
// and drops it. Each event has a payload of about 200 bytes; the orders table has
// no unique key, so that a double effect shows, and 300 events are sent twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/bench/peers/machine"
)

// event is one thing to do.
type event struct {
	ID        string `json:"id" river:"unique"`
	Aggregate string `json:"aggregate"`
	Note      string `json:"note"`
}

// effect is what is done for each event.
const effect = `insert into orders (event, aggregate, note) values ($1, $2, $3)`

func (e event) args() []any { return []any{e.ID, e.Aggregate, e.Note} }

var note = strings.Repeat("n", 120)

// events makes so many, of so many aggregates.
func events(n, aggregates int) []event {
	made := make([]event, n)
	for i := range made {
		made[i] = event{ID: fmt.Sprintf("%016x", rand.Uint64()), Aggregate: "customer-" + strconv.Itoa(rand.IntN(aggregates)), Note: note}
	}
	return made
}

// system is one way of doing it.
type system struct {
	name  string
	start func(ctx context.Context, db *pgxpool.Pool, w *watch) (running, error)
}

// running is a system at work.
type running struct {
	feed func(ctx context.Context, events []event) error // returns when they are accepted
	rest func(ctx context.Context) (bool, error)         // whether nothing is left to acknowledge
	stop func()
}

// systems are in the order in which they are reported; the first is the base.
var systems = []system{
	{"River, plain worker", river(false)},
	{"River, JobCompleteTx", river(true)},
	{"Watermill SQL, 8 subscribers", watermill},
	{"DBOS, a transaction in a workflow", dbosWorkflow},
	{"unavez, ordered, batch handler", inbox(wholeBatch)},
	{"unavez, ordered, batch of handlers", inbox(oneByOne)},
	{"unavez, a transaction per event", inbox(single)},
}

// watch counts effects that are committed.
type watch struct {
	mu    sync.Mutex
	count int
	more  *sync.Cond
}

func newWatch() *watch {
	w := &watch{}
	w.more = sync.NewCond(&w.mu)
	return w
}

func (w *watch) done(n int) {
	w.mu.Lock()
	w.count += n
	w.more.Broadcast()
	w.mu.Unlock()
}

// reach waits for so many in all; false when ctx has ended.
func (w *watch) reach(ctx context.Context, n int) bool {
	stop := context.AfterFunc(ctx, func() { w.mu.Lock(); w.more.Broadcast(); w.mu.Unlock() })
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.count < n && ctx.Err() == nil {
		w.more.Wait()
	}
	return w.count >= n
}

// figures of a system in one round.
type figures struct {
	rate, cpu, wal, p50, p99 float64
	twice                    int // orders of the 300 events that were sent twice
}

func main() {
	url := flag.String("postgres", "", "URL of a superuser of a PostgreSQL that does nothing else meanwhile")
	n := flag.Int("events", 4000, "events of a round")
	aggregates := flag.Int("aggregates", 500, "ordering keys among them")
	rounds := flag.Int("rounds", 5, "rounds")
	limit := flag.Duration("limit", time.Minute, "how long a system may take for a round")
	only := flag.String("only", "", "systems whose name begins with one of these, separated by commas")
	flag.Parse()
	if err := measure(*url, *n, *aggregates, *rounds, *limit, *only); err != nil {
		fmt.Fprintln(os.Stderr, "queues:", err)
		os.Exit(1)
	}
}

func measure(url string, n, aggregates, rounds int, limit time.Duration, only string) error {
	if url == "" {
		return errors.New("say -postgres URL")
	}
	ctx := context.Background()
	pool, drop, err := database(ctx, url)
	if err != nil {
		return err
	}
	defer drop()
	var version, fsync string
	var backend int
	if err := pool.QueryRow(ctx, `select version(), current_setting('fsync'), pg_backend_pid()`).Scan(&version, &fsync, &backend); err != nil {
		return err
	}
	fmt.Printf("%d CPUs, %s\n%s, fsync %s\n%d events a round, %d ordering keys, %d rounds\n\n", runtime.NumCPU(), runtime.Version(), version, fsync, n, aggregates, rounds)
	server := machine.ParentOf(backend)
	chosen := slices.DeleteFunc(slices.Clone(systems), func(s system) bool {
		return only != "" && !slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(s.name, p) })
	})
	all := map[string][]figures{}
	for round := range rounds {
		for i := range chosen {
			s := chosen[(i+round)%len(chosen)]
			f, err := run(ctx, pool, s, n, aggregates, limit, server)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			all[s.name] = append(all[s.name], f)
			fmt.Fprintf(os.Stderr, "round %d %-36s %6.0f events/s %6.0f µs CPU %6.0f B log  p50 %5.1f p99 %6.1f ms  %d of 300\n", round+1, s.name, f.rate, f.cpu, f.wal, f.p50, f.p99, f.twice)
		}
	}
	report(chosen, all)
	return nil
}

// database makes one of the measurement's own.
func database(ctx context.Context, url string) (*pgxpool.Pool, func(), error) {
	admin, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	name := "peers_" + strconv.FormatUint(rand.Uint64(), 36)
	if _, err := admin.Exec(ctx, "create database "+name+" template template0"); err != nil {
		return nil, nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	config.ConnConfig.Database = name
	config.MaxConns = 80
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	drop := func() {
		pool.Close()
		_, _ = admin.Exec(ctx, "drop database "+name+" with (force)")
		_ = admin.Close(ctx)
	}
	_, err = pool.Exec(ctx, `create table orders (id bigserial primary key, event text not null, aggregate text not null, note text not null)`)
	return pool, drop, err
}

// run is one round of one system.
func run(ctx context.Context, pool *pgxpool.Pool, s system, n, aggregates int, limit time.Duration, server int) (f figures, err error) {
	if _, err := pool.Exec(ctx, "truncate orders"); err != nil {
		return f, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w := newWatch()
	own, err := pgxpool.NewWithConfig(ctx, pool.Config()) // a system may close its connections when it stops
	if err != nil {
		return f, err
	}
	defer own.Close()
	r, err := s.start(ctx, own, w)
	if err != nil {
		return f, err
	}
	defer r.stop()

	latencies, err := trickle(ctx, r, w)
	if err != nil {
		return f, err
	}
	f.p50, f.p99 = latencies[len(latencies)/2], latencies[len(latencies)*99/100]

	before := w.count
	work := events(n, aggregates)
	if _, err := pool.Exec(ctx, "checkpoint"); err != nil {
		return f, err
	}
	wal, err := position(ctx, pool)
	if err != nil {
		return f, err
	}
	cpu, begun := machine.OwnCPU()+machine.TreeCPU(server), time.Now()
	if err := feedAll(ctx, r, work); err != nil {
		return f, err
	}
	if !w.reach(ctx, before+n) {
		return f, fmt.Errorf("%d of %d effects within the limit", w.count-before, n)
	}
	if err := settle(ctx, r); err != nil {
		return f, err
	}
	took := time.Since(begun)
	f.rate = float64(n) / took.Seconds()
	f.cpu = float64((machine.OwnCPU() + machine.TreeCPU(server) - cpu).Microseconds()) / float64(n)
	after, err := position(ctx, pool)
	if err != nil {
		return f, err
	}
	f.wal = float64(after-wal) / float64(n)

	twice := work[:300]
	if err := errors.Join(feedAll(ctx, r, twice), settle(ctx, r)); err != nil {
		return f, err
	}
	ids := make([]string, len(twice))
	for i, e := range twice {
		ids[i] = e.ID
	}
	err = pool.QueryRow(ctx, `select count(*) from orders where event = any($1)`, ids).Scan(&f.twice)
	return f, err
}

// trickle sends one event at a time to an idle system, and times each from
// before it is fed to its committed effect, in milliseconds, sorted.
func trickle(ctx context.Context, r running, w *watch) ([]float64, error) {
	var all []float64
	for i, e := range events(110, 50) {
		goal := w.count + 1
		begun := time.Now()
		if err := r.feed(ctx, []event{e}); err != nil {
			return nil, err
		}
		if !w.reach(ctx, goal) {
			return nil, errors.New("a lone event had no effect within the limit")
		}
		if i >= 10 { // the first warm up
			all = append(all, time.Since(begun).Seconds()*1000)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	slices.Sort(all)
	return all, nil
}

// feedAll feeds from four callers, 500 events at a time.
func feedAll(ctx context.Context, r running, all []event) error {
	chunks := make(chan []event)
	go func() {
		defer close(chunks)
		for c := range slices.Chunk(all, 500) {
			chunks <- c
		}
	}()
	var callers sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range 4 {
		callers.Go(func() {
			for c := range chunks {
				if err := r.feed(ctx, c); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()
	return failed
}

// settle waits until everything is acknowledged.
func settle(ctx context.Context, r running) error {
	for {
		if done, err := r.rest(ctx); done || err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// report prints the medians, and the ratios to the first system.
func report(chosen []system, all map[string][]figures) {
	fmt.Println("| | events/s | ratio | CPU µs | ratio | log, bytes | lone event p50 / p99 ms | ratio of p50 | orders of 300 events sent twice |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	base := all[chosen[0].name]
	of := func(fs []figures, pick func(figures) float64) []float64 {
		var v []float64
		for _, f := range fs {
			v = append(v, pick(f))
		}
		return v
	}
	ratio := func(fs []figures, pick func(figures) float64) float64 {
		a, b := of(fs, pick), of(base, pick)
		for i := range a {
			a[i] /= b[i]
		}
		return median(a)
	}
	rate := func(f figures) float64 { return f.rate }
	cpu := func(f figures) float64 { return f.cpu }
	p50 := func(f figures) float64 { return f.p50 }
	for _, s := range chosen {
		fs := all[s.name]
		most := 0
		for _, f := range fs {
			most = max(most, f.twice)
		}
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.2f | %.0f | %.1f / %.1f | %.2f | %d |\n", s.name,
			median(of(fs, rate)), ratio(fs, rate), median(of(fs, cpu)), ratio(fs, cpu), median(of(fs, func(f figures) float64 { return f.wal })),
			median(of(fs, p50)), median(of(fs, func(f figures) float64 { return f.p99 })), ratio(fs, p50), most)
	}
}

func median(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)/2]
}

// position is where the server's log is.
func position(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, `select (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	return n, err
}
