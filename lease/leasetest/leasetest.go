// Package leasetest is the conformance suite of package lease: a fast lease is
// finished when it passes.
//
// A lease decides nothing, so the suite holds little: a lease has one holder,
// who alone can renew it and give it back, it ends by itself, and others see
// what it holds. [lease.Marker] is held too where the lease is one.
package leasetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez/lease"
)

// The lives that the tests use. A clock that runs while a test does moves by
// seconds and decides nothing.
const (
	life   = time.Hour
	margin = 5 * time.Minute
)

// Harness describes one empty lease store to the suite. It is used by one test;
// what must be closed is closed by t.Cleanup of the opening function.
type Harness struct {
	// Leaser under test.
	Leaser lease.Leaser
	// Advance moves the leases' clock forward, or shortens all lives instead.
	Advance func(t *testing.T, d time.Duration)
	// Second opens another worker on the same leases. Nil only where they
	// belong to one worker by design.
	Second func(t *testing.T) lease.Leaser
}

// bed is what one test works on.
type bed struct {
	*testing.T
	Harness
	ctx     context.Context
	workers []lease.Leaser
}

// Run holds a lease to everything that package lease promises. open is called
// once for each test and returns a fresh, empty store of leases each time.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	_, marks := open(t).Leaser.(lease.Marker)
	for _, test := range []struct {
		name   string
		marker bool
		run    func(b *bed)
	}{
		{"a lease has one holder of many", false, oneHolder},
		{"the holder is granted its own lease again", false, ownAgain},
		{"others see what the holder put there", false, othersSee},
		{"a lease ends by itself", false, endsByItself},
		{"a renewed lease counts from now", false, renews},
		{"only the holder renews and gives back", false, onlyHolder},
		{"a late holder does not touch its successor", false, lateHolder},
		{"leases do not touch each other", false, separate},
		{"a cancelled context is an error or an answer", false, cancelled},
		{"a mark stands where the lease stood", true, mark},
		{"a mark is left by the holder only", true, markByHolder},
		{"a mark ends by itself", true, markEnds},
	} {
		if test.marker && !marks {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			t.Cleanup(cancel)
			b := &bed{T: t, Harness: h, ctx: ctx, workers: []lease.Leaser{h.Leaser}}
			if h.Second != nil {
				b.workers = append(b.workers, h.Second(t))
			}
			test.run(b)
		})
	}
}

func (b *bed) worker(i int) lease.Leaser { return b.workers[i%len(b.workers)] }

func value(token string) lease.Value {
	return lease.Value{Token: token, Version: 3, Fingerprint: []byte{0, 1, 0xff, '"', ' ', '\n'}}
}

// granted acquires a lease that must be free or the token's own.
func (b *bed) granted(key, token string) {
	b.Helper()
	held, other, _, err := b.Leaser.Acquire(b.ctx, key, value(token), life)
	if err != nil || !held {
		b.Fatalf("Acquire of %s by %s: held %v by %+v, %v", key, token, held, other, err)
	}
}

// refused acquires a lease that somebody else must hold.
func (b *bed) refused(l lease.Leaser, key, token string) (lease.Value, time.Duration) {
	b.Helper()
	held, other, left, err := l.Acquire(b.ctx, key, value(token), life)
	if err != nil || held {
		b.Fatalf("Acquire of %s by %s: held %v, %v; want it refused", key, token, held, err)
	}
	return other, left
}

// renewed renews, and checks the answer.
func (b *bed) renewed(key, token string, d time.Duration, want bool) {
	b.Helper()
	if held, err := b.Leaser.Renew(b.ctx, key, token, d); err != nil || held != want {
		b.Fatalf("Renew of %s by %s: held %v, %v; want %v", key, token, held, err, want)
	}
}

func (b *bed) must(call string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", call, err)
	}
}

// around checks a remaining life: at most want, and not much less.
func (b *bed) around(got, want time.Duration) {
	b.Helper()
	if got > want || got < want-margin {
		b.Errorf("left %v, want %v or a little less", got, want)
	}
}

