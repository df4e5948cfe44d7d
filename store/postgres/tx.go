package postgres

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// guard is what an engine's transaction and its savepoints share.
type guard struct {
	done    atomic.Bool // the engine has ended it; its connection is another's
	foreign atomic.Bool // the handler tried to end it
	points  int         // savepoints so far
}

// Tx is the transaction that a handler gets. It is a pgx.Tx whose end is the
// engine's: Commit and Rollback are refused with [store.ErrForeignCommit], by
// method and by statement, and the transaction then commits nothing. Begin sets
// a savepoint, which the handler ends.
//
// What goes over Conn is not looked at. A COMMIT sent there commits what was
// written so far; the engine finds out and commits no outcome.
type Tx struct {
	unit  *unit
	guard *guard
	point *point // nil for the transaction itself
}

// point is a savepoint.
type point struct {
	name  string
	ended bool
}

var _ pgx.Tx = (*Tx)(nil)

// usable refuses what comes after the end, and texts that would end it.
func (t *Tx) usable(text string) error {
	switch {
	case t.guard.done.Load(), t.point != nil && t.point.ended:
		return pgx.ErrTxClosed
	case t.unit.ride.refused.Load():
		return t.unit.ride.refusal()
	case t.guard.foreign.Load(), endsTransaction(text):
		t.guard.foreign.Store(true)
		return store.ErrForeignCommit
	}
	return nil
}

// alone sends a gate that waits before something that it cannot ride on.
func (t *Tx) alone(ctx context.Context, text string) error {
	if err := t.usable(text); err != nil || !t.unit.ride.waits {
		return err
	}
	return t.unit.first(ctx)
}

// Begin sets a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.guard.points++
	p := &point{name: "sp_" + strconv.Itoa(t.guard.points)}
	if _, err := t.Exec(ctx, "savepoint "+p.name); err != nil {
		return nil, err
	}
	return &Tx{unit: t.unit, guard: t.guard, point: p}, nil
}

// Commit releases a savepoint; it is refused on the transaction itself.
func (t *Tx) Commit(ctx context.Context) error { return t.end(ctx, "release savepoint ") }

// Rollback goes back to a savepoint; it is refused on the transaction itself.
func (t *Tx) Rollback(ctx context.Context) error { return t.end(ctx, "rollback to savepoint ") }

func (t *Tx) end(ctx context.Context, how string) error {
	switch {
	case t.guard.done.Load(), t.point != nil && t.point.ended:
		return pgx.ErrTxClosed
	case t.point == nil:
		t.guard.foreign.Store(true)
		return store.ErrForeignCommit
	}
	t.point.ended = true
	_, err := t.unit.conn.Exec(ctx, how+t.point.name)
	return classify(err)
}

// Exec runs statements.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.usable(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	results, err := t.ahead(ctx, sql, args)
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case results != nil:
		tag, err := results.Exec()
		return tag, classify(first(err, results.Close()))
	}
	tag, err := t.unit.conn.Exec(ctx, sql, args...)
	return tag, classify(err)
}

// Query runs a statement and returns its rows.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.usable(sql); err != nil {
		return refused{err: err}, err
	}
	results, err := t.ahead(ctx, sql, args)
	switch {
	case err != nil:
		return refused{err: err}, err
	case results != nil:
		rows, err := results.Query()
		led := &ledRows{Rows: rows, results: results}
		if err != nil {
			led.Close()
		}
		return led, classify(err)
	}
	rows, err := t.unit.conn.Query(ctx, sql, args...)
	return rows, classify(err)
}

// QueryRow runs a statement and returns its first row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := t.Query(ctx, sql, args...) // the rows tell the error
	return oneRow{rows}
}

// oneRow is the first row of some, as pgx gives it.
type oneRow struct{ rows pgx.Rows }

func (r oneRow) Scan(dest ...any) error {
	defer r.rows.Close()
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errors.New("cannot scan into *pgtype.DriverBytes from QueryRow")
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return classify(err)
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return classify(err)
	}
	r.rows.Close()
	return classify(r.rows.Err())
}

// ahead sends a waiting gate ahead of a statement. There are no results where
// the statement is to be sent by itself.
func (t *Tx) ahead(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	if !t.unit.ride.waits {
		return nil, nil
	}
	if !rides(sql, args) {
		return nil, t.unit.first(ctx)
	}
	return t.unit.lead(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
}

// rides reports whether a statement can be sent in one trip with others: it is
// one statement, and has no option that a batch does not know.
func rides(sql string, args []any) bool {
	if len(args) > 0 {
		switch args[0].(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return false
		}
		return true
	}
	l := lexer{rest: sql}
	some := l.word() != ""
	if l.next() {
		l.blank()
	}
	return some && l.rest == ""
}

// ledRows are the rows of a statement that the gate went ahead of.
type ledRows struct {
	pgx.Rows
	results pgx.BatchResults
	closed  bool
	err     error
}

// Next also ends the trip behind the last row.
func (r *ledRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close ends the trip.
func (r *ledRows) Close() {
	r.Rows.Close()
	if !r.closed {
		r.closed = true
		r.err = r.results.Close()
	}
}

// Err is the statement's.
func (r *ledRows) Err() error { return first(r.Rows.Err(), r.err) }

// first is the first error of two.
func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

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
	if t.unit.ride.waits && len(b.QueuedQueries) > 0 {
		results, err := t.unit.lead(ctx, b.QueuedQueries...)
		switch {
		case err != nil:
			return pgx.FailedBatchResults(b, err)
		case results != nil:
			return results
		}
	}
	return t.unit.conn.SendBatch(ctx, b)
}

// CopyFrom copies rows into a table.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.alone(ctx, ""); err != nil {
		return 0, err
	}
	n, err := t.unit.conn.CopyFrom(ctx, table, columns, source)
	return n, classify(err)
}

// Prepare prepares a statement on the connection, which outlives the transaction.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.alone(ctx, sql); err != nil {
		return nil, err
	}
	described, err := t.unit.conn.Prepare(ctx, name, sql)
	return described, classify(err)
}

// LargeObjects gives access to large objects. It takes a trip of its own.
func (t *Tx) LargeObjects() pgx.LargeObjects {
	ctx, cancel := t.unit.bounded()
	defer cancel()
	if t.alone(ctx, "") == nil && t.unit.conn.PgConn().TxStatus() == 'T' {
		// Only the driver can make one, and only of a transaction that it begins.
		if inner, err := t.unit.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "select 1"}); err == nil {
			return inner.LargeObjects()
		}
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx().LargeObjects()
}

// Conn is the connection below. Do not keep it, and do not end the transaction
// on it. In the lazy form the gate is sent before it is given out; where the
// operation may not run, everything on it fails as in a failed transaction.
func (t *Tx) Conn() *pgx.Conn {
	if t.unit.ride.waits {
		ctx, cancel := t.unit.bounded()
		defer cancel()
		_ = t.alone(ctx, "") // its error comes again with each statement, and at the end
	}
	return t.unit.conn
}
