package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

// List reads one page of attempts, one of the outcomes of each retention, and
// merges them.
func (s *Store) List(ctx context.Context, filter store.Filter) ([]store.Record, error) {
	limit, err := filter.Page()
	if err != nil {
		return nil, fmt.Errorf("sqlite store: %w", err)
	}
	var unfinished, final []store.State
	for _, state := range filter.States {
		if state.Final() {
			final = append(final, state)
		} else {
			unfinished = append(unfinished, state)
		}
	}
	var page []store.Record
	err = s.snapshot(ctx, func(r *raw) error {
		if len(unfinished) > 0 || len(filter.States) == 0 {
			where, args := conditions(filter, "changed", unfinished)
			if err := listAttempts(r, where, args, limit, &page); err != nil {
				return err
			}
		}
		if len(final) > 0 {
			all, err := kept(r)
			if err != nil {
				return err
			}
			where, args := conditions(filter, "at", final)
			where += fmt.Sprintf(" AND expires > %s AND expires - at = ?%d", now, len(args)+1)
			for _, ms := range all {
				if err := listOutcomes(r, where, append(args[:len(args):len(args)], ms), limit, &page); err != nil {
					return err
				}
			}
		}
		return nil
	})
	slices.SortFunc(page, func(a, b store.Record) int {
		return cmp.Or(a.Changed.Compare(b.Changed), bytes.Compare(a.Key[:], b.Key[:]))
	})
	return page[:min(len(page), limit)], err
}

// conditions are the filter in SQL; instants is the column of the last change.
// Tenant and effect are the first two parts of the operation's text.
func conditions(f store.Filter, instants string, states []store.State) (string, []driver.Value) {
	var args []driver.Value
	arg := func(v driver.Value) string {
		args = append(args, v)
		return fmt.Sprintf("?%d", len(args))
	}
	where := "true"
	if len(states) > 0 {
		var in []string
		for _, state := range states {
			in = append(in, arg(int64(state)))
		}
		where += " AND state IN (" + strings.Join(in, ", ") + ")"
	}
	if f.Tenant != nil {
		p := arg(url.PathEscape(*f.Tenant) + "/")
		where += " AND substr(operation, 1, length(" + p + ")) = " + p
	}
	if f.Effect != "" {
		p := arg(url.PathEscape(f.Effect) + "/")
		where += " AND substr(operation, instr(operation, '/') + 1, length(" + p + ")) = " + p
	}
	if f.After != nil {
		where += " AND (" + instants + ", key) > (" + arg(f.After.Changed.UnixMilli()) + ", " + arg(f.After.Key[:]) + ")"
	}
	return where, args
}

func listAttempts(r *raw, where string, args []driver.Value, limit int, page *[]store.Record) error {
	text := "SELECT key, " + now + ", operation, fence, state, version, fingerprint, derived, expires, due, reason, created, changed, origin" +
		" FROM unavez_attempt WHERE " + where + fmt.Sprintf(" ORDER BY changed, key LIMIT %d", limit)
	return r.query(text, args, func(v []driver.Value) error {
		// Damage is shown, not an error: the rest of the page is sound.
		a, damage := attemptOf(keyOf(v[0]), v[2:], integer(v[1]))
		record := recordOf(a)
		record.Damaged = damage != nil
		*page = append(*page, record)
		return nil
	})
}

// recordOf shows an attempt as it is stored: an expired lease as Processing.
func recordOf(a *store.Attempt) store.Record {
	return store.Record{
		Key: a.Key, Identity: a.Identity, State: a.State, Attempt: a.Fence, DerivedKey: a.DerivedKey, Origin: a.Origin,
		LeaseLeft: a.LeaseLeft, DueIn: a.DueIn, Reason: a.Reason, Created: a.Created, Changed: a.Changed,
	}
}

func listOutcomes(r *raw, where string, args []driver.Value, limit int, page *[]store.Record) error {
	text := "SELECT key, operation, state, code, unreplayable, header, body, version, fingerprint, attempt, at, expires, forgets, checksum," +
		" (SELECT t.reason FROM unavez_transition t WHERE t.key = o.key ORDER BY t.id DESC LIMIT 1)" +
		" FROM unavez_outcome o WHERE " + where + fmt.Sprintf(" ORDER BY at, key LIMIT %d", limit)
	return r.query(text, args, func(v []driver.Value) error {
		key := keyOf(v[0])
		id, lost := store.ParseText(word(v[1]))
		o, sum, damage := outcomeOf(v[2:14])
		*page = append(*page, store.Record{
			Key: key, Identity: id, State: o.State, Attempt: o.Attempt, Created: o.At, Changed: o.At,
			Code: o.Result.Code, Size: len(o.Result.Body), Reason: word(v[14]),
			Damaged: lost != nil || damage != nil || !bytes.Equal(o.Checksum(key), sum),
		})
		return nil
	})
}

// Show reads one operation from one state of the database.
func (s *Store) Show(ctx context.Context, key store.Key) (record store.Record, history []store.Transition, steps []store.Step, err error) {
	err = s.snapshot(ctx, func(r *raw) error {
		var page []store.Record
		args := []driver.Value{key[:]}
		if err := listOutcomes(r, "key = ?1 AND expires > "+now, args, 1, &page); err != nil {
			return err
		}
		if len(page) == 0 {
			if err := listAttempts(r, "key = ?1", args, 1, &page); err != nil {
				return err
			}
			if len(page) == 0 {
				return store.ErrNotFound
			}
			if steps, err = readSteps(r, key); err != nil {
				return err
			}
		}
		record = page[0]
		const text = "SELECT at, from_state, to_state, attempt, actor, reason FROM unavez_transition WHERE key = ?1 ORDER BY id"
		return r.query(text, args, func(v []driver.Value) error {
			history = append(history, store.Transition{
				At: instant(integer(v[0])), From: store.State(integer(v[1])), To: store.State(integer(v[2])),
				Attempt: integer(v[3]), Actor: word(v[4]), Reason: word(v[5]),
			})
			return nil
		})
	})
	return record, history, steps, err
}

