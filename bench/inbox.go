package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	driver "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// placed is the payload of an event, about 200 bytes with its note.
type placed struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Note     string `json:"note"`
}

const placing = "order.place.v1"

// filler makes an event's payload 200 bytes long.
const filler = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"

func placedOf(e *inbox.Event) (v placed, err error) { return v, json.Unmarshal(e.Data, &v) }

// byCustomer is the ordering key.
func byCustomer(e *inbox.Event) ([]string, error) {
	v, err := placedOf(e)
	return []string{v.Customer}, err
}

// item is an event as a sender with good identities gives it.
func item(customer string) source.Item {
	id := strconv.FormatInt(serial.Add(1), 36)
	data := must(json.Marshal(placed{ID: id, Customer: customer, Note: filler}))
	return source.Item{Event: &source.Event{ID: []string{run, id}, Type: "order/placed", Data: data, ContentType: "application/json"}, Raw: data}
}

var (
	serial atomic.Int64
	run    = strconv.FormatInt(time.Now().UnixNano(), 36)
)

// shop is the one source.
func shop() []inbox.Source {
	return []inbox.Source{{
		Name: "shop", Contract: source.StandardWebhooks("webhook"), Types: []string{"*"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("current", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")}},
	}}
}

// bed is an inbox at work, and what it has done.
type bed[Tx any] struct {
	engine *unavez.Engine[Tx]
	in     *inbox.Inbox[Tx]

	mu    sync.Mutex
	done  int
	took  []time.Duration // of each, from arrival to commit, while watched
	watch func(inbox.Sight) bool
	more  *sync.Cond
}

// open starts an inbox with one effect.
func open[Tx any](ledger interface {
	store.Ledger[Tx]
	store.Queue
}, e inbox.Effect[Tx], opts inbox.Options,
) (*bed[Tx], error) {
	b := &bed[Tx]{}
	b.more = sync.NewCond(&b.mu)
	var err error
	if b.engine, err = unavez.New[Tx](ledger, &unavez.Options{SingleTenant: true}); err != nil {
		return nil, err
	}
	opts.Observe = func(s inbox.Sight) {
		if s.What != "completed" {
			return
		}
		b.mu.Lock()
		b.done += max(s.Count, 1)
		if b.watch != nil && b.watch(s) {
			b.took = append(b.took, s.Took)
		}
		b.more.Broadcast()
		b.mu.Unlock()
	}
	if e.Name == "" {
		e.Name = placing
	}
	if b.in, err = inbox.New(b.engine, ledger, shop(), []inbox.Effect[Tx]{e}, &opts); err != nil {
		return nil, err
	}
	return b, b.in.Start(context.Background())
}

func (b *bed[Tx]) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(0, b.in.Stop(ctx))
	must(0, b.engine.Close(ctx))
}

// feed admits so many events of so many customers, size at a time.
func (b *bed[Tx]) feed(n, customers, size, callers int) {
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for left.Add(int64(-size)) >= 0 {
				items := make([]source.Item, size)
				for i := range items {
					items[i] = item("customer-" + strconv.FormatInt(serial.Load()%int64(customers), 10))
				}
				must(b.in.Receiver().Admit(context.Background(), "shop", items...))
			}
		})
	}
	all.Wait()
}

// reach waits for so many effects.
func (b *bed[Tx]) reach(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.done < n {
		b.more.Wait()
	}
}

func (b *bed[Tx]) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// effects times n events from the first admission to the last effect.
func (b *bed[Tx]) effects(n, customers int) (rate, cpu float64) {
	before, begun, used := b.count(), time.Now(), ownCPU()
	b.feed(n, customers, 500, 4)
	b.reach(before + n/500*500)
	return float64(n) / time.Since(begun).Seconds(), float64((ownCPU() - used).Microseconds()) / float64(n)
}

