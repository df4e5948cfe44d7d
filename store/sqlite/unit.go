package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/store"
)

// unitKind says how a unit begins and ends.
type unitKind int

const (
	// unitInternal is a write of the store, or a statement outside a transaction.
	unitInternal unitKind = iota
	// unitHandler is a transaction of the engine: the handler must not end it.
	unitHandler
	// unitOwn is a transaction of the application: a group of one.
	unitOwn
)

// unitState is where a unit stands; see doc.go.
type unitState int

const (
	unitIdle    unitState = iota // has run no statement
	unitWaiting                  // its first statement asks for the turn
	unitRunning                  // has the turn
	unitEnded                    // released, or undone with err
)

// unit is what one caller wants committed whole. Its statements come one after
// another, but its limit and the engine may end it at any time. Each group of
// fields says what guards it; the first belongs to whoever makes the unit, and
// then to the one who asks for the turn.
type unit struct {
	w        *writer
	kind     unitKind
	alone    bool               // shares its group with no other
	limit    time.Duration      // from its first statement
	deadline time.Time          // for all of it; set when it asks for its turn, where nothing bounds it before
	patience time.Time          // for other workers; set when it asks for its turn
	wake     chan struct{}      // closed when its turn comes
	calls    atomic.Int32       // statements that run and rows that database/sql has open
	finish   func(r *raw) error // what is done just before its end

	// writer.mu. A unit that runs changes its state with writer.use held too,
	// so that either lock is enough to see that it runs.
	state   unitState
	err     error         // why it cannot go on
	asked   chan struct{} // closed when its wait is over; made by the first who wants to know
	opening bool          // counted in writer.opening
	foreign bool          // its handler has ended it
	ending  bool          // the engine has ordered its end
	locks   []*lock       // given back when it has ended
	joins   int           // parts of it that a Join has opened and not ended

	// writer.use, once it runs.
	until    time.Time // its limit
	group    *group
	open     []*rows
	saved    bool   // its savepoint is set
	writes   bool   // a statement that may write has run, and changes was read before it
	changes  int64  // of the connection before that
	wrote    bool   // a statement has changed rows
	unsure   bool   // one has changed none, by its own account, which leaves out what triggers of a view do
	schema   bool   // it has changed the schema
	outcomes []*row // what it adds to its group's ledger
}

func (w *writer) unit(kind unitKind) *unit {
	o := &w.c.opts
	u := &unit{w: w, kind: kind, limit: o.HandlerLimit}
	if kind != unitHandler {
		u.limit = o.TransactionLimit
	}
	return u
}

// bound sets how long the unit may take in all, from now. 0 sets nothing.
func (u *unit) bound(limit time.Duration) {
	if limit > 0 {
		u.deadline = time.Now().Add(limit)
	}
}

// save sets the unit's savepoint. The first unit of a group needs none, since
// nothing stands before it, unless its handler uses savepoints: left behind,
// they would be in reach of the units after it.
func (u *unit) save() error {
	if u.saved || u.kind == unitOwn {
		return nil
	}
	_, err := u.w.raw.exec("SAVEPOINT " + savepoint)
	u.saved = err == nil
	return err
}

func (u *unit) overLimit() error {
	text := fmt.Sprintf("handler held the writer for longer than %v (do slow work before the first statement, or raise HandlerLimit)", u.limit)
	switch {
	case !time.Now().Before(u.deadline):
		text = "operation took longer than its limit"
	case u.kind == unitOwn:
		text = fmt.Sprintf("transaction held the writer for longer than %v (split it, or raise TransactionLimit)", u.limit)
	}
	return &fault{kind: store.ErrLimit, text: text}
}

// failed looks at a statement's error between enter and leave: it says what the
// caller gets, and ends the unit where SQLite has ended its transaction.
func (u *unit) failed(err error) error {
	if err == nil {
		return nil
	}
	if u.w.left() {
		u.end()
		told := classify(err)
		if told == err {
			told = &fault{kind: store.ErrAborted, text: "statement made SQLite roll the whole transaction back", cause: err}
		}
		u.stop(told)
		u.w.lose(err)
		return told
	}
	if dooms(err) {
		// The transaction is still there; what was done in the unit is not sure.
		err = classify(err)
		u.undo(err)
		return err
	}
	return classify(err)
}

