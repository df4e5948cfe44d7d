package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// Actors that are no people, and the reason that goes with an expiry.
const (
	actorWorker   = "worker"
	actorStore    = "store"
	reasonExpired = "lease expired"
)

// attempt is one row of the attempt table.
type attempt struct {
	// row is what crosses the seam; its durations are not used.
	row   store.Attempt
	lease time.Time // end of the lease, for Processing
	due   time.Time // for Retryable
	steps map[string]store.Step
}

// expired tells a lease that has run out.
func (a *attempt) expired(now time.Time) bool {
	return a.row.State == store.Processing && !now.Before(a.lease)
}

// stored is the row as it stands, with its durations.
func (a *attempt) stored(now time.Time) store.Attempt {
	row := a.row
	row.Identity = cloneIdentity(row.Identity)
	row.Fingerprint = cloneFingerprint(row.Fingerprint)
	switch row.State {
	case store.Processing:
		row.LeaseLeft = a.lease.Sub(now)
	case store.Retryable:
		row.DueIn = a.due.Sub(now)
	}
	return row
}

// seen is the row as a gate sees it: an expired lease is unknown, whether that
// has been written or not.
func (a *attempt) seen(now time.Time) store.Attempt {
	row := a.stored(now)
	if a.expired(now) {
		row.Changed = now.Add(row.LeaseLeft) // until then it may have worked
		row.State, row.Reason, row.LeaseLeft = store.Unknown, reasonExpired, 0
	}
	return row
}

// owns tells whether the attempt of that fence is the operation's last.
func (s *Store) owns(key store.Key, fence int64) bool {
	a := s.attempts[key]
	return a != nil && a.row.Fence == fence
}

// move brings an attempt into another state and writes that down.
func (s *Store) move(a *attempt, to store.State, now time.Time, actor, reason string) {
	s.note(a.row.Key, store.Transition{
		At: now, From: a.row.State, To: to, Attempt: a.row.Fence, Actor: actor, Reason: reason,
	})
	a.row.State, a.row.Reason, a.row.Changed = to, reason, now
}

// sweep writes that a lease has expired, if it has.
func (s *Store) sweep(a *attempt, now time.Time) bool {
	if !a.expired(now) {
		return false
	}
	s.move(a, store.Unknown, now, actorStore, reasonExpired)
	return true
}

// Claim does not wait; ctx is looked at once.
func (s *Store) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, store.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admits(claim.Hold); err != nil {
		return nil, store.Verdict{}, err
	}
	now := s.clock()
	if a := s.attempts[claim.Key]; a != nil && s.locks[claim.Key] == nil {
		s.sweep(a, now)
	}
	v, fence, err := s.admit(claim.Gate)
	if err != nil || fence < 0 {
		return nil, v, err
	}
	a := s.attempts[claim.Key]
	if a == nil {
		delete(s.outcomes, claim.Key) // of an earlier, forgotten life
		delete(s.transitions, claim.Key)
		a = &attempt{row: store.Attempt{
			Key: claim.Key, Identity: cloneIdentity(claim.Identity), Fingerprint: cloneFingerprint(claim.Fingerprint),
			DerivedKey: claim.DerivedKey, Origin: claim.Origin, Created: now,
		}, steps: map[string]store.Step{}}
		s.attempts[claim.Key] = a
	}
	a.row.Fence, a.row.State, a.row.Reason, a.row.Changed = fence+1, store.Processing, "", now
	a.lease = now.Add(claim.Lease)
	made := a.stored(now)
	return &made, v, nil
}

// Renew asks for the fence and for a lease that still lives.
func (s *Store) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	a := s.attempts[key]
	if !s.owns(key, fence) || a.row.State != store.Processing || a.expired(now) {
		return store.ErrLeaseLost
	}
	a.lease = now.Add(lease)
	return nil
}

// Finish waits for the operation's lock until ctx ends.
func (s *Store) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[*Tx], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		held := s.locks[gate.Key]
		if held == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-held.free:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	if err := s.admits(gate.Hold); err != nil {
		return nil, err
	}
	if fence != 0 && !s.owns(gate.Key, fence) {
		return nil, store.ErrLeaseLost
	}
	if s.outcomes[gate.Key].live(s.clock()) {
		return nil, store.ErrDuplicate
	}
	if fence == 0 {
		if a := s.attempts[gate.Key]; a != nil {
			fence = a.row.Fence
		}
		return s.run(gate, fence), nil
	}
	t := s.run(gate, fence)
	t.attempt = fence
	return t, nil
}

// Rest ends the attempt without an outcome.
func (s *Store) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owns(key, fence) {
		return store.ErrLeaseLost
	}
	now, a := s.clock(), s.attempts[key]
	switch rest.State {
	case store.Free:
		for _, step := range a.steps {
			if step.Done {
				return store.ErrConflict
			}
		}
		delete(s.attempts, key)
		delete(s.transitions, key)
		return nil
	case store.Retryable, store.Parked, store.Unknown, store.Dead:
		s.move(a, rest.State, now, actorWorker, store.CutReason(rest.Reason))
		a.due = now.Add(max(rest.DueIn, 0))
		return nil
	}
	return store.ErrConflict
}

// SaveStep stores the start or the end of a step.
func (s *Store) SaveStep(ctx context.Context, key store.Key, fence int64, step store.Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owns(key, fence) {
		return store.ErrLeaseLost
	}
	step.Fence, step.Result = fence, slices.Clone(step.Result)
	s.attempts[key].steps[step.Name] = step
	return nil
}

// Steps are in order of their names.
func (s *Store) Steps(ctx context.Context, key store.Key) ([]store.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stepsOf(key), nil
}

func (s *Store) stepsOf(key store.Key) []store.Step {
	a := s.attempts[key]
	if a == nil {
		return nil
	}
	var steps []store.Step
	for _, name := range slices.Sorted(maps.Keys(a.steps)) {
		step := a.steps[name]
		step.Result = slices.Clone(step.Result)
		steps = append(steps, step)
	}
	return steps
}
