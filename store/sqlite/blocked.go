package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/unavez/unavez/store"
)

// Block takes the operation's lock where it writes an attempt: a transaction that
// runs the operation wins.
func (s *Store) Block(ctx context.Context, b store.Blocking) error {
	if err := checkBlocking(&b); err != nil {
		return err
	}
	var l *lock
	if b.Attempt != nil {
		var err error
		if l, err = s.c.gate.try(b.Entry.Operation, s); err != nil {
			return err
		}
		if l == nil {
			if err := s.owned(ctx, b.Hold); err != nil {
				return err
			}
			return fmt.Errorf("operation is in flight: %w", store.ErrConflict)
		}
	}
	return s.c.writer.write(ctx, l, func(r *raw) error {
		if err := holds(r, b.Hold); err != nil {
			return err
		}
		if b.Attempt != nil {
			if err := rest(r, b.Entry, b.Attempt); err != nil {
				return err
			}
		}
		return s.block(r, &b)
	})
}

func checkBlocking(b *store.Blocking) error {
	var faults []error
	if b.Entry == nil {
		faults = append(faults, errors.New("sqlite store: block: Entry is nil"))
	}
	if a := b.Attempt; a != nil {
		if a.Found < 0 || a.Fence < 1 || a.Fence != a.Found && a.Fence != a.Found+1 {
			faults = append(faults, fmt.Errorf("sqlite store: block: Fence %d beside Found %d, want that or one more, from 1", a.Fence, a.Found))
		}
		switch a.Rest.State {
		case store.Retryable, store.Parked, store.Dead:
		default:
			faults = append(faults, fmt.Errorf("sqlite store: block: Rest.State %v, want retryable, parked or dead", a.Rest.State))
		}
	}
	return errors.Join(faults...)
}

// rest writes the attempt of an entry as it rests now, under the operation's lock.
func rest(r *raw, e *store.Entry, a *store.Resting) error {
	f, err := find(r, e.Operation)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return err
	}
	state := f.verdict.State
	switch {
	case err != nil, state.Final(), state == store.Expired:
		return store.ErrDuplicate
	case f.fence != a.Found || f.attempt != (a.Found != 0):
		return fmt.Errorf("operation is at attempt %d: %w", f.fence, store.ErrConflict)
	}
	reason := store.CutReason(a.Rest.Reason)
	if !f.attempt {
		return firstRest(r, e, a, f.stale, reason)
	}
	switch state {
	case store.Retryable, store.Parked, store.Unknown:
	default:
		return fmt.Errorf("operation is %v: %w", state, store.ErrConflict)
	}
	if f.lapsed {
		if err := lapse(r, e.Operation, f.fence); err != nil {
			return err
		}
	}
	if a.Fence != a.Found {
		// It ran once more, in a transaction that was rolled back.
		if _, err := r.exec("UPDATE unavez_attempt SET fence = ?2, state = 1 WHERE key = ?1", e.Operation[:], a.Fence); err != nil {
			return err
		}
		state = store.Processing
	}
	return move(r, e.Operation, a.Fence, state, a.Rest.State, a.Rest.DueIn, actorWorker, reason)
}

// firstRest writes the first attempt, that of a transaction which was rolled back.
func firstRest(r *raw, e *store.Entry, a *store.Resting, stale bool, reason string) error {
	if stale {
		if err := forget(r, e.Operation); err != nil {
			return err
		}
	}
	const text = "INSERT INTO unavez_attempt (key, operation, fence, state, expires, due, created, changed, version, fingerprint, derived, origin, reason)" +
		" VALUES (?1, ?2, ?3, ?4, 0, " + now + " + ?5, " + now + ", " + now + ", ?6, ?7, ?8, ?9, ?10)"
	_, err := r.exec(text, e.Operation[:], e.Note.Identity.Text(), a.Fence, int64(a.Rest.State), max(a.Rest.DueIn, 0).Milliseconds(),
		int64(e.Fingerprint.Version), bytesOf(e.Fingerprint.Sum), a.DerivedKey, a.Origin, reason)
	if err != nil {
		return err
	}
	return note(r, e.Operation, store.Processing, a.Rest.State, a.Fence, actorWorker, reason)
}