func oneHolder(b *bed) {
	const rounds, racers = 10, 16
	for round := range rounds {
		key := fmt.Sprintf("raced %d", round)
		var holders atomic.Int64
		var wg sync.WaitGroup
		start, errs, seen := make(chan struct{}), make([]error, racers), make([]string, racers)
		for i := range racers {
			wg.Go(func() {
				<-start
				token := fmt.Sprintf("token %d", i)
				held, other, _, err := b.worker(i).Acquire(b.ctx, key, value(token), life)
				errs[i] = err
				if held {
					holders.Add(1)
					other.Token = token
				}
				seen[i] = other.Token
			})
		}
		close(start)
		wg.Wait()
		b.must("Acquire", errors.Join(errs...))
		if n := holders.Load(); n != 1 {
			b.Fatalf("round %d: %d holders, want 1", round, n)
		}
		for i, token := range seen {
			if token != seen[0] || token == "" {
				b.Fatalf("round %d: racer %d sees %q, racer 0 sees %q", round, i, token, seen[0])
			}
		}
	}
}

func ownAgain(b *bed) {
	b.granted("own", "a")
	b.Advance(b.T, 20*time.Minute)
	b.granted("own", "a") // a command that was sent twice
	_, left := b.refused(b.worker(1), "own", "b")
	b.around(left, life-20*time.Minute) // its life was left alone
}

func othersSee(b *bed) {
	put := value("a")
	held, _, _, err := b.Leaser.Acquire(b.ctx, "seen", put, life)
	b.must("Acquire", err)
	if !held {
		b.Fatal("a free lease was refused")
	}
	clear(put.Fingerprint) // the caller's own slice
	for i := range b.workers {
		other, left := b.refused(b.worker(i), "seen", "b")
		want := value("a")
		if other.Token != want.Token || other.Version != want.Version || !bytes.Equal(other.Fingerprint, want.Fingerprint) || other.Completed {
			b.Errorf("other: %+v, want %+v", other, want)
		}
		b.around(left, life)
		clear(other.Fingerprint)
	}
	held, _, _, err = b.Leaser.Acquire(b.ctx, "bare", lease.Value{Token: "a"}, life)
	b.must("Acquire", err)
	if !held {
		b.Fatal("a free lease was refused")
	}
	if other, _ := b.refused(b.worker(1), "bare", "b"); other.Token != "a" || other.Version != 0 || len(other.Fingerprint) != 0 {
		b.Errorf("other without a fingerprint: %+v", other)
	}
}

func endsByItself(b *bed) {
	b.granted("ends", "a")
	b.Advance(b.T, life-margin)
	_, left := b.refused(b.worker(1), "ends", "b")
	b.around(left, margin)
	b.Advance(b.T, 2*margin)
	b.renewed("ends", "a", life, false)
	b.granted("ends", "b")
}

func renews(b *bed) {
	b.granted("renewed", "a")
	for range 3 {
		b.Advance(b.T, life-margin)
		b.renewed("renewed", "a", life, true)
		_, left := b.refused(b.worker(1), "renewed", "b")
		b.around(left, life)
	}
	b.renewed("renewed", "a", 2*margin, true)
	_, left := b.refused(b.worker(1), "renewed", "b")
	b.around(left, 2*margin)
	b.Advance(b.T, 3*margin)
	b.granted("renewed", "b")
}

func onlyHolder(b *bed) {
	b.renewed("kept", "a", life, false)
	b.must("Release of nothing", b.Leaser.Release(b.ctx, "kept", "a"))
	b.granted("kept", "a")
	for _, stranger := range []string{"b", "", "a ", "A"} {
		b.renewed("kept", stranger, 9*life, false)
		b.must("Release", b.worker(1).Release(b.ctx, "kept", stranger))
		other, left := b.refused(b.worker(1), "kept", "c")
		b.around(left, life)
		if other.Token != "a" {
			b.Fatalf("holder %q, want a", other.Token)
		}
	}
	b.must("Release", b.worker(1).Release(b.ctx, "kept", "a"))
	b.must("second Release", b.Leaser.Release(b.ctx, "kept", "a"))
	b.renewed("kept", "a", life, false)
	b.granted("kept", "b")
}

