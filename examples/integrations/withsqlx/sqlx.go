// Package withsqlx places an order with sqlx: an sqlx.Tx around the *sql.Tx of
// the handler.
package withsqlx

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// orders are placed through one handle.
type orders struct{ db *sqlx.DB }

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	db := postgres.OpenDB(pool)
	s := &orders{sqlx.NewDb(db, "pgx")}
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
	mux.Handle("POST /orders", layer.Handle(s.place))
	return mux, nil
}

// place is one's own handler. It runs once for each key; an error rolls back
// what it wrote, and the key is free.
func (s *orders) place(w http.ResponseWriter, r *http.Request, inner *sql.Tx) error {
	o, err := shop.Read(r)
	if err != nil {
		return err
	}
	tx := &sqlx.Tx{Tx: inner, Mapper: s.db.Mapper}
	const insert = `insert into orders (customer, sku, quantity) values ($1, $2, $3) returning *`
	if err := tx.GetContext(r.Context(), &o, insert, o.Customer, o.SKU, o.Quantity); err != nil {
		return err
	}
	const take = `update stock set quantity = quantity - :quantity where sku = :sku and quantity >= :quantity`
	query, args, err := s.db.BindNamed(take, o) // the handle knows $1, the wrapped transaction does not
	if err != nil {
		return err
	}
	taken, err := tx.ExecContext(r.Context(), query, args...)
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
