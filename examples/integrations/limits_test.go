package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/unavez/unavez/examples/integrations/shop"
	"github.com/unavez/unavez/examples/integrations/withent/ent"
	"github.com/unavez/unavez/examples/integrations/withgorm"
)

// TestWhatALibraryCannotDoInTheTransaction holds docs/integrations.md to the
// versions in go.mod: what becomes possible can be taken out there.
func TestWhatALibraryCannotDoInTheTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	one := shop.Order{Customer: "c-1", SKU: "A", Quantity: 1}
	for name, c := range map[string]struct {
		try  func(context.Context, *sql.Tx) error
		fine func(error) bool
	}{
		"sqlx does not know the placeholders": {
			func(ctx context.Context, tx *sql.Tx) error {
				wrapped := &sqlx.Tx{Tx: tx, Mapper: sqlx.NewDb(b.db, "pgx").Mapper}
				_, err := wrapped.NamedExecContext(ctx, `update stock set quantity = :quantity`, one)
				return err
			},
			func(err error) bool { return err != nil },
		},
		"sqlx needs the mapper": {
			func(ctx context.Context, tx *sql.Tx) error {
				return (&sqlx.Tx{Tx: tx}).GetContext(ctx, &one, `select 1 as quantity`)
			},
			func(err error) bool { return errors.Is(err, errPanic) },
		},
		"GORM begins no transaction inside": {
			func(ctx context.Context, tx *sql.Tx) error { return withgorm.In(ctx, b.gorm, tx).Begin().Error },
			func(err error) bool { return errors.Is(err, gorm.ErrInvalidTransaction) },
		},
		"GORM with PrepareStmt hides the transaction of a unit of work": {
			func(ctx context.Context, _ *sql.Tx) error {
				handle, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: b.db}), &gorm.Config{PrepareStmt: true})
				if err != nil {
					t.Error(err)
				}
				_, err = withgorm.Import(ctx, handle, b.sql, operation(), one)
				return err
			},
			func(err error) bool {
				return err != nil && err.Error() == "unit of work on a *gorm.PreparedStmtTX, want a *sql.Tx (open GORM without PrepareStmt)"
			},
		},
		"ent's own driver begins no transaction inside": {
			func(ctx context.Context, tx *sql.Tx) error {
				plain := ent.NewClient(ent.Driver(entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})))
				_, err := plain.Tx(ctx)
				return err
			},
			func(err error) bool { return errors.Is(err, errPanic) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := b.onSQL(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				return calmly(func() error { return c.try(ctx, tx) })
			}); !c.fine(err) {
				t.Errorf("got %v", err)
			}
			if orders, left := rows(t, b.pool); orders != 0 || left != 100 {
				t.Errorf("%d orders, %d left: want nothing done", orders, left)
			}
		})
	}
}

var errPanic = errors.New("panicked")

// calmly turns a panic into an error.
func calmly(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return f()
}
