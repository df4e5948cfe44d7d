package memory

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// List returns one page.
func (s *Store) List(ctx context.Context, filter store.Filter) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limit, err := filter.Page()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	var page []store.Record
	keep := func(r store.Record) {
		if matches(filter, r) && (filter.After == nil || order(r, store.Record{Key: filter.After.Key, Changed: filter.After.Changed}) > 0) {
			page = append(page, r)
		}
	}
	for _, a := range s.attempts {
		keep(a.record(now))
	}
	for key, o := range s.outcomes {
		if now.Before(o.kept) && s.attempts[key] == nil {
			keep(s.ended(key, o))
		}
	}
	slices.SortFunc(page, order)
	return page[:min(limit, len(page))], nil
}

// order is by the last change and then by key.
func order(a, b store.Record) int {
	if c := a.Changed.Compare(b.Changed); c != 0 {
		return c
	}
	return compareKeys(a.Key, b.Key)
}

func compareKeys(a, b store.Key) int { return bytes.Compare(a[:], b[:]) }

func matches(f store.Filter, r store.Record) bool {
	if len(f.States) == 0 && r.State.Final() || len(f.States) > 0 && !slices.Contains(f.States, r.State) {
		return false
	}
	return (f.Tenant == nil || *f.Tenant == r.Identity.Tenant) && (f.Effect == "" || f.Effect == r.Identity.Effect)
}

// record shows the attempt as it is stored: an expired lease as Processing.
func (a *attempt) record(now time.Time) store.Record {
	row := a.stored(now)
	return store.Record{
		Key: row.Key, Identity: row.Identity, State: row.State, Attempt: row.Fence, DerivedKey: row.DerivedKey, Origin: row.Origin,
		LeaseLeft: row.LeaseLeft, DueIn: row.DueIn, Reason: row.Reason, Created: row.Created, Changed: row.Changed,
	}
}

func (s *Store) ended(key store.Key, o *outcome) store.Record {
	r := store.Record{
		Key: key, Identity: cloneIdentity(o.identity), State: o.frozen.State, Attempt: o.frozen.Attempt,
		Created: o.frozen.At, Changed: o.frozen.At, Code: o.frozen.Result.Code, Size: len(o.frozen.Result.Body),
		Damaged: o.damaged(key),
	}
	if history := s.transitions[key]; len(history) > 0 {
		r.Reason = history[len(history)-1].Reason
	}
	return r
}

// Show returns one operation with its history and steps.
func (s *Store) Show(ctx context.Context, key store.Key) (store.Record, []store.Transition, []store.Step, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	if o := s.outcomes[key]; o.live(now) {
		if !now.Before(o.kept) {
			return store.Record{}, nil, nil, store.ErrNotFound
		}
		return s.ended(key, o), slices.Clone(s.transitions[key]), nil, nil
	}
	if a := s.attempts[key]; a != nil {
		return a.record(now), slices.Clone(s.transitions[key]), s.stepsOf(key), nil
	}
	return store.Record{}, nil, nil, store.ErrNotFound
}

// Release makes an unknown or parked operation retryable at once.
func (s *Store) Release(ctx context.Context, action store.Action) error {
	return s.decide(ctx, action, func(a *attempt, now time.Time) error {
		return s.goOn(a, now, action, store.Unknown, store.Parked)
	}, nil)
}

// Redrive makes a dead operation retryable at once.
func (s *Store) Redrive(ctx context.Context, action store.Action) error {
	return s.decide(ctx, action, func(a *attempt, now time.Time) error {
		return s.goOn(a, now, action, store.Dead)
	}, nil)
}

func (s *Store) goOn(a *attempt, now time.Time, action store.Action, from ...store.State) error {
	if !slices.Contains(from, a.seen(now).State) {
		return store.ErrConflict
	}
	s.sweep(a, now)
	s.move(a, store.Retryable, now, action.Actor, action.Reason)
	a.due = now
	return nil
}

// Complete ends an operation with the result that a person gives.
func (s *Store) Complete(ctx context.Context, action store.Action, result store.Result, retention, tombstone time.Duration) error {
	return s.end(ctx, action, store.End{State: store.Completed, Result: result}, retention, tombstone)
}

// Discard ends an operation without its effect.
func (s *Store) Discard(ctx context.Context, action store.Action, retention, tombstone time.Duration) error {
	return s.end(ctx, action, store.End{State: store.Discarded}, retention, tombstone)
}

func (s *Store) end(ctx context.Context, action store.Action, end store.End, retention, tombstone time.Duration) error {
	return s.decide(ctx, action, func(a *attempt, now time.Time) error {
		return s.close(a, now, action, end, retention, tombstone)
	}, func(o *outcome, now time.Time) {
		gate := store.Gate{
			Identity: o.identity, Key: action.Key, Fingerprint: o.frozen.Fingerprint, Retention: retention, Tombstone: tombstone,
		}
		s.outcomes[action.Key] = s.freeze(gate, 0, o.frozen.Attempt, end).row
		s.note(action.Key, store.Transition{
			At: now, From: o.frozen.State, To: end.State, Attempt: o.frozen.Attempt, Actor: action.Actor, Reason: action.Reason,
		})
	})
}

func (s *Store) close(a *attempt, now time.Time, action store.Action, end store.End, retention, tombstone time.Duration) error {
	if a.seen(now).State == store.Processing {
		return store.ErrConflict
	}
	s.sweep(a, now)
	gate := store.Gate{
		Identity: a.row.Identity, Key: a.row.Key, Fingerprint: a.row.Fingerprint, Retention: retention, Tombstone: tombstone,
	}
	s.move(a, end.State, now, action.Actor, action.Reason)
	s.put(s.freeze(gate, a.row.Fence, a.row.Fence, end))
	return nil
}

// decide checks what all actions of people have in common. A transaction that
// runs the operation wins over the person. replace is done with an outcome whose
// result is damaged; nil refuses that too.
func (s *Store) decide(ctx context.Context, action store.Action, act func(a *attempt, now time.Time) error, replace func(o *outcome, now time.Time)) error {
	if err := errors.Join(ctx.Err(), action.Validate()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, a := s.clock(), s.attempts[action.Key]
	if s.locks[action.Key] != nil {
		return store.ErrConflict
	}
	if o := s.outcomes[action.Key]; o.live(now) {
		if replace == nil || !now.Before(o.kept) || !o.damaged(action.Key) || action.Fence != 0 && action.Fence != o.frozen.Attempt {
			return store.ErrConflict
		}
		replace(o, now)
		return nil
	}
	if a == nil {
		return store.ErrNotFound
	}
	if action.Fence != 0 && action.Fence != a.row.Fence {
		return store.ErrConflict
	}
	return act(a, now)
}

// Counts counts states as they are stored.
func (s *Store) Counts(ctx context.Context) (store.Counts, error) {
	if err := ctx.Err(); err != nil {
		return store.Counts{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	c := store.Counts{Unfinished: map[store.State]int64{}}
	for _, a := range s.attempts {
		c.Unfinished[a.row.State]++
		if a.row.State != store.Processing {
			c.OldestAtRest = max(c.OldestAtRest, now.Sub(a.row.Changed))
		}
	}
	return c, nil
}
