package unavez_test

import (
	"context"
	"testing"

	"github.com/unavez/unavez"
)

func TestJoinedOperationCommitsWithTheCaller(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	join := func(commit bool) (unavez.Outcome, error) {
		t.Helper()
		tx, err := s.BeginTx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Put("mine", "1")
		out, err := engine.Join(t.Context(), tx, operation("4711"), func(context.Context) (unavez.Result, error) {
			tx.Put("order", "1")
			return answer(1), nil
		})
		if err != nil || !commit {
			if rollbackErr := tx.Rollback(); rollbackErr != nil {
				t.Error(rollbackErr)
			}
			return out, err
		}
		return out, tx.Commit()
	}
	if out, err := join(false); err != nil || out.Replayed {
		t.Fatalf("%+v, %v", out, err)
	}
	wantRow(t, s, "order", "")
	_, err := engine.Look(t.Context(), operation("4711"))
	wantCode(t, err, unavez.CodeNotFound)

	if out, err := join(true); err != nil || out.Replayed {
		t.Fatalf("%+v, %v", out, err)
	}
	wantRow(t, s, "order", "1")
	if out, err := engine.Look(t.Context(), operation("4711")); err != nil || !out.Replayed || string(out.Result.Body) != `{"run":1}` {
		t.Errorf("look: %+v, %v", out, err)
	}
	if out, err := join(true); err != nil || !out.Replayed {
		t.Errorf("duplicate: %+v, %v", out, err)
	}
}

func TestJoinNeverWaitsWithAnOpenTransaction(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	_, err := engine.Do(t.Context(), operation("4711"), func(ctx context.Context, _ Tx) (unavez.Result, error) {
		tx, err := s.BeginTx(ctx)
		if err != nil {
			return unavez.Result{}, err
		}
		op := operation("4711")
		op.Wait = unavez.MaxWait
		_, err = engine.Join(ctx, tx, op, func(context.Context) (unavez.Result, error) { return answer(2), nil })
		wantCode(t, err, unavez.CodeInFlight)
		return answer(1), tx.Rollback()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestHandlerThatEndsTheTransactionCommitsNothing(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	_, err := engine.Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
		tx.Put("order", "1")
		return answer(1), tx.Commit()
	})
	if err == nil {
		t.Fatal("no error")
	}
	wantRow(t, s, "order", "")
}
