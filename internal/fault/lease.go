package fault

import (
	"context"
	"time"

	"github.com/unavez/unavez/lease"
)

// FastLease is a lease that may be marked.
type FastLease interface {
	lease.Leaser
	lease.Marker
}

// Leaser is one worker's view of a fast lease in which every call is a step.
type Leaser struct {
	life   *Life
	inner  FastLease
	forget func()
}

// Compile-time guards.
var (
	_ lease.Leaser = (*Leaser)(nil)
	_ lease.Marker = (*Leaser)(nil)
)

// NewLeaser wraps a fast lease for a worker. forget makes it lose everything, as
// one that is restarted or evicts.
func NewLeaser(life *Life, inner FastLease, forget func()) *Leaser {
	return &Leaser{life: life, inner: inner, forget: forget}
}

// stranger is the holder that a lying lease makes up.
const stranger = "a holder that does not exist"

// Acquire is a step of that name. A lie is a grant of what somebody holds, or a
// refusal of what is free, in the name of a holder that does not exist.
func (l *Leaser) Acquire(ctx context.Context, key string, value lease.Value, life time.Duration) (bool, lease.Value, time.Duration, error) {
	var held bool
	var other lease.Value
	var left time.Duration
	ask := func(ctx context.Context, _ *Note) error {
		h, o, d, err := l.inner.Acquire(ctx, key, value, life)
		held, other, left = h, o, d
		return err
	}
	lied := false
	told, err := l.life.do(ctx, move{
		step: Acquire, apply: ask, refused: ErrDown, lost: ErrDown, forget: l.forget,
		lie: func() { lied = ask(ctx, nil) == nil },
	})
	switch {
	case lied && held:
		_ = l.inner.Release(ctx, key, value.Token) // it never was granted
		value.Token = stranger
		return false, value, life, nil
	case lied:
		return true, lease.Value{}, 0, nil
	case !told:
		return false, lease.Value{}, 0, err
	}
	return held, other, left, err
}

// Renew is the step prolong.
func (l *Leaser) Renew(ctx context.Context, key, token string, life time.Duration) (bool, error) {
	var held bool
	told, err := l.life.do(ctx, move{
		step: Prolong, refused: ErrDown, lost: ErrDown, forget: l.forget,
		apply: func(ctx context.Context, _ *Note) error {
			h, err := l.inner.Renew(ctx, key, token, life)
			held = h
			return err
		},
	})
	return told && held, err
}

// Release is the step give back.
func (l *Leaser) Release(ctx context.Context, key, token string) error {
	return l.end(ctx, GiveBack, func(ctx context.Context) error { return l.inner.Release(ctx, key, token) })
}

// Complete is the step mark.
func (l *Leaser) Complete(ctx context.Context, key, token string, life time.Duration) error {
	return l.end(ctx, Mark, func(ctx context.Context) error { return l.inner.Complete(ctx, key, token, life) })
}

func (l *Leaser) end(ctx context.Context, step string, end func(context.Context) error) error {
	_, err := l.life.do(ctx, move{
		step: step, refused: ErrDown, lost: ErrDown, forget: l.forget,
		apply: func(ctx context.Context, _ *Note) error { return end(ctx) },
	})
	return err
}