// undo rolls the unit back, leaving the others of its group. The caller holds
// use, and passes the turn on after that.
func (u *unit) undo(cause error) {
	w := u.w
	u.end()
	u.stop(cause)
	if w.group != u.group || w.group == nil {
		return
	}
	if u.kind == unitOwn || w.group.units == 0 {
		w.rollback()
		g := w.group
		w.group = nil
		close(g.done)
		return
	}
	_, err := w.raw.exec("ROLLBACK TO " + savepoint)
	if err == nil {
		_, err = w.raw.exec("RELEASE " + savepoint)
	}
	if err != nil {
		w.lose(err)
	}
}

// shut closes the rows that the unit left open on the connection: while a
// statement is in progress, SQLite neither releases nor commits what it wrote.
func (u *unit) shut() {
	for _, r := range u.open {
		r.shut() // its statement gives no more rows; an error of it is of no use
	}
	u.open = nil
}

// end is what every end of a unit that ran has in common.
func (u *unit) end() {
	u.shut()
	if u.schema {
		u.w.c.schema.Add(1)
	}
}

// commit ends the unit and waits until its group is durable. Its locks are free
// when it returns, unless ctx ends while it waits: then nobody knows yet, and
// the locks are kept until the group's end.
func (u *unit) commit(ctx context.Context) error {
	if err := u.enter(ctx); err != nil {
		u.rollback(ctx, err)
		return err
	}
	g, err := u.release()
	if err != nil {
		u.unlock()
		return err
	}
	select {
	case <-g.done:
	default:
		select {
		case <-g.done:
		case <-ctx.Done():
			go func() {
				<-g.done
				u.unlock()
			}()
			return &fault{kind: store.ErrCommitUnknown, text: "another unit of the group still runs a statement", cause: context.Cause(ctx)}
		}
	}
	u.unlock()
	return g.err
}

// release does what is left to do and makes the unit part of its group, between
// enter and leave.
func (u *unit) release() (*group, error) {
	u.shut()
	err := u.w.c.failing("finish")
	if err == nil && u.finish != nil {
		err = u.finish(u.w.raw)
	}
	if err != nil {
		if err = u.failed(err); u.state == unitRunning {
			u.undo(err)
		}
		u.leave()
		return nil, err
	}
	if u.saved {
		if _, err := u.w.raw.exec("RELEASE " + savepoint); err != nil {
			// The savepoint is gone: something the text did not show has ended it.
			foreign := &fault{kind: store.ErrForeignCommit, text: "unit's savepoint is gone", cause: err}
			u.end()
			u.stop(foreign)
			u.w.lose(err)
			u.leave()
			return nil, foreign
		}
	}
	u.end()
	u.stop(nil)
	g := u.group
	g.units++
	g.outcomes = append(g.outcomes, u.outcomes...)
	if u.kind == unitOwn || u.alone {
		u.w.use.unlock()
		u.w.flush()
		u.w.pass(u)
	} else {
		u.leave()
	}
	return g, nil
}

// rollback gives the unit up and frees its locks. A statement of it that still
// runs is waited for until ctx ends, and then without the caller.
func (u *unit) rollback(ctx context.Context, cause error) {
	if u.quit(cause) {
		u.unlock()
		return
	}
	if u.w.use.lockIn(ctx) {
		u.back(cause)
		u.unlock()
		return
	}
	go func() {
		u.w.use.lock()
		u.back(cause)
		u.unlock()
	}()
}

// back rolls back a unit that ran, unless it has ended. The caller has locked
// use, and back unlocks it.
func (u *unit) back(cause error) {
	if u.state != unitRunning {
		u.w.use.unlock()
		return
	}
	u.undo(cause)
	u.leave()
}

// unlock gives the locks back.
func (u *unit) unlock() {
	u.w.mu.Lock()
	locks := u.locks
	u.locks = nil
	u.w.mu.Unlock()
	for _, l := range locks {
		l.release()
	}
}

