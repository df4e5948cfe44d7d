package memory

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/storetest"
)

// manual is a clock that moves when a test says so.
type manual struct {
	mu sync.Mutex
	at time.Time
}

func newManual() *manual { return &manual{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

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

func TestStoreKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	storetest.Run(t, harness)
}

func harness(*testing.T) storetest.Harness[*Tx] {
	clock := newManual()
	return harnessOf(New(&Options{Now: clock.now}), clock)
}

func harnessOf(s *Store, clock *manual) storetest.Harness[*Tx] {
	return storetest.Harness[*Tx]{
		Ledger:  s,
		Advance: func(_ *testing.T, d time.Duration) { clock.advance(d) },
		Frozen:  true,
		Write:   func(_ context.Context, tx *Tx, row string) error { return tx.Put(row, "written") },
		Read: func(_ context.Context, tx *Tx) ([]string, error) {
			all, err := tx.All()
			return names(all), err
		},
		Rows: func(*testing.T) []string { return names(s.All()) },
		BeginForeign: func(ctx context.Context) (*Tx, func() error, func() error, error) {
			tx, err := s.BeginTx(ctx)
			if err != nil {
				return nil, nil, nil, err
			}
			return tx, tx.Commit, tx.Rollback, nil
		},
		Damage: func(t *testing.T, key store.Key) {
			s.mu.Lock()
			defer s.mu.Unlock()
			o := s.outcomes[key]
			if o == nil || len(o.frozen.Result.Body) == 0 {
				t.Fatal("nothing to damage")
			}
			o.frozen.Result.Body[0] ^= 1
		},
		Smuggle: func(_ *testing.T, id store.Identity) {
			s.mu.Lock()
			defer s.mu.Unlock()
			gate := store.Gate{Identity: id, Key: id.Key(), Retention: time.Hour, Tombstone: time.Hour}
			e := s.freeze(gate, 0, 1, store.End{State: store.Completed, Result: store.Result{Code: 299}})
			s.outcomes[e.key] = e.row
		},
		Second:    func(*testing.T) store.Ledger[*Tx] { return s },
		Savepoint: func(_ context.Context, tx *Tx) (func() error, error) { return tx.Savepoint() },
		EndByHandler: []func(context.Context, *Tx) error{
			func(_ context.Context, tx *Tx) error { return tx.Commit() },
			func(_ context.Context, tx *Tx) error { return tx.Rollback() },
		},
		Abort: func(ctx context.Context, tx *Tx) error {
			winner, err := s.BeginTx(ctx)
			if err != nil {
				return err
			}
			if err := winner.Put("contended", "first"); err != nil {
				return err
			}
			if err := winner.Commit(); err != nil {
				return err
			}
			return tx.Put("contended", "second")
		},
		LoseAnswer: func(_ *testing.T, took bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lose = &took
		},
	}
}

func names(all map[string]string) []string {
	var keys []string
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
