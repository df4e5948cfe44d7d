package torture

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// decisions are the protocols of people and of upkeep.
func decisions() []exchange {
	resting := func(rest store.Rest) func(context.Context, *Bed, string) error {
		return func(ctx context.Context, b *Bed, operation string) error { return rests(ctx, b, operation, rest) }
	}
	dead, unknown := store.Rest{State: store.Dead, Reason: "torture"}, store.Rest{State: store.Unknown, Reason: "torture"}
	return []exchange{
		{name: "redrive", rows: 1, prepare: resting(dead), holds: decidedOnce(1), open: deciding((*worker).redrive)},
		{name: "release", rows: 1, prepare: resting(unknown), holds: decidedOnce(0), // its policy lets it go on without, too
			open: deciding((*worker).release)},
		{name: "complete", prepare: resting(dead), holds: decidedOnce(1), open: deciding((*worker).complete)},
		{name: "discard", prepare: resting(dead), holds: decidedOnce(1), open: deciding((*worker).discard)},
		{name: "expire", rows: 1, prepare: abandoned, open: deciding((*worker).expire)},
		{name: "purge", rows: 2, alone: true, prepare: aged, holds: purged, open: deciding((*worker).purge)},
	}
}

// actor is who decides here.
const actor = "torture"

// decided is an operation that people decide about.
func decided(operation string) unavez.Operation {
	op := operationOf("decided", operation)
	op.Unknown = unavez.Retry
	return op
}

// claim takes an operation for a time, as a worker does that is then gone.
func claim(ctx context.Context, b *Bed, operation string, life time.Duration) (*worker, *store.Attempt, error) {
	w, err := newWorker(ctx, b, route{most: 2}, how{})
	if err != nil {
		return nil, nil, err
	}
	op := decided(operation)
	id := op.Identity()
	sum := store.Fingerprint{Sum: sumOf(op.Payload)}
	gate := store.Gate{Identity: id, Key: id.Key(), Fingerprint: sum, Limit: time.Minute, Retention: time.Hour, Tombstone: time.Hour}
	attempt, v, err := w.store.Claim(ctx, store.Claim{Gate: gate, Lease: life, DerivedKey: id.DerivedKey("")})
	if err == nil && attempt == nil {
		err = fmt.Errorf("claim of %s: %v", operation, v.State)
	}
	if err != nil {
		w.close()
		return nil, nil, err
	}
	return w, attempt, nil
}

// rests leaves an operation at rest.
func rests(ctx context.Context, b *Bed, operation string, rest store.Rest) error {
	w, attempt, err := claim(ctx, b, operation, time.Minute)
	if err != nil {
		return err
	}
	defer w.close()
	return w.store.Rest(ctx, attempt.Key, attempt.Fence, rest)
}

// abandoned leaves an operation whose lease runs out.
func abandoned(ctx context.Context, b *Bed, operation string) error {
	w, _, err := claim(ctx, b, operation, 10*time.Millisecond)
	if err != nil {
		return err
	}
	w.close()
	return nil
}

// deciding is a client that has a decision carried out, and then asks for the
// operation.
func deciding(act func(*worker, context.Context, string) (string, error)) func(context.Context, *Bed, route) (*client, error) {
	return func(ctx context.Context, b *Bed, to route) (*client, error) {
		w, err := newWorker(ctx, b, to, how{})
		return made(w, err, func(ctx context.Context, w *worker, operation string) (string, error) {
			return act(w, ctx, operation)
		})
	}
}

// decide carries a decision out. That it can no more be carried out may mean that
// it was: an answer before may have been lost.
func (w *worker) decide(ctx context.Context, operation string, act func(context.Context, store.Action) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	key := decided(operation).Identity().Key()
	err := act(ctx, store.Action{Key: key, Fence: 1, Actor: actor, Reason: "torture"})
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// run has the operation run as its worker does. Where it is still dead the
// decision was refused, since one before it is not over.
func (w *worker) run(ctx context.Context, operation string) (string, error) {
	answer, err := answerOf(w.engine.Lease(ctx, decided(operation), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
		return unavez.Result{Code: 201, Body: []byte("decided")}, nil
	}, finish(operation)))
	if unavez.CodeOf(err) == unavez.CodeDead {
		err = errors.Join(errAgain, err)
	}
	return answer, err
}

func (w *worker) redrive(ctx context.Context, operation string) (string, error) {
	if err := w.decide(ctx, operation, w.store.Redrive); err != nil {
		return "", err
	}
	return w.run(ctx, operation)
}