// abandon gives back the locks of a transaction of the application that its
// limit has ended: whether the application ever ends it itself is not sure. A
// part of it that still runs keeps them until its own end.
func (u *unit) abandon() {
	u.w.mu.Lock()
	dead := u.kind == unitOwn && u.state == unitEnded && u.err != nil && u.joins == 0
	u.w.mu.Unlock()
	if dead {
		u.unlock()
	}
}

// note is called before a statement: it keeps what is needed to tell later
// whether the unit has written. With counted the statement's result tells, and
// goes to count.
func (u *unit) note(t text, counted bool) error {
	if t.reads {
		return nil
	}
	if t.savepoint {
		if err := u.save(); err != nil {
			return err
		}
	}
	u.schema = u.schema || t.schema
	if u.writes || u.wrote || counted {
		return nil
	}
	n, err := u.w.raw.number("SELECT total_changes()")
	if err != nil {
		return err
	}
	u.writes, u.changes = true, n
	return nil
}

// count is called after a statement whose result tells what it has changed.
func (u *unit) count(result driver.Result) {
	n, err := result.RowsAffected()
	u.wrote = u.wrote || n != 0 || err != nil
	u.unsure = true
}

// written reports whether the unit has changed anything. A statement that
// changed no row has not; a change of the schema has. What unsure stands for is
// for unwrite.
func (u *unit) written() bool {
	switch {
	case u.wrote, u.schema:
		return true
	case !u.writes:
		return false
	}
	n, err := u.w.raw.number("SELECT total_changes()")
	return err != nil || n != u.changes
}

// unwrite undoes what a unit that has written nothing may have written all the
// same, by a trigger instead of a change of a view.
func (u *unit) unwrite() error {
	if !u.unsure {
		return nil
	}
	if u.saved {
		_, err := u.w.raw.exec("ROLLBACK TO " + savepoint)
		return err
	}
	// The first of its group: nothing stands before it.
	if _, err := u.w.raw.exec("ROLLBACK"); err != nil {
		return err
	}
	_, err := u.w.raw.exec("BEGIN IMMEDIATE")
	return err
}

// ready is called before a statement of the caller.
func (u *unit) ready(t text, counted bool) error {
	if err := u.w.c.failing("statement"); err != nil {
		return err
	}
	return u.note(t, counted)
}

// exec runs a statement of the caller in the unit.
func (u *unit) exec(ctx context.Context, sql string, t text, args []driver.NamedValue) (driver.Result, error) {
	u.calls.Add(1)
	defer u.calls.Add(-1)
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	counted := t.counts && u.kind == unitHandler
	if err := u.ready(t, counted); err != nil {
		return nil, u.failed(err)
	}
	// No statement of a unit sees a context that ends: interrupted, it would
	// take the whole group with it.
	result, err := u.w.raw.execArgs(context.Background(), sql, t.statements, args)
	if err != nil {
		return nil, u.failed(err)
	}
	if counted {
		u.count(result)
	}
	return result, nil
}

// query runs a statement of the caller that returns rows.
func (u *unit) query(ctx context.Context, sql string, t text, args []driver.NamedValue) (_ driver.Rows, err error) {
	u.calls.Add(1)
	defer func() {
		if err != nil {
			u.calls.Add(-1) // else Close does
		}
	}()
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	if err := u.ready(t, false); err != nil {
		return nil, u.failed(err)
	}
	inner, p, err := u.w.raw.queryArgs(context.Background(), sql, args)
	if err != nil {
		return nil, u.failed(err)
	}
	r := &rows{inner: inner, p: p, raw: u.w.raw, unit: u, columns: inner.Columns()}
	u.open = append(u.open, r)
	return r, nil
}

// write runs fn as a unit of its own; it is durable when write returns nil. The
// unit gives the lock back, if there is one.
func (w *writer) write(ctx context.Context, l *lock, fn func(r *raw) error) error {
	u := w.unit(unitInternal)
	if l != nil {
		u.locks = []*lock{l}
	}
	u.finish = fn
	return u.commit(ctx)
}
