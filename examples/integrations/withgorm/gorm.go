// Package withgorm places an order with GORM: one handle for the program, and in
// the handler a session of it on the *sql.Tx. [Import] is for code that opens
// its transaction itself.
package withgorm

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/postgres"
)

// Order is a row of orders.
type Order struct {
	ID       int64
	Customer string
	SKU      string `gorm:"column:sku"`
	Quantity int32
}

// Open makes GORM's handle over one of database/sql.
func Open(db *sql.DB) (*gorm.DB, error) {
	return gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &gorm.Config{})
}

// In gives a session whose statements go over the transaction. The context is
// not optional: without one GORM changes the handle that all others use.
func In(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return session
}

// orders are placed through one handle.
type orders struct{ db *gorm.DB }

// New makes the routes of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	db := postgres.OpenDB(pool)
	handle, err := Open(db)
	if err != nil {
		return nil, err
	}
	s := &orders{handle}
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
	if err := write(In(r.Context(), s.db, tx), &o); err != nil {
		return err
	}
	return shop.Answer(w, o)
}

// write is the business, in a session of whoever opened the transaction.
func write(db *gorm.DB, o *shop.Order) error {
	row := &Order{Customer: o.Customer, SKU: o.SKU, Quantity: o.Quantity}
	if err := db.Create(row).Error; err != nil {
		return err
	}
	o.ID = row.ID
	taken := db.Table("stock").Where("sku = ? and quantity >= ?", o.SKU, o.Quantity).
		Update("quantity", gorm.Expr("quantity - ?", o.Quantity))
	if taken.Error != nil {
		return taken.Error
	}
	if taken.RowsAffected == 0 {
		return shop.SoldOut()
	}
	return nil
}

// Import places an order in a unit of work of GORM: the order and the outcome of
// the operation commit with whatever else is written in it.
func Import(ctx context.Context, db *gorm.DB, engine *unavez.Engine[*sql.Tx], op unavez.Operation, o shop.Order) (unavez.Outcome, error) {
	var outcome unavez.Outcome
	ready := false // for the COMMIT
	err := db.WithContext(ctx).Transaction(func(work *gorm.DB) error {
		tx, ok := work.Statement.ConnPool.(*sql.Tx)
		if !ok {
			return fmt.Errorf("unit of work on a %T, want a *sql.Tx (open GORM without PrepareStmt)", work.Statement.ConnPool)
		}
		var err error
		outcome, err = engine.Join(ctx, tx, op, func(context.Context) (unavez.Result, error) {
			if err := write(work, &o); err != nil {
				return unavez.Result{}, err
			}
			body, err := json.Marshal(o)
			return unavez.Result{Code: http.StatusCreated, Body: body}, err
		})
		ready = err == nil
		return err
	})
	if err == nil || !ready {
		return outcome, err // committed, or rolled back
	}
	// The answer of the COMMIT is lost: the outcome if it committed, CodeNotFound
	// if it rolled back, CodeInFlight for "ask again".
	return engine.Look(context.WithoutCancel(ctx), op)
}