func lateHolder(b *bed) {
	b.granted("passed on", "a")
	b.Advance(b.T, life+margin)
	b.granted("passed on", "b")
	b.renewed("passed on", "a", life, false)
	b.must("Release", b.Leaser.Release(b.ctx, "passed on", "a"))
	if other, _ := b.refused(b.worker(1), "passed on", "a"); other.Token != "b" {
		b.Fatalf("holder %q, want b", other.Token)
	}
}

func separate(b *bed) {
	keys := []string{"k", "K", "k ", "k:1", "", "kü\x00\xff", "0123456789abcdef0123456789abcdef"}
	for _, key := range keys {
		b.granted(key, "a "+key)
	}
	b.must("Release", b.Leaser.Release(b.ctx, "k", "a k"))
	b.granted("k", "a k")
	for _, key := range keys {
		if other, _ := b.refused(b.worker(1), key, "b"); other.Token != "a "+key {
			b.Errorf("holder of %q: %q", key, other.Token)
		}
	}
}

func cancelled(b *bed) {
	gone, cancel := context.WithCancel(b.ctx)
	cancel()
	held, _, _, err := b.Leaser.Acquire(gone, "cancelled", value("a"), life)
	if err == nil && !held {
		b.Error("a free lease was refused without an error")
	}
	b.must("Release", b.Leaser.Release(b.ctx, "cancelled", "a"))
	b.granted("cancelled", "b")
	if err := b.Leaser.Release(gone, "cancelled", "a"); err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("Release: %v", err)
	}
	b.renewed("cancelled", "b", life, true)
}

// completed leaves a mark.
func (b *bed) completed(key, token string, d time.Duration) {
	b.Helper()
	b.must("Complete", b.Leaser.(lease.Marker).Complete(b.ctx, key, token, d))
}

func mark(b *bed) {
	b.granted("marked", "a")
	b.completed("marked", "a", 3*life)
	for _, token := range []string{"a", "b"} {
		other, left := b.refused(b.worker(1), "marked", token)
		want := value("a")
		if !other.Completed || other.Version != want.Version || !bytes.Equal(other.Fingerprint, want.Fingerprint) {
			b.Errorf("mark: %+v", other)
		}
		b.around(left, 3*life)
	}
	// A mark is no lease: nobody renews it or gives it back.
	b.renewed("marked", "a", 9*life, false)
	b.must("Release", b.Leaser.Release(b.ctx, "marked", "a"))
	b.completed("marked", "a", 3*life) // sent twice
	other, left := b.refused(b.worker(1), "marked", "b")
	if !other.Completed {
		b.Errorf("after a release: %+v", other)
	}
	b.around(left, 3*life)
}

func markByHolder(b *bed) {
	b.completed("unmarked", "a", life)
	b.granted("unmarked", "a")
	b.completed("unmarked", "b", life)
	if other, _ := b.refused(b.worker(1), "unmarked", "b"); other.Completed || other.Token != "a" {
		b.Fatalf("a stranger's mark: %+v", other)
	}
	b.renewed("unmarked", "a", life, true)
	b.Advance(b.T, life+margin)
	b.completed("unmarked", "a", life)
	b.granted("unmarked", "b")
}

func markEnds(b *bed) {
	b.granted("mark ends", "a")
	b.completed("mark ends", "a", 2*life)
	b.Advance(b.T, 2*life-margin)
	if other, _ := b.refused(b.worker(1), "mark ends", "b"); !other.Completed {
		b.Errorf("mark: %+v", other)
	}
	b.Advance(b.T, 2*margin)
	b.granted("mark ends", "b")
}
