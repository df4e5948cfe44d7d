package unavez_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// batched runs the operations of the names together: each that may run writes a
// row of its name and ends.
func batched(t *testing.T, engine *unavez.Engine[Tx], names ...string) ([]unavez.Found, error) {
	t.Helper()
	ops := make([]unavez.Operation, len(names))
	for i, name := range names {
		ops[i] = operation(name)
	}
	return engine.Batch(t.Context(), ops, endAll(names))
}

func endAll(names []string) func(context.Context, Tx, []unavez.Found) ([]*unavez.End, error) {
	return func(_ context.Context, tx Tx, found []unavez.Found) ([]*unavez.End, error) {
		ends := make([]*unavez.End, len(found))
		for i, f := range found {
			if f.Outcome == nil && f.Err == nil {
				tx.Put(names[i], "once")
				ends[i] = &unavez.End{State: store.Completed, Result: answer(i)}
			}
		}
		return ends, nil
	}
}

func TestABatchEndsEachOperationOnce(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	found, err := batched(t, engine, "a", "b")
	if err != nil || found[0].Outcome == nil || found[0].Outcome.Replayed || found[1].Outcome == nil {
		t.Fatalf("%+v, %v", found, err)
	}
	found, err = batched(t, newEngine(t, s, nil), "b", "c")
	if err != nil || found[0].Outcome == nil || !found[0].Outcome.Replayed || string(found[0].Outcome.Result.Body) != `{"run":1}` {
		t.Fatalf("one is done: %+v, %v", found, err)
	}
	for _, name := range []string{"a", "b", "c"} {
		wantRow(t, s, name, "once")
	}
	out, err := engine.Do(t.Context(), operation("c"), func(context.Context, Tx) (unavez.Result, error) {
		t.Error("ran again")
		return unavez.Result{}, nil
	})
	if err != nil || !out.Replayed {
		t.Errorf("a duplicate outside of the batch: %+v, %v", out, err)
	}
}

func TestABatchThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	no := errors.New("the third one cannot be done")
	ops := []unavez.Operation{operation("a"), operation("b")}
	_, err := engine.Batch(t.Context(), ops, func(_ context.Context, tx Tx, _ []unavez.Found) ([]*unavez.End, error) {
		tx.Put("a", "half")
		return nil, no
	})
	if !errors.Is(err, no) {
		t.Fatal(err)
	}
	if found, err := batched(t, engine, "a", "b"); err != nil || found[0].Outcome == nil || found[0].Outcome.Replayed {
		t.Fatalf("afterwards: %+v, %v", found, err)
	}
	wantRow(t, s, "a", "once")
}

func TestABatchLeavesOutWhatMayNotRun(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	if _, err := engine.Lease(t.Context(), operation("dead"), fails(unavez.Dead(errors.New("no"))), nil); unavez.CodeOf(err) != unavez.CodeDead {
		t.Fatal(err)
	}
	running, finish := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		_, err := newEngine(t, s, nil).Do(context.Background(), operation("running"), func(context.Context, Tx) (unavez.Result, error) {
			close(running)
			<-finish
			return answer(1), nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-running
	found, err := batched(t, engine, "dead", "running", "free")
	close(finish)
	both.Wait()
	if err != nil || unavez.CodeOf(found[0].Err) != unavez.CodeDead || unavez.CodeOf(found[1].Err) != unavez.CodeInFlight || found[2].Outcome == nil {
		t.Errorf("%+v, %v", found, err)
	}
	other := operation("free")
	other.Payload = []byte("another payload")
	reused, err := engine.Batch(t.Context(), []unavez.Operation{other}, endAll([]string{"free"}))
	if err != nil || unavez.CodeOf(reused[0].Err) != unavez.CodeMismatch {
		t.Errorf("another payload: %+v, %v", reused, err)
	}
}

func TestRacingBatchesAndOperationsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	s := newStore()
	var effects [8]atomic.Int64
	var all sync.WaitGroup
	for worker := range 6 {
		engine := newEngine(t, s, nil)
		all.Go(func() {
			left := map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true}
			for len(left) > 0 {
				var ops []unavez.Operation
				var at []int
				for i := range left {
					ops, at = append(ops, operation(fmt.Sprint("op-", i))), append(at, i)
				}
				var mine []int
				found, err := engine.Batch(t.Context(), ops, func(_ context.Context, _ Tx, found []unavez.Found) ([]*unavez.End, error) {
					ends := make([]*unavez.End, len(found))
					mine = nil
					for n, f := range found {
						if f.Outcome == nil && f.Err == nil && (n+worker)%2 == 0 {
							mine = append(mine, at[n])
							ends[n] = &unavez.End{State: store.Completed, Result: answer(at[n])}
						}
					}
					return ends, nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				for _, i := range mine {
					effects[i].Add(1)
				}
				for n, f := range found {
					if f.Outcome != nil {
						delete(left, at[n])
					}
				}
			}
		})
	}
	all.Wait()
	for i := range effects {
		if n := effects[i].Load(); n != 1 {
			t.Errorf("operation %d took effect %d times", i, n)
		}
	}
}
