package unavez_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

func TestRacingCallersMakeOneEffectAndGetOneAnswer(t *testing.T) {
	t.Parallel()
	s := newStore()
	workers := []*unavez.Engine[Tx]{newEngine(t, s, nil), newEngine(t, s, nil)}
	var runs counter
	var first sync.Map
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			op := operation("4711")
			op.Wait = time.Minute
			out, err := workers[i%2].Do(t.Context(), op, writes("order", &runs))
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
			if string(out.Result.Body) != `{"run":1}` {
				t.Errorf("caller %d got %s", i, out.Result.Body)
			}
			if !out.Replayed {
				if other, twice := first.LoadOrStore("first", i); twice {
					t.Errorf("callers %v and %d both made the effect", other, i)
				}
			}
		})
	}
	wg.Wait()
	if runs.get("order") != 1 {
		t.Errorf("%d runs, want 1", runs.get("order"))
	}
	wantRow(t, s, "order", "1")
}

func TestDuplicateGetsTheFirstAnswerFromMemoryAndFromTheLedger(t *testing.T) {
	t.Parallel()
	s := newStore()
	var saw []unavez.Observation
	var mu sync.Mutex
	first := newEngine(t, s, &unavez.Options{Observe: func(o unavez.Observation) {
		mu.Lock()
		defer mu.Unlock()
		saw = append(saw, o)
	}})
	restarted := newEngine(t, s, nil)
	uncached := newEngine(t, s, &unavez.Options{CacheSize: -1})
	var runs counter
	op := operation("4711")
	op.Payload = []byte("2 x A")
	if _, err := first.Do(t.Context(), op, writes("order", &runs)); err != nil {
		t.Fatal(err)
	}
	for i, worker := range []*unavez.Engine[Tx]{first, restarted, uncached, uncached} {
		out, err := worker.Do(t.Context(), op, writes("order", &runs))
		if err != nil || !out.Replayed || string(out.Result.Body) != `{"run":1}` || out.Result.Code != 201 {
			t.Errorf("duplicate %d: %+v, %v", i, out, err)
		}
	}
	if len(saw) != 2 || saw[0].What != unavez.SawCompleted || saw[1].What != unavez.SawReplayed || !saw[1].Cached {
		t.Errorf("observed %+v", saw)
	}
}

func TestAnotherPayloadIsRefusedAlsoWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine, other := newEngine(t, s, nil), newEngine(t, s, nil)
	op, forged := operation("4711"), operation("4711")
	op.Payload, forged.Payload = []byte("10 EUR"), []byte("99 EUR")
	refused := func(worker *unavez.Engine[Tx]) {
		t.Helper()
		_, err := worker.Do(t.Context(), forged, writes("forged", &counter{}))
		wantCode(t, err, unavez.CodeMismatch)
	}
	_, err := engine.Do(t.Context(), op, func(_ context.Context, tx Tx) (unavez.Result, error) {
		refused(engine)
		_, err := other.Do(t.Context(), forged, writes("forged", &counter{}))
		wantCode(t, err, unavez.CodeInFlight) // another worker's transaction has no fingerprint to see
		return answer(1), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	refused(engine)
	refused(other)
	wantRow(t, s, "forged", "")
}

func TestAnOlderFingerprintIsComparedByItsOwnAlgorithm(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	op := operation("4711")
	op.Fingerprint = unavez.Fingerprint{Version: 1, Sum: []byte("old form")}
	if _, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil {
		t.Fatal(err)
	}
	op.Fingerprint = unavez.Fingerprint{Version: 2, Sum: []byte("new form")}
	op.FingerprintAt = func(version int) (unavez.Fingerprint, bool) {
		return unavez.Fingerprint{Version: 1, Sum: []byte("old form")}, version == 1
	}
	if out, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil || !out.Replayed {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestDuplicateInFlightIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore()
	here, elsewhere := newEngine(t, s, nil), newEngine(t, s, nil)
	var runs counter
	_, err := here.Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
		for _, worker := range []*unavez.Engine[Tx]{here, elsewhere} {
			_, err := worker.Do(t.Context(), operation("4711"), writes("order", &runs))
			if e := wantCode(t, err, unavez.CodeInFlight); e.RetryAfter < time.Second || e.RetryAfter > unavez.DefaultLimit {
				t.Errorf("retry after %v", e.RetryAfter)
			}
			_, err = worker.Look(t.Context(), operation("4711"))
			wantCode(t, err, unavez.CodeInFlight)
		}
		return answer(1), nil
	})
	if err != nil || runs.get("order") != 0 {
		t.Errorf("%v, %d runs of duplicates", err, runs.get("order"))
	}
}

