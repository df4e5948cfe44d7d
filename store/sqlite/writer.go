package sqlite

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// writer owns the one connection that writes and the queue in front of it.
//
// Two locks: mu for the queue and the units' states, use for the connection. Who
// holds the turn is who may begin and commit groups; use is held while the
// connection works, so that the turn can be taken from a holder that is busy
// elsewhere. A statement may keep use for long: whoever has neither the turn nor
// a unit that runs does without it. mu is taken inside use, never the other way.
type writer struct {
	c *connector

	mu      sync.Mutex
	holder  *unit   // has the turn
	waiting []*unit // for the turn, first come first served
	opening int     // units whose handler has run no statement yet
	last    int     // units of the last group that was committed
	alarm   alarm   // of the first who waits for too long

	use   baton
	raw   *raw
	group *group
	limit alarm // of the running unit
	alone int   // groups still to be kept to one unit
	stats stats
}

// stats are counted for tests.
type stats struct{ commits, units, taken int64 }

// group is what one COMMIT makes durable.
type group struct {
	done     chan struct{} // closed when err is final
	err      error
	units    int    // released, waiting for the commit
	outcomes []*row // of those, inserted before the commit
	began    time.Time
}

func (w *writer) init(c *connector) {
	w.c = c
	w.use = make(baton, 1)
	w.limit.rings = w.overdue
	w.alarm.rings = w.tooLate
}

// check opens the connection once, to find out whether the file can be used.
func (w *writer) check() error {
	u := w.unit(unitInternal)
	if err := w.ask(context.Background(), u); err != nil {
		return err
	}
	err := w.retry(context.Background(), u, w.connect)
	w.pass(u)
	return err
}

// ask begins u's wait for the writer, and ends when u has the turn.
func (w *writer) ask(ctx context.Context, u *unit) error {
	now := time.Now()
	switch {
	case u.deadline.IsZero():
		u.deadline = now.Add(w.c.opts.BusyTimeout + u.limit)
	case !now.Before(u.deadline):
		return u.overLimit()
	}
	if u.patience = now.Add(w.c.opts.BusyTimeout); u.deadline.Before(u.patience) {
		u.patience = u.deadline
	}
	return w.turn(ctx, u)
}

// turn waits until u is the one who may use the writer.
func (w *writer) turn(ctx context.Context, u *unit) error {
	w.mu.Lock()
	u.forgo()
	if u.state == unitEnded {
		defer w.mu.Unlock()
		return u.over()
	}
	if w.holder == nil && len(w.waiting) == 0 {
		w.holder = u
		w.mu.Unlock()
		return nil
	}
	wake := make(chan struct{})
	u.wake = wake
	w.waiting = append(w.waiting, u)
	w.alarm.at(u.deadline)
	w.mu.Unlock()

	select {
	case <-wake:
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case w.holder == u:
			return nil
		case u.state != unitEnded: // by tooLate
			return unavailable("writer is busy: more work waits for it than its time allows", nil)
		}
		return u.over() // given up while it waited
	case <-ctx.Done():
	}
	w.mu.Lock()
	w.dequeue(u)
	has := w.holder == u
	w.mu.Unlock()
	if has { // the turn came at the same moment
		w.pass(u)
	}
	return outOfTime(ctx)
}

// tooLate ends the wait of those whose time is over.
func (w *writer) tooLate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarm.rang()
	now := time.Now()
	w.waiting = slices.DeleteFunc(w.waiting, func(u *unit) bool {
		if now.Before(u.deadline) {
			w.alarm.at(u.deadline)
			return false
		}
		close(u.wake)
		return true
	})
}

// outOfTime is for whoever waits for the writer no longer than its context.
func outOfTime(ctx context.Context) error {
	return unavailable("writer is busy", ctx.Err())
}

// dequeue ends u's wait, if it waits. The caller holds mu.
func (w *writer) dequeue(u *unit) {
	if i := slices.Index(w.waiting, u); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		close(u.wake)
	}
}

