package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/unavez/unavez/store"
)

// The lazy form: BEGIN and the gate go ahead of the handler's first statement, in
// the same trip. There the gate raises unless the operation may run, so that the
// server skips what comes behind it. A transaction in which that has happened is
// in the failed state, and stays in it until the engine ends it: nothing that
// the handler sends, on any way, is run.

// ride is the state of a unit's gate.
type ride struct {
	waits   bool        // the gate has not been sent
	refused atomic.Bool // it has said no
	code    string      // the SQLSTATE with which it did
}

// refusedBy takes up the error of a gate that rides.
func (r *ride) refusedBy(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != stateInFlight && pg.Code != stateKnown {
		return err
	}
	r.code = pg.Code
	r.refused.Store(true)
	return r.refusal()
}

// refusal is what a handler's statements get from then on.
func (r *ride) refusal() error {
	return &fault{store.ErrRefused, "gate", nil}
}

// lead sends BEGIN, the gate and the handler's first statements in one trip, and
// reads up to the answers of the latter. Where the driver could not send them
// together it returns no results and no error: the gate has been sent alone, and
// the statements are to be sent by themselves.
func (u *unit) lead(ctx context.Context, queries ...*pgx.QueuedQuery) (pgx.BatchResults, error) {
	for {
		now, session := u.s.seen.Load(), sessionOf(u.conn)
		batch := &pgx.Batch{}
		batch.Queue(now.begin.text)
		batch.Queue(now.entering(true, session.transacts).text, u.gate.Key.Hash64(), u.limit)
		batch.Queue(now.ride.text, uuid(u.gate.Key))
		batch.QueuedQueries = append(batch.QueuedQueries, queries...)
		saw := u.s.look()
		results := u.conn.SendBatch(ctx, batch)
		err := u.led(results, session, &saw)
		if err == nil {
			u.passed(ctx, now, saw)
			return results, nil
		}
		if raised(err) {
			batch.QueuedQueries = nil // or the driver would prepare them anew
		}
		_ = results.Close() // its error is the one that was read
		switch again, err := u.unled(ctx, err); {
		case err != nil:
			return nil, u.spoiled(ctx, err)
		case !again:
			return nil, u.first(ctx)
		}
	}
}

// spoiled closes a connection on which no transaction is open where one should
// be: what a handler sends there would commit by itself.
func (u *unit) spoiled(ctx context.Context, err error) error {
	if !u.conn.IsClosed() && u.conn.PgConn().TxStatus() == 'I' {
		ctx, cancel := detached(ctx)
		defer cancel()
		_ = u.conn.Close(ctx) // it goes either way
	}
	return err
}

// bounded is a context for what has none, within the limit.
func (u *unit) bounded() (context.Context, context.CancelFunc) {
	if u.deadline.IsZero() {
		return context.WithTimeout(context.Background(), checkLimit)
	}
	return context.WithDeadline(context.Background(), u.deadline)
}

// led reads the answers of BEGIN and the gate.
func (u *unit) led(results pgx.BatchResults, session *session, saw *sight) error {
	if _, err := results.Exec(); err != nil {
		return err
	}
	var granted, known bool
	var nulls int32
	if err := results.QueryRow().Scan(&granted, &u.started, &u.durability, &session.replicated, &nulls); err != nil {
		return err
	}
	return results.QueryRow().Scan(&u.layout.slot, &u.layout.live, &u.layout.tombstone, &u.layout.ring, &saw.number, (*lsn)(&saw.position), &known)
}

// passed goes on from a gate that let the operation through.
func (u *unit) passed(ctx context.Context, now *texts, saw sight) {
	u.ride.waits = false
	u.started = u.started.UTC()
	u.s.witness(ctx, saw)
	if u.layout != now.layout {
		u.s.statements(u.layout)
	}
}

// unled says what to do after a trip in which the gate rode failed: it returns
// the error that it means, or whether to send the same once more.
func (u *unit) unled(ctx context.Context, err error) (again bool, _ error) {
	if refused := u.ride.refusedBy(err); refused != err { //nolint:errorlint // it is the same one or not
		u.ride.waits = false
		return false, refused
	}
	var pg *pgconn.PgError
	switch {
	case u.conn.IsClosed():
		meant := opening(ctx, err)
		if meant == err && ctx.Err() == nil { //nolint:errorlint // it is the same one or not
			meant = &fault{store.ErrUnavailable, "connection failed", err}
		}
		return false, meant
	case errors.As(err, &pg) && pg.Code == stateSlots:
		clean(ctx, u.conn)
		return true, u.relayout(ctx)
	case u.conn.PgConn().TxStatus() == 'I': // it did not even begin
		return false, nil
	}
	u.ride.waits = false // the gate was passed, or the transaction has failed
	return false, classify(err)
}

