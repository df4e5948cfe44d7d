package fault

import (
	"context"
	"runtime"
	"sync"

	"github.com/unavez/unavez/store"
)

// Life is one worker from its start to its end. Its methods may be called
// concurrently.
type Life struct {
	name     string
	director Director

	mu    sync.Mutex
	dead  bool
	made  map[string]int // steps by name
	conns map[*conn]struct{}
	end   []context.CancelFunc // of what ends with it

	buried chan struct{} // nil where goroutines end at once
}

// NewLife starts a worker. Names are unique within a director.
func NewLife(name string, director Director) *Life {
	return &Life{name: name, director: director, made: map[string]int{}, conns: map[*conn]struct{}{}}
}

// Lingers has the goroutines of the worker stand still when it is dead, until Bury:
// for programs that go on by starting others where one ends. Call it before the
// first step.
func (l *Life) Lingers() { l.buried = make(chan struct{}) }

// Bury ends the goroutines of a worker that lingers, once it is dead.
func (l *Life) Bury() {
	if l.Dead() && l.buried != nil {
		close(l.buried)
	}
}

// exit ends the goroutine.
func (l *Life) exit() {
	if l.buried != nil {
		<-l.buried
	}
	runtime.Goexit()
}

// Name of the worker.
func (l *Life) Name() string { return l.name }

// Dead reports whether the worker was killed. An answer that its code gives
// after that has reached nobody.
func (l *Life) Dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// Kill ends the worker. Whoever comes to a step of it from now on ends there; the
// director wakes those who wait. The server notices by and by.
func (l *Life) Kill() {
	l.mu.Lock()
	l.dead = true
	var open []*conn
	for c := range l.conns {
		open = append(open, c)
	}
	end := l.end
	l.mu.Unlock()
	for _, cancel := range end {
		cancel()
	}
	for _, c := range open {
		c.lose()
	}
}

// Context is one that ends with the worker, for who waits for an answer of it.
func (l *Life) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, cancel)
	if l.dead {
		cancel()
	}
	return ctx, cancel
}

// living ends the goroutine of a dead worker.
func (l *Life) living() {
	if l.Dead() {
		l.exit()
	}
}

// ended ends the goroutine of a worker that is killed at a step, or was killed at
// another one while this one waited.
func (l *Life) ended(kind Kind) {
	if kind == Kill {
		l.Kill()
	}
	if kind == Gone {
		l.exit()
	}
	l.living()
}

// point numbers a step.
func (l *Life) point(step string, wire bool) Point {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := step
	if wire {
		name += "~"
	}
	l.made[name]++
	return Point{Life: l.name, Step: step, Nth: l.made[name], Wire: wire}
}

// At is a step of the caller's own code, inside the transaction tx or, with nil,
// outside any. An error takes the place of what the code was about to do.
func (l *Life) At(ctx context.Context, step string, tx any) error {
	l.living()
	at := l.point(step, false)
	kind := l.director.Arrive(ctx, at)
	l.ended(kind)
	switch kind {
	case Panic:
		panic(ErrPanic)
	case Fail:
		return ErrHandler
	case Cut:
		l.cut(tx)
		return says(store.ErrUnavailable)
	}
	return nil
}

// conn is a connection with an open transaction.
type conn struct {
	life     *Life
	tx       any
	rollback func() // by the server

	mu   sync.Mutex
	gone bool // nothing that the worker sends arrives
}

// opens notes an open transaction.
func (l *Life) opens(tx any, rollback func()) *conn {
	c := &conn{life: l, tx: tx, rollback: rollback}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return c
}

// ends forgets a transaction that has ended.
func (c *conn) ends() {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	delete(c.life.conns, c)
}

// leave makes the connection gone, and reports whether it was there.
func (c *conn) leave() bool {
	c.ends()
	c.mu.Lock()
	defer c.mu.Unlock()
	was := !c.gone
	c.gone = true
	return was
}

// lost reports whether the connection is gone.
func (c *conn) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// lose cuts the connection. The server rolls back when it notices.
func (c *conn) lose() {
	if c.leave() {
		c.life.arrives(Noticed, func(context.Context, *Note) error {
			c.rollback()
			return nil
		})
	}
}

// cut loses the connection of a transaction.
func (l *Life) cut(tx any) {
	l.mu.Lock()
	var found *conn
	for c := range l.conns {
		if c.tx == tx {
			found = c
		}
	}
	l.mu.Unlock()
	if found != nil {
		found.lose()
	}
}

// arrives does something when the wire brings it, whatever became of the worker.
func (l *Life) arrives(step string, apply func(context.Context, *Note) error) {
	at := l.point(step, true)
	l.director.Sent(at)
	go func() {
		note := Note{Fault: Fault{Point: at}}
		l.director.Arrive(context.Background(), at)
		note.Err = apply(context.Background(), &note)
		l.director.Depart(note)
	}()
}

// move is one step through a wrapper.
type move struct {
	step string
	note Note
	// apply does it; it may be called by another goroutine, later.
	apply func(ctx context.Context, note *Note) error
	// refused and lost are the errors that stand for Fail, and for an answer
	// that does not come.
	refused, lost error
	// conn is the transaction's, where the step is part of one; ends says that
	// the step is its end.
	conn *conn
	ends bool
	// abandon gives up what the step has opened and nobody holds.
	abandon func()
	// lie gives the opposite answer.
	lie func()
	// forget makes the fast lease lose everything.
	forget func()
}

// do makes a step. told says that the answer is the store's own; otherwise err
// stands in its place, and is nil for a lie.
func (l *Life) do(ctx context.Context, m move) (told bool, err error) {
	l.living()
	at := l.point(m.step, false)
	kind := l.director.Arrive(ctx, at)
	l.ended(kind)
	m.note.Fault = Fault{Point: at, Kind: kind}
	switch kind {
	case Fail:
		if m.conn != nil && m.conn.leave() {
			m.conn.rollback() // the server has given the transaction up
		}
		return false, m.refused
	case Cut:
		if m.conn != nil {
			m.conn.lose()
		}
		return false, m.lost
	case Late:
		if m.conn != nil {
			m.conn.leave()
		}
		l.arrives(m.step, func(ctx context.Context, note *Note) error {
			sent := m.note
			sent.Fault = note.Fault
			*note = sent
			return m.apply(ctx, note)
		})
		return false, m.lost
	case Forget:
		m.forget()
	case Lie:
		m.lie()
		return false, nil
	}
	err = l.apply(ctx, &m)
	if kind == Die {
		l.Kill()
	}
	if l.Dead() { // killed here, or at another step meanwhile
		l.abandon(&m)
		l.exit()
	}
	if kind == Lose {
		l.abandon(&m)
		return false, m.lost
	}
	return true, err
}

// apply reaches the store, and says so.
func (l *Life) apply(ctx context.Context, m *move) error {
	m.note.Err = m.apply(ctx, &m.note)
	l.director.Depart(m.note)
	return m.note.Err
}

// abandon leaves what a step has opened, or worked in, to the server. A
// transaction that the step has ended needs nothing more.
func (l *Life) abandon(m *move) {
	if m.conn != nil && m.ends {
		m.conn.leave()
	} else if m.conn != nil {
		m.conn.lose()
	}
	if m.abandon != nil {
		l.arrives(Noticed, func(context.Context, *Note) error {
			m.abandon()
			return nil
		})
	}
}