// Release lets an unknown or parked operation run again at once.
func (s *Store) Release(ctx context.Context, action store.Action) error {
	return s.decide(ctx, action, goOn(action, store.Unknown, store.Parked))
}

// Redrive lets a dead operation run again at once.
func (s *Store) Redrive(ctx context.Context, action store.Action) error {
	return s.decide(ctx, action, goOn(action, store.Dead))
}

// Complete ends an operation with the result a person gives.
func (s *Store) Complete(ctx context.Context, action store.Action, result store.Result, retention, tombstone time.Duration) error {
	return s.decide(ctx, action, closing(action, store.End{State: store.Completed, Result: result}, retention, tombstone))
}

// Discard ends an operation without its effect.
func (s *Store) Discard(ctx context.Context, action store.Action, retention, tombstone time.Duration) error {
	return s.decide(ctx, action, closing(action, store.End{State: store.Discarded}, retention, tombstone))
}

// decision is what an action does with the attempt it found, or ErrConflict.
type decision func(r *raw, a *store.Attempt, beside beside) error

// beside is what was found beside an attempt.
type beside struct {
	stale   bool // rows of an earlier life
	damaged bool // the "attempt" is that of an outcome whose result is damaged
}

func goOn(action store.Action, from ...store.State) decision {
	return func(r *raw, a *store.Attempt, b beside) error {
		if b.damaged {
			return fmt.Errorf("result of the operation is damaged: %w", store.ErrConflict)
		}
		if !slices.Contains(from, a.State) {
			return fmt.Errorf("operation is %v: %w", a.State, store.ErrConflict)
		}
		return move(r, a.Key, a.Fence, a.State, store.Retryable, 0, action.Actor, action.Reason)
	}
}

func closing(action store.Action, end store.End, retention, tombstone time.Duration) decision {
	return func(r *raw, a *store.Attempt, b beside) error {
		fence := a.Fence
		if b.damaged {
			fence = 0
			if _, err := r.exec("DELETE FROM unavez_outcome WHERE key = ?1", a.Key[:]); err != nil {
				return err
			}
		} else if a.State == store.Processing {
			return fmt.Errorf("operation is %v: %w", a.State, store.ErrConflict)
		}
		if err := note(r, a.Key, a.State, end.State, a.Fence, action.Actor, action.Reason); err != nil {
			return err
		}
		e := ending{
			gate:  store.Gate{Identity: a.Identity, Key: a.Key, Fingerprint: a.Fingerprint, Retention: retention, Tombstone: tombstone},
			end:   end,
			fence: fence, attempt: a.Fence, stale: b.stale,
		}
		_, err := e.insert(r)
		return err
	}
}

// decide checks what all actions of people have in common. A transaction that
// runs the operation holds its lock and wins over the person.
func (s *Store) decide(ctx context.Context, action store.Action, act decision) error {
	if err := action.Validate(); err != nil {
		return fmt.Errorf("sqlite store: %w", err)
	}
	l, err := s.c.gate.try(action.Key, s)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("operation is in flight: %w", store.ErrConflict)
	}
	return s.c.writer.write(ctx, l, func(r *raw) error {
		f, err := find(r, action.Key)
		b := beside{stale: f.stale, damaged: errors.Is(err, store.ErrDamaged)}
		if b.damaged {
			f.verdict.Attempt, err = ofOutcome(r, action.Key)
		}
		switch a := f.verdict.Attempt; {
		case err != nil:
			return err
		case a == nil && f.verdict.State == store.Free:
			return store.ErrNotFound
		case a == nil:
			return fmt.Errorf("operation is %v: %w", f.verdict.State, store.ErrConflict)
		case action.Fence != 0 && action.Fence != a.Fence:
			return fmt.Errorf("operation is at attempt %d: %w", a.Fence, store.ErrConflict)
		case f.lapsed:
			if err := lapse(r, a.Key, a.Fence); err != nil {
				return err
			}
		}
		return act(r, f.verdict.Attempt, b)
	})
}

// ofOutcome is the attempt that made an outcome, as far as its row tells.
func ofOutcome(r *raw, key store.Key) (*store.Attempt, error) {
	a := &store.Attempt{Key: key}
	const text = "SELECT operation, state, attempt, version, fingerprint FROM unavez_outcome WHERE key = ?1"
	_, err := r.row(text, []driver.Value{key[:]}, func(v []driver.Value) (err error) {
		a.Identity, err = store.ParseText(word(v[0]))
		a.State, a.Fence = store.State(integer(v[1])), integer(v[2])
		a.Fingerprint = store.Fingerprint{Version: int(integer(v[3])), Sum: blob(v[4])}
		return err
	})
	return a, err
}

// Counts for metrics.
func (s *Store) Counts(ctx context.Context) (store.Counts, error) {
	c := store.Counts{Unfinished: map[store.State]int64{}}
	err := s.read(ctx, func(r *raw) error {
		const text = "SELECT state, count(*), " + now + " - min(changed) FROM unavez_attempt GROUP BY state"
		return r.query(text, nil, func(v []driver.Value) error {
			state := store.State(integer(v[0]))
			c.Unfinished[state] = integer(v[1])
			if state != store.Processing {
				c.OldestAtRest = max(c.OldestAtRest, milliseconds(integer(v[2])))
			}
			return nil
		})
	})
	return c, err
}
