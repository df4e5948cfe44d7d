package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/postgres"
)

// shape is one way of doing the business transaction: BEGIN, an order, COMMIT.
type shape struct {
	name string
	open func(pool *pgxpool.Pool) func(ctx context.Context, key string) error
}

// frozen is what is frozen: 200 bytes.
func frozen() unavez.Result { return unavez.Result{Code: 201, Body: make([]byte, 200)} }

// shapes are the variants; a further one is a row here and a function.
func shapes(s settings) []shape {
	all := []shape{
		{"bare", bareTransaction},
		{"unavez, eager", func(pool *pgxpool.Pool) func(context.Context, string) error { return once(pool, nil) }},
		{"unavez, lazy", func(pool *pgxpool.Pool) func(context.Context, string) error {
			return once(pool, &postgres.Options{Lazy: true})
		}},
		{"unavez, joined", joined},
		{"SELECT, INSERT at the start, UPDATE at the end", naive},
		{"INSERT ON CONFLICT at the start, UPDATE at the end", claimFirst},
	}
	if s.redis != "" {
		all = append(all, shape{"the same behind a lock in Redis", twoLayers(s.redis)})
	}
	return all
}

const insertOrder = "insert into orders (customer) values ($1)"

func place(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, insertOrder, key)
	return err
}

func bareTransaction(pool *pgxpool.Pool) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return place(ctx, tx, key) })
	}
}

func once(pool *pgxpool.Pool, opts *postgres.Options) func(context.Context, string) error {
	engine := must(unavez.New(must(postgres.New(pool, opts)), nil))
	return func(ctx context.Context, key string) error {
		op := unavez.Operation{Tenant: "acme", Effect: "order.place.v1", Key: []string{key}, Payload: []byte(key)}
		_, err := engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) { return frozen(), place(ctx, tx, key) })
		return err
	}
}

func joined(pool *pgxpool.Pool) func(context.Context, string) error {
	engine := must(unavez.New(must(postgres.New(pool, nil)), nil))
	return func(ctx context.Context, key string) error {
		op := unavez.Operation{Tenant: "acme", Effect: "order.place.v1", Key: []string{key}, Payload: []byte(key)}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := engine.Join(ctx, tx, op, func(ctx context.Context) (unavez.Result, error) { return frozen(), place(ctx, tx, key) })
			return err
		})
	}
}

// naive is what is written by hand most often; it does no more than the others.
func naive(pool *pgxpool.Pool) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var body []byte
			if err := tx.QueryRow(ctx, "select body from naive where key = $1", key).Scan(&body); !errors.Is(err, pgx.ErrNoRows) {
				return errors.Join(errors.New("key is known"), err)
			}
			if _, err := tx.Exec(ctx, "insert into naive (key) values ($1) on conflict do nothing", key); err != nil {
				return err
			}
			if err := place(ctx, tx, key); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "update naive set code = 201, body = $2 where key = $1", key, frozen().Body)
			return err
		})
	}
}

// wire counts what goes over a variant's connections, and delays each answer.
type wire struct {
	delay             time.Duration
	trips, statements atomic.Int64
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &wired{Conn: conn, w: w}, err
}

type wired struct {
	net.Conn
	w    *wire
	owes atomic.Bool // an answer that has not come yet
}

// Write sees whole messages, since the driver writes its buffer at once.
func (c *wired) Write(b []byte) (int, error) {
	n, trip := 0, false
	for m := b; len(m) >= 5; {
		length := int(binary.BigEndian.Uint32(m[1:])) + 1
		switch m[0] {
		case 'E':
			n++
		case 'Q':
			n, trip = n+1, true
		case 'S':
			trip = true
		}
		if length < 5 || length > len(m) {
			break
		}
		m = m[length:]
	}
	c.w.statements.Add(int64(n))
	if trip {
		c.w.trips.Add(1)
		c.owes.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.w.delay > 0 && c.owes.Swap(false) {
		late := time.NewTimer(c.w.delay)
		<-late.C
	}
	return n, err
}

// runner is a variant with its own connections.
type runner struct {
	shape
	wire *wire
	pool *pgxpool.Pool
	run  func(context.Context, string) error
	mine string // the name of its connections
}

func (b *base) runner(s shape, delay time.Duration) *runner {
	r := &runner{shape: s, wire: &wire{delay: delay}, mine: "bench " + strconv.FormatUint(rand.Uint64(), 36)}
	config := b.Config().Copy()
	config.ConnConfig.DialFunc = r.wire.dial
	config.ConnConfig.RuntimeParams["application_name"] = r.mine
	config.MaxConns = 8
	r.pool = must(pgxpool.NewWithConfig(context.Background(), config))
	r.run = s.open(r.pool)
	return r
}

func (r *runner) once() { must(0, r.run(context.Background(), strconv.FormatUint(rand.Uint64(), 36))) }

// cpu is what this program and the variant's server processes have used, which
// is known where the server runs on this machine.
func (b *base) cpu(r *runner) func() time.Duration {
	return func() time.Duration {
		sum := ownCPU()
		rows := must(b.Query(context.Background(), "select pid from pg_stat_activity where application_name = $1", r.mine))
		for _, pid := range must(pgx.CollectRows(rows, pgx.RowTo[int32])) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				sum += cpuOf(int(pid))
			}
		}
		return sum
	}
}