func TestWaitingDuplicateGetsTheAnswerHereAndElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		workers := []*unavez.Engine[Tx]{newEngine(t, s, nil), newEngine(t, s, nil)}
		var wg sync.WaitGroup
		started := make(chan struct{})
		wg.Go(func() {
			_, err := workers[0].Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
				close(started)
				<-time.After(3 * time.Second)
				return answer(1), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-started
		for _, worker := range workers {
			for range 5 {
				wg.Go(func() {
					op := operation("4711")
					op.Wait = 5 * time.Second
					begin := time.Now()
					out, err := worker.Do(t.Context(), op, writes("order", &counter{}))
					if err != nil || !out.Replayed {
						t.Errorf("%+v, %v", out, err)
					}
					if took := time.Since(begin); took > 3500*time.Millisecond {
						t.Errorf("answered after %v", took)
					}
				})
				wg.Go(func() {
					op := operation("4711")
					op.Wait = time.Second
					begin := time.Now()
					_, err := worker.Do(t.Context(), op, writes("order", &counter{}))
					if unavez.CodeOf(err) != unavez.CodeInFlight {
						t.Errorf("a short wait ended with %v", err)
					}
					if took := time.Since(begin); took < time.Second || took > 1100*time.Millisecond {
						t.Errorf("waited %v", took)
					}
				})
			}
		}
		wg.Wait()
	})
}

func TestWaiterRunsWhenTheOneInFlightRollsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		here, elsewhere := newEngine(t, s, nil), newEngine(t, s, nil)
		started := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := here.Do(t.Context(), operation("4711"), func(context.Context, Tx) (unavez.Result, error) {
				close(started)
				<-time.After(time.Second)
				return unavez.Result{}, errors.New("out of stock")
			})
			if err == nil || err.Error() != "out of stock" {
				t.Errorf("got %v", err)
			}
		})
		<-started
		var runs counter
		for _, worker := range []*unavez.Engine[Tx]{here, elsewhere} {
			wg.Go(func() {
				op := operation("4711")
				op.Wait = 10 * time.Second
				if _, err := worker.Do(t.Context(), op, writes("order", &runs)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if runs.get("order") != 1 {
			t.Errorf("%d runs, want 1", runs.get("order"))
		}
	})
}

func TestFailedHandlerLeavesNothingAndFreesTheKey(t *testing.T) {
	t.Parallel()
	fail := errors.New("out of stock")
	handlers := map[string]func(context.Context, Tx) (unavez.Result, error){
		"error": func(_ context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "half")
			return unavez.Result{}, fail
		},
		"panic": func(_ context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "half")
			panic(fail)
		},
		"goexit": func(_ context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "half")
			runtime.Goexit()
			return unavez.Result{}, nil
		},
	}
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore()
			engine := newEngine(t, s, nil)
			done := make(chan any)
			go func() {
				defer close(done)
				defer func() {
					if p := recover(); p != nil {
						done <- p
					}
				}()
				if _, err := engine.Do(t.Context(), operation("4711"), handler); err != nil {
					done <- err
				}
			}()
			if got := <-done; name != "goexit" && got != fail {
				t.Errorf("the caller saw %v, want %v", got, fail)
			}
			wantRow(t, s, "order", "")
			var runs counter
			if out, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil || out.Replayed {
				t.Errorf("%+v, %v", out, err)
			}
			wantRow(t, s, "order", "1")
		})
	}
}

