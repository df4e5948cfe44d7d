package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// blocked is one row: an entry whose ordering key has to wait.
type blocked struct {
	place          store.Place
	lane           int
	key, operation store.Key
	gap            bool
}

// Block writes the row and, if one is given, the attempt at rest.
func (s *Store) Block(ctx context.Context, b store.Blocking) error {
	if err := errors.Join(ctx.Err(), checkBlocking(&b)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.owned(b.Hold); err != nil {
		return err
	}
	if b.Attempt != nil {
		if err := s.mayRest(b.Entry.Operation, b.Attempt); err != nil {
			return err
		}
	}
	happens, answer := s.lost()
	if !happens {
		return answer
	}
	if b.Attempt != nil {
		s.rest(b.Entry, b.Attempt)
	}
	s.block(&b)
	return answer
}

func checkBlocking(b *store.Blocking) error {
	if b.Entry == nil {
		return errors.New("block: Entry is nil")
	}
	r := b.Attempt
	if r == nil {
		return nil
	}
	if r.Found < 0 || r.Fence < 1 || r.Fence != r.Found && r.Fence != r.Found+1 {
		return fmt.Errorf("block: Fence %d beside Found %d, want that or one more, from 1", r.Fence, r.Found)
	}
	switch r.Rest.State {
	case store.Retryable, store.Parked, store.Dead:
		return nil
	}
	return fmt.Errorf("block: Rest.State %v, want retryable, parked or dead", r.Rest.State)
}

// mayRest says whether the attempt that was found is still there.
func (s *Store) mayRest(operation store.Key, r *store.Resting) error {
	if s.locks[operation] != nil {
		return store.ErrConflict
	}
	now := s.clock()
	if s.outcomes[operation].live(now) {
		return store.ErrDuplicate
	}
	a := s.attempts[operation]
	if a == nil && r.Found == 0 {
		return nil
	}
	if a == nil || a.row.Fence != r.Found {
		return store.ErrConflict
	}
	switch a.seen(now).State {
	case store.Retryable, store.Parked, store.Unknown:
		return nil
	}
	return store.ErrConflict
}

// rest writes the attempt of an entry as it rests now.
func (s *Store) rest(e *store.Entry, r *store.Resting) {
	now, a := s.clock(), s.attempts[e.Operation]
	if a == nil {
		delete(s.outcomes, e.Operation) // of an earlier, forgotten life
		delete(s.transitions, e.Operation)
		a = &attempt{row: store.Attempt{
			Key: e.Operation, Identity: cloneIdentity(e.Note.Identity), Fingerprint: cloneFingerprint(e.Fingerprint),
			DerivedKey: r.DerivedKey, Origin: r.Origin, Created: now,
		}, steps: map[string]store.Step{}}
		s.attempts[e.Operation] = a
	}
	s.sweep(a, now)
	if a.row.Fence != r.Fence {
		a.row.Fence, a.row.State = r.Fence, store.Processing // it ran, in a transaction that was rolled back
	}
	s.move(a, r.Rest.State, now, actorWorker, store.CutReason(r.Rest.Reason))
	a.due = now.Add(max(r.Rest.DueIn, 0))
}

// block writes the row of the entry, or leaves the one of its ordering key that
// is for an earlier entry which is not done.
func (s *Store) block(b *store.Blocking) {
	rows := s.queue.blocked
	row := &blocked{
		place: store.Place{Order: b.Entry.Order, Sequence: b.Entry.Sequence}, lane: store.LaneOf(b.Entry.Order, len(s.queue.lanes)),
		key: b.Entry.Key, operation: b.Entry.Operation, gap: b.Gap,
	}
	if !b.Gap {
		for place, other := range rows {
			if place.Order != row.place.Order || other.gap {
				continue
			}
			if e := s.queue.entries[other.key]; place.Sequence < row.place.Sequence && e != nil && !e.done {
				return
			}
			delete(rows, place)
		}
	}
	rows[row.place] = row
}

// Unblock removes the row of one entry.
func (s *Store) Unblock(ctx context.Context, hold store.Hold, order store.Key, sequence int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.owned(hold); err != nil {
		return err
	}
	happens, answer := s.lost()
	if happens {
		delete(s.queue.blocked, store.Place{Order: order, Sequence: sequence})
	}
	return answer
}

// Waiting lists blocked rows with what they wait for.
func (s *Store) Waiting(ctx context.Context, lanes []int, after store.Place, limit int) ([]store.Waiting, error) {
	if err := errors.Join(ctx.Err(), checkLimit("waiting", limit)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*blocked
	for place, row := range s.queue.blocked {
		if (lanes == nil || slices.Contains(lanes, row.lane)) && comparePlaces(place, after) > 0 {
			found = append(found, row)
		}
	}
	slices.SortFunc(found, func(a, b *blocked) int { return comparePlaces(a.place, b.place) })
	var waiting []store.Waiting
	for _, row := range found[:min(limit, len(found))] {
		waiting = append(waiting, s.waiting(row))
	}
	return waiting, nil
}

func comparePlaces(a, b store.Place) int {
	return cmp.Or(bytes.Compare(a.Order[:], b.Order[:]), cmp.Compare(a.Sequence, b.Sequence))
}

// waiting is the row with the state of what it waits for.
func (s *Store) waiting(row *blocked) store.Waiting {
	w := store.Waiting{Place: row.place, Lane: row.lane, Key: row.key, Operation: row.operation, Gap: row.gap}
	now := s.clock()
	if e := s.queue.entries[row.key]; e == nil || e.done { // one that is gone was done
		w.Done = true
		if w.State = s.endState(row.key, now); w.State == store.Free {
			w.State = store.Expired
		}
		return w
	}
	if w.State = s.endState(row.operation, now); w.State != store.Free {
		return w
	}
	if a := s.attempts[row.operation]; a != nil {
		seen := a.seen(now)
		w.State, w.Fence, w.LeaseLeft, w.DueIn = seen.State, seen.Fence, seen.LeaseLeft, seen.DueIn
	}
	return w
}
