package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
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
