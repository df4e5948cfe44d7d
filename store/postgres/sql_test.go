package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/storetest"
)

// sqlWorker is a worker whose handlers use database/sql.
type sqlWorker struct {
	*postgres.SQLStore
	db   *sql.DB
	wire *wire
}

func (d *database) sqlWorker(t *testing.T, open func(*pgxpool.Pool) *sql.DB, opts *postgres.Options) *sqlWorker {
	t.Helper()

	w := &sqlWorker{wire: &wire{}}
	pool := d.pool(t, "unavez_app", func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = w.wire.dial
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // which would be a trip
	})
	w.db = open(pool)
	t.Cleanup(func() {
		if t.Failed() {
			go w.db.Close() //nolint:errcheck // it may wait for a connection that was kept
			return
		}
		if err := w.db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var err error
	if w.SQLStore, err = postgres.NewSQL(w.db, pool, opts); err != nil {
		t.Fatal(err)
	}
	return w
}

func sqlSays(ctx context.Context, tx *sql.Tx, text string, args ...any) error {
	_, err := tx.ExecContext(ctx, text, args...)
	return err
}

func sqlWrite(ctx context.Context, tx *sql.Tx, row string) error {
	return sqlSays(ctx, tx, "INSERT INTO public.business (row) VALUES ($1)", row)
}

func sqlHarness(t *testing.T, d *database, open func(*pgxpool.Pool) *sql.DB, opts *postgres.Options) storetest.Harness[*sql.Tx] {
	return sqlHarnessOf(t, d, d.sqlWorker(t, open, opts), open, opts)
}

func sqlHarnessOf(t *testing.T, d *database, first *sqlWorker, open func(*pgxpool.Pool) *sql.DB, opts *postgres.Options) storetest.Harness[*sql.Tx] {
	ledger := func(w *sqlWorker) store.Ledger[*sql.Tx] {
		if opts != nil && opts.Lazy {
			return &sqlLeading{SQLStore: w.SQLStore}
		}
		return w.SQLStore
	}
	h := common[*sql.Tx](d)
	h.Ledger = ledger(first)
	h.Write = sqlWrite
	h.Read = func(ctx context.Context, tx *sql.Tx) (out []string, err error) {
		rows, err := tx.QueryContext(ctx, "SELECT row FROM public.business")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var row string
			if err := rows.Scan(&row); err != nil {
				return nil, err
			}
			out = append(out, row)
		}
		return out, rows.Err()
	}
	h.BeginForeign = func(ctx context.Context) (*sql.Tx, func() error, func() error, error) {
		tx, err := first.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		t.Cleanup(func() { _ = tx.Rollback() }) // one that has ended needs none
		return tx, tx.Commit, tx.Rollback, nil
	}
	h.Second = func(t *testing.T) store.Ledger[*sql.Tx] { return ledger(d.sqlWorker(t, open, opts)) }
	h.Savepoint = func(ctx context.Context, tx *sql.Tx) (func() error, error) {
		return func() error { return sqlSays(ctx, tx, "ROLLBACK TO mine") }, sqlSays(ctx, tx, "SAVEPOINT mine")
	}
	h.Abort = func(ctx context.Context, tx *sql.Tx) error { return sqlSays(ctx, tx, "SELECT 1/0") }
	return h
}

