package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// gateText is the gate: key, lock or null, whether to wait for it, limit in
// milliseconds or null, marker.
const gateText = "SELECT * FROM unavez.gate($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.bool, $4::pg_catalog.int8, $5::pg_catalog.text)"

// Begin is one trip for an operation that is new: BEGIN, limits, lock and a look
// whether anything is stored. What is stored is read under the same lock, in the
// trip that rolls back. Both statements come after the lock.
func (s *Store) Begin(ctx context.Context, gate store.Gate) (store.Txn[pgx.Tx], store.Verdict, error) {
	t, err := s.acquire(ctx, gate)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	granted, known, err := t.open(ctx)
	switch {
	case err != nil:
		return nil, store.Verdict{}, err
	case !granted:
		t.leave(ctx)
		return nil, store.Verdict{State: store.Processing}, nil
	case !known:
		t.number = 1
		return t, store.Verdict{State: store.Free}, nil
	}
	f, now, err := s.again(ctx, t.conn, gate.Key, t.layout)
	if err != nil {
		t.leave(ctx)
		return nil, store.Verdict{}, t.opening(ctx, err)
	}
	t.layout = now
	v, err := f.verdict(gate.Key)
	if err != nil || !f.open(gate.From) {
		t.leave(ctx)
		return nil, v, err
	}
	t.stale, t.fence, t.number = f.stale, f.fence(), f.fence()+1
	return t, v, nil
}

// open begins the transaction, tries the operation's lock and asks whether
// anything is stored. The transaction stays open unless there is an error.
func (t *txn) open(ctx context.Context) (granted, known bool, err error) {
	s := t.s
	read := unpack(s.seen.Load())
	t.layout = read
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: s.opts.Isolation, AccessMode: pgx.ReadWrite})
	batch.Queue(enterText, t.gate.Key.Hash64(), milliseconds(t.gate.Limit), t.marker).QueryRow(func(row pgx.Row) error {
		return row.Scan(&granted, &t.durability, nil, nil, nil, nil, nil)
	})
	var timeline string
	batch.Queue(probeText(read), [16]byte(t.gate.Key)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&t.layout.slot, &t.layout.live, &t.layout.tombstone, &timeline, &known)
	})
	results := t.conn.SendBatch(ctx, batch)
	t.tx = &Tx{inner: results.Tx(), guard: t.guard}
	if err := results.Close(); err != nil {
		t.leave(ctx)
		return false, false, t.opening(ctx, err)
	}
	if t.layout != read {
		s.seen.Store(t.layout.pack())
	}
	// A slot may have been taken into use since this store looked last.
	return granted, known || !read.covers(t.layout), nil
}

// again reads with the layout that was found, until it is the right one.
func (s *Store) again(ctx context.Context, from source, key store.Key, now layout) (f *found, _ layout, err error) {
	for {
		read := now
		rows, err := from.Query(ctx, readText(read), [16]byte(key))
		if err != nil {
			return nil, now, err
		}
		if f, now, err = gather(rows); err != nil || read.covers(now) {
			return f, now, err
		}
	}
}

// acquire takes a connection for a transaction.
func (s *Store) acquire(ctx context.Context, gate store.Gate) (*txn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, acquiring(err)
	}
	t := &txn{s: s, conn: conn, gate: gate, marker: s.marker(), guard: &guard{}}
	if gate.Limit > 0 {
		t.deadline = time.Now().Add(gate.Limit)
	}
	return t, nil
}

// reopen opens the transaction that ends an attempt: it waits for the
// operation's lock.
func (s *Store) reopen(ctx context.Context, gate store.Gate) (*txn, *found, error) {
	t, err := s.acquire(ctx, gate)
	if err != nil {
		return nil, nil, err
	}
	f := &found{}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: s.opts.Isolation, AccessMode: pgx.ReadWrite})
	batch.Queue(gateText, [16]byte(gate.Key), gate.Key.Hash64(), true, max(gate.Limit.Milliseconds(), 0), t.marker).
		QueryRow(func(row pgx.Row) error { return row.Scan(f.columns()...) })
	results := t.conn.SendBatch(ctx, batch)
	t.tx = &Tx{inner: results.Tx(), guard: t.guard}
	if err := results.Close(); err != nil {
		t.leave(ctx)
		return nil, nil, t.opening(ctx, err)
	}
	t.stale, t.durability, t.layout = f.stale, f.durability, unpack(s.seen.Load())
	return t, f, nil
}

