// Package withchi places an order behind a chi router. The layer is one of its
// middlewares, and the handler, a plain one, finds its pgx.Tx in the context.
package withchi

import (
	"context"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
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
	layer, err := httpkey.New(engine, shop.Caller, &httpkey.Options{
		// What a plain handler wrote before it answers 409 would be committed with
		// that answer; here every answer from 400 up rolls back.
		Commit: func(status int) bool { return status < http.StatusBadRequest },
	})
	if err != nil {
		return nil, err
	}
	go unavez.Upkeep(ctx, ledger, nil) // forgets what is over its retention
	router := chi.NewRouter()
	router.Use(middleware.Recoverer) // outside: a panic rolls back, then reaches it
	router.With(layer.Wrap).Post("/orders", place)
	return router, nil
}

// place is one's own handler, with chi's signature.
func place(w http.ResponseWriter, r *http.Request) {
	tx, keyed := httpkey.Tx[pgx.Tx](r.Context())
	if !keyed {
		http.Error(w, "this route needs the layer", http.StatusInternalServerError)
		return
	}
	o, err := shop.Read(r)
	if err == nil {
		err = write(r.Context(), tx, &o)
	}
	var no *httpkey.Error
	switch {
	case err == nil:
		_ = shop.Answer(w, o) // kept in memory until the commit
	case errors.As(err, &no):
		http.Error(w, no.Detail, no.Status)
	default:
		http.Error(w, "not stored", http.StatusInternalServerError)
	}
}

func write(ctx context.Context, tx pgx.Tx, o *shop.Order) error {
	const insert = `insert into orders (customer, sku, quantity) values ($1, $2, $3) returning id`
	if err := tx.QueryRow(ctx, insert, o.Customer, o.SKU, o.Quantity).Scan(&o.ID); err != nil {
		return err
	}
	const take = `update stock set quantity = quantity - $2 where sku = $1 and quantity >= $2`
	taken, err := tx.Exec(ctx, take, o.SKU, o.Quantity)
	if err == nil && taken.RowsAffected() == 0 {
		return shop.SoldOut()
	}
	return err
}
