package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/unavez/unavez/store"
)

var (
	_ store.Batches[*Tx]  = (*Store)(nil)
	_ store.Versions[*Tx] = (*Store)(nil)
)

// batch is a transaction of several operations.
type batch struct {
	s     *Store
	tx    *Tx
	gates []store.Gate
	mine  []bool // by gate: free when it began
}

// BeginBatch does not wait; ctx is looked at once.
func (s *Store) BeginBatch(ctx context.Context, gates []store.Gate) (store.Batch[*Tx], []store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if len(gates) == 0 {
		return nil, nil, errors.New("batch: no gates")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range gates {
		if err := s.admits(gates[i].Hold); err != nil {
			return nil, nil, err
		}
	}
	b := &batch{s: s, tx: s.open(true), gates: gates, mine: make([]bool, len(gates))}
	verdicts, some := make([]store.Verdict, len(gates)), false
	for i, gate := range gates {
		gate.From = 0
		v, fence, err := s.admit(gate)
		if err != nil {
			b.tx.end(errEnded)
			return nil, nil, err
		}
		verdicts[i] = v
		if fence == 0 {
			b.tx.take(gate.Key)
			b.mine[i], some = true, true
		}
	}
	if !some {
		b.tx.end(errEnded)
		return nil, verdicts, nil
	}
	for i := range gates {
		b.tx.enter(gates[i].Hold)
	}
	if limit := gates[0].Limit; limit > 0 {
		b.tx.bound(limit)
	}
	return b, verdicts, nil
}

func (b *batch) Tx() *Tx { return b.tx }

// Commit does not look at ctx: nothing in it can wait.
func (b *batch) Commit(_ context.Context, ends []*store.End) ([]*store.Outcome, error) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if err := b.tx.usable(); err != nil {
		return nil, err
	}
	made := make([]*ending, len(b.gates))
	if err := b.check(ends); err != nil {
		b.tx.end(errEnded)
		return nil, err
	}
	for i, end := range ends {
		if end != nil {
			made[i] = b.s.freeze(b.gates[i], 0, 1, *end)
			b.tx.pending = append(b.tx.pending, made[i])
		}
	}
	if err := b.tx.commit(); err != nil {
		return nil, err
	}
	outcomes := make([]*store.Outcome, len(made))
	for i, e := range made {
		if e != nil {
			outcomes[i] = e.made()
		}
	}
	return outcomes, nil
}

// check refuses ends that do not fit the batch.
func (b *batch) check(ends []*store.End) error {
	if len(ends) != len(b.gates) {
		return fmt.Errorf("batch: %d ends for %d gates", len(ends), len(b.gates))
	}
	for i, end := range ends {
		if end == nil {
			continue
		}
		if !b.mine[i] {
			return fmt.Errorf("batch: an end for gate %d, which was not free", i+1)
		}
		if end.Unwritten && b.tx.wrote() {
			return store.ErrWrote
		}
	}
	return nil
}

func (b *batch) Rollback(context.Context) error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.tx.end(errEnded)
	return nil
}

// Version reads the transaction's own version, or the committed one of the moment.
func (s *Store) Version(_ context.Context, tx *Tx, order store.Key) (store.Version, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return store.Version{}, false, err
	}
	v, there := tx.versions[order]
	if !there {
		v, there = s.queue.versions[order]
	}
	return cloneVersion(v), there, nil
}

// SetVersion writes a version that commits with the transaction; of two, the
// one that commits last stands.
func (s *Store) SetVersion(_ context.Context, tx *Tx, order store.Key, v store.Version) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return err
	}
	tx.versions[order] = cloneVersion(v)
	return nil
}
