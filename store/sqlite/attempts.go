package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// Actors that are no people.
const (
	actorWorker = "worker"
	actorStore  = "store"
)

// Claim reads again, and writes, under the operation's lock and as one unit.
func (s *Store) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	l, err := s.c.gate.try(claim.Key, s)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	if l == nil {
		return nil, store.Verdict{State: store.Processing}, nil
	}
	f, err := s.find(ctx, claim.Key)
	if err != nil {
		l.release()
		return nil, store.Verdict{}, err
	}
	if !f.open(claim.From) && !f.lapsed {
		l.release()
		return nil, f.verdict, nil // a duplicate does not ask for the writer
	}
	var made *store.Attempt
	err = s.c.writer.write(ctx, l, func(r *raw) (err error) {
		if err := belongs(r, claim.Hold); err != nil {
			return err
		}
		if f, err = find(r, claim.Key); err != nil {
			return err
		}
		if f.lapsed {
			if err := lapse(r, claim.Key, f.fence); err != nil {
				return err
			}
		}
		if !f.open(claim.From) {
			return nil
		}
		made, err = grant(r, claim, f)
		return err
	})
	if err != nil {
		return nil, store.Verdict{}, err
	}
	return made, f.verdict, nil
}

// grant writes the attempt: a first one, or the next of one at rest.
func grant(r *raw, claim store.Claim, f *found) (*store.Attempt, error) {
	key := claim.Key
	if a := f.verdict.Attempt; a != nil {
		const text = "UPDATE unavez_attempt SET fence = fence + 1, state = 1, expires = " + now + " + ?3, due = 0, reason = '', changed = " + now +
			" WHERE key = ?1 AND fence = ?2"
		if n, err := r.exec(text, key[:], a.Fence, claim.Lease.Milliseconds()); err != nil || n != 1 {
			return nil, errors.Join(err, unless(n == 1, store.ErrLeaseLost))
		}
	} else {
		if f.stale {
			if err := forget(r, key); err != nil {
				return nil, err
			}
		}
		const text = "INSERT INTO unavez_attempt (key, operation, fence, state, expires, due, created, changed, version, fingerprint, derived, origin, reason)" +
			" VALUES (?1, ?2, 1, 1, " + now + " + ?3, 0, " + now + ", " + now + ", ?4, ?5, ?6, ?7, '')"
		if _, err := r.exec(text, key[:], claim.Identity.Text(), claim.Lease.Milliseconds(),
			int64(claim.Fingerprint.Version), bytesOf(claim.Fingerprint.Sum), claim.DerivedKey, claim.Origin); err != nil {
			return nil, err
		}
	}
	return readAttempt(r, key)
}

// unless is err where ok does not hold.
func unless(ok bool, err error) error {
	if ok {
		return nil
	}
	return err
}

// readAttempt reads the attempt as it is stored; nil where there is none.
func readAttempt(r *raw, key store.Key) (a *store.Attempt, err error) {
	const text = "SELECT " + now + ", operation, fence, state, version, fingerprint, derived, expires, due, reason, created, changed, origin" +
		" FROM unavez_attempt WHERE key = ?1"
	_, err = r.row(text, []driver.Value{key[:]}, func(v []driver.Value) (err error) {
		a, err = attemptOf(key, v[1:], integer(v[0]))
		return err
	})
	return a, err
}

// move brings an attempt from one state into another and writes that down. It
// fails where the attempt is not in that state any more.
func move(r *raw, key store.Key, fence int64, from, to store.State, dueIn time.Duration, actor, reason string) error {
	const text = "UPDATE unavez_attempt SET state = ?4, due = " + now + " + ?5, reason = ?6, changed = " + now +
		" WHERE key = ?1 AND fence = ?2 AND state = ?3"
	n, err := r.exec(text, key[:], fence, int64(from), int64(to), max(dueIn, 0).Milliseconds(), reason)
	if err != nil {
		return err
	}
	if n == 0 {
		return store.ErrConflict
	}
	return note(r, key, from, to, fence, actor, reason)
}

// note writes one step of an operation's history.
func note(r *raw, key store.Key, from, to store.State, fence int64, actor, reason string) error {
	const text = "INSERT INTO unavez_transition (key, at, from_state, to_state, attempt, actor, reason) VALUES (?1, " + now + ", ?2, ?3, ?4, ?5, ?6)"
	_, err := r.exec(text, key[:], int64(from), int64(to), fence, actor, reason)
	return err
}

// lapse writes that a lease has run out.
func lapse(r *raw, key store.Key, fence int64) error {
	return move(r, key, fence, store.Processing, store.Unknown, 0, actorStore, reasonExpired)
}