func TestARefusalIsFrozenUnlessTheHandlerWrote(t *testing.T) {
	t.Parallel()
	no := errors.New("unknown customer")
	refusal := unavez.Refuse(unavez.Result{Code: 404, Body: []byte("no such customer")}, no)
	t.Run("wrote nothing", func(t *testing.T) {
		t.Parallel()
		engine := newEngine(t, newStore(), nil)
		for i := range 2 {
			out, err := engine.Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
				return unavez.Result{}, refusal
			})
			if err != nil || out.Result.Code != 404 || out.Replayed != (i == 1) {
				t.Errorf("call %d: %+v, %v", i+1, out, err)
			}
		}
	})
	t.Run("wrote", func(t *testing.T) {
		t.Parallel()
		s := newStore()
		engine := newEngine(t, s, nil)
		_, err := engine.Do(t.Context(), operation("4711"), func(_ context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "half")
			return unavez.Result{}, refusal
		})
		if !errors.Is(err, no) {
			t.Errorf("got %v, want the handler's error", err)
		}
		wantRow(t, s, "order", "")
		_, err = engine.Look(t.Context(), operation("4711"))
		wantCode(t, err, unavez.CodeNotFound)
	})
}

func TestHandlerSlowerThanItsLimitIsRolledBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Limit = 2 * time.Second
		_, err := engine.Do(t.Context(), op, func(ctx context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "late")
			<-ctx.Done()
			return answer(1), nil
		})
		wantCode(t, err, unavez.CodeLimit)
		wantRow(t, s, "order", "")
		if out, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil || out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestACancelledCallerEndsItsWorkUnlessItIsDetached(t *testing.T) {
	t.Parallel()
	for _, detached := range []bool{false, true} {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Detached = detached
		ctx, hangUp := context.WithCancel(t.Context())
		_, err := engine.Do(ctx, op, func(ctx context.Context, tx Tx) (unavez.Result, error) {
			tx.Put("order", "1")
			hangUp()
			return answer(1), ctx.Err()
		})
		if detached {
			if err != nil {
				t.Errorf("detached: %v", err)
			}
			wantRow(t, s, "order", "1")
		} else {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("attached: %v", err)
			}
			wantRow(t, s, "order", "")
		}
		var gateway outside
		leased := operation("4712")
		leased.Detached = detached
		ctx, hangUp = context.WithCancel(t.Context())
		_, err = engine.Lease(ctx, leased, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			hangUp()
			gateway.call(a.DerivedKey())
			return answer(1), ctx.Err()
		}, nil)
		if got := unavez.CodeOf(err); detached && err != nil || !detached && got != unavez.CodeUnknown {
			t.Errorf("detached %v: %v", detached, err)
		}
	}
}

func TestLostCommitAnswerIsFoundOut(t *testing.T) {
	t.Parallel()
	lost := errors.Join(store.ErrCommitUnknown, errors.New("connection reset"))
	t.Run("committed", func(t *testing.T) {
		t.Parallel()
		s := newStore()
		s.set(failing("after commit", 1, lost))
		engine := newEngine(t, s, nil)
		var runs counter
		for i := range 2 {
			out, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs))
			if err != nil || out.Replayed != (i == 1) || string(out.Result.Body) != `{"run":1}` {
				t.Errorf("call %d: %+v, %v", i+1, out, err)
			}
		}
		wantRow(t, s, "order", "1")
	})
	t.Run("rolled back", func(t *testing.T) {
		t.Parallel()
		s := newStore()
		s.set(failing("before commit", 1, lost))
		engine := newEngine(t, s, nil)
		var runs counter
		_, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs))
		wantCode(t, err, unavez.CodeAborted)
		wantRow(t, s, "order", "")
		if _, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil {
			t.Error(err)
		}
		wantRow(t, s, "order", "2")
	})
	t.Run("not to be found out", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			down := true
			s.set(func(step string) error {
				switch {
				case step == "after commit":
					return lost
				case step == "before settle" && down:
					return store.ErrUnavailable
				}
				return nil
			})
			engine := newEngine(t, s, nil)
			var runs counter
			_, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs))
			if wantCode(t, err, unavez.CodeUnresolved); !unavez.SafeToRetry(err) {
				t.Error("the caller is not told to ask again")
			}
			down = false
			out, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs))
			if err != nil || !out.Replayed || runs.get("order") != 1 {
				t.Errorf("%+v, %v, %d runs", out, err, runs.get("order"))
			}
		})
	})
}

