// Package withsql places an order with database/sql: the handler gets a *sql.Tx.
package withsql

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	db := postgres.OpenDB(pool)
	ledger, err := postgres.NewSQL(db, pool, nil)
	if err != nil {
		return nil, err
	}
	engine, err := unavez.New(ledger, nil) // *unavez.Engine[*sql.Tx], inferred
	if err != nil {
		return nil, err
	}
	layer, err := httpkey.New(engine, shop.Caller, nil)
	if err != nil {
		return nil, err
	}
	go unavez.Upkeep(ctx, ledger, nil) // forgets what is over its retention
	mux := http.NewServeMux()
	mux.Handle("POST /orders", layer.Handle(place))
	return mux, nil
}

// place is one's own handler. It runs once for each key; an error rolls back
// what it wrote, and the key is free.
func place(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	o, err := shop.Read(r)
	if err != nil {
		return err
	}
	const insert = `insert into orders (customer, sku, quantity) values ($1, $2, $3) returning id`
	if err := tx.QueryRowContext(r.Context(), insert, o.Customer, o.SKU, o.Quantity).Scan(&o.ID); err != nil {
		return err
	}
	const take = `update stock set quantity = quantity - $2 where sku = $1 and quantity >= $2`
	taken, err := tx.ExecContext(r.Context(), take, o.SKU, o.Quantity)
	if err != nil {
		return err
	}
	if n, err := taken.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return shop.SoldOut()
	}
	return shop.Answer(w, o)
}