// acquiring says what it means that no connection was had: nothing was begun.
func acquiring(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &fault{store.ErrUnavailable, "no connection to be had from the pool", err}
}

// milliseconds is a limit as the server takes it; 0 for none.
func milliseconds(limit time.Duration) string {
	if limit <= 0 {
		return "0"
	}
	return strconv.FormatInt(max(limit.Milliseconds(), 1), 10)
}

// txn is an open transaction of the engine.
type txn struct {
	s          *Store
	conn       *pgxpool.Conn
	tx         *Tx
	guard      *guard
	gate       store.Gate
	marker     string
	deadline   time.Time // by the worker's clock; zero means none
	stale      bool
	durability *string // synchronous_commit as it was configured
	layout     layout  // as the gate found it
	fence      int64   // of the attempt that it ends; 0 for none
	number     int64   // of the outcome's attempt
}

var _ store.Txn[pgx.Tx] = (*txn)(nil)

// opening says what the error of the first trip means: nothing was begun.
func (t *txn) opening(ctx context.Context, err error) error {
	err = classify(err)
	if ctx.Err() == nil && (errors.Is(err, store.ErrLimit) || errors.Is(err, context.DeadlineExceeded)) {
		return &fault{store.ErrUnavailable, "gate was over the limit", err}
	}
	return err
}

// Tx is the handler's.
func (t *txn) Tx() pgx.Tx { return t.tx }

// over reports whether the limit has passed.
func (t *txn) over() bool { return !t.deadline.IsZero() && !time.Now().Before(t.deadline) }

// Commit is one trip: outcome and COMMIT. Everything that must stop the COMMIT
// raises in the statement before it.
func (t *txn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	switch {
	case t.guard.done.Load():
		return nil, pgx.ErrTxClosed
	case t.guard.foreign.Load():
		t.leave(ctx)
		return nil, &fault{store.ErrForeignCommit, "refused and rolled back", nil}
	case t.over():
		t.leave(ctx)
		return nil, &fault{store.ErrLimit, fmt.Sprintf("%v", t.gate.Limit), nil}
	case ctx.Err() != nil:
		t.leave(ctx)
		return nil, ctx.Err()
	}
	o, args := outcome(t.gate, t.number, end)
	args = append([]any{[16]byte(t.gate.Key), t.marker, end.Unwritten, t.fence, t.stale, t.durability, microseconds(t.gate.Limit)}, args...)
	if t.gate.Limit <= 0 {
		args[6] = nil
	}
	batch := &pgx.Batch{}
	text := finishText
	if t.fence == 0 && !t.stale && t.layout.slot >= 0 {
		text = insertText(t.layout.slot)
	}
	batch.Queue(text, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&o.At) })
	batch.Queue("commit")
	err := t.conn.SendBatch(ctx, batch).Close()
	if err == nil {
		t.guard.done.Store(true)
		t.conn.Release()
		o.At = o.At.UTC()
		return o, nil
	}
	gone := t.conn.Conn().IsClosed()
	t.leave(ctx)
	if err = lost(err); !gone {
		return nil, err
	}
	if t.over() && errors.Is(err, store.ErrUnavailable) {
		err = &fault{store.ErrLimit, "the server ended the transaction", err}
	}
	return nil, err
}

// Rollback gives everything up.
func (t *txn) Rollback(ctx context.Context) error {
	t.leave(ctx)
	return nil
}

// leave gives the transaction up and the connection back: clean, or closed,
// which rolls back as well.
func (t *txn) leave(ctx context.Context) {
	if t.guard.done.Swap(true) {
		return
	}
	clean(ctx, t.conn.Conn())
	t.conn.Release()
}

// clean rolls back what is open on a connection. It is closed where that fails,
// and the pool then drops it.
func clean(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' && !conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx) // it goes either way
	}
}