// measureInbox asks how many effects a second the inbox commits on SQLite, and
// how many deliveries it makes durable, beside what the disk gives.
func measureInbox(s settings) error {
	if _, err := driver.Fdatasync(true); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "unavez-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	disk, err := fdatasync(filepath.Join(dir, "raw"))
	if err != nil {
		return err
	}
	insert := `insert into orders(customer, amount, note) values (?, 42, ?)`
	one := func(ctx context.Context, tx *sql.Tx, e *inbox.Event) error {
		v, err := placedOf(e)
		if err != nil {
			return inbox.Permanent(err)
		}
		_, err = tx.ExecContext(ctx, insert, v.Customer, v.Note)
		return err
	}
	several := func(ctx context.Context, tx *sql.Tx, events []*inbox.Event) error {
		for _, e := range events {
			if err := one(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	}
	ways := []struct {
		name string
		e    inbox.Effect[*sql.Tx]
	}{
		{"a handler for all events of a batch", inbox.Effect[*sql.Tx]{HandleBatch: several, OrderBy: byCustomer}},
		{"a batch of handlers", inbox.Effect[*sql.Tx]{Handle: one, Batch: true, OrderBy: byCustomer}},
		{"a unit for each event", inbox.Effect[*sql.Tx]{Handle: one, OrderBy: byCustomer}},
	}
	fmt.Println("SQLite, synchronous=FULL: events to committed effects, 500 ordering keys")
	raw := compare(s, load{callers: 1}, []variant{disk})[disk.name]
	fmt.Printf("  %-44s %9.0f/s\n", disk.name, median(raw.rate))
	for i, w := range ways {
		db, err := sqlite.OpenDB(&driver.Driver{}, filepath.Join(dir, strconv.Itoa(i)+".db"), nil)
		if err != nil {
			return err
		}
		must(db.Exec(schema))
		b, err := open(must(sqlite.New(db, nil)), w.e, inbox.Options{})
		if err != nil {
			return err
		}
		b.effects(1000, 500)
		var rates, cpu []float64
		for range s.rounds {
			r, c := b.effects(4000, 500)
			rates, cpu = append(rates, r), append(cpu, c)
		}
		fmt.Printf("  %-44s %9.0f effects/s %8.1f µs CPU   %.1f for each sync of the disk\n", w.name, median(rates), median(cpu), median(rates)/median(raw.rate))
		if i == 0 {
			for _, callers := range []int{1, 8, 64, 256} {
				begun := time.Now()
				n := 100 * callers
				b.feed(n, 500, 1, callers)
				fmt.Printf("  %-44s %9.0f deliveries/s\n", fmt.Sprintf("made durable one by one, %d callers", callers), float64(n)/time.Since(begun).Seconds())
			}
		}
		b.close()
		must(0, db.Close())
	}
	fmt.Println()
	return nil
}

// insertOrders is the effect on PostgreSQL, of several events in one statement.
func insertOrders(ctx context.Context, tx pgx.Tx, events []*inbox.Event) error {
	customers, notes := make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		v, err := placedOf(e)
		if err != nil {
			return inbox.Permanent(err)
		}
		customers[i], notes[i] = v.Customer, v.Note
	}
	_, err := tx.Exec(ctx, `insert into bench_orders (customer, amount, note) select c, 42, n from unnest($1::text[], $2::text[]) x(c, n)`, customers, notes)
	return err
}

// onPostgres opens an inbox on a database of the measurement.
func onPostgres(b *base, e inbox.Effect[pgx.Tx], opts inbox.Options) *bed[pgx.Tx] {
	b.exec(`create table if not exists bench_orders (id bigserial primary key, customer text, amount int, note text)`)
	return must(open(must(postgres.New(b.Pool, nil)), e, opts))
}

// measurePoison asks what one key that fails for ever costs the others: their
// time from arrival to commit, with it and without it.
func measurePoison(s settings) error {
	b, err := openBase(s)
	if err != nil {
		return err
	}
	defer b.drop()
	const keys = 10_000
	poisoned := "customer-0"
	tail := func(poison bool) (p50, p99 float64) {
		one := func(ctx context.Context, tx pgx.Tx, e *inbox.Event) error {
			if v, err := placedOf(e); err != nil || poison && v.Customer == poisoned {
				return fmt.Errorf("cannot be done: %w", context.DeadlineExceeded)
			}
			return insertOrders(ctx, tx, []*inbox.Event{e})
		}
		in := onPostgres(b, inbox.Effect[pgx.Tx]{Handle: one, OrderBy: byCustomer, Retry: inbox.Retry{First: 20 * time.Millisecond, Longest: 100 * time.Millisecond, Attempts: 1000}}, inbox.Options{})
		defer in.close()
		in.watch = func(inbox.Sight) bool { return true }
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for i := range s.rounds * 100 {
			<-pace.C
			customer := "customer-" + strconv.Itoa(i%keys+1)
			must(in.in.Receiver().Admit(context.Background(), "shop", item(customer)))
			if i%10 == 0 {
				must(in.in.Receiver().Admit(context.Background(), "shop", item(poisoned)))
			}
		}
		want := s.rounds * 100
		if !poison {
			want += s.rounds * 10
		}
		in.reach(want)
		slices.Sort(in.took)
		return in.took[len(in.took)/2].Seconds() * 1000, in.took[len(in.took)*99/100].Seconds() * 1000
	}
	calm50, calm99 := tail(false)
	with50, with99 := tail(true)
	fmt.Printf("one event every 5 ms, a poisoned key among %d: from arrival to commit\n", keys)
	fmt.Printf("  without it  p50 %.1f ms  p99 %.1f ms\n  with it     p50 %.1f ms  p99 %.1f ms   p99 %.2f times\n\n", calm50, calm99, with50, with99, with99/calm99)
	return nil
}
