package unavez_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// mute is a database that is there and does not answer what is read of it.
type mute struct {
	*memory.Store
	looks, steps bool
}

func (s *mute) Steps(ctx context.Context, key store.Key) ([]store.Step, error) {
	if s.steps {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Steps(ctx, key)
}

func (s *mute) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	if s.looks {
		<-ctx.Done()
		return store.Verdict{}, ctx.Err()
	}
	return s.Store.Look(ctx, key)
}

// Join gives a part whose end is not answered, whatever its caller waits for.
func (s *mute) Join(ctx context.Context, tx Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	part, v, err := s.Store.Join(ctx, tx, gate)
	if part != nil {
		part = muteJoined{part}
	}
	return part, v, err
}

type muteJoined struct{ store.Joined }

func (muteJoined) Finish(ctx context.Context, _ store.End) (*store.Outcome, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A connection of the caller's own may fall silent at the last trip, too.
func TestSilentDatabaseHoldsAJoiningCallerForTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &mute{Store: memory.New(&memory.Options{Now: time.Now})}
		engine := newEngine(t, s, nil)
		tx, err := s.BeginTx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = engine.Join(t.Context(), tx, operation("4711"), func(context.Context) (unavez.Result, error) { return answer(1), nil })
		wantCode(t, err, unavez.CodeUnavailable)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it held its caller for %v, want 10 s", took)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if out, err := engine.Do(t.Context(), operation("4711"), writes("order", &counter{})); err != nil || out.Replayed {
			t.Errorf("afterwards: %+v, %v", out, err)
		}
	})
}

// marked is a fast lease that says of everything that it has completed.
type marked struct{}

func (marked) Acquire(context.Context, string, lease.Value, time.Duration) (bool, lease.Value, time.Duration, error) {
	return false, lease.Value{Completed: true}, time.Minute, nil
}

func (marked) Renew(context.Context, string, string, time.Duration) (bool, error) { return false, nil }
func (marked) Release(context.Context, string, string) error                      { return nil }

func TestSilentDatabaseHoldsACallerForItsLimit(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	for name, leaser := range map[string]lease.Leaser{"steps of an earlier attempt": nil, "outcome behind a mark": marked{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &mute{Store: memory.New(&memory.Options{Now: time.Now})}
				engine := newEngine(t, s, &unavez.Options{Limit: limit, Leaser: leaser})
				op := operation("4711")
				op.Unknown = unavez.Retry
				_, err := engine.Lease(t.Context(), op, loses(&outside{}), nil)
				wantCode(t, err, unavez.CodeUnknown)
				began := time.Now()
				s.steps, s.looks = leaser == nil, leaser != nil
				out, err := engine.Lease(t.Context(), op, charges(&outside{}), nil)
				if leaser == nil {
					wantCode(t, err, unavez.CodeUnknown)
				} else if err != nil || out.Attempt != 2 { // the mark could not be believed
					t.Errorf("%+v, %v", out, err)
				}
				if took := time.Since(began); took != limit {
					t.Errorf("it held its caller for %v, want %v", took, limit)
				}
				s.steps, s.looks = false, false
				if out, err = engine.Lease(t.Context(), op, charges(&outside{}), nil); err != nil {
					t.Errorf("afterwards: %+v, %v", out, err)
				}
			})
		})
	}
}
