package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
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
	unitRunning                  // has the turn
	unitEnded                    // released, or undone with err
)

// unit is what one caller wants committed whole. Its statements come one after
// another; only the timer of its limit comes from elsewhere. Fields below the
// line are guarded by writer.use once the unit runs.
type unit struct {
	w        *writer
	kind     unitKind
	limit    time.Duration // from its first statement
	deadline time.Time     // for all of it; set when it asks for its turn, where nothing bounds it before
	patience time.Time     // for other workers; set when it asks for its turn
	wake     chan struct{} // closed when its turn comes
	opening  bool          // counted in writer.opening

	state   unitState
	err     error     // why it cannot go on
	until   time.Time // its limit, while it runs
	group   *group
	open    []*rows
	saved   bool  // its savepoint is set
	writes  bool  // a statement that may write has run
	changes int64 // of the connection before that
	schema  bool  // it has changed the schema

	foreign bool // its handler has ended it; guarded by writer.mu
	ending  bool // the engine has ordered its end; guarded by writer.mu

	finish func(r *raw) error // what is done just before its end
	locks  []*lock            // given back when it has ended
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

// expect announces the unit, so that a group about to commit lets it come.
func (u *unit) expect() {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	u.opening = true
	u.w.opening++
}

// forgo takes back expect for a unit that ends without a statement.
func (u *unit) forgo() {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	if u.opening {
		u.opening = false
		u.w.opening--
	}
}

// start waits for the turn and begins the unit. ctx ends the wait only.
func (u *unit) start(ctx context.Context) error {
	w := u.w
	if err := w.ask(ctx, u); err != nil {
		return err
	}
	if u.kind == unitOwn {
		w.flush()
	}
	if err := w.begin(ctx, u); err != nil {
		w.pass(u)
		return err
	}
	w.use.Lock()
	var err error
	switch {
	case w.group == nil:
		err = errClosed()
	case u.kind != unitOwn && w.group.units > 0:
		err = u.save()
	}
	if err != nil {
		w.lose(err)
		w.use.Unlock()
		w.pass(u)
		return classify(err)
	}
	now := time.Now()
	u.group, u.state, u.until = w.group, unitRunning, now.Add(u.limit)
	if u.deadline.Before(u.until) {
		u.until = u.deadline
	}
	if u.kind != unitInternal {
		w.timer.Reset(u.until.Sub(now))
	}
	w.use.Unlock()
	return nil
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

// enter makes the connection the unit's for one statement; leave gives it back.
func (u *unit) enter(ctx context.Context) error {
	u.w.use.Lock()
	if u.state == unitIdle {
		u.w.use.Unlock()
		if err := u.start(ctx); err != nil {
			return err
		}
		u.w.use.Lock()
	}
	if u.state == unitRunning && u.kind != unitInternal && !time.Now().Before(u.until) {
		u.undo(u.overLimit())
		u.w.use.Unlock()
		u.w.pass(u)
		u.w.use.Lock()
	}
	if u.err != nil || u.state != unitRunning {
		err := u.err
		if err == nil {
			err = &fault{kind: store.ErrAborted, text: "unit has ended"}
		}
		u.w.use.Unlock()
		return err
	}
	return nil
}

func (u *unit) leave() {
	lost := u.state == unitEnded
	u.w.use.Unlock()
	if lost {
		u.w.pass(u)
	}
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
		u.err = classify(err)
		if u.err == err {
			u.err = &fault{kind: store.ErrAborted, text: "statement made SQLite roll the whole transaction back", cause: err}
		}
		u.state = unitEnded
		u.w.lose(err)
		return u.err
	}
	if dooms(err) {
		// The transaction is still there; what was done in the unit is not sure.
		u.undo(classify(err))
		return u.err
	}
	return classify(err)
}

// undo rolls the unit back, leaving the others of its group. The caller holds
// use, and passes the turn on after that.
func (u *unit) undo(cause error) {
	w := u.w
	u.end()
	u.err, u.state = cause, unitEnded
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

// end closes what the unit left open on the connection.
func (u *unit) end() {
	if u.kind != unitInternal {
		u.w.timer.Stop()
	}
	for _, r := range u.open {
		r.shut() // its statement gives no more rows; an error of it is of no use
	}
	u.open = nil
	if u.schema {
		u.w.c.schema.Add(1)
	}
}

// commit ends the unit and waits until its group is durable. Its locks are free
// when it returns.
func (u *unit) commit(ctx context.Context) error {
	defer u.unlock()
	if err := u.enter(ctx); err != nil {
		u.rollback(err)
		return err
	}
	err := u.w.c.failing("finish")
	if err == nil && u.finish != nil {
		err = u.finish(u.w.raw)
	}
	if err != nil {
		if err = u.failed(err); u.state == unitRunning {
			u.undo(err)
		}
		u.leave()
		return err
	}
	if u.saved {
		if _, err := u.w.raw.exec("RELEASE " + savepoint); err != nil {
			// The savepoint is gone: something the text did not show has ended it.
			u.end()
			u.err = &fault{kind: store.ErrForeignCommit, text: "unit's savepoint is gone", cause: err}
			u.state = unitEnded
			u.w.lose(err)
			u.leave()
			return u.err
		}
	}
	u.end()
	u.state = unitEnded
	g := u.group
	g.units++
	if u.kind == unitOwn {
		u.w.use.Unlock()
		u.w.flush()
		u.w.pass(u)
	} else {
		u.leave()
	}
	<-g.done
	return g.err
}

// rollback gives the unit up.
func (u *unit) rollback(cause error) {
	defer u.unlock()
	u.forgo()
	u.w.use.Lock()
	if u.state != unitRunning {
		if u.err == nil {
			u.err = cause
		}
		u.state = unitEnded
		u.w.use.Unlock()
		return
	}
	u.undo(cause)
	u.leave()
}

func (u *unit) unlock() {
	for _, l := range u.locks {
		l.release()
	}
	u.locks = nil
}

// note is called before a statement: it keeps what is needed to tell later
// whether the unit has written.
func (u *unit) note(t text) error {
	if t.reads {
		return nil
	}
	if t.savepoint {
		if err := u.save(); err != nil {
			return err
		}
	}
	u.schema = u.schema || t.schema
	if u.writes {
		return nil
	}
	n, err := u.w.raw.number("SELECT total_changes()")
	if err != nil {
		return err
	}
	u.writes, u.changes = true, n
	return nil
}

// written reports whether the unit has changed anything. A statement that
// changed no row has not; a change of the schema has.
func (u *unit) written() bool {
	if !u.writes {
		return false
	}
	if u.schema {
		return true
	}
	n, err := u.w.raw.number("SELECT total_changes()")
	return err != nil || n != u.changes
}

// exec runs a statement of the caller in the unit.
func (u *unit) exec(ctx context.Context, sql string, t text, args []driver.NamedValue) (driver.Result, error) {
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	if err := u.note(t); err != nil {
		return nil, u.failed(err)
	}
	// No statement of a unit sees a context that ends: interrupted, it would
	// take the whole group with it.
	result, err := u.w.raw.execArgs(context.Background(), sql, t.statements, args)
	if err != nil {
		return nil, u.failed(err)
	}
	return result, nil
}

// query runs a statement of the caller that returns rows.
func (u *unit) query(ctx context.Context, sql string, t text, args []driver.NamedValue) (driver.Rows, error) {
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	if err := u.note(t); err != nil {
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

// write runs fn as a unit of its own; it is durable when write returns nil.
func (w *writer) write(ctx context.Context, fn func(r *raw) error) error {
	u := w.unit(unitInternal)
	u.finish = fn
	return u.commit(ctx)
}
