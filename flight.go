package unavez

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// The pace of the poller that waits for operations in flight at other workers.
const (
	pollFirst = 25 * time.Millisecond
	pollLast  = 250 * time.Millisecond
	pollLimit = 5 * time.Second // of one read
)

// gateWait is how long a duplicate waits for the verdict of a gate that is under
// way, so that a burst of repeats of what is done gets the answer.
const gateWait = pollLast

// flight is one operation that runs now, here or at another worker. Its fields
// are guarded by the table's mutex, outcome until done is closed.
type flight struct {
	fingerprint Fingerprint
	known       bool // fingerprint is the running one's
	remote      bool
	waiters     int
	started     time.Time
	until       time.Time     // end of the lease in lease mode, else zero
	fence       int64         // of the attempt in lease mode; only its runner looks
	outcome     *Outcome      // what it ended with, nil when nothing was committed
	working     bool          // its work has begun
	begun, done chan struct{} // closed then; made by the first who waits
}

// waits makes the channels of a flight that is in the table, for somebody who is
// about to wait; the table's mutex is held.
func (f *flight) waits() {
	if f.done != nil {
		return
	}
	f.begun, f.done = make(chan struct{}), make(chan struct{})
	if f.working {
		close(f.begun)
	}
}

// flights is the worker's table of operations in flight: duplicates are
// answered or wait here, without a connection. It also counts the calls, for
// Close, and polls for operations in flight elsewhere.
type flights struct {
	peek func(context.Context, []store.Key) ([]store.State, error)
	room int // waiters that may still wait

	mu     sync.Mutex
	byKey  map[store.Key]*flight
	remote map[store.Key]*flight
	wake   chan struct{} // tells the poller about a new key; nil when it is not running
	calls  int
	closed bool
	stop   chan struct{}
	idle   chan struct{} // closed when closed and no call is left
	once   sync.Once
	poller sync.WaitGroup
}

func newFlights(waiters int, peek func(context.Context, []store.Key) ([]store.State, error)) *flights {
	return &flights{
		peek: peek, room: waiters,
		byKey: map[store.Key]*flight{}, remote: map[store.Key]*flight{},
		stop: make(chan struct{}), idle: make(chan struct{}),
	}
}

// join counts a call, unless the engine is closing.
func (t *flights) join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.calls++
	return true
}

// leave ends what join began.
func (t *flights) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls--
	if t.closed && t.calls == 0 {
		t.once.Do(func() { close(t.idle) })
	}
}

// close refuses new calls and waits for the running ones.
func (t *flights) close(ctx context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.stop)
		if t.calls == 0 {
			t.once.Do(func() { close(t.idle) })
		}
	}
	t.mu.Unlock()
	t.poller.Wait()
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter makes the caller the runner of the operation, or gives it the flight
// of the one that runs.
func (t *flights) enter(key store.Key, fp Fingerprint) (f *flight, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.byKey[key]; ok {
		f.waits()
		return f, false
	}
	f = &flight{fingerprint: fp, known: true, started: time.Now()}
	t.byKey[key] = f
	return f, true
}

// begins notes that the gate of a flight has let its work begin.
func (t *flights) begins(f *flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.begin()
}

// begin wakes those who wait at the gate; the table's mutex is held.
func (f *flight) begin() {
	if f.working {
		return
	}
	f.working = true
	if f.begun != nil {
		close(f.begun)
	}
}

// found waits while a flight is at its gate, and gives the outcome that it has
// found there, if it has.
func (t *flights) found(ctx context.Context, f *flight) *Outcome {
	timer := time.NewTimer(gateWait)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.outcome
	case <-f.begun:
	case <-timer.C:
	case <-ctx.Done():
	case <-t.stop:
	}
	return nil
}

// end takes a flight out of the table and wakes everybody who waits for it.
func (t *flights) end(key store.Key, f *flight, outcome *Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.outcome = outcome
	t.remove(key, f)
	if f.done != nil {
		close(f.done)
	}
}

// remove forgets a flight; the mutex is held.
func (t *flights) remove(key store.Key, f *flight) {
	if t.byKey[key] == f {
		delete(t.byKey, key)
	}
	if t.remote[key] == f {
		delete(t.remote, key)
	}
}

// leased tells the flight until when its lease lasts, for Retry-After.
func (t *flights) leased(f *flight, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.until = until
}

// sent turns the caller's own flight into one that stands for an operation in
// flight at another worker, with the caller as its first waiter. The running
// one's payload is not known then: the gate has compared it where it is stored.
func (t *flights) sent(key store.Key, f *flight, retryAfter time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.remote, f.known = true, false
	f.begin()
	f.waits() // the caller, and who comes after it
	f.until = time.Now().Add(retryAfter)
	t.remote[key] = f
	if t.closed {
		return
	}
	if t.wake == nil {
		t.wake = make(chan struct{}, 1)
		t.poller.Add(1)
		go t.poll(t.wake)
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// look tells what a duplicate needs to know of a flight: whether its payload
// is another one, and how long to wait before asking again.
func (t *flights) look(c *call, f *flight) (mismatch bool, retryAfter time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mismatch = f.known && !c.samePayload(f.fingerprint)
	if !f.until.IsZero() {
		return mismatch, max(time.Until(f.until), time.Second)
	}
	return mismatch, min(max(time.Since(f.started), time.Second), max(c.op.Limit, time.Second))
}

// wait waits for the end of a flight, at most for d. It reports whether the
// flight has ended; when false the duplicate is answered "in flight".
func (t *flights) wait(ctx context.Context, key store.Key, f *flight, d time.Duration) bool {
	t.mu.Lock()
	if d <= 0 || t.room == 0 {
		if f.remote && f.waiters == 0 {
			t.remove(key, f)
		}
		t.mu.Unlock()
		return false
	}
	t.room--
	f.waiters++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.room++
		f.waiters--
		if f.remote && f.waiters == 0 {
			t.remove(key, f)
		}
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-f.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-t.stop:
	}
	return false
}

// poll is the one goroutine that asks the store about every operation waited
// for at other workers; it ends when there is none.
func (t *flights) poll(wake chan struct{}) {
	defer t.poller.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with this function: cancel is deferred
		select {
		case <-t.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause := pollFirst
	for {
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
			pause = min(pause*2, pollLast)
		case <-wake:
			pause = pollFirst
			timer.Stop()
			continue
		case <-t.stop:
			timer.Stop()
			return
		}
		keys, waited := t.waitedFor()
		if len(keys) == 0 {
			return
		}
		read, done := context.WithTimeout(ctx, pollLimit)
		states, err := t.peek(read, keys)
		done()
		if err != nil {
			continue // a hint only: the waiters' own time bounds this
		}
		for i, state := range states {
			if state != store.Processing {
				t.end(keys[i], waited[i], nil)
			}
		}
	}
}

// waitedFor lists the flights at other workers; with none the poller is gone.
func (t *flights) waitedFor() ([]store.Key, []*flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.remote) == 0 {
		t.wake = nil
		return nil, nil
	}
	keys := make([]store.Key, 0, len(t.remote))
	waited := make([]*flight, 0, len(t.remote))
	for k, f := range t.remote {
		keys, waited = append(keys, k), append(waited, f)
	}
	return keys, waited
}