// relayout reads which slots there are.
func (u *unit) relayout(ctx context.Context) error {
	var l layout
	if err := u.conn.QueryRow(ctx, "SELECT slot, live, tombstone_live, ring FROM unavez.ledger").Scan(&l.slot, &l.live, &l.tombstone, &l.ring); err != nil {
		return opening(ctx, err)
	}
	u.s.statements(l)
	return nil
}

// first sends the gate alone, in a trip of its own.
func (u *unit) first(ctx context.Context) error {
	prepared := false
	for {
		now := u.s.seen.Load()
		t := newTrip(ctx, u.conn)
		saw := u.sendGate(t, now)
		err := t.pipe.Sync()
		if err == nil {
			err = u.readGate(t, &saw)
		}
		if err = t.end(err); err == nil {
			u.passed(ctx, now, saw)
			return nil
		}
		if forgotten(err) && !prepared {
			prepared = true
			clean(ctx, u.conn)
			continue
		}
		again, meant := u.unled(ctx, err)
		if meant == nil && !again {
			meant = &fault{store.ErrUnavailable, "transaction could not be begun", err}
		}
		if meant != nil {
			return u.spoiled(ctx, meant)
		}
	}
}

// sendGate adds BEGIN and a gate that raises to a trip.
func (u *unit) sendGate(t *trip, now *texts) sight {
	t.send(now.begin, nil)
	t.send(now.entering(true, t.session.transacts), u.entering())
	t.send(now.ride, [][]byte{bytesOfKey(u.gate.Key)})
	return u.s.look()
}

// readGate reads their answers.
func (u *unit) readGate(t *trip, saw *sight) error {
	err := t.read(nil)
	if err == nil {
		err = t.read(func(r row) error { u.entered(t.session, r); return nil })
	}
	if err == nil {
		err = t.read(func(r row) error { u.probed(saw, r); return nil })
	}
	return err
}

// raised reports whether the error is the gate's own.
func raised(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == stateInFlight || pg.Code == stateKnown || pg.Code == stateSlots)
}

// commitAtOnce commits an operation whose handler sent nothing: BEGIN, gate,
// outcome and COMMIT are one trip.
func (u *unit) commitAtOnce(ctx context.Context, end store.End) (*store.Outcome, error) {
	for prepared := false; ; {
		now := u.s.seen.Load()
		u.layout, u.started, u.durability = now.layout, time.Time{}, nil // not known before the answer
		end.Unwritten = false                                            // nothing was written
		if !u.plain(end) || sessionOf(u.conn).replicated {
			if err := u.first(ctx); err != nil {
				return nil, err
			}
			return u.commit(ctx, end)
		}
		o, params := u.inserted(end)
		t := newTrip(ctx, u.conn)
		saw := u.sendGate(t, now)
		t.send(now.insert, params)
		t.send(now.commit, nil)
		if err := t.pipe.Sync(); err != nil {
			return nil, lost(t.end(err))
		}
		if err := u.readGate(t, &saw); err != nil {
			err = t.end(err)
			if forgotten(err) && !prepared {
				prepared = true
				clean(ctx, u.conn)
				continue
			}
			again, meant := u.unled(ctx, err)
			if again && meant == nil {
				continue
			}
			if meant == nil {
				meant = err
			}
			// A refusal, or what else a server that still talks says, stopped the COMMIT.
			var pg *pgconn.PgError
			if u.ride.refused.Load() || errors.As(err, &pg) && !fatal(err) {
				return nil, meant
			}
			return nil, lost(err)
		}
		u.passed(ctx, now, saw)
		return u.ended(ctx, t, o)
	}
}

// verdict tells what a gate that said no has found. The read comes after the end
// of the transaction, which held the lock no more.
func (u *unit) verdict(ctx context.Context) (store.Verdict, error) {
	clean(ctx, u.conn)
	if u.ride.code == stateInFlight {
		return store.Verdict{State: store.Processing}, nil
	}
	var from source = u.conn
	if u.conn.IsClosed() {
		from = u.s.pool
	}
	f, _, err := u.s.again(ctx, from, u.gate.Key, u.s.seen.Load().layout)
	if err != nil {
		return store.Verdict{}, classify(err)
	}
	return f.verdict(u.gate.Key)
}

// lsn reads a position of the server's log by the driver.
type lsn uint64

// Scan implements sql.Scanner for its text.
func (l *lsn) Scan(src any) error {
	text, ok := src.(string)
	if !ok {
		return errors.New("position of the log: not a text")
	}
	*l = lsn(place(text))
	return nil
}
