package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// leading is a store in the lazy form whose Begin sends a handler's first
// statement, a different kind of it each time, so that the suite meets the
// verdict of a gate that went with it.
type leading struct {
	*postgres.Store
	n atomic.Int64
}

func (l *leading) Begin(ctx context.Context, gate store.Gate) (store.Txn[pgx.Tx], store.Verdict, error) {
	return lead(ctx, l.Store, gate, firsts(), l.n.Add(1))
}

// sqlLeading is the same for database/sql.
type sqlLeading struct {
	*postgres.SQLStore
	n atomic.Int64
}

func (l *sqlLeading) Begin(ctx context.Context, gate store.Gate) (store.Txn[*sql.Tx], store.Verdict, error) {
	return lead(ctx, l.SQLStore, gate, sqlFirsts(), l.n.Add(1))
}

// lead begins, runs a first statement and gives the verdict that it met.
func lead[Tx any](ctx context.Context, ledger store.Ledger[Tx], gate store.Gate, firsts []first[Tx], n int64) (store.Txn[Tx], store.Verdict, error) {
	for {
		txn, v, err := ledger.Begin(ctx, gate)
		if err != nil || txn == nil {
			return txn, v, err
		}
		if gate.Eager || gate.From != 0 {
			return txn, v, nil
		}
		f := firsts[int(n)%len(firsts)]
		err = f.run(ctx, txn.Tx())
		if late := txn.(store.Late); late.Refused() {
			if !f.silent && !errors.Is(err, store.ErrRefused) {
				return nil, v, errors.Join(errors.New(f.name+": a refused statement gave another error"), err)
			}
			v, err = late.Verdict(ctx)
			if err == nil && v.State == store.Free {
				gate.Eager = true
				continue
			}
			return nil, v, err
		}
		if err != nil {
			return nil, store.Verdict{}, errors.Join(err, txn.Rollback(ctx))
		}
		return txn, v, nil
	}
}

// first is a kind of first statement that writes nothing.
type first[Tx any] struct {
	name   string
	run    func(ctx context.Context, tx Tx) error
	silent bool // it has no error to return
	rides  bool // the gate goes with it
}

func firsts() []first[pgx.Tx] {
	var n int
	return []first[pgx.Tx]{
		{name: "Exec", rides: true, run: func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "SELECT 1") }},
		{name: "Exec with arguments", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT $1::int", 1)
			return err
		}},
		{name: "Exec of several", run: func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "SELECT 1; SELECT 2") }},
		{name: "Exec of nothing", run: func(ctx context.Context, tx pgx.Tx) error { return says(ctx, tx, "-- nothing") }},
		{name: "Exec with an option", run: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT $1::int", pgx.QueryExecModeExec, 1)
			return err
		}},
		{name: "Query", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, $1::int)", 3)
			if err != nil {
				return err
			}
			all, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err == nil && len(all) != 3 {
				return errors.New("not three rows")
			}
			return err
		}},
		{name: "Query, left", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
			if err == nil && !rows.Next() {
				return errors.New("no row")
			}
			rows.Close()
			return err
		}},
		{name: "QueryRow", rides: true, run: func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, "SELECT 1").Scan(&n) }},
		{name: "QueryRow of none", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			err := tx.QueryRow(ctx, "SELECT 1 WHERE false").Scan(&n)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return errors.Join(err)
		}},
		{name: "SendBatch", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("SELECT 7").QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			batch.Queue("SELECT $1::text", "x")
			err := tx.SendBatch(ctx, batch).Close()
			if err == nil && n != 7 {
				return errors.New("not seven")
			}
			return err
		}},
		{name: "Begin", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			point, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return point.Commit(ctx)
		}},
		{name: "Begin, rolled back", rides: true, run: func(ctx context.Context, tx pgx.Tx) error {
			point, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return point.Rollback(ctx)
		}},
		{name: "CopyFrom", run: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "business"}, []string{"row"}, pgx.CopyFromRows(nil))
			return err
		}},
		{name: "Prepare", run: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "first", "SELECT 1")
			return err
		}},
		{name: "LargeObjects", silent: true, run: func(_ context.Context, tx pgx.Tx) error {
			tx.LargeObjects()
			return nil
		}},
		{name: "Conn", silent: true, run: func(_ context.Context, tx pgx.Tx) error {
			tx.Conn()
			return nil
		}},
	}
}

func sqlFirsts() []first[*sql.Tx] {
	var n int
	return []first[*sql.Tx]{
		{name: "Exec", rides: true, run: func(ctx context.Context, tx *sql.Tx) error { return sqlSays(ctx, tx, "SELECT 1") }},
		{name: "Exec with arguments", rides: true, run: func(ctx context.Context, tx *sql.Tx) error { return sqlSays(ctx, tx, "SELECT $1::int", 1) }},
		{name: "Exec of several", run: func(ctx context.Context, tx *sql.Tx) error { return sqlSays(ctx, tx, "SELECT 1; SELECT 2") }},
		{name: "QueryRow", run: func(ctx context.Context, tx *sql.Tx) error { return tx.QueryRowContext(ctx, "SELECT 1").Scan(&n) }},
		{name: "Prepare", run: func(ctx context.Context, tx *sql.Tx) error {
			statement, err := tx.PrepareContext(ctx, "SELECT $1::int")
			if err != nil {
				return err
			}
			return errors.Join(statement.QueryRowContext(ctx, 1).Scan(&n), statement.Close())
		}},
	}
}