// pass ends u's turn: to the next unit of the group, or through the commit.
func (w *writer) pass(u *unit) {
	w.use.lock()
	g := w.group
	full := g != nil && (g.units >= w.size() || time.Since(g.began) >= w.c.opts.GroupTime)
	w.use.unlock()
	if !full {
		// Whoever is about to come may come before the sync, if it takes no
		// more than letting them run: those that the last commit has set free
		// have not even said so yet.
		for i := range 4 {
			if g == nil || !w.expects(i == 0) {
				break
			}
			runtime.Gosched()
		}
		if w.hand(u, false) {
			return
		}
	}
	w.flush()
	w.hand(u, true)
}

// expects reports whether nobody waits and someone may come: who has yet to run
// its first statement, or else, with others, the callers of the last group.
func (w *writer) expects(others bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0 && (w.opening > 0 || others && w.last > 1)
}

// hand gives u's turn to the next who waits. With free it gives the turn up
// where nobody does.
func (w *writer) hand(u *unit, free bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		if free {
			w.holder = nil
		}
		return free
	}
	next := w.waiting[0]
	w.waiting[0] = nil
	w.waiting = w.waiting[1:]
	w.holder = next
	close(next.wake)
	return true
}

func (w *writer) size() int {
	if w.alone > 0 {
		return 1
	}
	return w.c.opts.GroupSize
}

// flush ends the group: COMMIT when units of it were released, else ROLLBACK.
func (w *writer) flush() {
	w.use.lock()
	g := w.group
	w.group = nil
	if g == nil {
		w.use.unlock()
		return
	}
	switch {
	case g.units == 0:
		w.rollback()
	default:
		g.err = w.commit(g)
	}
	w.use.unlock()
	close(g.done)
}

// commit makes a group durable. What its error says is certain, or it is
// ErrCommitUnknown.
func (w *writer) commit(g *group) error {
	w.alone = max(0, w.alone-1)
	if err := w.record(g); err != nil {
		w.rollback()
		return err
	}
	err := w.c.failing("commit")
	if err == nil {
		_, err = w.raw.exec("COMMIT")
	}
	if err == nil {
		err = w.c.failing("committed")
	}
	if err == nil {
		w.stats.commits++
		w.stats.units += int64(g.units)
		w.mu.Lock()
		w.last = g.units
		w.mu.Unlock()
		return nil
	}
	w.rollback()
	switch codeOf(err) {
	case codeConstraint:
		if g.units > 1 {
			w.alone = 256
			return groupLost("one of its units violates a deferred constraint", err)
		}
		return &fault{kind: store.ErrAborted, text: "commit violates a deferred constraint", cause: err}
	case codeFull, codeReadOnly, codeBusy:
		return classify(err)
	default:
		// The commit may stand in the log. A new connection reads what is there.
		w.drop()
		return &fault{kind: store.ErrCommitUnknown, text: "commit failed", cause: err}
	}
}

// record inserts the outcomes of a group, all in as few statements as can be.
// Each operation's lock is held by its unit, so nobody asks for one of them
// before the commit. A row that another worker has written past that lock fails
// the group: its units then come singly, and the next time it fails alone.
func (w *writer) record(g *group) error {
	err := w.raw.insertRows(g.outcomes)
	if err == nil || g.units == 1 || dooms(err) {
		return classify(err)
	}
	w.alone = 256
	return groupLost("the outcome of one of its units could not be written", err)
}

// rollback ends the connection's transaction, if there is one.
func (w *writer) rollback() {
	if w.raw == nil {
		return
	}
	if _, err := w.raw.exec("ROLLBACK"); err != nil && !w.left() {
		w.drop()
	}
}

// left reports whether SQLite has left the transaction: BEGIN is refused inside
// one, and works outside. There is no other way that every driver has.
func (w *writer) left() bool {
	if w.raw == nil {
		return true
	}
	if _, err := w.raw.exec("BEGIN"); err != nil {
		return dooms(err)
	}
	if _, err := w.raw.exec("ROLLBACK"); err != nil {
		w.drop()
	}
	return true
}

// drop closes a connection that cannot be trusted; the next group opens another.
func (w *writer) drop() {
	if w.raw != nil {
		w.raw.close() // why it is dropped has been said
		w.raw = nil
	}
}

