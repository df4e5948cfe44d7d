package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// unit is the engine's part of one transaction on one connection.
type unit struct {
	s          *Store
	conn       *pgx.Conn
	gate       store.Gate
	marker     string
	deadline   time.Time // by the worker's clock; zero means none
	durability *string   // synchronous_commit as it was configured
	layout     layout    // as the gate found it
	stale      bool
	fence      int64 // of the attempt that it ends; 0 for none
	number     int64 // of the outcome's attempt
}

func (s *Store) unit(conn *pgx.Conn, gate store.Gate) *unit {
	u := &unit{s: s, conn: conn, gate: gate, marker: s.marker()}
	if gate.Limit > 0 {
		u.deadline = time.Now().Add(gate.Limit)
	}
	return u
}

// before reads ahead of a transaction above READ COMMITTED: inside, the read
// would be of the transaction's first instant, and would make SERIALIZABLE fail
// for nothing. What comes between this read and the lock collides at the commit.
func (s *Store) before(ctx context.Context, gate store.Gate) (*found, store.Verdict, error) {
	if !s.above() {
		return nil, store.Verdict{}, nil
	}
	f, _, err := s.again(ctx, s.pool, gate.Key, s.seen.Load().layout)
	if err != nil {
		return nil, store.Verdict{}, classify(err)
	}
	v, err := f.verdict(gate.Key)
	return f, v, err
}

// enter opens the transaction, locks and reads. The transaction is nil unless
// the operation may run; what was opened is then the caller's to clean up.
func (u *unit) enter(ctx context.Context, f *found) (pgx.Tx, store.Verdict, error) {
	tx, granted, known, err := u.open(ctx)
	switch {
	case err != nil:
		return nil, store.Verdict{}, err
	case !granted:
		return nil, store.Verdict{State: store.Processing}, nil
	case !known:
		u.number = 1
		return tx, store.Verdict{State: store.Free}, nil
	}
	if f == nil {
		if f, u.layout, err = u.s.again(ctx, u.conn, u.gate.Key, u.layout); err != nil {
			return nil, store.Verdict{}, opening(ctx, err)
		}
	}
	v, err := f.verdict(u.gate.Key)
	if err != nil || !f.open(u.gate.From) {
		return nil, v, err
	}
	u.stale, u.fence, u.number = f.stale, f.fence(), f.fence()+1
	return tx, v, nil
}

// open begins the transaction, tries the operation's lock and asks whether
// anything is stored: three statements, each after the one before.
func (u *unit) open(ctx context.Context) (tx pgx.Tx, granted, known bool, err error) {
	s := u.s
	now := s.seen.Load()
	read := now.layout
	u.layout = read
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: s.opts.Isolation, AccessMode: pgx.ReadWrite})
	batch.Queue(enterText, u.gate.Key.Hash64(), milliseconds(u.gate.Limit), u.marker).QueryRow(func(row pgx.Row) error {
		return row.Scan(&granted, &u.durability, nil, nil, nil, nil, nil)
	})
	var incarnation int64
	if s.above() {
		known = true // it was read before
	} else {
		batch.Queue(now.probe, uuid(u.gate.Key)).QueryRow(func(row pgx.Row) error {
			return row.Scan(&u.layout.slot, &u.layout.live, &u.layout.tombstone, &incarnation, &known)
		})
	}
	results := u.conn.SendBatch(ctx, batch)
	if err := results.Close(); err != nil {
		return nil, false, false, opening(ctx, err)
	}
	if u.layout != read {
		s.statements(u.layout)
	}
	if incarnation != 0 {
		s.witness(ctx, incarnation)
	}
	// A slot may have been taken into use since this store looked last.
	return results.Tx(), granted, known || !read.covers(u.layout), nil
}

// again reads with the layout that was found, until it is the right one.
func (s *Store) again(ctx context.Context, from source, key store.Key, now layout) (f *found, _ layout, err error) {
	for {
		read := now
		rows, err := from.Query(ctx, s.statements(read).read, uuid(key))
		if err != nil {
			return nil, now, err
		}
		if f, now, err = gather(rows); err != nil || read.covers(now) {
			if f != nil {
				s.witness(ctx, *f.incarnation)
			}
			return f, now, err
		}
	}
}