// mixed has callers run all variants, one operation each in a random order, so
// that all meet the same noise; it gives the times by variant.
func mixed(runners []*runner, callers int, length time.Duration) [][]float64 {
	times := make([][]float64, len(runners))
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(length)
	for range callers {
		all.Go(func() {
			own := make([][]float64, len(runners))
			for time.Now().Before(end) {
				for _, i := range rand.Perm(len(runners)) {
					begin := time.Now()
					runners[i].once()
					own[i] = append(own[i], float64(time.Since(begin).Microseconds()))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range own {
				times[i] = append(times[i], own[i]...)
			}
		})
	}
	all.Wait()
	return times
}

// trimmed is the mean without the upper and the lower twentieth.
func trimmed(v []float64) float64 {
	slices.Sort(v)
	v = v[len(v)/20 : len(v)-len(v)/20]
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// measureTransaction compares the business transaction with its operation and
// without: by time, by CPU, and by what can be counted.
func measureTransaction(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	b.exec("create table orders (id bigint generated always as identity primary key, customer text not null, at timestamptz not null default now())")
	b.exec("create table naive (key text primary key, code integer, body bytea)")
	length := s.sample * time.Duration(s.rounds)
	for _, ring := range []string{"a new ring", "a ring of three slots and tombstones"} {
		if ring != "a new ring" {
			b.exec("update unavez.slot set state = 'sealed' where ring = 'outcome' and number in (1, 2)")
			b.exec("update unavez.ledger set live = live | 6")
		}
		for _, delay := range []time.Duration{0, 500 * time.Microsecond} {
			var runners []*runner
			for _, shape := range shapes(s) {
				r := b.runner(shape, delay)
				defer r.pool.Close()
				runners = append(runners, r)
			}
			for _, callers := range []int{1, 8} {
				mixed(runners, callers, length/8)
				times := mixed(runners, callers, length)
				fmt.Printf("latency on %s, %v added to each trip, %d callers: mean without the extremes, and median, to bare\n", ring, delay, callers)
				for i, r := range runners {
					fmt.Printf("  %-52s %8.0f µs %6.2f %6.2f\n", r.name, trimmed(times[i]), trimmed(times[i])/trimmed(times[0]), median(times[i])/median(times[0]))
				}
			}
			if delay == 0 {
				b.costs(s, runners, ring)
			}
		}
	}
	return nil
}

// costs prints CPU, and what is counted.
func (b *base) costs(s settings, runners []*runner, ring string) {
	var variants []variant
	for _, r := range runners {
		variants = append(variants, variant{name: r.name, op: func(ctx context.Context) error { r.once(); return nil }, cpu: b.cpu(r)})
	}
	all := compare(s, load{callers: 1}, variants)
	fmt.Printf("CPU of program and server on %s, one caller, to bare; counts per operation\n", ring)
	for _, r := range runners { // what earlier samples did is counted before
		r.pool.Reset()
	}
	b.settled()
	for _, r := range runners {
		const n = 500
		before := ask[int](b, "select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables")
		trips, statements, log := r.wire.trips.Load(), r.wire.statements.Load(), ask[int64](b, position)
		for range n {
			r.once()
		}
		log = ask[int64](b, position) - log
		for _, r := range runners { // sessions tell what they have counted when they end
			r.pool.Reset()
		}
		b.settled()
		dead := ask[int](b, "select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables") - before
		fmt.Printf("  %-52s %8.0f µs %6.2f   %.0f trips %5.1f statements %6d B of log %5.2f dead rows\n", r.name, median(all[r.name].cpu),
			ratio(all[r.name].cpu, all[runners[0].name].cpu), float64(r.wire.trips.Load()-trips)/n, float64(r.wire.statements.Load()-statements)/n, log/n, float64(dead)/n)
	}
}

// position is how far the server's log has come, in bytes.
const position = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
