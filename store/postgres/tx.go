package postgres

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/unavez/unavez/store"
)

// guard is what an engine's transaction and its savepoints share.
type guard struct {
	done    atomic.Bool // the engine has ended it; its connection is another's
	foreign atomic.Bool // the handler tried to end it
}

// Tx is the transaction that a handler gets. It is a pgx.Tx whose end is the
// engine's: Commit and Rollback are refused with [store.ErrForeignCommit], by
// method and by statement, and the transaction then commits nothing. Begin sets
// a savepoint, which the handler ends.
//
// What goes over Conn is not looked at. A COMMIT sent there commits what was
// written so far; the engine finds out and commits no outcome.
type Tx struct {
	inner pgx.Tx
	guard *guard
	point bool // a savepoint
}

var _ pgx.Tx = (*Tx)(nil)

// usable refuses what comes after the end, and texts that would end it.
func (t *Tx) usable(text string) error {
	if t.guard.done.Load() {
		return pgx.ErrTxClosed
	}
	if t.guard.foreign.Load() || endsTransaction(text) {
		t.guard.foreign.Store(true)
		return store.ErrForeignCommit
	}
	return nil
}

// Begin sets a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.usable(""); err != nil {
		return nil, err
	}
	inner, err := t.inner.Begin(ctx)
	if err != nil {
		return nil, classify(err)
	}
	return &Tx{inner: inner, guard: t.guard, point: true}, nil
}

// Commit releases a savepoint; it is refused on the transaction itself.
func (t *Tx) Commit(ctx context.Context) error {
	return t.end(func() error { return t.inner.Commit(ctx) })
}

// Rollback goes back to a savepoint; it is refused on the transaction itself.
func (t *Tx) Rollback(ctx context.Context) error {
	return t.end(func() error { return t.inner.Rollback(ctx) })
}

func (t *Tx) end(inner func() error) error {
	switch {
	case t.guard.done.Load():
		return pgx.ErrTxClosed
	case !t.point:
		t.guard.foreign.Store(true)
		return store.ErrForeignCommit
	}
	return classify(inner())
}

// Exec runs statements.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.usable(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := t.inner.Exec(ctx, sql, args...)
	return tag, classify(err)
}

// Query runs a statement and returns its rows.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.usable(sql); err != nil {
		return refused{err: err}, err
	}
	rows, err := t.inner.Query(ctx, sql, args...)
	return rows, classify(err)
}

// QueryRow runs a statement and returns its first row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.usable(sql); err != nil {
		return refused{err: err}
	}
	return row{t.inner.QueryRow(ctx, sql, args...)}
}

// row classifies what pgx tells when the row is scanned.
type row struct{ pgx.Row }

func (r row) Scan(dest ...any) error { return classify(r.Row.Scan(dest...)) }

// refused are the rows of a statement that was not run.
type refused struct {
	pgx.Rows
	err error
}

func (r refused) Close()                                       {}
func (r refused) Err() error                                   { return r.err }
func (r refused) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r refused) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r refused) Next() bool                                   { return false }
func (r refused) Scan(...any) error                            { return r.err }
func (r refused) Values() ([]any, error)                       { return nil, r.err }
func (r refused) RawValues() [][]byte                          { return nil }
func (r refused) Conn() *pgx.Conn                              { return nil }

// SendBatch sends several statements in one trip.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.usable(""); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	for _, q := range b.QueuedQueries {
		if err := t.usable(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return t.inner.SendBatch(ctx, b)
}

// CopyFrom copies rows into a table.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.usable(""); err != nil {
		return 0, err
	}
	n, err := t.inner.CopyFrom(ctx, table, columns, source)
	return n, classify(err)
}

// Prepare prepares a statement on the connection, which outlives the transaction.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.usable(sql); err != nil {
		return nil, err
	}
	described, err := t.inner.Prepare(ctx, name, sql)
	return described, classify(err)
}

// LargeObjects gives access to large objects.
func (t *Tx) LargeObjects() pgx.LargeObjects { return t.inner.LargeObjects() }

// Conn is the connection below. Do not keep it, and do not end the transaction on it.
func (t *Tx) Conn() *pgx.Conn { return t.inner.Conn() }
