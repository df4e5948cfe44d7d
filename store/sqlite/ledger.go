package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"sync"

	"github.com/unavez/unavez/store"
)

// Begin takes the operation's lock and reads, without the writer: that is asked
// for by the handler's first statement.
func (s *Store) Begin(ctx context.Context, gate store.Gate) (store.Txn[*sql.Tx], store.Verdict, error) {
	u := s.c.writer.unit(unitHandler)
	u.alone = gate.Alone
	u.bound(gate.Limit)
	l, err := s.c.gate.try(gate.Key, u)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	if l == nil {
		return nil, store.Verdict{State: store.Processing}, nil
	}
	u.expect()
	var f *found
	err = s.belongs(ctx, gate.Hold)
	if err == nil {
		f, err = s.find(ctx, gate.Key)
	}
	if err != nil || !f.open(gate.From) {
		u.unexpect()
		l.release()
		if err != nil {
			return nil, store.Verdict{}, err
		}
		return nil, f.verdict, nil
	}
	e := ending{gate: gate, attempt: 1, stale: f.stale}
	if a := f.verdict.Attempt; a != nil {
		e.fence, e.attempt = a.Fence, a.Fence+1
	}
	t, err := s.open(ctx, u, l, e)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	return t, f.verdict, nil
}

// open hands the unit through database/sql and takes the lock over.
func (s *Store) open(ctx context.Context, u *unit, l *lock, e ending) (store.Txn[*sql.Tx], error) {
	u.locks = []*lock{l}
	t := &txn{unit: u, ending: e, opening: opening{Context: ctx, unit: u}}
	tx, err := s.db.BeginTx(&t.opening, nil)
	if err != nil {
		u.unexpect()
		u.unlock()
		return nil, err
	}
	t.tx = tx
	return t, nil
}

// txn is the engine's transaction.
type txn struct {
	unit   *unit
	tx     *sql.Tx
	ending ending
	ended  bool

	opening opening
}

var _ store.Txn[*sql.Tx] = (*txn)(nil)

func (t *txn) Tx() *sql.Tx { return t.tx }

// Commit inserts the outcome, ends the unit and waits for its group; ctx bounds
// the waiting. database/sql is told afterwards: a handler can make its Commit
// wait for ever, the unit's end depends on nobody.
func (t *txn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if t.ended {
		return nil, &fault{kind: store.ErrAborted, text: "transaction has ended already"}
	}
	t.ended = true
	defer t.unit.tell(t.tx)
	u := t.unit
	if !u.order() {
		u.unlock()
		return nil, endedByHandler()
	}
	t.ending.end = end
	var made *store.Outcome
	u.finish = func(r *raw) error {
		if err := u.closes(r, []store.Hold{t.ending.gate.Hold}, end.Unwritten); err != nil {
			return err
		}
		o, line, err := t.ending.row(r)
		if err != nil {
			return err
		}
		made, u.outcomes = o, []*row{line}
		return nil
	}
	if err := u.commit(ctx); err != nil {
		return nil, err
	}
	return made, nil
}

// closes fails where the unit may not commit: it was to have written nothing, or
// its lane has another holder. The lane comes last: unwrite may have let another
// worker write.
func (u *unit) closes(r *raw, holds []store.Hold, unwritten bool) error {
	if unwritten {
		if u.written() {
			return store.ErrWrote
		}
		if err := u.unwrite(); err != nil {
			return err
		}
	}
	for _, h := range holds {
		if err := belongs(r, h); err != nil {
			return err
		}
	}
	return nil
}

// Rollback gives the unit up; ctx bounds the wait for a statement of it that
// still runs.
func (t *txn) Rollback(ctx context.Context) error {
	if t.ended {
		return nil
	}
	t.ended = true
	defer t.unit.tell(t.tx)
	t.unit.order()
	t.unit.rollback(ctx, &fault{kind: store.ErrAborted, text: "transaction has been rolled back"})
	return nil
}

// tell ends the *sql.Tx, of which only the shell is left. database/sql waits
// for rows that the handler has left open, after a Scan into sql.RawBytes for
// ever, and for statements that still run: then nobody waits with it.
func (u *unit) tell(tx *sql.Tx) {
	if u.calls.Load() == 0 {
		_ = tx.Rollback() // the unit has ended; there is nothing to roll back
		return
	}
	go func() { _ = tx.Rollback() }()
}

// Join takes the operation's lock for as long as the caller's transaction
// lives, whatever savepoints come and go in it. The transaction must be one of
// the same database, and not a read-only one.
func (s *Store) Join(ctx context.Context, tx *sql.Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	var j *joined
	var v store.Verdict
	var failed error
	err := within(ctx, tx, func(u *unit) { j, v, failed = s.join(ctx, tx, u, gate) })
	if err = errors.Join(err, failed); err != nil || j == nil {
		return nil, v, err
	}
	return j, v, nil
}

// within runs do as one statement of the transaction.
func within(ctx context.Context, tx *sql.Tx, do func(u *unit)) error {
	answered := false
	q := &question{do: func(u *unit) { answered = true; do(u) }}
	if _, err := tx.ExecContext(context.WithValue(ctx, asked{}, q), askText); err != nil {
		return err
	}
	if !answered {
		return errors.New("sqlite store: transaction is not one of the database opened by sqlite.OpenDB")
	}
	return nil
}

