package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// snapshot runs fn on one state of the database.
func (s *Store) snapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return classify(pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn))
}

// List reads one page of attempts and one of outcomes and merges them.
func (s *Store) List(ctx context.Context, filter store.Filter) ([]store.Record, error) {
	limit, err := filter.Page()
	if err != nil {
		return nil, fmt.Errorf("postgres store: %w", err)
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
	err = s.snapshot(ctx, func(tx pgx.Tx) error {
		if len(unfinished) > 0 || len(filter.States) == 0 {
			where, args := conditions(filter, "changed", unfinished)
			some, err := listAttempts(ctx, tx, where, args, limit)
			if err != nil {
				return err
			}
			page = append(page, some...)
		}
		if len(final) > 0 {
			where, args := conditions(filter, "ended", final)
			some, err := listOutcomes(ctx, tx, where+" AND expires > pg_catalog.clock_timestamp()", args, limit)
			if err != nil {
				return err
			}
			page = append(page, some...)
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
func conditions(f store.Filter, instants string, states []store.State) (string, []any) {
	var args []any
	arg := func(v any, kind string) string {
		args = append(args, v)
		return fmt.Sprintf("$%d::pg_catalog.%s", len(args), kind)
	}
	where := "true"
	if len(states) > 0 {
		numbers := make([]int16, len(states))
		for i, state := range states {
			numbers[i] = int16(state)
		}
		where += " AND state = ANY(" + arg(numbers, "int2[]") + ")"
	}
	if f.Tenant != nil {
		where += " AND pg_catalog.starts_with(operation, " + arg(url.PathEscape(*f.Tenant)+"/", "text") + ")"
	}
	if f.Effect != "" {
		where += " AND pg_catalog.split_part(operation, '/', 2) = " + arg(url.PathEscape(f.Effect), "text")
	}
	if f.After != nil {
		where += " AND (" + instants + ", key) > (" + arg(f.After.Changed, "timestamptz") + ", " + arg(uuid(f.After.Key), "uuid") + ")"
	}
	return where, args
}

// attemptColumns are read by scanAttempt.
const attemptColumns = "key, pg_catalog.clock_timestamp(), operation, fence, state, version, fingerprint, derived, origin, expires, due, reason, created, changed"

func scanAttempt(row pgx.CollectableRow) (*store.Attempt, error) {
	f := &found{}
	var key [16]byte
	if err := row.Scan(&key, &f.at, &f.operation, &f.number, &f.state, &f.version, &f.fingerprint, &f.derived, &f.origin,
		&f.expires, &f.due, &f.because, &f.created, &f.changed); err != nil {
		return nil, err
	}
	return f.row(key)
}

func listAttempts(ctx context.Context, from source, where string, args []any, limit int) ([]store.Record, error) {
	text := "SELECT " + attemptColumns + " FROM unavez.attempt WHERE " + where + fmt.Sprintf(" ORDER BY changed, key LIMIT %d", limit)
	return collect(ctx, from, text, args, func(row pgx.CollectableRow) (store.Record, error) {
		a, err := scanAttempt(row)
		if err != nil {
			return store.Record{}, err
		}
		return recordOf(a), nil
	})
}

// recordOf shows an attempt as it is stored: an expired lease as Processing.
func recordOf(a *store.Attempt) store.Record {
	return store.Record{
		Key: a.Key, Identity: a.Identity, State: a.State, Attempt: a.Fence, DerivedKey: a.DerivedKey, Origin: a.Origin,
		LeaseLeft: a.LeaseLeft, DueIn: a.DueIn, Reason: a.Reason, Created: a.Created, Changed: a.Changed,
	}
}

func listOutcomes(ctx context.Context, from source, where string, args []any, limit int) ([]store.Record, error) {
	text := "SELECT key, operation, state, attempt, ended, code, unreplayable, version, fingerprint, checksum, header, body," +
		" coalesce((SELECT t.reason FROM unavez.transition t WHERE t.key = o.key ORDER BY t.id DESC LIMIT 1), '')" +
		" FROM unavez.outcome o WHERE " + where + fmt.Sprintf(" ORDER BY ended, key LIMIT %d", limit)
	return collect(ctx, from, text, args, func(row pgx.CollectableRow) (store.Record, error) {
		var (
			key                    [16]byte
			operation, reason      string
			state                  int16
			number, code           int64
			version                int32
			checksum, header, body []byte
			o                      store.Outcome
		)
		if err := row.Scan(&key, &operation, &state, &number, &o.At, &code, &o.Result.NotReplayable, &version,
			&o.Fingerprint.Sum, &checksum, &header, &body, &reason); err != nil {
			return store.Record{}, err
		}
		id, err := store.ParseText(operation)
		if err != nil {
			return store.Record{}, err
		}
		// Damage is shown, not an error: the rest of the page is sound.
		lines, damage := store.ParseHeader(header)
		o.State, o.Fingerprint.Version = store.State(state), int(version)
		o.Result.Code, o.Result.Header, o.Result.Body = int(code), lines, body
		return store.Record{
			Key: key, Identity: id, State: o.State, Attempt: number, Created: o.At.UTC(), Changed: o.At.UTC(),
			Code: o.Result.Code, Size: len(body), Reason: reason,
			Damaged: damage != nil || !bytes.Equal(o.Checksum(key), checksum),
		}, nil
	})
}

// Show reads one operation from one state of the database.
func (s *Store) Show(ctx context.Context, key store.Key) (record store.Record, history []store.Transition, steps []store.Step, err error) {
	args := []any{uuid(key)}
	err = s.snapshot(ctx, func(tx pgx.Tx) error {
		page, err := listOutcomes(ctx, tx, "key = $1::pg_catalog.uuid AND expires > pg_catalog.clock_timestamp()", args, 1)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			if page, err = listAttempts(ctx, tx, "key = $1::pg_catalog.uuid", args, 1); err != nil {
				return err
			}
			if len(page) == 0 {
				return store.ErrNotFound
			}
			if steps, err = readSteps(ctx, tx, key); err != nil {
				return err
			}
		}
		record = page[0]
		const text = "SELECT at, from_state, to_state, attempt, actor, reason FROM unavez.transition WHERE key = $1::pg_catalog.uuid ORDER BY id"
		history, err = collect(ctx, tx, text, args, func(row pgx.CollectableRow) (t store.Transition, err error) {
			var from, to int16
			err = row.Scan(&t.At, &from, &to, &t.Attempt, &t.Actor, &t.Reason)
			t.At, t.From, t.To = t.At.UTC(), store.State(from), store.State(to)
			return t, err
		})
		return err
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

// decision is what an action does with the attempt it found, or a conflict.
type decision func(ctx context.Context, tx pgx.Tx, a *store.Attempt, beside beside) error

// beside is what was found beside an attempt.
type beside struct {
	stale   bool      // rows of an earlier life
	damaged time.Time // when the outcome was made that the "attempt" is of, since its result is damaged; else zero
}

// moveText moves an attempt from one state into another, by somebody, with a reason.
const moveText = "SELECT unavez.move($1::pg_catalog.uuid, $2::pg_catalog.int8, $3::pg_catalog.int2, $4::pg_catalog.int2, 0, $5::pg_catalog.text, $6::pg_catalog.text)"

func goOn(action store.Action, from ...store.State) decision {
	return func(ctx context.Context, tx pgx.Tx, a *store.Attempt, b beside) error {
		if !b.damaged.IsZero() {
			return refusal("damaged")
		}
		if !slices.Contains(from, a.State) {
			return refusal(a.State.String())
		}
		_, err := tx.Exec(ctx, moveText, uuid(a.Key), a.Fence, int16(a.State), int16(store.Retryable), action.Actor, action.Reason)
		return err
	}
}

func closing(action store.Action, end store.End, retention, tombstone time.Duration) decision {
	return func(ctx context.Context, tx pgx.Tx, a *store.Attempt, b beside) error {
		fence := a.Fence
		if !b.damaged.IsZero() {
			fence = 0
			if err := remove(ctx, tx, a.Key, b.damaged); err != nil {
				return err
			}
		} else if a.State == store.Processing {
			return refusal(a.State.String())
		}
		const note = "INSERT INTO unavez.transition (key, at, from_state, to_state, attempt, actor, reason) VALUES ($1, pg_catalog.clock_timestamp(), $2, $3, $4, $5, $6)"
		if _, err := tx.Exec(ctx, note, uuid(a.Key), int16(a.State), int16(end.State), a.Fence, action.Actor, action.Reason); err != nil {
			return err
		}
		gate := store.Gate{Identity: a.Identity, Key: a.Key, Fingerprint: a.Fingerprint, Retention: retention, Tombstone: tombstone}
		_, args := outcome(gate, a.Fence, end)
		args = append([]any{uuid(a.Key), nil, false, fence, b.stale, nil, nil}, args...)
		_, err := tx.Exec(ctx, finishText, args...)
		return err
	}
}

// remove deletes the outcome that was made at an instant, in whichever slot it
// is: a slot may also hold one of an earlier life.
func remove(ctx context.Context, tx pgx.Tx, key store.Key, ended time.Time) error {
	for _, table := range [...]string{"outcome_0", "outcome_1", "outcome_2", "outcome_3", "outcome_table"} {
		text := "DELETE FROM unavez." + table + " WHERE key = $1 AND ended = $2"
		if _, err := tx.Exec(ctx, text, uuid(key), ended); err != nil {
			return err
		}
	}
	return nil
}

func refusal(state string) error {
	return &fault{store.ErrConflict, "operation is " + state, nil}
}

// decide checks what all actions of people have in common. A transaction that
// runs the operation holds its lock and wins over the person. A refused action
// writes nothing.
func (s *Store) decide(ctx context.Context, action store.Action, act decision) error {
	if err := action.Validate(); err != nil {
		return fmt.Errorf("postgres store: %w", err)
	}
	action.Actor, action.Reason = strings.ToValidUTF8(action.Actor, "\ufffd"), cut(action.Reason)
	key := uuid(action.Key)
	return lost(s.working(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		f := &found{}
		if err := tx.QueryRow(ctx, gateText, key, action.Key.Hash64(), false, workLimit.Milliseconds()).Scan(append([]any{nil}, f.columns()...)...); err != nil {
			return err
		}
		v, err := f.verdict(action.Key)
		b := beside{stale: f.stale}
		if errors.Is(err, store.ErrDamaged) {
			b.damaged = value(f.ended)
			v.State = store.State(f.state)
			v.Attempt, err = f.row(action.Key)
		}
		switch a := v.Attempt; {
		case err != nil:
			return err
		case v.State == store.Processing && a == nil:
			return refusal("in flight")
		case v.State == store.Free:
			return store.ErrNotFound
		case a == nil:
			return refusal(v.State.String())
		case action.Fence != 0 && action.Fence != a.Fence:
			return refusal(fmt.Sprintf("at attempt %d", a.Fence))
		default:
			if f.lapsed {
				_, err := tx.Exec(ctx, moveText, key, a.Fence, int16(store.Processing), int16(store.Unknown), "store", a.Reason)
				if err != nil {
					return err
				}
			}
			return act(ctx, tx, a, b)
		}
	}))
}

// workLimit is how long a transaction of a person's, or of a purge, may wait for
// its worker: one that was stopped, or whose host is gone, gives its locks up.
const workLimit = 10 * time.Second

// working runs a transaction of such work. Its limits are fn's to set.
func (s *Store) working(ctx context.Context, opts pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return acquiring(err)
	}
	defer conn.Release()
	if err := s.greet(ctx, conn.Conn()); err != nil {
		return opening(ctx, err)
	}
	return pgx.BeginTxFunc(ctx, conn, opts, fn)
}

// Counts for metrics.
func (s *Store) Counts(ctx context.Context) (store.Counts, error) {
	c := store.Counts{Unfinished: map[store.State]int64{}}
	const text = "SELECT state, count(*), pg_catalog.clock_timestamp() - min(changed) FROM unavez.attempt GROUP BY state"
	_, err := collect(ctx, s.pool, text, nil, func(row pgx.CollectableRow) (struct{}, error) {
		var state int16
		var n int64
		var oldest time.Duration
		err := row.Scan(&state, &n, &oldest)
		c.Unfinished[store.State(state)] = n
		if store.State(state) != store.Processing {
			c.OldestAtRest = max(c.OldestAtRest, oldest)
		}
		return struct{}{}, err
	})
	return c, err
}
