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
	limit      string    // the limit in milliseconds, "0" for none
	deadline   time.Time // by the worker's clock; zero means none
	started    time.Time // of the transaction, by which it is known; zero before the gate
	durability *string   // synchronous_commit as it was configured
	layout     layout    // as the gate found it
	stale      bool
	fence      int64 // of the attempt that it ends; 0 for none
	number     int64 // of the outcome's attempt
	ride       ride
}

func (s *Store) unit(conn *pgx.Conn, gate store.Gate) *unit {
	u := &unit{s: s, conn: conn, gate: gate, limit: milliseconds(gate.Limit), number: 1}
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

// enter opens the transaction, locks and reads. It reports whether the operation
// may run; what was opened is the caller's to clean up where it may not.
func (u *unit) enter(ctx context.Context, f *found) (bool, store.Verdict, error) {
	granted, known, err := u.open(ctx)
	switch {
	case err != nil:
		return false, store.Verdict{}, err
	case !granted:
		return false, store.Verdict{State: store.Processing}, nil
	case !known:
		return true, store.Verdict{State: store.Free}, nil
	}
	if f == nil {
		if f, u.layout, err = u.s.again(ctx, u.conn, u.gate.Key, u.layout); err != nil {
			return false, store.Verdict{}, opening(ctx, err)
		}
	}
	v, err := f.verdict(u.gate.Key)
	if err != nil || !f.open(u.gate.From) {
		return false, v, err
	}
	u.stale, u.fence, u.number = f.stale, f.fence(), f.fence()+1
	return true, v, nil
}

// open begins the transaction, tries the operation's lock and asks whether
// anything is stored: three statements, each after the one before.
func (u *unit) open(ctx context.Context) (granted, known bool, err error) {
	granted, known, err = u.openOnce(ctx)
	if forgotten(err) { // nothing was done; the connection prepares anew
		clean(ctx, u.conn)
		granted, known, err = u.openOnce(ctx)
	}
	if err != nil {
		return false, false, opening(ctx, err)
	}
	return granted, known, nil
}

func (u *unit) openOnce(ctx context.Context) (granted, known bool, err error) {
	now := u.s.seen.Load()
	t := newTrip(ctx, u.conn)
	t.send(now.begin, nil)
	held := u.gate.Hold.Epoch != 0
	if held {
		t.send(u.s.fixed.hold, holding(u.gate.Hold))
	}
	t.send(now.entering(false, t.session.transacts), u.entering())
	saw := u.s.look()
	if u.s.above() {
		known, u.layout = true, now.layout // it was read before
	} else {
		t.send(now.probe, [][]byte{bytesOfKey(u.gate.Key)})
	}
	if err := t.pipe.Sync(); err != nil {
		return false, false, t.end(err)
	}
	err = t.read(nil)
	if err == nil && held {
		err = t.read(nil)
	}
	if err == nil {
		err = t.read(func(r row) error { granted = u.entered(t.session, r); return nil })
	}
	if err == nil && !u.s.above() {
		err = t.read(func(r row) error { known = u.probed(&saw, r); return nil })
	}
	if err := t.end(err); err != nil {
		return false, false, err
	}
	if !u.s.above() {
		u.s.witness(ctx, saw)
	}
	if u.layout != now.layout {
		u.s.statements(u.layout)
	}
	// A slot may have been taken into use since this store looked last.
	return granted, known || !now.layout.covers(u.layout), nil
}

// entering are the parameters of the statement that enters a transaction.
func (u *unit) entering() [][]byte {
	return [][]byte{bytesOfInt64(u.gate.Key.Hash64()), []byte(u.limit)}
}

// entered reads its row.
func (u *unit) entered(s *session, r row) (granted bool) {
	granted, u.started, u.durability, s.replicated = r.bool(), r.time(), r.text(), r.bool()
	return granted
}

// probed reads the row of a probe.
func (u *unit) probed(saw *sight, r row) (known bool) {
	u.layout = layout{slot: r.int32(), live: r.int32(), tombstone: r.int32(), ring: r.int64()}
	saw.number, saw.position = r.int64(), uint64(r.int64())
	return r.bool()
}

// again reads with the layout that was found, until it is the right one.
func (s *Store) again(ctx context.Context, from source, key store.Key, now layout) (f *found, _ layout, err error) {
	for {
		read, saw := now, s.look()
		rows, err := from.Query(ctx, s.statements(read).read, uuid(key))
		if err != nil {
			return nil, now, err
		}
		if f, now, err = gather(rows); err != nil || read.covers(now) {
			if f != nil {
				s.witness(ctx, f.saw(saw))
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
func (u *unit) resume(ctx context.Context, fence int64) error {
	if fence == 0 && !u.s.above() {
		open, v, err := u.enter(ctx, nil)
		switch {
		case open || err != nil:
			return err
		case v.State.Final() || v.State == store.Expired:
			return &fault{store.ErrDuplicate, "found at the finish", nil}
		}
		clean(ctx, u.conn)
		u.fence, u.number, u.stale = 0, 1, false
	}
	f, saw := &found{}, u.s.look()
	batch := &pgx.Batch{}
	batch.Queue(u.s.seen.Load().begin.text)
	text, args := gating(u.gate, true)
	batch.Queue(text, args...).
		QueryRow(func(row pgx.Row) error { return row.Scan(append([]any{&u.started}, f.columns()...)...) })
	if err := u.conn.SendBatch(ctx, batch).Close(); err != nil {
		return opening(ctx, err)
	}
	u.s.witness(ctx, f.saw(saw))
	return u.owns(f, fence)
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
	var limit, started any
	if u.gate.Limit > 0 {
		limit = microseconds(u.gate.Limit)
	}
	if !u.started.IsZero() {
		started = u.started
	}
	return o, append([]any{uuid(u.gate.Key), started, end.Unwritten, u.fence, u.stale, u.durability, limit}, args...)
}

// plain reports whether the outcome goes into its slot by a plain INSERT.
func (u *unit) plain(end store.End) bool {
	return u.fence == 0 && !u.stale && u.layout.slot >= 0 && microseconds(u.gate.Retention) <= u.layout.ring &&
		end.State == store.Completed && !end.Result.NotReplayable
}

// inserted is an outcome that goes there, and the parameters of that statement.
func (u *unit) inserted(end store.End) (*store.Outcome, [][]byte) {
	o := &store.Outcome{State: end.State, Result: end.Result, Fingerprint: u.gate.Fingerprint, Attempt: 1, Left: u.gate.Retention}
	var limit []byte
	if u.gate.Limit > 0 {
		limit = bytesOfInt64(microseconds(u.gate.Limit))
	}
	return o, [][]byte{
		bytesOfKey(u.gate.Key), bytesOfTime(u.started), bytesOfText(u.durability), limit,
		bytesOfInt64(microseconds(u.gate.Retention)), bytesOfInt64(microseconds(u.gate.Tombstone)), []byte(u.gate.Identity.Text()),
		bytesOfInt64(int64(o.Result.Code)), bytesOfInt32(int32(o.Fingerprint.Version)),
		blob(o.Fingerprint.Sum), o.Checksum(u.gate.Key), blob(store.AppendHeader(nil, o.Result.Header)), blob(o.Result.Body),
	}
}

// commit is one trip. Everything that must stop the COMMIT raises in the
// statement before it. After an error the connection is the caller's to clean up.
func (u *unit) commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if err := u.ready(ctx); err != nil {
		return nil, err
	}
	switch {
	case u.ride.refused.Load():
		return nil, u.ride.refusal()
	case u.ride.waits:
		return u.commitAtOnce(ctx, end)
	}
	if u.plain(end) && !end.Unwritten {
		o, params := u.inserted(end)
		t := newTrip(ctx, u.conn)
		t.send(u.s.statements(u.layout).insert, params)
		return u.end(ctx, t, o)
	}
	o, args := u.arguments(end)
	t := newTrip(ctx, u.conn)
	t.send(u.s.statements(u.layout).finished, encoded(args))
	return u.end(ctx, t, o)
}

// end sends a trip whose last answer so far is that of the outcome's INSERT,
// with COMMIT behind it.
func (u *unit) end(ctx context.Context, t *trip, o *store.Outcome) (*store.Outcome, error) {
	now := u.s.statements(u.layout)
	if t.session.replicated { // or the limit could end the wait for a standby
		t.send(now.unbound, nil)
	}
	t.send(now.commit, nil)
	if err := t.pipe.Sync(); err != nil {
		return nil, lost(t.end(err))
	}
	return u.ended(ctx, t, o)
}

// ended reads what end has sent.
func (u *unit) ended(ctx context.Context, t *trip, o *store.Outcome) (*store.Outcome, error) {
	err := t.read(func(r row) error { o.At = r.time(); return nil })
	watch := watching(u.conn)
	for err == nil && len(t.asked) > 0 {
		err = t.read(nil)
	}
	err, warned := t.end(err), watch.stop()
	if err != nil {
		return nil, lost(err)
	}
	if warned != nil {
		return nil, warned
	}
	if o.At.IsZero() { // the slot had changed, and the function wrote elsewhere
		v, err := u.s.Look(ctx, u.gate.Key)
		if err != nil || v.Outcome == nil {
			return nil, &fault{store.ErrCommitUnknown, "committed, and not found", err}
		}
		o.At = v.Outcome.At
	}
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
