package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// An order that arrives twice is written once, and answered alike.
func Example() {
	if err := orders(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the handler runs
	// 201 order 1, replayed: false
	// 201 order 1, replayed: true
	// 1 order
}

func orders(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "orders")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(dir, "orders.db"), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)"); err != nil {
		return err
	}
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		return err
	}
	engine, err := unavez.New(ledger, nil) // *unavez.Engine[*sql.Tx]
	if err != nil {
		return err
	}
	defer engine.Close(ctx)

	order := unavez.Operation{Tenant: "acme", Effect: "order.create.v1", Key: []string{"c-1", "1001"}}
	for range 2 {
		outcome, err := engine.Do(ctx, order, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
			fmt.Println("the handler runs")
			var id int64
			err := tx.QueryRowContext(ctx, "INSERT INTO orders (customer) VALUES ('c-1') RETURNING id").Scan(&id)
			return unavez.Result{Code: 201, Body: fmt.Appendf(nil, "order %d", id)}, err
		})
		if err != nil {
			return err
		}
		fmt.Printf("%d %s, replayed: %v\n", outcome.Result.Code, outcome.Result.Body, outcome.Replayed)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil {
		return err
	}
	fmt.Println(n, "order")
	return nil
}

// An entry that a transaction appends is there when it commits; the worker that
// holds its lane does it, in one transaction with its outcome.
func ExampleStore_Enqueue() {
	if err := confirmations(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// confirm order 1001
	// left to do: 0
}

func confirmations(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "orders")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(dir, "orders.db"), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, confirmed INTEGER NOT NULL)"); err != nil {
		return err
	}
	s, err := sqlite.New(db, nil)
	if err != nil {
		return err
	}

	// The order and what is to be done about it, or neither.
	id := store.Identity{Tenant: "acme", Effect: "order.confirm.v1", Parts: []string{"1001"}}
	note := store.Note{Event: id, Identity: id, Source: "orders"}
	confirm := store.Entry{Key: id.Key(), Operation: id.Key(), Order: note.Order(), Note: note}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (1001, 0)"); err != nil {
		return err
	}
	if _, err := s.Enqueue(ctx, tx, []store.Entry{confirm}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}

	share, err := s.Keep(ctx, store.Keeping{Worker: "worker 1", Lease: 30 * time.Second})
	if err != nil {
		return err
	}
	left := func() ([]store.Entry, error) {
		r := store.Reading{Limit: 100}
		for _, h := range share.Held {
			r.Lanes = append(r.Lanes, h.Lane)
		}
		page, err := s.Read(ctx, r)
		return page.Entries, err
	}
	entries, err := left()
	if err != nil {
		return err
	}
	for _, e := range entries {
		txn, _, err := s.Begin(ctx, store.Gate{
			Identity: e.Note.Event, Key: e.Key, Hold: share.Held[store.LaneOf(e.Order, s.Lanes())].Hold,
			Limit: time.Second, Retention: 48 * time.Hour,
		})
		if err != nil {
			return err
		}
		fmt.Println("confirm order", e.Note.Identity.Parts[0])
		if _, err := txn.Tx().ExecContext(ctx, "UPDATE orders SET confirmed = 1 WHERE id = ?", e.Note.Identity.Parts[0]); err != nil {
			return err
		}
		if _, err := txn.Commit(ctx, store.End{State: store.Completed}); err != nil {
			return err
		}
	}
	if entries, err = left(); err != nil {
		return err
	}
	fmt.Println("left to do:", len(entries))
	return s.HandBack(ctx, "worker 1", nil, true)
}
