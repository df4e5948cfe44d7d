package unavez_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// fails is a run that calls nothing and fails.
func fails(err error) func(context.Context, *unavez.Attempt) (unavez.Result, error) {
	return func(context.Context, *unavez.Attempt) (unavez.Result, error) { return unavez.Result{}, err }
}

func TestAnAttemptThatSaysAgainIsRetryableAfterThatTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		busy := errors.New("the other side is busy")
		_, err := engine.Lease(t.Context(), operation("4711"), fails(unavez.Again(busy, time.Minute)), nil)
		var e *unavez.Error
		if !errors.As(err, &e) || e.Code != unavez.CodeRetrying || e.RetryAfter != time.Minute || !errors.Is(err, busy) {
			t.Fatalf("the failing call: %v", err)
		}
		verdict, err := s.Look(t.Context(), operation("4711").Identity().Key())
		if err != nil || verdict.State != store.Retryable || verdict.Attempt.DueIn != time.Minute || verdict.Attempt.Reason != busy.Error() {
			t.Fatalf("at rest: %+v, %v", verdict, err)
		}
		var gateway outside
		if _, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), nil); unavez.CodeOf(err) != unavez.CodeRetrying {
			t.Errorf("before it is due: %v", err)
		}
		time.Sleep(time.Minute)
		out, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), nil)
		if err != nil || out.Attempt != 2 || gateway.count() != 1 {
			t.Errorf("when it is due: %+v, %v, %d calls", out, err, gateway.count())
		}
	})
}

func TestAnAttemptThatSaysDeadNeedsAPerson(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	gone := errors.New("no such account")
	_, err := engine.Lease(t.Context(), operation("4711"), fails(unavez.Dead(gone)), nil)
	if unavez.CodeOf(err) != unavez.CodeDead || !errors.Is(err, gone) {
		t.Fatalf("the failing call: %v", err)
	}
	var gateway outside
	if _, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), nil); unavez.CodeOf(err) != unavez.CodeDead || gateway.count() != 0 {
		t.Errorf("the next call: %v, %d calls", err, gateway.count())
	}
	key := operation("4711").Identity().Key()
	if err := s.Redrive(t.Context(), store.Action{Key: key, Actor: "ana", Reason: "account opened"}); err != nil {
		t.Fatal(err)
	}
	if out, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), nil); err != nil || out.Attempt != 2 || gateway.count() != 1 {
		t.Errorf("after the redrive: %+v, %v, %d calls", out, err, gateway.count())
	}
}

func TestADiscardingHandlerEndsTheOperationWithoutItsEffect(t *testing.T) {
	t.Parallel()
	discards := map[string]func(*unavez.Engine[Tx]) (unavez.Outcome, error){
		"Do": func(e *unavez.Engine[Tx]) (unavez.Outcome, error) {
			return e.Do(context.Background(), operation("4711"), func(context.Context, Tx) (unavez.Result, error) {
				return unavez.Result{}, unavez.Discard("stale")
			})
		},
		"Lease": func(e *unavez.Engine[Tx]) (unavez.Outcome, error) {
			return e.Lease(context.Background(), operation("4711"), fails(unavez.Discard("stale")), records("never"))
		},
	}
	for name, call := range discards {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore()
			engine := newEngine(t, s, nil)
			out, err := call(engine)
			if err != nil || out.State != store.Discarded || string(out.Result.Body) != "stale" || out.Replayed {
				t.Fatalf("the discarding call: %+v, %v", out, err)
			}
			if _, err := call(engine); unavez.CodeOf(err) != unavez.CodeDiscarded {
				t.Errorf("a duplicate: %v", err)
			}
		})
	}
}

func TestADiscardAfterAWriteRollsBack(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	no := unavez.Discard("stale")
	_, err := engine.Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
		tx.Put("order", "half")
		return unavez.Result{}, no
	})
	if !errors.Is(err, no) {
		t.Fatalf("got %v", err)
	}
	if verdict, err := s.Look(t.Context(), operation("4711").Identity().Key()); err != nil || verdict.State != store.Free {
		t.Errorf("left behind: %+v, %v", verdict, err)
	}
}