// Renew extends a lease that still lives.
func (s *Store) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	return s.write(ctx, func(r *raw) error {
		const text = "UPDATE unavez_attempt SET expires = " + now + " + ?3 WHERE key = ?1 AND fence = ?2 AND state = 1 AND expires > " + now
		n, err := r.exec(text, key[:], fence, lease.Milliseconds())
		return errors.Join(err, unless(err != nil || n == 1, store.ErrLeaseLost))
	})
}

// Finish waits for the lock until ctx ends or the gate's limit is over. What it
// finds holds until the commit, which looks at the fence again.
func (s *Store) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[*sql.Tx], error) {
	u := s.c.writer.unit(unitHandler)
	u.bound(gate.Limit)
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if !u.deadline.IsZero() {
		waiting, cancel = context.WithDeadline(ctx, u.deadline)
	}
	defer cancel()
	l, err := s.c.gate.wait(waiting, gate.Key, u)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = unavailable("operation's lock is held by another transaction", nil)
		}
		return nil, err
	}
	var f *found
	if err = s.belongs(ctx, gate.Hold); err == nil {
		f, err = s.find(ctx, gate.Key)
	}
	switch {
	case err != nil:
	case fence != 0 && (!f.attempt || f.fence != fence):
		err = store.ErrLeaseLost
	case f.verdict.Attempt == nil && f.verdict.State != store.Free:
		err = store.ErrDuplicate
	}
	if err != nil {
		l.release()
		return nil, err
	}
	e := ending{gate: gate, fence: fence, attempt: fence, stale: f.stale}
	if fence == 0 {
		e.attempt = 1
		if f.attempt {
			e.fence, e.attempt = f.fence, f.fence+1
		}
	}
	return s.open(ctx, u, l, e)
}

// Rest ends the attempt without an outcome. The fence alone decides, so that an
// answer that comes after the lease has run out is still taken.
func (s *Store) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	switch rest.State {
	case store.Free, store.Retryable, store.Parked, store.Unknown, store.Dead:
	default:
		return fmt.Errorf("rest as %v: %w", rest.State, store.ErrConflict)
	}
	return s.write(ctx, func(r *raw) error {
		a, err := owned(r, key, fence)
		if err != nil {
			return err
		}
		if rest.State != store.Free {
			return move(r, key, fence, a.State, rest.State, rest.DueIn, actorWorker, store.CutReason(rest.Reason))
		}
		done, err := r.number("SELECT EXISTS (SELECT 1 FROM unavez_step WHERE key = ?1 AND done = 1)", key[:])
		if err != nil {
			return err
		}
		if done != 0 {
			return fmt.Errorf("operation has finished steps: %w", store.ErrConflict)
		}
		return drop(r, key)
	})
}

// drop deletes an attempt and all that belongs to it.
func drop(r *raw, key store.Key) error {
	for _, text := range [...]string{
		"DELETE FROM unavez_attempt WHERE key = ?1",
		"DELETE FROM unavez_step WHERE key = ?1",
		"DELETE FROM unavez_transition WHERE key = ?1",
	} {
		if _, err := r.exec(text, key[:]); err != nil {
			return err
		}
	}
	return nil
}

// owned reads the attempt if it has the fence.
func owned(r *raw, key store.Key, fence int64) (*store.Attempt, error) {
	a, err := readAttempt(r, key)
	if err == nil && (a == nil || a.Fence != fence) {
		err = store.ErrLeaseLost
	}
	return a, err
}

// SaveStep writes the start or the end of an outside call.
func (s *Store) SaveStep(ctx context.Context, key store.Key, fence int64, step store.Step) error {
	return s.write(ctx, func(r *raw) error {
		if _, err := owned(r, key, fence); err != nil {
			return err
		}
		done := int64(0)
		if step.Done {
			done = 1
		}
		const text = "INSERT INTO unavez_step (key, name, done, fence, result) VALUES (?1, ?2, ?3, ?4, ?5)" +
			" ON CONFLICT (key, name) DO UPDATE SET done = excluded.done, fence = excluded.fence, result = excluded.result"
		_, err := r.exec(text, key[:], step.Name, done, fence, bytesOf(step.Result))
		return err
	})
}

// Steps reads the steps of an unfinished operation.
func (s *Store) Steps(ctx context.Context, key store.Key) (steps []store.Step, err error) {
	err = s.read(ctx, func(r *raw) error {
		steps, err = readSteps(r, key)
		return err
	})
	return steps, err
}

func readSteps(r *raw, key store.Key) (steps []store.Step, err error) {
	const text = "SELECT name, done, fence, result FROM unavez_step WHERE key = ?1 ORDER BY name"
	err = r.query(text, []driver.Value{key[:]}, func(v []driver.Value) error {
		steps = append(steps, store.Step{Name: word(v[0]), Done: integer(v[1]) != 0, Fence: integer(v[2]), Result: blob(v[3])})
		return nil
	})
	return steps, err
}