// lose gives up the group after SQLite left its transaction. The caller holds use.
func (w *writer) lose(cause error) {
	g := w.group
	w.group = nil
	w.rollback()
	if g != nil {
		g.err = groupLost("another unit of it made SQLite leave the transaction", cause)
		close(g.done)
	}
}

// idle calls look with the writer's connection, if that has nothing to do: what
// it wrote last is still in its memory, where a reader's is empty after every
// commit.
func (w *writer) idle(look func(r *raw)) bool {
	if !w.use.try() {
		return false
	}
	defer w.use.unlock()
	if w.raw == nil || w.group != nil || w.c.closed.Load() {
		return false // an open group shows what is not committed
	}
	w.raw.forget(w.c.schema.Load())
	look(w.raw)
	return true
}

// begin opens a group for u, which has the turn, unless one is open.
func (w *writer) begin(ctx context.Context, u *unit) error {
	w.use.lock()
	open := w.group != nil
	w.use.unlock()
	if open {
		return nil
	}
	return w.retry(ctx, u, func() error {
		if err := w.connect(); err != nil {
			return err
		}
		if err := w.c.failing("begin"); err != nil {
			return err
		}
		if _, err := w.raw.exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		w.group = &group{done: make(chan struct{}), began: time.Now()}
		return nil
	})
}

// connect opens the connection if there is none. The caller holds use.
func (w *writer) connect() error {
	if w.c.closed.Load() {
		return errClosed()
	}
	if w.raw != nil {
		w.raw.forget(w.c.schema.Load())
		return nil
	}
	raw, err := w.c.open(true)
	w.raw = raw
	return err
}

// retry runs try with the connection until another worker lets it, for as long
// as u may wait. In front stands the turnstile, so that a busy worker lets
// others in: it is passed before every try, but for a worker that waits on it
// for long, which may stand before a stopped one.
func (w *writer) retry(ctx context.Context, u *unit, try func() error) error {
	patience := time.Now().Add(50 * time.Millisecond)
	pause := 250 * time.Microsecond
	first := false
	defer func() {
		if first {
			w.c.gate.leaveTurnstile()
		}
	}()
	for {
		if !first {
			first = w.c.gate.enterTurnstile()
		}
		if first || time.Now().After(patience) {
			w.use.lock()
			err := try()
			w.use.unlock()
			if err == nil || !isBusy(err) || !time.Now().Before(u.patience) {
				return classify(err)
			}
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return outOfTime(ctx)
		}
		pause = min(pause*5/4, 10*time.Millisecond)
	}
}

func isBusy(err error) bool {
	code := codeOf(err)
	return code == codeBusy || code == codeLocked || code == codeProtocol
}

// overdue takes the turn from the running unit when it is over its limit, which
// a write of the store has none of. It waits for a statement that runs.
func (w *writer) overdue() {
	w.use.lock()
	w.limit.rang()
	u := w.running()
	if u == nil || u.kind == unitInternal {
		w.use.unlock()
		return
	}
	if time.Until(u.until) > 0 {
		w.limit.at(u.until)
		w.use.unlock()
		return
	}
	w.stats.taken++
	u.undo(u.overLimit())
	w.use.unlock()
	w.pass(u)
	u.abandon()
}

// running is the unit that runs. The caller holds use.
func (w *writer) running() *unit {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u := w.holder; u != nil && u.state == unitRunning {
		return u
	}
	return nil
}

// close rolls back what is open and closes the connection. Who waits is told
// by the turn it gets.
func (w *writer) close() error {
	w.use.lock()
	if u := w.running(); u != nil {
		u.undo(errClosed())
		defer w.pass(u)
	}
	defer w.use.unlock()
	w.limit.stop()
	w.mu.Lock()
	w.alarm.stop()
	w.mu.Unlock()
	if w.group != nil {
		w.lose(errors.New("database was closed"))
	}
	if w.raw == nil {
		return nil
	}
	err := w.raw.close()
	w.raw = nil
	return err
}
