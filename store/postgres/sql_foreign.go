package postgres

import (
	"context"
	"database/sql"

	"github.com/unavez/unavez/store"
)

// foreignTxn is an open transaction on a handle that others opened: gate and
// outcome are statements of their own.
type foreignTxn struct {
	tx     *sql.Tx
	cancel context.CancelFunc // of the transaction, and of a statement that is not answered
	unit   *unit
	done   bool
}

var _ store.Txn[*sql.Tx] = (*foreignTxn)(nil)

// beginPlain opens a plain transaction and runs the gate in it.
func (s *SQLStore) beginPlain(ctx context.Context, gate store.Gate, waits bool) (*foreignTxn, *found, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	// The transaction outlives ctx, the BEGIN does not: a connection may be silent.
	open, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := s.db.BeginTx(open, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if !stop() { // database/sql rolls it back, if it was opened
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, nil, acquiring(err)
	}
	t := &foreignTxn{tx: tx, cancel: cancel, unit: s.unit(nil, gate)}
	f := &found{}
	text, args := gating(gate, waits)
	err = tx.QueryRowContext(ctx, text, args...).
		Scan(append([]any{&t.unit.started}, f.columns()...)...)
	if err != nil {
		t.rollback()
		return nil, nil, opening(ctx, err)
	}
	t.unit.stale, t.unit.durability = f.stale, f.durability
	return t, f, nil
}

func (s *SQLStore) beginForeign(ctx context.Context, gate store.Gate) (store.Txn[*sql.Tx], store.Verdict, error) {
	t, f, err := s.beginPlain(ctx, gate, false)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	v, err := f.verdict(gate.Key)
	if err != nil || !f.open(gate.From) {
		t.rollback()
		return nil, v, err
	}
	t.unit.fence, t.unit.number = f.fence(), f.fence()+1
	return t, v, nil
}

func (s *SQLStore) finishForeign(ctx context.Context, gate store.Gate, fence int64) (store.Txn[*sql.Tx], error) {
	t, f, err := s.beginPlain(ctx, gate, true)
	if err != nil {
		return nil, err
	}
	if err := t.unit.owns(f, fence); err != nil {
		t.rollback()
		return nil, err
	}
	return t, nil
}

// Tx is the handler's.
func (t *foreignTxn) Tx() *sql.Tx { return t.tx }

// Commit is two trips. A handler that ended the transaction is found out: by
// database/sql, or by the marker.
func (t *foreignTxn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if t.done {
		return nil, sql.ErrTxDone
	}
	if err := t.unit.ready(ctx); err != nil {
		t.rollback()
		return nil, err
	}
	o, args := t.unit.arguments(end)
	if err := t.tx.QueryRowContext(ctx, finishText, args...).Scan(&o.At); err != nil {
		t.rollback()
		return nil, joining(err)
	}
	t.done = true
	stop := context.AfterFunc(ctx, t.cancel) // a COMMIT that is not answered is lost
	defer t.cancel()
	defer stop()
	if err := t.tx.Commit(); err != nil {
		return nil, lost(err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// Rollback gives everything up.
func (t *foreignTxn) Rollback(context.Context) error {
	t.rollback()
	return nil
}

func (t *foreignTxn) rollback() {
	if !t.done {
		t.done = true
		defer t.cancel()
		_ = t.tx.Rollback() // an error leaves it ended too
	}
}
