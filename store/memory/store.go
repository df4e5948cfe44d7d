package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// Options of a store. The zero value of every field means its default.
type Options struct {
	// Now is the database's clock; default time.Now. It is called under the
	// store's mutex: it must be quick and must not call the store.
	Now func() time.Time
	// Lanes is how many lanes the queue has; default 256.
	Lanes int
	// Payloads is how long an entry stays in the queue after it was done, with its
	// payload; Purge removes it then. Default 7 days; less than 0 means not at all.
	Payloads time.Duration
	// Room is how many entries that are not done the queue holds; one more is
	// refused with [store.ErrFull]. Default 1,000,000.
	Room int
}

// The defaults of what the queue keeps.
const (
	defaultLanes    = 256
	defaultPayloads = 7 * 24 * time.Hour
	defaultRoom     = 1_000_000
)

// Store keeps ledger, attempts, queue and business rows in memory. Its methods may be
// called concurrently. There is nothing to close.
type Store struct {
	now      func() time.Time
	payloads time.Duration // how long entries are kept that are done

	// mu guards everything below, and the fields of every Tx. It is held for
	// the length of one call and never while a handler runs.
	mu          sync.Mutex
	last        time.Time // what the clock said last
	rows        rows
	outcomes    map[store.Key]*outcome
	attempts    map[store.Key]*attempt
	transitions map[store.Key][]store.Transition
	locks       map[store.Key]*lock
	queue       queue
	limit       int           // of entries that are not done
	freed       chan struct{} // closed, and replaced, when a transaction ends
	lose        *bool         // the next commit's answer is lost, after it took effect or instead
}

var (
	_ store.Ledger[*Tx]   = (*Store)(nil)
	_ store.Attempts[*Tx] = (*Store)(nil)
	_ store.Operations    = (*Store)(nil)
	_ store.Upkeep        = (*Store)(nil)
)

// lock is the right of one transaction to run an operation.
type lock struct {
	owner *Tx
	free  chan struct{} // closed when it is given back
}

// New makes an empty store; nil options mean the defaults.
func New(opts *Options) *Store {
	s := &Store{
		now:         time.Now,
		rows:        newRows(),
		outcomes:    map[store.Key]*outcome{},
		attempts:    map[store.Key]*attempt{},
		transitions: map[store.Key][]store.Transition{},
		locks:       map[store.Key]*lock{},
		freed:       make(chan struct{}),
	}
	if opts == nil {
		opts = &Options{}
	}
	if opts.Now != nil {
		s.now = opts.Now
	}
	s.payloads = max(cmp.Or(opts.Payloads, defaultPayloads), 0)
	s.limit = cmp.Or(max(opts.Room, 0), defaultRoom)
	s.queue = newQueue(cmp.Or(max(opts.Lanes, 0), defaultLanes))
	return s
}

// Get returns a committed business row.
func (s *Store) Get(key string) (value string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows.get(key, s.rows.seq)
}

// All returns a copy of the committed business rows.
func (s *Store) All() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows.all(s.rows.seq)
}

// clock is the present instant, never before an earlier one.
func (s *Store) clock() time.Time {
	if t := s.now().Round(0); t.After(s.last) {
		s.last = t
	}
	return s.last
}

// Begin opens a transaction of an operation that may run. It does not wait; ctx
// is looked at once.
func (s *Store) Begin(ctx context.Context, gate store.Gate) (store.Txn[*Tx], store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admits(gate.Hold); err != nil {
		return nil, store.Verdict{}, err
	}
	v, fence, err := s.admit(gate)
	if err != nil || fence < 0 {
		return nil, v, err
	}
	return s.run(gate, fence), v, nil
}

// admit tries the operation's lock and reads. fence is that of the attempt to
// take over, 0 for a free operation, -1 when the operation may not run.
func (s *Store) admit(gate store.Gate) (v store.Verdict, fence int64, err error) {
	if s.locks[gate.Key] != nil {
		return store.Verdict{State: store.Processing}, -1, nil
	}
	v, err = s.read(gate.Key, s.clock())
	switch a := v.Attempt; {
	case err != nil:
		return v, -1, err
	case v.State == store.Free:
		return v, 0, nil
	case a == nil || gate.From == 0 || a.Fence != gate.From:
		return v, -1, nil
	case v.State == store.Unknown, v.State == store.Parked, v.State == store.Retryable && a.DueIn <= 0:
		return v, a.Fence, nil
	}
	return v, -1, nil
}

// run opens the engine's transaction and takes the operation's lock for it.
func (s *Store) run(gate store.Gate, fence int64) *txn {
	tx := s.open(true)
	tx.enter(gate.Hold)
	tx.take(gate.Key)
	if gate.Limit > 0 {
		tx.bound(gate.Limit)
	}
	return &txn{s: s, tx: tx, gate: gate, fence: fence, attempt: fence + 1}
}

// read is what a gate finds at the given instant, locks left out.
func (s *Store) read(key store.Key, now time.Time) (store.Verdict, error) {
	if o := s.outcomes[key]; o != nil && now.Before(o.remembered) {
		if !now.Before(o.kept) {
			return store.Verdict{State: store.Expired, Short: slices.Clone(o.short)}, nil
		}
		found, err := o.found(key, now)
		if err != nil {
			return store.Verdict{}, err
		}
		return store.Verdict{State: found.State, Outcome: found}, nil
	}
	if a := s.attempts[key]; a != nil {
		found := a.seen(now)
		return store.Verdict{State: found.State, Attempt: &found}, nil
	}
	return store.Verdict{State: store.Free}, nil
}

// Look reads without looking at locks.
func (s *Store) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(key, s.clock())
}

// Settle looks at the lock, then reads.
func (s *Store) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[key] != nil {
		return store.Verdict{State: store.Processing}, nil
	}
	return s.read(key, s.clock())
}

// Peek answers Processing or, for everything that is worth a gate, Free.
func (s *Store) Peek(ctx context.Context, keys []store.Key) ([]store.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	states := make([]store.State, len(keys))
	for i, key := range keys {
		a := s.attempts[key]
		if s.locks[key] != nil || a != nil && a.seen(now).State == store.Processing {
			states[i] = store.Processing
		}
	}
	return states, nil
}

// note writes a transition of an operation's history.
func (s *Store) note(key store.Key, t store.Transition) {
	s.transitions[key] = append(s.transitions[key], t)
}

// sortedKeys gives a map's keys in order, so that batches do not depend on chance.
func sortedKeys[V any](m map[store.Key]V) []store.Key {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}
