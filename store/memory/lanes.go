package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

var _ store.Lanes = (*Store)(nil)

// takeoverWait is how long a takeover waits for what still runs in a lane.
const takeoverWait = 100 * time.Millisecond

// lane is one hash bucket of ordering keys.
type lane struct {
	holder string
	epoch  int64
	lease  time.Time // until when, for the holder
	cursor string
	clean  bool // handed back by the holder before
	inside int  // open transactions of the lane
	taking bool // somebody waits for those to end
}

// owned refuses a hold that is none, or that is no longer its lane's.
func (s *Store) owned(h store.Hold) error {
	if h.Epoch == 0 || h.Lane < 0 || h.Lane >= len(s.queue.lanes) {
		return store.ErrLaneLost
	}
	if l := &s.queue.lanes[h.Lane]; l.epoch != h.Epoch || l.taking {
		return store.ErrLaneLost
	}
	return nil
}

// admits is owned for a gate, which may belong to no lane.
func (s *Store) admits(h store.Hold) error {
	if h.Epoch == 0 {
		return nil
	}
	return s.owned(h)
}

// enter holds the lane of a gate until the transaction ends.
func (tx *Tx) enter(h store.Hold) {
	if h.Epoch != 0 {
		tx.s.queue.lanes[h.Lane].inside++
		tx.inside = append(tx.inside, h.Lane)
	}
}

// Lanes is Options.Lanes.
func (s *Store) Lanes() int { return len(s.queue.lanes) }

// Keep waits a moment for what still runs in a lane that it takes.
func (s *Store) Keep(ctx context.Context, k store.Keeping) (store.Share, error) {
	if err := errors.Join(ctx.Err(), checkKeeping(&k)); err != nil {
		return store.Share{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	happens, answer := s.lost()
	if !happens {
		return store.Share{}, answer
	}
	q := &s.queue
	own := s.renew(&k)
	workers := s.living()
	share := 0
	if !k.Leaving {
		workers = max(workers, 1) // this one, although a round may take longer than a lease
		share = (len(q.lanes) + workers - 1) / workers
	}
	most, held := k.Most, len(own)
	if most == 0 {
		most = share
	}
	taken := map[int]store.Held{}
	var err error
	for i := range q.lanes {
		if held >= share || len(taken) >= most || err != nil {
			break
		}
		if own[i] || !s.free(i, k.Worker) {
			continue
		}
		var lane store.Held
		var got bool
		if lane, got, err = s.take(ctx, i, &k); got {
			taken[i] = lane
			held++
		}
	}
	if err = errors.Join(err, answer); err != nil {
		return store.Share{}, err
	}
	found := store.Share{Workers: workers, Spare: max(held-share, 0)}
	for i := range q.lanes {
		if lane, new := taken[i]; new {
			found.Held = append(found.Held, lane)
		} else if own[i] {
			found.Held = append(found.Held, store.Held{Hold: store.Hold{Lane: i, Epoch: q.lanes[i].epoch}})
		}
	}
	return found, nil
}

func checkKeeping(k *store.Keeping) error {
	var faults []error
	if n := len(k.Worker); n < 1 || n > 200 {
		faults = append(faults, fmt.Errorf("keep: Worker of %d bytes, want 1 to 200", n))
	}
	if k.Lease <= 0 {
		faults = append(faults, fmt.Errorf("keep: Lease %v, want more than 0", k.Lease))
	}
	if k.Most < 0 {
		faults = append(faults, fmt.Errorf("keep: Most %d, want 0 or more", k.Most))
	}
	return errors.Join(faults...)
}

// renew says that the worker lives, renews what it rightly believes to hold and
// stores the cursors. It returns those lanes.
func (s *Store) renew(k *store.Keeping) map[int]bool {
	until, own := s.clock().Add(k.Lease), map[int]bool{}
	s.queue.workers[k.Worker] = until
	if k.Leaving {
		delete(s.queue.workers, k.Worker)
	}
	for _, m := range k.Marks {
		if l := s.held(m.Hold, k.Worker); l != nil {
			l.lease = until
			l.mark(m)
			own[m.Lane] = true
		}
	}
	return own
}

// held is the lane if it is still the worker's under that epoch.
func (s *Store) held(h store.Hold, worker string) *lane {
	if worker == "" || h.Lane < 0 || h.Lane >= len(s.queue.lanes) {
		return nil
	}
	if l := &s.queue.lanes[h.Lane]; l.holder == worker && l.epoch == h.Epoch {
		return l
	}
	return nil
}

func (l *lane) mark(m store.Mark) {
	if m.Cursor != "" {
		l.cursor = m.Cursor
	}
}

// living counts the workers that live and forgets the others.
func (s *Store) living() int {
	now := s.clock()
	for name, until := range s.queue.workers {
		if !now.Before(until) {
			delete(s.queue.workers, name)
		}
	}
	return len(s.queue.workers)
}

// free tells whether a worker that does not believe to hold the lane may take it.
func (s *Store) free(i int, worker string) bool {
	l := &s.queue.lanes[i]
	return l.holder == "" || l.holder == worker || !s.clock().Before(l.lease)
}

// take waits a moment for the transactions inside the lane, which meanwhile
// admits no new ones, and then gives it to the worker.
func (s *Store) take(ctx context.Context, i int, k *store.Keeping) (store.Held, bool, error) {
	l := &s.queue.lanes[i]
	if l.taking {
		return store.Held{}, false, nil
	}
	l.taking = true
	short, cancel := context.WithTimeout(ctx, takeoverWait)
	defer cancel()
	err := s.await(short, func() bool { return l.inside == 0 })
	l.taking = false
	if err != nil {
		return store.Held{}, false, ctx.Err() // the lane is left for the next round
	}
	if !s.free(i, k.Worker) {
		return store.Held{}, false, nil // its holder was only slow
	}
	held := store.Held{Taken: true, Cursor: l.cursor, Clean: l.clean}
	l.epoch++
	l.holder, l.lease, l.clean = k.Worker, s.clock().Add(k.Lease), false
	held.Hold = store.Hold{Lane: i, Epoch: l.epoch}
	return held, true, nil
}

// HandBack gives lanes up. Their epoch is raised, so that nothing runs under
// the old one although nobody has taken the lane yet.
func (s *Store) HandBack(ctx context.Context, worker string, marks []store.Mark, gone bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	happens, answer := s.lost()
	if !happens {
		return answer
	}
	for _, m := range marks {
		if l := s.held(m.Hold, worker); l != nil {
			l.mark(m)
			l.epoch++
			l.holder, l.clean = "", true
		}
	}
	if gone {
		delete(s.queue.workers, worker)
	}
	return answer
}