func (w *worker) release(ctx context.Context, operation string) (string, error) {
	if err := w.decide(ctx, operation, w.store.Release); err != nil {
		return "", err
	}
	return w.run(ctx, operation)
}

func (w *worker) complete(ctx context.Context, operation string) (string, error) {
	err := w.decide(ctx, operation, func(ctx context.Context, a store.Action) error {
		return w.store.Complete(ctx, a, store.Result{Code: 200, Body: []byte("by hand")}, time.Hour, time.Hour)
	})
	if err != nil {
		return "", err
	}
	return w.run(ctx, operation)
}

func (w *worker) discard(ctx context.Context, operation string) (string, error) {
	err := w.decide(ctx, operation, func(ctx context.Context, a store.Action) error {
		return w.store.Discard(ctx, a, time.Hour, time.Hour)
	})
	if err != nil {
		return "", err
	}
	if _, err = w.run(ctx, operation); unavez.CodeOf(err) == unavez.CodeDiscarded {
		return "discarded", nil
	}
	return "", errors.Join(err, errors.New("want it discarded"))
}

// decidedOnce holds that the history has one decision, or from least to one.
func decidedOnce(least int) func(context.Context, *Bed, string) error {
	return func(ctx context.Context, b *Bed, operation string) error {
		key := [16]byte(decided(operation).Identity().Key())
		n, err := b.number(ctx, "SELECT count(*) FROM unavez.transition WHERE key = $1 AND actor = $2", key, actor)
		if err == nil && (n < least || n > 1) {
			err = fmt.Errorf("%d decisions in its history, want one", n)
		}
		return err
	}
}

// expire is upkeep for a worker that is gone, and then the operation.
func (w *worker) expire(ctx context.Context, operation string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err := w.store.Expire(limited, 100); err != nil {
		return "", err
	}
	return w.run(ctx, operation)
}

// The parts of an operation that is purged.
func old(operation string) string  { return operation + "/old" }
func live(operation string) string { return operation + "/live" }

// aged has two operations done, and one of them a long time ago.
func aged(ctx context.Context, b *Bed, operation string) error {
	w, err := newWorker(ctx, b, route{most: 2}, how{})
	if err != nil {
		return err
	}
	defer w.close()
	for _, part := range []string{old(operation), live(operation)} {
		if _, err := w.part(ctx, part); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	for slot := range 4 {
		batch.Queue(fmt.Sprintf("UPDATE unavez.outcome_%d SET ended = ended - interval '3 days', expires = expires - interval '3 days' WHERE key = $1", slot), keyOf(old(operation)))
	}
	batch.Queue("UPDATE unavez.slot SET since = since - interval '25 hours' WHERE state = 'current'") // and the ring turns
	return b.beside.SendBatch(ctx, batch).Close()
}

// part is one of the operations that are purged.
func (w *worker) part(ctx context.Context, name string) (string, error) {
	op := operationOf("purged", name)
	op.Retention, op.Tombstone, op.Limit = 48*time.Hour, 30*24*time.Hour, time.Minute
	return answerOf(w.engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		answer, err := effect(ctx, pgxWriter{tx}, name)
		return unavez.Result{Code: 201, Body: []byte(answer)}, err
	}))
}

func keyOf(part string) [16]byte { return [16]byte(operationOf("purged", part).Identity().Key()) }

// purge goes on until nothing is left to purge of the operation.
func (w *worker) purge(ctx context.Context, operation string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err := w.store.Purge(limited, 100); err != nil {
		return "", err
	}
	left, err := w.bed.number(ctx, "SELECT (SELECT count(*) FROM unavez.outcome_0 WHERE key = $1) + (SELECT count(*) FROM unavez.outcome_1 WHERE key = $1)"+
		" + (SELECT count(*) FROM unavez.outcome_2 WHERE key = $1) + (SELECT count(*) FROM unavez.outcome_3 WHERE key = $1)", keyOf(old(operation)))
	if err == nil && left > 0 {
		err = errAgain
	}
	return "purged", err
}

// purged holds that what is over is remembered by its identity, and what is not
// by its answer.
func purged(ctx context.Context, b *Bed, operation string) error {
	w, err := newWorker(ctx, b, route{most: 2}, how{})
	if err != nil {
		return err
	}
	defer w.close()
	if answer, err := w.part(ctx, old(operation)); unavez.CodeOf(err) != unavez.CodeExpired {
		return fmt.Errorf("over its retention: %q, %v; want %s", answer, err, unavez.CodeExpired)
	}
	_, err = w.part(ctx, live(operation))
	return err
}

func sumOf(payload []byte) []byte { sum := sha256.Sum256(payload); return sum[:] }
