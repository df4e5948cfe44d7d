package memory

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/leasetest"
)

// manual is a clock that moves when a test says so.
type manual struct {
	mu sync.Mutex
	at time.Time
}

func (m *manual) now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *manual) advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = m.at.Add(d)
}

func open(t *testing.T, limit int) (*Leaser, *manual) {
	t.Helper()
	clock := &manual{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	l, err := New(&Options{Now: clock.now, Max: limit})
	if err != nil {
		t.Fatal(err)
	}
	return l, clock
}

func TestLeaserKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Harness {
		l, clock := open(t, 0)
		return leasetest.Harness{
			Leaser:  l,
			Advance: func(_ *testing.T, d time.Duration) { clock.advance(d) },
			Second:  func(*testing.T) lease.Leaser { return l },
		}
	})
}

func TestALeaseEndsAtItsEdge(t *testing.T) {
	t.Parallel()
	l, clock := open(t, 0)
	acquire := func(token string) (bool, time.Duration) {
		t.Helper()
		held, _, left, err := l.Acquire(t.Context(), "k", lease.Value{Token: token}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return held, left
	}
	acquire("a")
	clock.advance(time.Minute - time.Nanosecond)
	if held, left := acquire("b"); held || left != time.Nanosecond {
		t.Errorf("just before the end: held %v, left %v", held, left)
	}
	clock.advance(time.Nanosecond)
	if held, _ := acquire("b"); !held {
		t.Error("at the end: refused")
	}
}

func TestMemoryIsBoundedByWhatIsAlive(t *testing.T) {
	t.Parallel()
	const limit = 1000
	l, clock := open(t, limit)
	acquire := func(i int) error {
		_, _, _, err := l.Acquire(t.Context(), fmt.Sprint(i), lease.Value{Token: "a"}, time.Minute)
		return err
	}
	for i := range limit {
		if err := acquire(i); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	for i := range 10 {
		if err := acquire(limit + i); !errors.Is(err, ErrFull) {
			t.Fatalf("lease over the limit: %v, want ErrFull", err)
		}
	}
	if err := acquire(0); err != nil {
		t.Errorf("own lease of a full store: %v", err)
	}
	if err := l.Release(t.Context(), "7", "a"); err != nil {
		t.Fatal(err)
	}
	if err := acquire(limit); err != nil {
		t.Errorf("after a release: %v", err)
	}
	// One that was renewed for less makes room when its time has come.
	if held, err := l.Renew(t.Context(), "8", "a", time.Second); !held || err != nil {
		t.Fatal(held, err)
	}
	clock.advance(time.Second)
	if err := acquire(limit + 1); err != nil {
		t.Errorf("after an expiry: %v", err)
	}
	if err := acquire(limit + 2); !errors.Is(err, ErrFull) {
		t.Errorf("lease over the limit: %v, want ErrFull", err)
	}
	// Expired leases go by themselves: a store that is never full stays small.
	clock.advance(time.Minute)
	for i := range 20 * limit {
		clock.advance(time.Second)
		if err := acquire(2*limit + i); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	if n := len(l.entries); n > 300 {
		t.Errorf("%d entries kept for 60 live leases", n)
	}
}

func TestNewRefusesANegativeBound(t *testing.T) {
	t.Parallel()
	if _, err := New(&Options{Max: -1}); err == nil {
		t.Error("no error")
	}
	if l, err := New(nil); err != nil || l.max != DefaultMax {
		t.Errorf("defaults: %+v, %v", l, err)
	}
}
