// Package memory is a fast lease within one process, for tests and for the
// many goroutines of a single worker. It is disposable like every fast lease:
// it spares the database work and decides nothing.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/unavez/unavez/lease"
)

// DefaultMax is how many leases and marks are kept when Options.Max is 0. A
// quarter of a kilobyte each is a fair guess.
const DefaultMax = 100_000

// ErrFull says that as many leases are alive as may be. The caller does what it
// does at every error of a lease: it asks the database.
var ErrFull = errors.New("lease memory: full (raise Options.Max)")

// Options of a lease. The zero value of every field means its default.
type Options struct {
	// Now is the clock of the leases' lives; default time.Now. It is called
	// under a mutex: it must be quick and must not call the lease.
	Now func() time.Time
	// Max is how many leases and marks may be alive; default DefaultMax, and
	// negative is refused. Expired ones do not count.
	Max int
}

// Leaser keeps leases in a map. Its methods may be called concurrently; none
// waits. There is nothing to close.
type Leaser struct {
	now func() time.Time
	max int

	mu      sync.Mutex
	entries map[string]entry
	added   int       // since the last sweep
	next    time.Time // no entry ends before it; zero when that is not known
}

var (
	_ lease.Leaser = (*Leaser)(nil)
	_ lease.Marker = (*Leaser)(nil)
)

// entry is a lease or a mark.
type entry struct {
	value lease.Value
	ends  time.Time
}

// New makes an empty lease; nil options mean the defaults.
func New(opts *Options) (*Leaser, error) {
	l := &Leaser{now: time.Now, max: DefaultMax, entries: map[string]entry{}}
	if opts == nil {
		return l, nil
	}
	if opts.Now != nil {
		l.now = opts.Now
	}
	if opts.Max < 0 {
		return nil, fmt.Errorf("lease memory: Max: %d, want 0 or more", opts.Max)
	}
	if opts.Max > 0 {
		l.max = opts.Max
	}
	return l, nil
}

// Acquire takes a lease that is free, expired or the token's own. It fails with
// [ErrFull] and with the context's error only.
func (l *Leaser) Acquire(ctx context.Context, key string, value lease.Value, life time.Duration) (bool, lease.Value, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return false, lease.Value{}, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if e, ok := l.alive(key, now); ok {
		if e.value.Token == value.Token && !e.value.Completed {
			return true, lease.Value{}, 0, nil
		}
		return false, clone(e.value), e.ends.Sub(now), nil
	}
	if !l.room(now) {
		return false, lease.Value{}, 0, ErrFull
	}
	value.Completed = false
	ends := now.Add(life)
	l.put(key, entry{clone(value), ends})
	l.added++
	return true, lease.Value{}, 0, nil
}

// Renew sets the life anew, counted from now.
func (l *Leaser) Renew(ctx context.Context, key, token string, life time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	e, ok := l.held(key, token, now)
	if ok {
		e.ends = now.Add(life)
		l.put(key, e)
	}
	return ok, nil
}

// Release forgets the lease.
func (l *Leaser) Release(ctx context.Context, key, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.held(key, token, l.now()); ok {
		delete(l.entries, key)
	}
	return nil
}

// Complete turns the lease into a mark.
func (l *Leaser) Complete(ctx context.Context, key, token string, life time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if e, ok := l.held(key, token, now); ok {
		e.value.Completed, e.ends = true, now.Add(life)
		l.put(key, e)
	}
	return nil
}

// alive gives the lease or mark of a key, unless it has expired.
func (l *Leaser) alive(key string, now time.Time) (entry, bool) {
	e, ok := l.entries[key]
	return e, ok && now.Before(e.ends)
}

// held gives the lease of a key, if the token holds it.
func (l *Leaser) held(key, token string, now time.Time) (entry, bool) {
	e, ok := l.alive(key, now)
	return e, ok && e.value.Token == token && !e.value.Completed
}

func (l *Leaser) put(key string, e entry) {
	l.entries[key] = e
	if e.ends.Before(l.next) {
		l.next = e.ends
	}
}

// room makes room for one more. It sweeps the expired ones out when as many
// have come as there are, or when the map is full and one may have expired, so
// that a sweep costs no more than the calls before it.
func (l *Leaser) room(now time.Time) bool {
	full := len(l.entries) >= l.max
	if full && !now.Before(l.next) || l.added > len(l.entries)/2+64 {
		l.sweep(now)
	}
	return len(l.entries) < l.max
}

func (l *Leaser) sweep(now time.Time) {
	l.added, l.next = 0, time.Time{}
	for key, e := range l.entries {
		switch {
		case !now.Before(e.ends):
			delete(l.entries, key)
		case l.next.IsZero() || e.ends.Before(l.next):
			l.next = e.ends
		}
	}
}

func clone(v lease.Value) lease.Value {
	v.Fingerprint = slices.Clone(v.Fingerprint)
	return v
}
