package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// base is a database of the measurement's own on the server that -postgres names.
type base struct {
	*pgxpool.Pool
	drop func()
}

func openBase(s settings) (*base, error) {
	if s.postgres == "" {
		return nil, errors.New("say -postgres URL: a superuser of a PostgreSQL 14 or newer that does nothing else meanwhile")
	}
	ctx := context.Background()
	admin, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return nil, err
	}
	name := "bench_" + strconv.FormatUint(rand.Uint64(), 36)
	if _, err := admin.Exec(ctx, "create database "+name+" template template0"); err != nil {
		return nil, err
	}
	config := admin.Config().Copy()
	admin.Close() // what it wrote is counted when it is gone
	config.ConnConfig.Database = name
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	b := &base{Pool: pool, drop: func() {
		pool.Close()
		conn := must(pgx.Connect(ctx, s.postgres))
		must(conn.Exec(ctx, "drop database "+name+" with (force)"))
		must(0, conn.Close(ctx))
	}}
	fmt.Println(ask[string](b, "select version()"))
	for _, name := range []string{"fsync", "full_page_writes", "shared_buffers"} {
		fmt.Printf("%s=%s ", name, ask[string](b, "select current_setting('"+name+"')"))
	}
	fmt.Println()
	must(0, postgres.Migrate(ctx, pool, nil))
	return b, nil
}

func ask[T any](b *base, text string, args ...any) (v T) {
	must(0, b.QueryRow(context.Background(), text, args...).Scan(&v))
	return v
}

func (b *base) exec(text string, args ...any) {
	must(b.Exec(context.Background(), text, args...))
}

// ages of what fill makes: when it ended. It is kept for 2 days and remembered
// for 30 more.
const (
	fresh      = "now() - interval '1 hour'"
	remembered = "now() - interval '3 days'"
	forgotten  = "now() - interval '60 days'"
)

// fill puts so many operations into a table of outcomes, with keys like those of
// hashes; the index is built at the end.
func (b *base) fill(table string, rows int, ended string) {
	b.exec("truncate unavez." + table)
	b.exec("alter table unavez." + table + " drop constraint " + table + "_pkey")
	b.exec(fmt.Sprintf(`insert into unavez.%[1]s select md5('%[1]s' || i)::uuid, %[2]s, %[2]s + interval '2 days', %[2]s + interval '32 days',
		201, 1, 0, 6, false, 'acme/order.place.v1/' || i, sha256(int4send(i)), substring(sha256(int4send(i)), 1, 16), '', decode(repeat('7b', 60), 'hex')
		from generate_series(1, %[3]d) i`, table, ended, rows))
	b.exec("alter table unavez." + table + " add primary key (key)")
}

// written is what a server has written to its log so far.
type written struct{ pages, bytes int64 }

func (b *base) written() (w written) {
	must(0, b.QueryRow(context.Background(), "select wal_fpi, wal_bytes::bigint from pg_stat_wal").Scan(&w.pages, &w.bytes))
	return w
}

// settled ends every other session of the database: it has told what it has
// written when it is gone.
func (b *base) settled() {
	b.Reset()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for ask[int](b, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'") > 0 {
		<-pace.C
	}
}

// operations runs so many new operations and counts what each wrote. No handler
// writes: what is counted is the ledger's.
func (b *base) operations(n, callers int) written {
	b.exec("checkpoint")
	b.settled()
	before := b.written()
	pool := must(pgxpool.NewWithConfig(context.Background(), b.Config().Copy()))
	ledger := must(postgres.New(pool, nil))
	run := strconv.FormatUint(rand.Uint64(), 36)
	var next atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				must(0, operation(ledger, run, strconv.FormatInt(i, 10)))
			}
		})
	}
	all.Wait()
	pool.Close()
	b.settled()
	after := b.written()
	return written{after.pages - before.pages, after.bytes - before.bytes}
}

