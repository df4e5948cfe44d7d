package fault

import (
	"context"
	"time"

	"github.com/unavez/unavez/store"
)

// Operator is a store as people see it, in which every call is a step.
type Operator struct {
	life  *Life
	inner store.Operations
}

var _ store.Operations = (*Operator)(nil)

// NewOperator wraps a store for a person, who may be cut off like a worker.
func NewOperator(life *Life, inner store.Operations) *Operator {
	return &Operator{life: life, inner: inner}
}

// List is a step of that name.
func (o *Operator) List(ctx context.Context, filter store.Filter) (page []store.Record, err error) {
	err = o.life.read(ctx, List, func(ctx context.Context) (err error) {
		page, err = o.inner.List(ctx, filter)
		return err
	})
	return page, err
}

// Show is a step of that name.
func (o *Operator) Show(ctx context.Context, key store.Key) (record store.Record, history []store.Transition, steps []store.Step, err error) {
	err = o.life.read(ctx, Show, func(ctx context.Context) (err error) {
		record, history, steps, err = o.inner.Show(ctx, key)
		return err
	})
	return record, history, steps, err
}

// Counts is a step of that name.
func (o *Operator) Counts(ctx context.Context) (counts store.Counts, err error) {
	err = o.life.read(ctx, Counts, func(ctx context.Context) (err error) {
		counts, err = o.inner.Counts(ctx)
		return err
	})
	return counts, err
}

// read makes a step that changes nothing.
func (l *Life) read(ctx context.Context, step string, read func(context.Context) error) error {
	_, err := l.do(ctx, move{
		step:    step,
		apply:   func(ctx context.Context, _ *Note) error { return read(ctx) },
		refused: says(store.ErrUnavailable),
	})
	return err
}

// Release is a step of that name.
func (o *Operator) Release(ctx context.Context, action store.Action) error {
	return o.acts(ctx, Release, store.Retryable, action, func(ctx context.Context) error { return o.inner.Release(ctx, action) })
}

// Redrive is a step of that name.
func (o *Operator) Redrive(ctx context.Context, action store.Action) error {
	return o.acts(ctx, Redrive, store.Retryable, action, func(ctx context.Context) error { return o.inner.Redrive(ctx, action) })
}

// Complete is a step of that name.
func (o *Operator) Complete(ctx context.Context, action store.Action, result store.Result, retention, tombstone time.Duration) error {
	return o.acts(ctx, Complete, store.Completed, action, func(ctx context.Context) error {
		return o.inner.Complete(ctx, action, result, retention, tombstone)
	})
}

// Discard is a step of that name.
func (o *Operator) Discard(ctx context.Context, action store.Action, retention, tombstone time.Duration) error {
	return o.acts(ctx, Discard, store.Discarded, action, func(ctx context.Context) error {
		return o.inner.Discard(ctx, action, retention, tombstone)
	})
}

func (o *Operator) acts(ctx context.Context, step string, to store.State, action store.Action, act func(context.Context) error) error {
	return o.life.write(ctx, step, Note{Key: action.Key, Fence: action.Fence, To: to}, act)
}

// Keeper is a store's upkeep, in which every call is a step.
type Keeper struct {
	life  *Life
	inner store.Upkeep
}

var _ store.Upkeep = (*Keeper)(nil)

// NewKeeper wraps a store for a worker that does its upkeep.
func NewKeeper(life *Life, inner store.Upkeep) *Keeper { return &Keeper{life: life, inner: inner} }

// Purge is a step of that name.
func (k *Keeper) Purge(ctx context.Context, limit int) (n int, err error) {
	var changed int
	told, err := k.life.do(ctx, move{
		step: Purge,
		apply: func(ctx context.Context, _ *Note) (err error) {
			changed, err = k.inner.Purge(ctx, limit)
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return 0, err
	}
	return changed, err
}

// Expire is a step of that name.
func (k *Keeper) Expire(ctx context.Context, limit int) ([]store.Attempt, error) {
	var found []store.Attempt
	told, err := k.life.do(ctx, move{
		step: Expire,
		apply: func(ctx context.Context, _ *Note) (err error) {
			found, err = k.inner.Expire(ctx, limit)
			return err
		},
		refused: says(store.ErrUnavailable), lost: says(store.ErrUnavailable),
	})
	if !told {
		return nil, err
	}
	return found, err
}