// finishText inserts the outcome.
const (
	finishText = "SELECT " + finishCall
	finishCall = "unavez.finish($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.bool, $4::pg_catalog.int8, $5::pg_catalog.bool," +
		" $6::pg_catalog.text, $7::pg_catalog.int8, $8::pg_catalog.int8, $9::pg_catalog.int8, $10::pg_catalog.text, $11::pg_catalog.int2, $12::pg_catalog.int8," +
		" $13::pg_catalog.int8, $14::pg_catalog.bool, $15::pg_catalog.int4, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea)"
)

// insertText is finish as a plain INSERT into the slot that was current at the
// gate. Its conditions are the checks of unavez.finish, and the slot's still
// being current: where one does not hold nothing is inserted, and the function
// is called, which raises or writes elsewhere. The statement's snapshot is taken
// after its lock on the slot; see there.
func insertText(slot int32) string {
	return fmt.Sprintf("WITH put AS (INSERT INTO unavez.outcome_%d (key, ended, expires, forgets, code, attempt, version, state, unreplayable, operation, fingerprint, checksum, header, body)"+
		" SELECT $1::pg_catalog.uuid, n.at, n.at + $8::pg_catalog.int8 * interval '1 microsecond', n.at + ($8::pg_catalog.int8 + $9::pg_catalog.int8) * interval '1 microsecond',"+
		" $13::pg_catalog.int8, $12::pg_catalog.int8, $15::pg_catalog.int4, $11::pg_catalog.int2, $14::pg_catalog.bool,"+
		" $10::pg_catalog.text, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea"+
		" FROM unavez.ledger l, (SELECT pg_catalog.clock_timestamp() AS at OFFSET 0) n WHERE l.slot = %d AND l.ring >= $8::pg_catalog.int8"+
		" AND pg_catalog.current_setting('unavez.tx', true) = $2::pg_catalog.text"+
		" AND pg_catalog.current_setting('synchronous_commit') = $6::pg_catalog.text"+
		" AND ($7::pg_catalog.int8 IS NULL OR n.at <= pg_catalog.transaction_timestamp() + $7::pg_catalog.int8 * interval '1 microsecond')"+
		" AND (NOT $3::pg_catalog.bool OR pg_catalog.pg_current_xact_id_if_assigned() IS NULL)"+
		" RETURNING ended) SELECT coalesce((SELECT ended FROM put), "+finishCall+")", slot, slot)
}

// outcome is what is going to be stored, and the arguments that say so.
func outcome(gate store.Gate, attempt int64, end store.End) (*store.Outcome, []any) {
	o := &store.Outcome{State: end.State, Result: end.Result, Fingerprint: gate.Fingerprint, Attempt: attempt, Left: gate.Retention}
	return o, []any{
		microseconds(gate.Retention), microseconds(gate.Tombstone), gate.Identity.Text(), int16(o.State), attempt,
		int64(o.Result.Code), o.Result.NotReplayable, int32(o.Fingerprint.Version), blob(o.Fingerprint.Sum), o.Checksum(gate.Key),
		blob(store.AppendHeader(nil, o.Result.Header)), blob(o.Result.Body),
	}
}

// blob is never null.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Look reads without locking.
func (s *Store) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	f, now, err := s.again(ctx, s.pool, key, unpack(s.seen.Load()))
	if err != nil {
		return store.Verdict{}, classify(err)
	}
	s.seen.Store(now.pack())
	return f.verdict(key)
}

// Settle asks on another connection than the one whose commit was lost: the
// lock is granted when that transaction is over.
func (s *Store) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	f := &found{}
	if err := s.row(ctx, gateText, []any{[16]byte(key), key.Hash64(), false, nil, nil}, f.columns()...); err != nil {
		return store.Verdict{}, err
	}
	return f.verdict(key)
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
		" SELECT k.n FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.uuid[]), pg_catalog.unnest($2::pg_catalog.int8[])) WITH ORDINALITY AS k(key, lock, n)" +
		" WHERE k.lock IN (SELECT h.lock FROM held h)" +
		" OR EXISTS (SELECT FROM unavez.attempt a WHERE a.key = k.key AND a.state = 1 AND a.expires > pg_catalog.clock_timestamp())"
	ids, locks := make([][16]byte, len(keys)), make([]int64, len(keys))
	for i, key := range keys {
		ids[i], locks[i] = key, key.Hash64()
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
