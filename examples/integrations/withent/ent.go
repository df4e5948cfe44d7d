// Package withent places an order with ent: in the handler, a client whose
// driver is the *sql.Tx. [Import] is for code that opens its transaction itself.
package withent

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withent/ent"
	"github.com/unavez/unavez/examples/integrations/withent/ent/stock"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	ledger, err := postgres.NewSQL(postgres.OpenDB(pool), pool, nil)
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
	if err := write(r.Context(), In(tx), &o); err != nil {
		return err
	}
	return shop.Answer(w, o)
}

// write is the business, with a client of whoever opened the transaction.
func write(ctx context.Context, client *ent.Client, o *shop.Order) error {
	row, err := client.Order.Create().SetCustomer(o.Customer).SetSku(o.SKU).SetQuantity(o.Quantity).Save(ctx)
	if err != nil {
		return err
	}
	o.ID = row.ID
	taken, err := client.Stock.Update().Where(stock.ID(o.SKU), stock.QuantityGTE(o.Quantity)).AddQuantity(-o.Quantity).Save(ctx)
	if err == nil && taken == 0 {
		return shop.SoldOut()
	}
	return err
}

// Import places an order in a unit of work that it opens itself: the order and
// the outcome of the operation commit with whatever else is written in it.
func Import(ctx context.Context, db *sql.DB, engine *unavez.Engine[*sql.Tx], op unavez.Operation, o shop.Order) (unavez.Outcome, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return unavez.Outcome{}, err
	}
	defer tx.Rollback()
	outcome, err := engine.Join(ctx, tx, op, func(ctx context.Context) (unavez.Result, error) {
		if err := write(ctx, In(tx), &o); err != nil {
			return unavez.Result{}, err
		}
		body, err := json.Marshal(o)
		return unavez.Result{Code: http.StatusCreated, Body: body}, err
	})
	if err != nil {
		return unavez.Outcome{}, err // rolled back
	}
	if err := tx.Commit(); err == nil {
		return outcome, nil
	}
	// The answer of the COMMIT is lost: the outcome if it committed, CodeNotFound
	// if it rolled back, CodeInFlight for "ask again".
	return engine.Look(context.WithoutCancel(ctx), op)
}

// In gives a client whose statements go over the transaction.
func In(tx *sql.Tx) *ent.Client {
	return ent.NewClient(ent.Driver(within{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}))
}

// within is ent's driver inside a transaction. A transaction that ent opens by
// itself, as it does to create an entity with its edges, is a savepoint.
type within struct{ dialect.Driver }

// Tx sets a savepoint.
func (d within) Tx(ctx context.Context) (dialect.Tx, error) {
	return savepoint{d}, d.Exec(ctx, "savepoint ent", []any{}, nil)
}

// savepoint is one that ent ends; the limit of the transaction bounds it.
type savepoint struct{ dialect.Driver }

// Commit keeps what was written since.
func (s savepoint) Commit() error {
	return s.Exec(context.Background(), "release savepoint ent", []any{}, nil)
}

// Rollback gives it up.
func (s savepoint) Rollback() error {
	if err := s.Exec(context.Background(), "rollback to savepoint ent", []any{}, nil); err != nil {
		return err
	}
	return s.Commit()
}
