package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// outcome is one row of the ledger. When its retention is over, a purge drops
// the result and leaves the identity.
type outcome struct {
	identity         store.Identity
	frozen           store.Outcome
	sum              []byte // checksum of frozen
	short            []byte
	kept, remembered time.Time // until when: the result, the identity
	purged           bool
}

// found is the stored outcome as a duplicate gets it.
func (o *outcome) found(key store.Key, now time.Time) (*store.Outcome, error) {
	if o.damaged(key) {
		return nil, store.ErrDamaged
	}
	found := cloneOutcome(o.frozen)
	found.Left = o.kept.Sub(now)
	found.Replayed = true
	return &found, nil
}

func (o *outcome) damaged(key store.Key) bool {
	return !bytes.Equal(o.frozen.Checksum(key), o.sum)
}

// ending is an outcome that a transaction is going to commit.
type ending struct {
	key   store.Key
	row   *outcome
	fence int64 // of the attempt that it ends; 0 for none
}

// freeze makes the row of an outcome that happens now.
func (s *Store) freeze(gate store.Gate, fence, attempt int64, end store.End) *ending {
	now := s.clock()
	frozen := cloneOutcome(store.Outcome{
		State: end.State, Result: end.Result, Fingerprint: gate.Fingerprint, Attempt: attempt, At: now,
	})
	kept := now.Add(gate.Retention)
	return &ending{key: gate.Key, fence: fence, row: &outcome{
		identity: cloneIdentity(gate.Identity), frozen: frozen, sum: frozen.Checksum(gate.Key),
		short: frozen.Fingerprint.Short(), kept: kept, remembered: kept.Add(max(gate.Tombstone, 0)),
	}}
}

// stands says whether the ending may still be written: the attempt that it
// ends has its fence, and there is no other outcome.
func (s *Store) stands(e *ending, now time.Time) error {
	if e.fence != 0 && !s.owns(e.key, e.fence) {
		return store.ErrLeaseLost
	}
	if s.outcomes[e.key].live(now) {
		return store.ErrDuplicate
	}
	return nil
}

// live tells whether the row still counts, result or identity.
func (o *outcome) live(now time.Time) bool { return o != nil && now.Before(o.remembered) }

// put writes an ending and forgets the attempt.
func (s *Store) put(e *ending) {
	if s.attempts[e.key] == nil {
		delete(s.transitions, e.key) // those of an earlier, forgotten life
	}
	delete(s.attempts, e.key)
	s.outcomes[e.key] = e.row
	s.done(e.key, s.clock())
}

// endState is how the operation ended: Expired where only its identity is left,
// Free where nothing is known.
func (s *Store) endState(key store.Key, now time.Time) store.State {
	switch o := s.outcomes[key]; {
	case !o.live(now):
		return store.Free
	case now.Before(o.kept):
		return o.frozen.State
	}
	return store.Expired
}

// made is the outcome as the one who made it gets it.
func (e *ending) made() *store.Outcome {
	made := cloneOutcome(e.row.frozen)
	made.Left = e.row.kept.Sub(made.At)
	return &made
}

// txn is a transaction of the engine.
type txn struct {
	s       *Store
	tx      *Tx
	gate    store.Gate
	fence   int64 // of the attempt that it ends; 0 for none
	attempt int64 // number of the outcome's attempt
}

var _ store.Txn[*Tx] = (*txn)(nil)

func (t *txn) Tx() *Tx { return t.tx }

// Commit does not look at ctx: nothing in it can wait.
func (t *txn) Commit(_ context.Context, end store.End) (*store.Outcome, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if err := t.tx.usable(); err != nil {
		return nil, err
	}
	if end.Unwritten && t.tx.wrote() {
		t.tx.end(errEnded)
		return nil, store.ErrWrote
	}
	e := t.s.freeze(t.gate, t.fence, t.attempt, end)
	t.tx.pending = append(t.tx.pending, e)
	if err := t.tx.commit(); err != nil {
		return nil, err
	}
	return e.made(), nil
}

func (t *txn) Rollback(context.Context) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.tx.end(errEnded)
	return nil
}

// joined is the engine's part of a caller's transaction.
type joined struct {
	tx             *Tx
	gate           store.Gate
	fence, attempt int64
	left           bool
}

var _ store.Joined = (*joined)(nil)

// Join takes the operation's lock for the caller's transaction, until that ends.
func (s *Store) Join(ctx context.Context, tx *Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.usable(); err != nil {
		return nil, store.Verdict{}, err
	}
	for _, e := range tx.pending {
		if e.key == gate.Key {
			own := e.made()
			own.Replayed = true
			return nil, store.Verdict{State: own.State, Outcome: own}, nil
		}
	}
	if err := s.admits(gate.Hold); err != nil {
		return nil, store.Verdict{}, err
	}
	v, fence, err := s.admit(gate)
	if err != nil || fence < 0 {
		return nil, v, err
	}
	tx.enter(gate.Hold)
	tx.take(gate.Key)
	return &joined{tx: tx, gate: gate, fence: fence, attempt: fence + 1}, v, nil
}

// Finish writes the outcome into the caller's transaction. The operation's lock
// is the transaction's own and no savepoint takes it away.
func (j *joined) Finish(_ context.Context, end store.End) (*store.Outcome, error) {
	s := j.tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.left || j.tx.ended {
		return nil, store.ErrForeignCommit
	}
	if err := j.tx.usable(); err != nil {
		return nil, err
	}
	if end.Unwritten && j.tx.wrote() {
		return nil, store.ErrWrote
	}
	e := s.freeze(j.gate, j.fence, j.attempt, end)
	if err := s.stands(e, e.row.frozen.At); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(j.tx.pending, func(p *ending) bool { return p.key == e.key }) {
		return nil, store.ErrDuplicate
	}
	j.tx.pending = append(j.tx.pending, e)
	return e.made(), nil
}

func (j *joined) Leave() {
	j.tx.s.mu.Lock()
	defer j.tx.s.mu.Unlock()
	if j.left || slices.ContainsFunc(j.tx.pending, func(p *ending) bool { return p.key == j.gate.Key }) {
		return // finished: the outcome's fate is the caller's
	}
	j.left = true
	j.tx.free(j.gate.Key)
}
