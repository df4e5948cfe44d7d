package memory

import (
	"context"

	"github.com/unavez/unavez/store"
)

// Purge forgets entries that are done and over their time, turns results that
// are over into tombstones, and forgets tombstones.
func (s *Store) Purge(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	n := s.purgeEntries(now, limit)
	for key, o := range s.outcomes {
		if n >= limit {
			break
		}
		switch {
		case !o.live(now):
			delete(s.outcomes, key)
			if s.attempts[key] == nil {
				delete(s.transitions, key)
			}
			n++
		case !o.purged && !now.Before(o.kept):
			o.purged, o.frozen, o.sum, o.identity = true, store.Outcome{}, nil, store.Identity{}
			delete(s.transitions, key)
			n++
		}
	}
	return n, nil
}

// Expire writes that leases have run out.
func (s *Store) Expire(ctx context.Context, limit int) ([]store.Attempt, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	var expired []store.Attempt
	for _, key := range sortedKeys(s.attempts) {
		if len(expired) >= limit {
			break
		}
		// A transaction that runs the operation decides what becomes of it.
		if a := s.attempts[key]; s.locks[key] == nil && s.sweep(a, now) {
			expired = append(expired, a.stored(now))
		}
	}
	return expired, nil
}