func TestStoreFailureBeforeTheWorkRunsNothing(t *testing.T) {
	t.Parallel()
	s := newStore()
	s.set(failing("before begin", 1, store.ErrUnavailable))
	engine := newEngine(t, s, nil)
	var runs counter
	_, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs))
	if e := wantCode(t, err, unavez.CodeUnavailable); e.RetryAfter == 0 || runs.get("order") != 0 {
		t.Errorf("%+v, %d runs", e, runs.get("order"))
	}
	if _, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil {
		t.Error(err)
	}
}

func TestAStoreErrorThatTheHandlerReturnsIsTheStores(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]unavez.Code{
		store.ErrUnavailable: unavez.CodeUnavailable, store.ErrLimit: unavez.CodeLimit,
		store.ErrAborted: unavez.CodeAborted, store.ErrForeignCommit: unavez.CodeForeignCommit,
	} {
		engine := newEngine(t, newStore(), nil)
		_, got := engine.Do(t.Context(), operation("4711"), func(context.Context, Tx) (unavez.Result, error) {
			return unavez.Result{}, fmt.Errorf("insert order: %w", err)
		})
		if wantCode(t, got, want); !errors.Is(got, err) {
			t.Errorf("the cause is gone: %v", got)
		}
	}
}

func TestRetentionEndsWithATombstoneAndThenForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Payload, op.Retention, op.Tombstone = []byte("10 EUR"), 10*time.Second, 10*time.Second
		var runs counter
		do := func() (unavez.Outcome, error) { return engine.Do(t.Context(), op, writes("order", &runs)) }
		if _, err := do(); err != nil {
			t.Fatal(err)
		}
		<-time.After(9 * time.Second)
		if out, err := do(); err != nil || !out.Replayed {
			t.Errorf("within the retention: %+v, %v", out, err)
		}
		<-time.After(2 * time.Second)
		_, err := do()
		wantCode(t, err, unavez.CodeExpired)
		forged := op
		forged.Payload = []byte("99 EUR")
		_, err = engine.Do(t.Context(), forged, writes("order", &runs))
		wantCode(t, err, unavez.CodeMismatch)
		<-time.After(10 * time.Second)
		if out, err := do(); err != nil || out.Replayed || runs.get("order") != 2 {
			t.Errorf("after the tombstone: %+v, %v, %d runs", out, err, runs.get("order"))
		}
	})
}

func TestEveryFaultOfAnOperationIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, newStore(), nil)
	_, err := engine.Do(t.Context(), unavez.Operation{Payload: []byte("x"), Fingerprint: unavez.Fingerprint{Sum: make([]byte, 65)}, Retention: time.Nanosecond}, nil)
	e := wantCode(t, err, unavez.CodeInvalid)
	faults := e.Err.(interface{ Unwrap() []error }).Unwrap()
	if len(faults) < 5 {
		t.Errorf("only %d faults: %v", len(faults), e)
	}
}

func TestClosingRefusesNewCallsAndWaitsForRunningOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		started, closed := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(closed)
			<-started
			if err := engine.Close(t.Context()); err != nil {
				t.Error(err)
			}
			wantRow(t, s, "order", "1")
		}()
		_, err := engine.Do(t.Context(), operation("4711"), func(ctx context.Context, tx Tx) (unavez.Result, error) {
			close(started)
			synctest.Wait()
			_, err := engine.Do(ctx, operation("4712"), writes("other", &counter{}))
			wantCode(t, err, unavez.CodeClosed)
			tx.Put("order", "1")
			return answer(1), nil
		})
		if err != nil {
			t.Error(err)
		}
		<-closed
	})
}

