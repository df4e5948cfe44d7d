// Package withsqlc places an order with code that sqlc generated for pgx: its
// Queries run on the pgx.Tx of the handler.
package withsqlc

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withsqlc/orderdb"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	ledger, err := postgres.New(pool, nil)
	if err != nil {
		return nil, err
	}
	engine, err := unavez.New(ledger, nil) // *unavez.Engine[pgx.Tx], inferred
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
func place(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	o, err := shop.Read(r)
	if err != nil {
		return err
	}
	queries := orderdb.New(tx)
	o.ID, err = queries.InsertOrder(r.Context(), orderdb.InsertOrderParams{Customer: o.Customer, Sku: o.SKU, Quantity: o.Quantity})
	if err != nil {
		return err
	}
	taken, err := queries.TakeFromStock(r.Context(), orderdb.TakeFromStockParams{Sku: o.SKU, Taken: o.Quantity})
	if err != nil {
		return err
	}
	if taken == 0 {
		return shop.SoldOut()
	}
	return shop.Answer(w, o)
}
