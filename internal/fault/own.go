package fault

import (
	"context"
)

// Own is a transaction that the caller opens, commits and rolls back itself. It
// is used by one goroutine.
type Own[Tx any] struct {
	// Tx is the transaction.
	Tx     Tx
	life   *Life
	conn   *conn
	commit func() error
	ended  bool
}

// Begin opens a transaction of the caller's own: the step own. begin gives it,
// with what ends it.
func Begin[Tx any](ctx context.Context, life *Life, begin func(context.Context) (tx Tx, commit, rollback func() error, err error)) (*Own[Tx], error) {
	o := &Own[Tx]{life: life}
	var rollback func() error
	back := func() {
		if rollback != nil {
			_ = rollback() // nobody is there to be told
		}
	}
	told, err := life.do(ctx, move{
		step: OwnBegin,
		apply: func(ctx context.Context, _ *Note) (err error) {
			o.Tx, o.commit, rollback, err = begin(ctx)
			return err
		},
		abandon: back, refused: ErrDown, lost: ErrDown,
	})
	if !told || err != nil {
		return nil, err
	}
	o.conn = life.opens(o.Tx, back)
	return o, nil
}

// Commit is the step own commit. Its error says no more than a driver's would:
// it may have committed.
func (o *Own[Tx]) Commit(ctx context.Context) error {
	if o.conn.lost() {
		o.life.living()
		return ErrDown
	}
	o.ended = true
	told, err := o.life.do(ctx, move{
		step: OwnCommit, conn: o.conn, ends: true,
		apply:   func(context.Context, *Note) error { return o.commit() },
		refused: ErrDown, lost: ErrDown,
	})
	if told {
		o.conn.ends()
	}
	return err
}

// Rollback gives it up, if it has not ended: the step rollback.
func (o *Own[Tx]) Rollback(ctx context.Context) {
	if o.ended || o.conn.lost() {
		o.life.living()
		return
	}
	o.ended = true
	_, _ = o.life.do(ctx, move{ // it is lost either way
		step: Rollback, conn: o.conn, ends: true,
		apply: func(context.Context, *Note) error {
			o.conn.ends()
			o.conn.rollback()
			return nil
		},
		lost: ErrDown,
	})
}

// connOf is the connection of a transaction of the caller's own.
func (l *Life) connOf(tx any) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c.tx == tx {
			return c
		}
	}
	return &conn{life: l, tx: tx, gone: true}
}
