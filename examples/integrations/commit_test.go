package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/gorm"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/withent"
	"github.com/unavez/unavez/examples/integrations/withgorm"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// operation is one of the tests'.
func operation() unavez.Operation {
	return unavez.Operation{Tenant: "acme", Effect: "order.import.v1", Key: []string{"1"}}
}

// bench is what a library works on.
type bench struct {
	pool *pgxpool.Pool
	db   *sql.DB
	gorm *gorm.DB
	bun  *bun.DB
	pgx  *unavez.Engine[pgx.Tx]
	sql  *unavez.Engine[*sql.Tx]
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{pool: database(t)}
	b.db = postgres.OpenDB(b.pool)
	var err error
	if b.gorm, err = withgorm.Open(b.db); err != nil {
		t.Fatal(err)
	}
	b.bun = bun.NewDB(b.db, pgdialect.New())
	ledger, err := postgres.New(b.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.pgx, err = unavez.New(ledger, nil); err != nil {
		t.Fatal(err)
	}
	sqlLedger, err := postgres.NewSQL(b.db, b.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.sql, err = unavez.New(sqlLedger, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

const insert = `insert into orders (customer, sku, quantity) values ('c-1', 'A', 1)`

// onSQL runs a handler on a *sql.Tx.
func (b *bench) onSQL(ctx context.Context, handler func(context.Context, *sql.Tx) error) error {
	_, err := b.sql.Do(ctx, operation(), func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		return unavez.Result{}, handler(ctx, tx)
	})
	return err
}

func TestACommitByTheHandlerCommitsNothingAndIsReported(t *testing.T) {
	t.Parallel()
	for name, rogue := range map[string]func(*bench, context.Context) error{
		"pgx, by method": func(b *bench, ctx context.Context) error {
			_, err := b.pgx.Do(ctx, operation(), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				_, err := tx.Exec(ctx, insert)
				return unavez.Result{}, errors.Join(err, tx.Commit(ctx))
			})
			return err
		},
		"pgx, by statement, and the error ignored": func(b *bench, ctx context.Context) error {
			_, err := b.pgx.Do(ctx, operation(), func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				_, err := tx.Exec(ctx, insert)
				_, _ = tx.Exec(ctx, "commit")
				return unavez.Result{}, err
			})
			return err
		},
		"database/sql": func(b *bench, ctx context.Context) error {
			return b.onSQL(ctx, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, insert)
				return errors.Join(err, tx.Commit())
			})
		},
		"sqlx, and the error ignored": func(b *bench, ctx context.Context) error {
			return b.onSQL(ctx, func(ctx context.Context, inner *sql.Tx) error {
				tx := &sqlx.Tx{Tx: inner}
				_, err := tx.ExecContext(ctx, insert)
				_ = tx.Commit()
				return err
			})
		},
		"GORM": func(b *bench, ctx context.Context) error {
			return b.onSQL(ctx, func(ctx context.Context, tx *sql.Tx) error {
				session := withgorm.In(ctx, b.gorm, tx)
				return errors.Join(session.Exec(insert).Error, session.Commit().Error)
			})
		},
		"GORM, a rollback": func(b *bench, ctx context.Context) error {
			return b.onSQL(ctx, func(ctx context.Context, tx *sql.Tx) error {
				session := withgorm.In(ctx, b.gorm, tx)
				err := session.Exec(insert).Error
				session.Rollback()
				return err
			})
		},
		"bun": func(b *bench, ctx context.Context) error {
			return b.onSQL(ctx, func(ctx context.Context, tx *sql.Tx) error {
				_, err := b.bun.NewRaw(insert).Conn(tx).Exec(ctx)
				_, _ = b.bun.NewRaw("commit").Conn(tx).Exec(ctx)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			err := rogue(b, t.Context())
			if unavez.CodeOf(err) != unavez.CodeForeignCommit || !errors.Is(err, store.ErrForeignCommit) {
				t.Errorf("got %v, want %v", err, store.ErrForeignCommit)
			}
			if orders, _ := rows(t, b.pool); orders != 0 {
				t.Errorf("%d orders were committed", orders)
			}
			// The key is free, and the connection is clean.
			if err := b.onSQL(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, insert)
				return err
			}); err != nil {
				t.Errorf("again: %v", err)
			}
			if orders, _ := rows(t, b.pool); orders != 1 {
				t.Errorf("%d orders, want 1", orders)
			}
		})
	}
}

func TestATransactionInsideIsASavepoint(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	for name, handler := range map[string]func(*bench, context.Context, *sql.Tx) error{
		"GORM": func(b *bench, ctx context.Context, tx *sql.Tx) error {
			session := withgorm.In(ctx, b.gorm, tx)
			order := func() *withgorm.Order { return &withgorm.Order{Customer: "c-1", SKU: "A", Quantity: 1} }
			undone := session.Transaction(func(inner *gorm.DB) error {
				return errors.Join(inner.Create(order()).Error, no)
			})
			if !errors.Is(undone, no) {
				return undone
			}
			return session.Transaction(func(inner *gorm.DB) error { return inner.Create(order()).Error })
		},
		"ent": func(_ *bench, ctx context.Context, tx *sql.Tx) error {
			client := withent.In(tx)
			for _, keep := range []bool{false, true} {
				inner, err := client.Tx(ctx)
				if err != nil {
					return err
				}
				if err := inner.Order.Create().SetCustomer("c-1").SetSku("A").SetQuantity(1).Exec(ctx); err != nil {
					return err
				}
				end := inner.Rollback
				if keep {
					end = inner.Commit
				}
				if err := end(); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if err := b.onSQL(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return handler(b, ctx, tx) }); err != nil {
				t.Fatal(err)
			}
			if orders, _ := rows(t, b.pool); orders != 1 {
				t.Errorf("%d orders, want the one that was not undone", orders)
			}
		})
	}
}

func TestASessionOfGORMLeavesTheHandleAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.onSQL(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		session := withgorm.In(ctx, b.gorm, tx)
		if err := session.Exec(insert).Error; err != nil {
			return err
		}
		// Others who use the handle meanwhile do not see what is not committed.
		var outside int64
		if err := b.gorm.WithContext(ctx).Table("orders").Count(&outside).Error; err != nil {
			return err
		}
		if outside != 0 {
			t.Errorf("the handle sees %d orders of the open transaction", outside)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