// resume opens the transaction that ends an attempt: it waits for the
// operation's lock. The fence is compared here, so that a lost attempt does no
// work, and again in the commit's trip by the DELETE that raises: nobody takes
// an attempt over without the lock that this transaction holds.
//
// Work that was never claimed mostly finds nothing and waits for nobody: it tries
// the gate of a new operation first, which costs half.
func (u *unit) resume(ctx context.Context, fence int64) (pgx.Tx, error) {
	if fence == 0 && !u.s.above() {
		tx, v, err := u.enter(ctx, nil)
		switch {
		case tx != nil || err != nil:
			return tx, err
		case v.State.Final() || v.State == store.Expired:
			return nil, &fault{store.ErrDuplicate, "found at the finish", nil}
		}
		clean(ctx, u.conn)
		u.fence, u.number, u.stale = 0, 0, false
	}
	f := &found{}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: u.s.opts.Isolation, AccessMode: pgx.ReadWrite})
	batch.Queue(gateText, uuid(u.gate.Key), u.gate.Key.Hash64(), true, max(u.gate.Limit.Milliseconds(), 0), u.marker).
		QueryRow(func(row pgx.Row) error { return row.Scan(f.columns()...) })
	results := u.conn.SendBatch(ctx, batch)
	if err := results.Close(); err != nil {
		return nil, opening(ctx, err)
	}
	u.s.witness(ctx, value(f.incarnation))
	return results.Tx(), u.owns(f, fence)
}

// owns takes up what the gate of a finish has found.
func (u *unit) owns(f *found, fence int64) error {
	_, err := f.verdict(u.gate.Key)
	switch {
	case fence != 0 && (f.attempt == nil || *f.attempt != fence):
		return &fault{store.ErrLeaseLost, fmt.Sprintf("fence %d is not the last", fence), nil}
	case err != nil:
		return err
	case f.ended != nil || f.state == int16(store.Expired):
		return &fault{store.ErrDuplicate, "found at the finish", nil}
	}
	u.stale, u.durability, u.layout = f.stale, f.durability, u.s.seen.Load().layout
	u.fence, u.number = fence, fence
	if fence == 0 {
		u.fence, u.number = value(f.attempt), value(f.attempt)+1
	}
	return nil
}

// opening says what the error of the first trip means: nothing was begun.
func opening(ctx context.Context, err error) error {
	err = classify(err)
	if ctx.Err() == nil && (errors.Is(err, store.ErrLimit) || errors.Is(err, context.DeadlineExceeded)) {
		return &fault{store.ErrUnavailable, "gate was over the limit", err}
	}
	return err
}

// milliseconds is a limit as the server takes it; 0 for none.
func milliseconds(limit time.Duration) string {
	if limit <= 0 {
		return "0"
	}
	return strconv.FormatInt(max(limit.Milliseconds(), 1), 10)
}

// ready refuses a commit that comes too late.
func (u *unit) ready(ctx context.Context) error {
	if !u.deadline.IsZero() && !time.Now().Before(u.deadline) {
		return &fault{store.ErrLimit, u.gate.Limit.String(), nil}
	}
	return ctx.Err()
}

// arguments are those of unavez.finish, beside the outcome that they describe.
func (u *unit) arguments(end store.End) (*store.Outcome, []any) {
	o, args := outcome(u.gate, u.number, end)
	var limit any
	if u.gate.Limit > 0 {
		limit = microseconds(u.gate.Limit)
	}
	return o, append([]any{uuid(u.gate.Key), u.marker, end.Unwritten, u.fence, u.stale, u.durability, limit}, args...)
}

// commit is one trip. Everything that must stop the COMMIT raises in the
// statement before it. After an error the connection is the caller's to clean up.
func (u *unit) commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if err := u.ready(ctx); err != nil {
		return nil, err
	}
	o, args := u.arguments(end)
	text := finishText
	if u.fence == 0 && !u.stale && u.layout.slot >= 0 {
		text = u.s.statements(u.layout).insert
	}
	batch := &pgx.Batch{}
	batch.Queue(text, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&o.At) })
	batch.Queue("commit")
	if err := u.conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, lost(err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// collided looks for the outcome that a transaction above READ COMMITTED ran into.
func (u *unit) collided(ctx context.Context, err error) error {
	if !u.s.above() || !errors.Is(err, store.ErrAborted) {
		return err
	}
	if v, lookErr := u.s.Look(ctx, u.gate.Key); lookErr == nil && v.Outcome != nil {
		return &fault{store.ErrDuplicate, "committed by another transaction", err}
	}
	return err
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
