package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// gateText is the gate: key, lock or null, whether to wait for it, limit in
// milliseconds or null. With it comes what its transaction is known by.
const gateText = "SELECT pg_catalog.transaction_timestamp(), g.* FROM unavez.gate($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.bool, $4::pg_catalog.int8) g"

// gateHeldText is gateText in a lane, which is held before: the gate depends on it.
const gateHeldText = "SELECT pg_catalog.transaction_timestamp(), g.* FROM unavez.hold($5::pg_catalog.int4, $6::pg_catalog.int8) h(held)," +
	" LATERAL unavez.gate(CASE WHEN h.held THEN $1::pg_catalog.uuid END, $2::pg_catalog.int8, $3::pg_catalog.bool, $4::pg_catalog.int8) g"

// gating is the statement of a gate that a transaction of the engine begins with,
// and its arguments.
func gating(gate store.Gate, waits bool) (string, []any) {
	args := []any{uuid(gate.Key), gate.Key.Hash64(), waits, max(gate.Limit.Milliseconds(), 0)}
	if gate.Hold.Epoch == 0 {
		return gateText, args
	}
	return gateHeldText, append(args, gate.Hold.Lane, gate.Hold.Epoch)
}

// Begin is one trip for an operation that is new: BEGIN, limits, lock and a look
// whether anything is stored. What is stored is read under the same lock. In the
// lazy form it sends nothing.
func (s *Store) Begin(ctx context.Context, gate store.Gate) (store.Txn[pgx.Tx], store.Verdict, error) {
	before, v, err := s.before(ctx, gate)
	if err != nil || before != nil && !before.open(gate.From) {
		return nil, v, err
	}
	t, err := s.acquire(ctx, gate)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	if s.lazy(gate) {
		t.unit.ride.waits = true
		return t, store.Verdict{State: store.Free}, nil
	}
	open, v, err := t.unit.enter(ctx, before)
	if !open {
		t.leave(ctx)
		return nil, v, err
	}
	return t, v, nil
}

// lazy reports whether the gate may wait for the handler's first statement. Who
// runs a lane wants to know at once that it is lost.
func (s *Store) lazy(gate store.Gate) bool {
	return s.opts.Lazy && !gate.Eager && gate.From == 0 && gate.Hold.Epoch == 0
}

// acquire takes a connection for a transaction.
func (s *Store) acquire(ctx context.Context, gate store.Gate) (*txn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, acquiring(err)
	}
	if err := s.greet(ctx, conn.Conn()); err != nil {
		conn.Release()
		return nil, opening(ctx, err)
	}
	t := &txn{unit: s.unit(conn.Conn(), gate), conn: conn, guard: &guard{}}
	t.tx = &Tx{unit: t.unit, guard: t.guard}
	return t, nil
}

// acquiring says what it means that no connection was had: nothing was begun.
func acquiring(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &fault{store.ErrUnavailable, "no connection to be had from the pool", err}
}

// Finish waits for the operation's lock until ctx ends or the limit is over.
func (s *Store) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[pgx.Tx], error) {
	t, err := s.acquire(ctx, gate)
	if err != nil {
		return nil, err
	}
	if err := t.unit.resume(ctx, fence); err != nil {
		t.leave(ctx)
		return nil, err
	}
	return t, nil
}

// txn is an open transaction of the engine.
type txn struct {
	unit  *unit
	conn  *pgxpool.Conn
	tx    *Tx
	guard *guard
}

var (
	_ store.Txn[pgx.Tx] = (*txn)(nil)
	_ store.Late        = (*txn)(nil)
)

// Refused implements store.Late.
func (t *txn) Refused() bool { return t.unit.ride.refused.Load() }

// Verdict implements store.Late.
func (t *txn) Verdict(ctx context.Context) (store.Verdict, error) {
	if t.guard.done.Load() {
		return t.unit.s.Look(ctx, t.unit.gate.Key)
	}
	defer t.leave(ctx)
	return t.unit.verdict(ctx)
}

// Tx is the handler's.
func (t *txn) Tx() pgx.Tx { return t.tx }

// Commit is one trip: outcome and COMMIT.
func (t *txn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	switch {
	case t.guard.done.Load():
		return nil, pgx.ErrTxClosed
	case t.guard.foreign.Load():
		t.leave(ctx)
		return nil, &fault{store.ErrForeignCommit, "refused and rolled back", nil}
	}
	o, err := t.unit.commit(ctx, end)
	if errors.Is(err, store.ErrRefused) {
		return nil, err // Verdict tells what was found
	}
	t.leave(ctx)
	return o, t.unit.collided(ctx, err)
}

// Rollback gives everything up.
func (t *txn) Rollback(ctx context.Context) error {
	t.leave(ctx)
	return nil
}

// leave gives the connection back: clean, or closed, which rolls back as well.
func (t *txn) leave(ctx context.Context) {
	if t.guard.done.Swap(true) {
		return
	}
	clean(ctx, t.conn.Conn())
	t.conn.Release()
}

// Look reads without locking.
func (s *Store) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	f, _, err := s.again(ctx, s.pool, key, s.seen.Load().layout)
	if err != nil {
		return store.Verdict{}, classify(err)
	}
	return f.verdict(key)
}

// Settle asks on another connection than the one whose commit was lost: the
// lock is granted when that transaction is over. Where commits wait for standbys
// an outcome counts once they have it.
func (s *Store) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return store.Verdict{}, acquiring(err)
	}
	defer conn.Release()
	if err := s.greet(ctx, conn.Conn()); err != nil {
		return store.Verdict{}, classify(err)
	}
	f, saw := &found{}, s.look()
	if err := conn.QueryRow(ctx, gateText, uuid(key), key.Hash64(), false, nil).Scan(append([]any{nil}, f.columns()...)...); err != nil {
		return store.Verdict{}, classify(err)
	}
	if f.incarnation != nil {
		s.witness(ctx, f.saw(saw))
	}
	v, err := f.verdict(key)
	if err != nil || !v.State.Final() {
		return v, err
	}
	return v, s.durable(ctx, conn.Conn())
}

// Peek looks at who holds which lock instead of trying them, which would make
// others believe that the operation is in flight.
func (s *Store) Peek(ctx context.Context, keys []store.Key) ([]store.State, error) {
	states := make([]store.State, len(keys))
	if len(keys) == 0 {
		return states, nil
	}
	const text = "WITH held AS MATERIALIZED (SELECT (l.classid::pg_catalog.int8 << 32) | l.objid::pg_catalog.int8 AS lock FROM pg_catalog.pg_locks l" +
		" WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted" +
		" AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))" +
		" SELECT k.n FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]::pg_catalog.uuid[]), pg_catalog.unnest($2::pg_catalog.int8[])) WITH ORDINALITY AS k(key, lock, n)" +
		" WHERE k.lock IN (SELECT h.lock FROM held h)" +
		" OR EXISTS (SELECT FROM unavez.attempt a WHERE a.key = k.key AND a.state = 1 AND a.expires > pg_catalog.clock_timestamp())"
	ids, locks := make([]string, len(keys)), make([]int64, len(keys))
	for i, key := range keys {
		ids[i], locks[i] = key.String(), key.Hash64()
	}
	rows, err := s.pool.Query(ctx, text, ids, locks)
	if err != nil {
		return nil, classify(err)
	}
	running, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, classify(err)
	}
	for _, n := range running {
		states[n-1] = store.Processing
	}
	return states, nil
}