func (s *Store) join(ctx context.Context, tx *sql.Tx, u *unit, gate store.Gate) (*joined, store.Verdict, error) {
	if u == nil || u.w != &s.c.writer {
		return nil, store.Verdict{}, foreignUnit()
	}
	var l *lock
	if !s.c.gate.owns(gate.Key, u) {
		var err error
		if l, err = s.c.gate.try(gate.Key, u); err != nil {
			return nil, store.Verdict{}, err
		}
		if l == nil {
			return nil, store.Verdict{State: store.Processing}, nil
		}
	}
	f, err := u.find(ctx, s, gate)
	if err != nil || !f.open(gate.From) {
		l.release()
		if err != nil {
			return nil, store.Verdict{}, err
		}
		return nil, f.verdict, nil
	}
	if err := u.joining(l); err != nil {
		l.release()
		return nil, store.Verdict{}, err
	}
	j := &joined{tx: tx, unit: u, ending: ending{gate: gate, attempt: 1, stale: f.stale}}
	if a := f.verdict.Attempt; a != nil {
		j.ending.fence, j.ending.attempt = a.Fence, a.Fence+1
	}
	return j, f.verdict, nil
}

// foreignUnit is for a transaction that this store cannot write in.
func foreignUnit() error {
	return errors.New("sqlite store: transaction reads only, or is of another database: open one with BeginTx on the store's database")
}

// joining opens a part of the unit, with its lock if it needed one.
func (u *unit) joining(l *lock) error {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	if u.state == unitEnded {
		return u.over()
	}
	if l != nil {
		u.locks = append(u.locks, l)
	}
	u.joins++
	return nil
}

// parted ends a part of the unit.
func (u *unit) parted() {
	u.w.mu.Lock()
	u.joins--
	u.w.mu.Unlock()
	u.abandon()
}

// find reads in the unit when it runs: it then sees everything committed, and
// what it has written itself. Before its first statement it does not ask for
// the writer.
func (u *unit) find(ctx context.Context, s *Store, gate store.Gate) (*found, error) {
	u.w.mu.Lock()
	idle := u.state == unitIdle
	u.w.mu.Unlock()
	if idle {
		if err := s.belongs(ctx, gate.Hold); err != nil {
			return nil, err
		}
		return s.find(ctx, gate.Key)
	}
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	if err := belongs(u.w.raw, gate.Hold); err != nil {
		return nil, u.failed(err)
	}
	f, err := find(u.w.raw, gate.Key)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		err = u.failed(err)
	}
	return f, err
}

// joined is the engine's part of a caller's transaction.
type joined struct {
	tx     *sql.Tx
	unit   *unit
	ending ending
	left   bool
	part   sync.Once // ends it
}

var _ store.Joined = (*joined)(nil)

// Finish inserts the outcome. After an error the transaction is rolled back
// already; what the caller does on it fails.
func (j *joined) Finish(ctx context.Context, end store.End) (*store.Outcome, error) {
	foreign := &fault{kind: store.ErrForeignCommit, text: "transaction of the gate has ended"}
	if j.left {
		return nil, foreign
	}
	defer j.part.Do(j.unit.parted)
	j.ending.end = end
	var made *store.Outcome
	var failed error
	err := within(context.WithoutCancel(ctx), j.tx, func(u *unit) {
		if u != j.unit {
			failed = foreign
			return
		}
		made, failed = u.insert(ctx, &j.ending)
	})
	if errors.Is(err, sql.ErrTxDone) {
		err = foreign
	}
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return made, nil
}

// insert writes an outcome as one statement of the unit, which goes on.
func (u *unit) insert(ctx context.Context, e *ending) (made *store.Outcome, err error) {
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	if err = belongs(u.w.raw, e.gate.Hold); err == nil && e.end.Unwritten && u.written() {
		err = store.ErrWrote
	}
	if err == nil {
		err = u.note(text{}, false)
	}
	if err == nil {
		made, err = e.insert(u.w.raw)
	}
	if err == nil {
		return made, nil
	}
	if err = u.failed(err); u.state == unitRunning {
		u.undo(err)
	}
	return nil, err
}

// Leave gives the operation up. Its lock stays with the transaction, whose
// rollback is the caller's next step, unless that is over.
func (j *joined) Leave() {
	j.left = true
	j.part.Do(j.unit.parted)
}

// Look reads without the lock.
func (s *Store) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	f, err := s.find(ctx, key)
	if err != nil {
		return store.Verdict{}, err
	}
	return f.verdict, nil
}

// Settle takes the operation's lock, which is granted only when the transaction
// that held it is over in every worker, and reads.
func (s *Store) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	l, err := s.c.gate.try(key, s)
	if err != nil {
		return store.Verdict{}, err
	}
	if l == nil {
		return store.Verdict{State: store.Processing}, nil
	}
	defer l.release()
	return s.Look(ctx, key)
}

// Peek asks for locks, which takes none, and for leases in one statement.
func (s *Store) Peek(ctx context.Context, keys []store.Key) ([]store.State, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = key.String()
	}
	list, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	leased := map[store.Key]bool{}
	err = s.read(ctx, func(r *raw) error {
		const text = "SELECT key FROM unavez_attempt WHERE state = 1 AND expires > " + now +
			" AND key IN (SELECT unhex(value) FROM json_each(?1))"
		return r.query(text, []driver.Value{string(list)}, func(v []driver.Value) error {
			leased[keyOf(v[0])] = true
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	states := make([]store.State, len(keys))
	for i, key := range keys {
		held, err := s.c.gate.peek(key)
		if err != nil {
			return nil, err
		}
		if held || leased[key] {
			states[i] = store.Processing
		}
	}
	return states, nil
}

func keyOf(v driver.Value) (key store.Key) {
	copy(key[:], blob(v))
	return key
}
