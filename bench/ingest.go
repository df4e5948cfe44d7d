package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// entry is an event as the receiver appends it.
func entry() store.Entry {
	id := strconv.FormatInt(serial.Add(1), 36)
	customer := "customer-" + strconv.FormatInt(serial.Load()%500, 10)
	payload := must(json.Marshal(placed{ID: id, Customer: customer, Note: filler}))
	identity := store.Identity{Effect: placing, Parts: []string{"shop", run, id}}
	note := store.Note{
		Event: identity, Identity: identity, Ordering: []string{customer},
		Source: "shop", Type: "order/placed", ID: []string{run, id}, ContentType: "application/json",
	}
	key, sum := identity.Key(), sha256.Sum256(payload)
	return store.Entry{Key: key, Operation: key, Order: note.Order(), Fingerprint: store.Fingerprint{Sum: sum[:]}, Note: note, Payload: payload}
}

// measureIngest compares deliveries that are made durable together with a
// transaction for each, and appends of 500 with COPY of 500.
func measureIngest(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	b.exec(`create table plain (sequence bigserial, key uuid primary key, operation uuid, ordering uuid, lane int, fingerprint bytea, note bytea, payload bytea, arrived timestamptz default clock_timestamp())`)
	config := b.Config().Copy()
	config.MaxConns = 64
	wide := must(pgxpool.NewWithConfig(context.Background(), config))
	defer wide.Close()
	server := serverOf(b)
	cpu := func() time.Duration { return ownCPU() + server() }

	ledger := must(postgres.New(b.Pool, nil))
	engine := must(unavez.New(ledger, &unavez.Options{SingleTenant: true}))
	in := must(inbox.New(engine, ledger, shop(), []inbox.Effect[pgx.Tx]{{Name: placing, HandleBatch: insertOrders, OrderBy: byCustomer}}, nil))
	// It is not started: what is measured is the way in.
	const single = `insert into plain (key, operation, ordering, lane, fingerprint, note, payload) values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing`
	args := func(e store.Entry) []any {
		note := must(e.Note.Encode())
		return []any{[16]byte(e.Key), [16]byte(e.Operation), [16]byte(e.Order), store.LaneOf(e.Order, 256), e.Fingerprint.Sum, note, e.Payload}
	}
	auto := variant{name: "a transaction for each, pool of 64", cpu: cpu, op: func(ctx context.Context) error {
		_, err := wide.Exec(ctx, single, args(entry())...)
		return err
	}}
	var customer atomic.Int64
	received := variant{name: "unavez", cpu: cpu, op: func(ctx context.Context) error {
		_, err := in.Receiver().Admit(ctx, "shop", item("customer-"+strconv.FormatInt(customer.Add(1)%500, 10)))
		return err
	}}
	fmt.Println("one event of 200 bytes from each caller, answered when it is durable")
	for _, callers := range []int{1, 8, 64, 256} {
		found := compare(s, load{callers: callers}, []variant{auto, received})
		fmt.Printf("%d callers\n", callers)
		row(auto.name, found[auto.name], found[auto.name])
		row(received.name, found[received.name], found[auto.name])
	}
	columns := []string{"key", "operation", "ordering", "lane", "fingerprint", "note", "payload"}
	copied := variant{name: "COPY of 500, no duplicates looked for", cpu: cpu, op: func(ctx context.Context) error {
		rows := make([][]any, 500)
		for i := range rows {
			rows[i] = args(entry())
		}
		_, err := wide.CopyFrom(ctx, pgx.Identifier{"plain"}, columns, pgx.CopyFromRows(rows))
		return err
	}}
	appended := variant{name: "unavez, an append of 500", cpu: cpu, op: func(ctx context.Context) error {
		entries := make([]store.Entry, 500)
		for i := range entries {
			entries[i] = entry()
		}
		_, err := ledger.Append(ctx, store.Arrival{Entries: entries})
		return err
	}}
	fmt.Println("batches of 500 from one caller")
	found := compare(s, load{callers: 1}, []variant{copied, appended})
	row(copied.name, found[copied.name], found[copied.name])
	row(appended.name, found[appended.name], found[copied.name])
	fmt.Println()
	return nil
}

// measureGrowth asks what an event costs when more and more identities are
// remembered, and beside a writer that stays open.
func measureGrowth(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	b.exec(`create table bench_other (id int)`)
	server := serverOf(b)
	e := inbox.Effect[pgx.Tx]{HandleBatch: insertOrders, OrderBy: byCustomer}
	in := onPostgres(b, e, inbox.Options{})
	defer in.close()
	cost := func(label string) {
		var rates, used []float64
		for range s.rounds {
			before := server()
			rate, own := in.effects(5000, 500)
			rates = append(rates, rate)
			used = append(used, own+float64((server()-before).Microseconds())/5000)
		}
		fmt.Printf("  %-50s %8.0f effects/s %8.1f µs CPU\n", label, median(rates), median(used))
	}
	in.effects(5000, 500)
	cost("an empty ledger")
	for _, rows := range []int{100_000, 1_000_000, s.rows} {
		b.fill("outcome_1", rows, fresh)
		b.exec("update unavez.ledger set live = live | 2")
		b.exec("analyze")
		b.exec("checkpoint")
		cost(fmt.Sprintf("%d identities remembered", rows))
	}
	tx := must(b.Begin(context.Background()))
	must(tx.Exec(context.Background(), "insert into bench_other values (1)"))
	for i := range 3 {
		cost(fmt.Sprintf("beside a writer that stays open, part %d", i+1))
	}
	must(0, tx.Rollback(context.Background()))
	cost("after it has ended")
	fmt.Println()
	return nil
}

// serverOf is what the server's processes of this database have used, where the
// server is on this machine.
func serverOf(b *base) func() time.Duration {
	return func() (sum time.Duration) {
		rows := must(b.Query(context.Background(), "select pid from pg_stat_activity where datname = current_database()"))
		for _, pid := range must(pgx.CollectRows(rows, pgx.RowTo[int32])) {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				sum += cpuOf(int(pid))
			}
		}
		return sum
	}
}
