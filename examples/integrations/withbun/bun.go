// Package withbun places an order with bun: queries of the handle, sent over the
// *sql.Tx of the handler by Conn.
package withbun

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// order is a row of orders.
type order struct {
	bun.BaseModel `bun:"orders"`

	ID       int64 `bun:",pk,autoincrement"`
	Customer string
	SKU      string
	Quantity int32
}

// orders are placed through one handle.
type orders struct{ db *bun.DB }

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	db := postgres.OpenDB(pool)
	s := &orders{bun.NewDB(db, pgdialect.New())}
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
func (s *orders) place(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	o, err := shop.Read(r)
	if err != nil {
		return err
	}
	row := &order{Customer: o.Customer, SKU: o.SKU, Quantity: o.Quantity}
	if _, err := s.db.NewInsert().Model(row).Conn(tx).Exec(r.Context()); err != nil {
		return err
	}
	o.ID = row.ID
	taken, err := s.db.NewUpdate().Table("stock").Set("quantity = quantity - ?", o.Quantity).
		Where("sku = ? and quantity >= ?", o.SKU, o.Quantity).Conn(tx).Exec(r.Context())
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
