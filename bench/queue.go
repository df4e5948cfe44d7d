package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	driver "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// together is how many entries an arrival and a batch have.
const together = 50

// measureQueue measures the queue in SQLite: entries appended one by one, and
// effects from their append to their outcome, beside what the disk gives.
func measureQueue(s settings) error {
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
	q, err := openQueue(filepath.Join(dir, "queue.db"))
	if err != nil {
		return err
	}
	defer q.db.Close()
	one := variant{name: "append one entry", cpu: ownCPU, op: func(ctx context.Context) error {
		_, err := q.append(ctx, 1)
		return err
	}}
	batch := variant{name: fmt.Sprintf("append %d, do them in a batch", together), cpu: ownCPU, op: q.batch}
	singly := variant{name: fmt.Sprintf("append %d, do each by itself", together), cpu: ownCPU, op: q.singly}
	fmt.Println("SQLite, synchronous=FULL: the queue")
	for _, callers := range []int{1, 8, 64, 256} {
		found := compare(s, load{callers: callers}, []variant{disk, one})
		fmt.Printf("%d callers\n", callers)
		row(disk.name, found[disk.name], found[disk.name])
		row(one.name, found[one.name], found[disk.name])
	}
	for _, callers := range []int{1, 8} {
		found := compare(s, load{callers: callers}, []variant{disk, batch, singly})
		fmt.Printf("%d callers\n", callers)
		row(disk.name, found[disk.name], found[disk.name])
		for _, v := range []variant{batch, singly} {
			row(v.name, found[v.name], found[disk.name])
			fmt.Printf("    effects: %.0f/s, %.1f µs CPU each\n", median(found[v.name].rate)*together, median(found[v.name].cpu)/together)
		}
	}
	fmt.Println()
	return nil
}

// queue is a store and what makes its entries.
type queue struct {
	db   *sql.DB
	s    *sqlite.Store
	next atomic.Int64
}

func openQueue(path string) (*queue, error) {
	db, err := sqlite.OpenDB(&driver.Driver{}, path, nil)
	if err != nil {
		return nil, err
	}
	s, err := sqlite.New(db, &sqlite.StoreOptions{Room: 1 << 40})
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(schema)
	return &queue{db: db, s: s}, err
}

// append appends so many entries, with payloads of 300 bytes and an ordering key
// for ten of them.
func (q *queue) append(ctx context.Context, n int) ([]store.Entry, error) {
	entries := make([]store.Entry, n)
	for i := range entries {
		number := q.next.Add(1)
		id := store.Identity{Tenant: "bench", Effect: "order", Parts: []string{strconv.FormatInt(number, 10)}}
		note := store.Note{
			Event: id, Identity: id, Ordering: []string{strconv.FormatInt(number/10, 10)}, Source: "shop", Type: "order/paid", ID: id.Parts, ContentType: "application/json",
		}
		entries[i] = store.Entry{
			Key: id.Key(), Operation: id.Key(), Order: note.Order(), Note: note,
			Fingerprint: store.Fingerprint{Version: 1, Sum: answer[:32]}, Payload: make([]byte, 300),
		}
	}
	_, err := q.s.Append(ctx, store.Arrival{Entries: entries})
	return entries, err
}

func gateOf(e store.Entry) store.Gate {
	return store.Gate{Identity: e.Note.Event, Key: e.Key, Fingerprint: e.Fingerprint, Limit: time.Minute, Retention: 24 * time.Hour}
}

func effect(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `insert into orders(customer, amount, note) values (?, 42, ?)`, "customer", note)
	return err
}

func (q *queue) batch(ctx context.Context) error {
	entries, err := q.append(ctx, together)
	if err != nil {
		return err
	}
	gates, ends := make([]store.Gate, len(entries)), make([]*store.End, len(entries))
	for i, e := range entries {
		gates[i], ends[i] = gateOf(e), &store.End{State: store.Completed, Result: store.Result{Code: 200}}
	}
	b, _, err := q.s.BeginBatch(ctx, gates)
	if err != nil {
		return err
	}
	for range entries {
		if err := effect(ctx, b.Tx()); err != nil {
			return err
		}
	}
	_, err = b.Commit(ctx, ends)
	return err
}

func (q *queue) singly(ctx context.Context) error {
	entries, err := q.append(ctx, together)
	if err != nil {
		return err
	}
	done := make(chan error, len(entries))
	for _, e := range entries { // a key each, side by side, as in a lane
		go func() {
			txn, _, err := q.s.Begin(ctx, gateOf(e))
			if err == nil {
				err = effect(ctx, txn.Tx())
			}
			if err == nil {
				_, err = txn.Commit(ctx, store.End{State: store.Completed, Result: store.Result{Code: 200}})
			}
			done <- err
		}()
	}
	for range entries {
		if e := <-done; err == nil {
			err = e
		}
	}
	return err
}