func TestTenThousandDuplicatesOfOneSlowOperationCostNoGateAndLittleMemory(t *testing.T) { // alone: it reads the process's memory
	s := newStore()
	engine := newEngine(t, s, nil)
	var gates counter
	s.set(func(step string) error {
		gates.add(step)
		return nil
	})
	const duplicates = 10_000
	var wg sync.WaitGroup
	var memory [2]runtime.MemStats
	_, err := engine.Do(t.Context(), operation("4711"), func(ctx context.Context, tx Tx) (unavez.Result, error) {
		runtime.GC()
		runtime.ReadMemStats(&memory[0])
		arrived := make(chan struct{}, duplicates)
		for range duplicates {
			wg.Go(func() {
				op := operation("4711")
				op.Wait = time.Minute
				arrived <- struct{}{}
				out, err := engine.Do(t.Context(), op, writes("order", &counter{}))
				if err != nil || !out.Replayed {
					t.Errorf("duplicate: %+v, %v", out, err)
				}
			})
		}
		for range duplicates {
			<-arrived
		}
		for i := range 100 { // unrelated ones go on
			if _, err := engine.Do(ctx, operation(fmt.Sprint("other ", i)), writes("other", &counter{})); err != nil {
				t.Error(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&memory[1])
		return answer(1), nil
	})
	if err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n := gates.get("before begin"); n != 101 {
		t.Errorf("%d gates, want 101: duplicates hold no transaction", n)
	}
	held := int64(memory[1].HeapInuse+memory[1].StackInuse) - int64(memory[0].HeapInuse+memory[0].StackInuse)
	if each := held / duplicates; each > 10<<10 {
		t.Errorf("%d bytes for each waiting duplicate", each)
	}
}

// restored is a store that can lose its history.
type restored struct {
	*faulty
	changed func()
}

func (r *restored) OnIncarnation(changed func()) { r.changed = changed }

func TestAnotherIncarnationForgetsWhatTheWorkerRemembers(t *testing.T) {
	t.Parallel()
	r := &restored{faulty: newStore()}
	engine, err := unavez.New(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	var runs counter
	if _, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil {
		t.Fatal(err)
	}
	r.Store = newStore().Store // yesterday's backup: effect and outcome are lost together
	if out, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil || !out.Replayed {
		t.Errorf("before anybody noticed: %+v, %v", out, err)
	}
	r.changed()
	if out, err := engine.Do(t.Context(), operation("4711"), writes("order", &runs)); err != nil || out.Replayed || runs.get("order") != 2 {
		t.Errorf("after: %+v, %v, %d runs", out, err, runs.get("order"))
	}
}

func TestAWorkerBoundsItsWaiters(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, newStore(), &unavez.Options{Waiters: -1})
	_, err := engine.Do(t.Context(), operation("4711"), func(ctx context.Context, tx Tx) (unavez.Result, error) {
		op := operation("4711")
		op.Wait = time.Minute
		_, err := engine.Do(ctx, op, writes("order", &counter{}))
		wantCode(t, err, unavez.CodeInFlight)
		return answer(1), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLostCommitOfManyIsRunAgainOnceWhereDeclared(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		declared    bool
		times, runs int
		want        unavez.Code
	}{
		"declared":            {true, 1, 2, ""},
		"declared, and again": {true, 2, 2, unavez.CodeUnavailable},
		"not declared":        {false, 1, 1, unavez.CodeUnavailable},
	} {
		s := newStore()
		engine := newEngine(t, s, nil)
		s.set(failing("before commit", tc.times, store.ErrLost))
		var runs counter
		op := operation("order")
		op.Rerunnable = tc.declared
		_, err := engine.Do(t.Context(), op, writes("order", &runs))
		if code := unavez.CodeOf(err); code != tc.want || runs.get("order") != tc.runs {
			t.Errorf("%s: code %q (%v) after %d runs, want %q after %d", name, code, err, runs.get("order"), tc.want, tc.runs)
		}
		if tc.want != "" {
			wantRow(t, s, "order", "")
		}
	}
}