// block writes the row of an entry. Without a gap it takes the place of the row of
// a later entry, and of one that is done; behind any other it is not written.
func (s *Store) block(r *raw, b *store.Blocking) error {
	e := b.Entry
	order := e.Order[:]
	if !b.Gap {
		const give = "DELETE FROM unavez_blocked WHERE ordering = ?1 AND gap = 0 AND (sequence > ?2" +
			" OR sequence < ?2 AND NOT EXISTS (SELECT 1 FROM unavez_queue q WHERE q.key = unavez_blocked.key" + undone + "))"
		if _, err := r.exec(give, order, e.Sequence); err != nil {
			return err
		}
		earlier, err := r.number("SELECT EXISTS (SELECT 1 FROM unavez_blocked WHERE ordering = ?1 AND gap = 0 AND sequence < ?2)", order, e.Sequence)
		if err != nil || earlier != 0 {
			return err
		}
	}
	const text = "INSERT INTO unavez_blocked (ordering, sequence, lane, gap, key, operation) VALUES (?1, ?2, ?3, ?4, ?5, ?6)" +
		" ON CONFLICT (ordering, sequence) DO UPDATE SET gap = excluded.gap"
	_, err := r.exec(text, order, e.Sequence, int64(store.LaneOf(e.Order, s.lanes)), flag(b.Gap), e.Key[:], e.Operation[:])
	return err
}

func flag(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// owned looks whether a lane is still the holder's.
func (s *Store) owned(ctx context.Context, h store.Hold) error {
	return s.read(ctx, func(r *raw) error { return holds(r, h) })
}

// Unblock looks at the lane in the unit that deletes the row.
func (s *Store) Unblock(ctx context.Context, hold store.Hold, order store.Key, sequence int64) error {
	return s.write(ctx, func(r *raw) error {
		if err := holds(r, hold); err != nil {
			return err
		}
		_, err := r.exec("DELETE FROM unavez_blocked WHERE ordering = ?1 AND sequence = ?2", order[:], sequence)
		return err
	})
}

// Waiting reads the rows of lanes with what is stored of their entries and
// operations, in one statement.
func (s *Store) Waiting(ctx context.Context, lanes []int, after store.Place, limit int) (waiting []store.Waiting, err error) {
	if err := checkLimit("waiting", limit); err != nil {
		return nil, err
	}
	const (
		columns = "SELECT " + now + ", b.ordering, b.sequence, b.lane, b.key, b.operation, b.gap, q.id," +
			" e.state, e.expires, e.forgets, o.state, o.expires, o.forgets, t.forgets, a.state, a.fence, a.expires, a.due"
		tables = " FROM unavez_blocked b" +
			" LEFT JOIN unavez_queue q ON q.key = b.key" +
			" LEFT JOIN unavez_outcome e ON e.key = b.key" +
			" LEFT JOIN unavez_outcome o ON o.key = b.operation" +
			" LEFT JOIN unavez_tombstone t ON t.key = b.operation" +
			" LEFT JOIN unavez_attempt a ON a.key = b.operation"
		behind = " WHERE (b.ordering, b.sequence) > (?1, ?2)"
		order  = " ORDER BY b.ordering, b.sequence LIMIT ?3"
	)
	args := []driver.Value{after.Order[:], after.Sequence, int64(limit)}
	text := columns + tables + behind
	if lanes != nil {
		list, err := json.Marshal(s.distinct(lanes))
		if err != nil {
			return nil, err
		}
		text += " AND b.lane IN (SELECT value FROM json_each(?4))"
		args = append(args, string(list))
	}
	err = s.read(ctx, func(r *raw) error {
		waiting = nil
		return r.query(text+order, args, func(v []driver.Value) error {
			waiting = append(waiting, readWaiting(v))
			return nil
		})
	})
	return waiting, err
}

// readWaiting reads a row of Waiting.
func readWaiting(v []driver.Value) store.Waiting {
	at := integer(v[0])
	w := store.Waiting{
		Place: store.Place{Order: keyOf(v[1]), Sequence: integer(v[2])},
		Lane:  int(integer(v[3])), Key: keyOf(v[4]), Operation: keyOf(v[5]), Gap: integer(v[6]) != 0,
	}
	entry, operation, t, a := v[8:11], v[11:14], v[14], v[15:19]
	if v[7] == nil || entry[0] != nil { // one that is gone was done
		w.Done = true
		if w.State = ended(entry, nil, at); w.State == store.Free {
			w.State = store.Expired
		}
		return w
	}
	if w.State = ended(operation, t, at); w.State != store.Free || a[0] == nil {
		return w
	}
	w.State, w.Fence = store.State(integer(a[0])), integer(a[1])
	switch left := milliseconds(integer(a[2]) - at); {
	case w.State == store.Retryable:
		w.DueIn = milliseconds(integer(a[3]) - at)
	case w.State != store.Processing:
	case left > 0:
		w.LeaseLeft = left
	default:
		w.State = store.Unknown
	}
	return w
}

// ended is how an operation ended, by state, expires and forgets of its outcome
// and by its tombstone: Free where nothing of it counts any more.
func ended(o []driver.Value, tombstone driver.Value, at int64) store.State {
	switch {
	case o[0] != nil && integer(o[1]) > at:
		return store.State(integer(o[0]))
	case o[0] != nil && integer(o[2]) > at, tombstone != nil && integer(tombstone) > at:
		return store.Expired
	}
	return store.Free
}