// operation is one new operation with an answer of 60 bytes.
func operation(ledger *postgres.Store, parts ...string) error {
	ctx := context.Background()
	id := store.Identity{Tenant: "acme", Effect: "order.place.v1", Parts: parts}
	txn, v, err := ledger.Begin(ctx, store.Gate{
		Identity: id, Key: id.Key(), Fingerprint: store.Fingerprint{Sum: make([]byte, 32)},
		Limit: time.Minute, Retention: 48 * time.Hour, Tombstone: 30 * 24 * time.Hour,
	})
	switch {
	case err != nil:
		return err
	case txn == nil:
		return errors.New("operation is " + v.State.String())
	}
	_, err = txn.Commit(ctx, store.End{State: store.Completed, Result: store.Result{Code: 201, Body: make([]byte, 60)}})
	return err
}

// measurePages counts full-page images after a checkpoint: the first change of
// a page after it logs the page. Keys are hashes, so what counts is the size of
// the table that is inserted into, not of all.
func measurePages(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	const n, callers = 20_000, 8
	fmt.Printf("full-page images after a checkpoint, %d operations of the engine, %d callers, %d million outcomes in all\n", n, callers, s.rows/1_000_000)
	print := func(name string) {
		w := b.operations(n, callers)
		fmt.Printf("  %-44s %6.3f images   %6.0f B of log   per operation\n", name, float64(w.pages)/n, float64(w.bytes)/n)
	}
	b.exec("update unavez.slot set state = 'sealed', since = now() where ring = 'outcome' and number in (1, 2)")
	b.exec("update unavez.ledger set live = live | 7")
	b.fill("outcome_1", s.rows*2/5, fresh)
	b.fill("outcome_2", s.rows*2/5, fresh)
	for _, rows := range []int{0, s.rows / 100, s.rows / 40, s.rows / 10, s.rows / 5} {
		b.fill("outcome_0", rows, fresh)
		print(fmt.Sprintf("ring, current slot with %d rows", rows))
	}
	for _, table := range []string{"outcome_0", "outcome_1", "outcome_2"} {
		b.exec("truncate unavez." + table)
	}
	must(0, postgres.Migrate(context.Background(), b.Pool, &postgres.Settings{NoRing: true}))
	b.fill("outcome_table", s.rows, fresh)
	print(fmt.Sprintf("one table with %d rows", s.rows))
	return nil
}

// measurePurge lets the engine purge a slot as a whole and, for comparison, the
// same operations row by row, as in the one table.
func measurePurge(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	const rows = 100_000
	ledger := must(postgres.New(b.Pool, nil))
	type cost struct{ ms, kB []float64 }
	measure := func(c *cost, work func()) {
		const text = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
		b.exec("truncate unavez.tombstone_0, unavez.tombstone_1, unavez.tombstone_2")
		b.exec("vacuum analyze")
		b.exec("checkpoint")
		before, begin := ask[int64](b, text), time.Now()
		work()
		c.ms = append(c.ms, float64(time.Since(begin).Microseconds())/1000)
		c.kB = append(c.kB, float64(ask[int64](b, text)-before)/1024)
		if left := ask[int](b, "select count(*) from unavez.outcome"); left != 0 {
			must(0, fmt.Errorf("%d outcomes are left", left))
		}
	}
	purge := func() {
		for must(ledger.Purge(context.Background(), 10_000)) > 0 {
		}
	}
	print := func(name string, c, against *cost) {
		fmt.Printf("  %-44s %8.1f ms %8.0f kB of log   time %6.3f   log %7.5f\n", name, median(c.ms), median(c.kB), ratio(c.ms, against.ms), ratio(c.kB, against.kB))
	}
	for _, age := range []struct{ name, ended string }{
		{"whose identities stay remembered", remembered}, {"that are forgotten too", forgotten},
	} {
		var whole, each, alone cost
		for range s.rounds {
			b.fill("outcome_table", rows, age.ended)
			measure(&each, func() {
				purge()
				b.exec("vacuum unavez.outcome_table")
			})
			slot := fmt.Sprintf("outcome_%d", ask[int](b, "select slot from unavez.ledger"))
			b.fill(slot, rows, age.ended)
			b.exec("update unavez.slot set since = since - interval '9 days' where ring = 'outcome'")
			measure(&whole, purge)
			b.fill("outcome_3", rows, age.ended)
			measure(&alone, func() { b.exec("truncate unavez.outcome_3") })
		}
		fmt.Printf("purge of %d operations %s, median of %d\n", rows, age.name, s.rounds)
		print("row by row, and VACUUM", &each, &each)
		print("a slot, all steps", &whole, &each)
		print("its last step alone", &alone, &each)
	}
	return nil
}