func TestDatabaseSQLHoldsWhatEveryStorePromises(t *testing.T) {
	ours := func(t *testing.T, opts *postgres.Options) {
		all := &beds{t: t}
		storetest.Run(t, func(t *testing.T) storetest.Harness[*sql.Tx] {
			h := sqlHarness(t, all.fresh(t), postgres.OpenDB, opts)
			h.EndByHandler = []func(ctx context.Context, tx *sql.Tx) error{
				func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
				func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
				func(ctx context.Context, tx *sql.Tx) error { return sqlSays(ctx, tx, "COMMIT") },
				func(ctx context.Context, tx *sql.Tx) error {
					return sqlSays(ctx, tx, "INSERT INTO public.business (row) VALUES ('half'); ROLLBACK")
				},
				func(ctx context.Context, tx *sql.Tx) error {
					rows, err := tx.QueryContext(ctx, "end")
					if err == nil {
						err = errors.Join(rows.Err(), rows.Close())
					}
					return err
				},
			}
			return h
		})
	}
	t.Run("ours", func(t *testing.T) { ours(t, nil) })
	t.Run("lazy", func(t *testing.T) { ours(t, &postgres.Options{Lazy: true}) })
	t.Run("foreign", func(t *testing.T) {
		all := &beds{t: t}
		storetest.Run(t, func(t *testing.T) storetest.Harness[*sql.Tx] {
			return sqlHarness(t, all.fresh(t), func(pool *pgxpool.Pool) *sql.DB { return stdlib.OpenDBFromPool(pool) }, nil)
		})
	})
}

func TestDatabaseSQLTakesNoMoreTripsThanABareTransaction(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	ctx := t.Context()
	for name, c := range map[string]struct {
		open func(*pgxpool.Pool) *sql.DB
		more int
	}{
		"ours":    {postgres.OpenDB, 0},
		"foreign": {func(pool *pgxpool.Pool) *sql.DB { return stdlib.OpenDBFromPool(pool) }, 2},
	} {
		w := d.sqlWorker(t, c.open, nil)
		w.db.SetMaxOpenConns(1)
		bare := func() {
			tx, err := w.db.BeginTx(ctx, nil)
			must(t, "begin", err)
			must(t, "write", sqlWrite(ctx, tx, "bare"))
			must(t, "commit", tx.Commit())
		}
		n := 0
		once := func() {
			n++
			txn, v, err := w.Begin(ctx, gateOf(name, string(rune('a'+n))))
			must(t, "Begin", err)
			if txn == nil {
				t.Fatalf("Begin: %v", v.State)
			}
			must(t, "write", sqlWrite(ctx, txn.Tx(), "once"))
			_, err = txn.Commit(ctx, completed("once"))
			must(t, "Commit", err)
		}
		for range 2 {
			bare()
			once()
		}
		if got, want := w.wire.count(once), w.wire.count(bare)+c.more; got != want {
			t.Errorf("%s: %d trips, want %d", name, got, want)
		}
	}
}

func TestDatabaseSQLFindsOutAboutAForeignCommit(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	ctx := t.Context()
	w := d.sqlWorker(t, func(pool *pgxpool.Pool) *sql.DB { return stdlib.OpenDBFromPool(pool) }, nil)
	gate := gateOf("foreign")
	txn, _, err := w.Begin(ctx, gate)
	must(t, "Begin", err)
	must(t, "commit", txn.Tx().Commit())
	_, err = txn.Commit(ctx, completed("no"))
	is(t, "Commit", err, store.ErrForeignCommit)
	if v, err := w.Look(ctx, gate.Key); err != nil || v.State != store.Free {
		t.Errorf("Look: %v, %v", v.State, err)
	}
}

func TestDatabaseSQLLosesNoAnswer(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	ctx := t.Context()
	w := d.sqlWorker(t, postgres.OpenDB, nil)
	for _, took := range []bool{true, false} {
		gate := gateOf("lost", map[bool]string{true: "took", false: "not"}[took])
		txn, _, err := w.Begin(ctx, gate)
		must(t, "Begin", err)
		must(t, "write", sqlWrite(ctx, txn.Tx(), gate.Identity.Parts[1]))
		w.wire.lose(took)
		_, err = txn.Commit(ctx, completed("lost"))
		is(t, "Commit", err, store.ErrCommitUnknown)
		eventually(t, "Settle", func() bool {
			v, err := w.Settle(ctx, gate.Key)
			must(t, "Settle", err)
			return v.State != store.Processing
		})
		if v, err := w.Look(ctx, gate.Key); err != nil || (v.State == store.Completed) != took {
			t.Errorf("took %v: %v, %v", took, v.State, err)
		}
	}
	rowsAre(t, d, "took")
}