// measureLayout compares the ring's plain tables with partitions by time, named
// in the SQL or reached through their parent: probe of three, insert into one.
func measureLayout(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	const columns = `key uuid not null, ended timestamptz not null, expires timestamptz not null, forgets timestamptz not null, code bigint not null,
		attempt bigint not null, operation text not null, fingerprint bytea not null, checksum bytea not null, body bytea not null`
	b.exec("create table parted (bucket integer not null, " + columns + ", primary key (bucket, key)) partition by range (bucket)")
	for n := range 3 {
		b.exec(fmt.Sprintf("create table plain_%d (%s, primary key (key))", n, columns))
		b.exec(fmt.Sprintf("create table parted_%d partition of parted for values from (%d) to (%d)", n, n, n+1))
		row := `md5(i::text || '%[1]d')::uuid, now(), now(), now(), 201, 1, 'acme/order/' || i, sha256(int4send(i)), substring(sha256(int4send(i)), 1, 16), decode(repeat('7b', 60), 'hex') from generate_series(1, %[2]d) i`
		b.exec(fmt.Sprintf("insert into plain_%[1]d select "+row, n, s.rows/100))
		b.exec(fmt.Sprintf("insert into parted_%[1]d select %[1]d, "+row, n, s.rows/100))
	}
	b.exec("analyze")
	values := "$1::uuid, now(), now(), now(), 201, 1, 'acme/order/new', $2::bytea, $2::bytea, $2::bytea"
	exists := func(table, where string) string {
		return "exists (select from " + table + " where key = $1::uuid" + where + ")"
	}
	var variants []variant
	for _, v := range []struct{ name, probe, insert string }{
		{"plain tables", exists("plain_0", "") + " or " + exists("plain_1", "") + " or " + exists("plain_2", ""), "plain_2 select " + values},
		{"partitions, named in the SQL", exists("parted_0", " and bucket = 0") + " or " + exists("parted_1", " and bucket = 1") + " or " + exists("parted_2", " and bucket = 2"), "parted_2 select 2, " + values},
		{"partitions, through the parent", exists("parted", " and bucket = any($2::int[])"), "parted select $3::int, " + values},
	} {
		through := strings.HasPrefix(v.insert, "parted ")
		variants = append(variants, variant{name: v.name, cpu: func() time.Duration { return 0 }, op: func(ctx context.Context) error {
			var key [16]byte
			for i := range key {
				key[i] = byte(rand.Uint32())
			}
			probe, insert := []any{key}, []any{key, key[:]}
			if through {
				probe, insert = append(probe, []int32{0, 1, 2}), append(insert, 2)
			}
			batch := &pgx.Batch{}
			batch.Queue("begin")
			batch.Queue("select pg_try_advisory_xact_lock($1)", int64(rand.Uint64()))
			batch.Queue("select "+v.probe, probe...)
			batch.Queue("insert into "+v.insert, insert...)
			batch.Queue("commit")
			return b.SendBatch(ctx, batch).Close()
		}})
	}
	for _, callers := range []int{1, 8} {
		out := compare(s, load{callers: callers}, variants)
		fmt.Printf("gate and outcome in one trip, %d callers\n", callers)
		for _, v := range variants {
			fmt.Printf("  %-44s %9.0f/s   rate %5.2f\n", v.name, median(out[v.name].rate), ratio(out[v.name].rate, out[variants[0].name].rate))
		}
	}
	return nil
}
