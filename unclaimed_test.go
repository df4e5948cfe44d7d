package unavez_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/memory"
	"github.com/unavez/unavez/store"
)

// repeatable is an operation whose claim may be the fast lease alone.
func repeatable(name string) unavez.Operation {
	op := operation(name)
	op.Unknown, op.ClaimByLease, op.Lease = unavez.Retry, true, 3*time.Second
	return op
}

// fast is a fast lease that works, with the clock of the bubble.
func fast(t *testing.T) *memory.Leaser {
	t.Helper()
	l, err := memory.New(&memory.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// eager is a worker without a cache, over a fast lease that may be nil.
func eager(t *testing.T, s *faulty, l lease.Leaser, saw *counter) *unavez.Engine[Tx] {
	t.Helper()
	opts := &unavez.Options{Leaser: l, CacheSize: -1}
	if saw != nil {
		opts.Observe = func(o unavez.Observation) { saw.add(o.What) }
	}
	return newEngine(t, s, opts)
}

// steps counts the store's steps.
func (c *counter) hook(next func(string) error) func(string) error {
	return func(step string) error {
		c.add(step)
		if next != nil {
			return next(step)
		}
		return nil
	}
}

// sameKey fails unless all calls carried the operation's derived key.
func sameKey(t *testing.T, o *outside, op unavez.Operation) {
	t.Helper()
	for _, key := range o.calls {
		if key != op.Identity().DerivedKey("") {
			t.Errorf("called with key %s", key)
		}
	}
}

func TestTheFastLeaseTakesTheClaimsPlaceForWhatIsRepeatable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := newStore(), fast(t)
		var asked, saw counter
		s.set(asked.hook(nil))
		here, elsewhere := eager(t, s, l, &saw), eager(t, s, l, nil)
		var gateway outside
		out, err := here.Lease(t.Context(), repeatable("4711"), func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			gateway.call(a.DerivedKey())
			if a.Fence() != 1 || !a.Held() || a.Key() != repeatable("4711").Identity().Key() {
				t.Errorf("attempt %d, held %v", a.Fence(), a.Held())
			}
			for _, worker := range []*unavez.Engine[Tx]{here, elsewhere} {
				_, err := worker.Lease(t.Context(), repeatable("4711"), charges(&gateway), records("payment"))
				wantCode(t, err, unavez.CodeInFlight)
			}
			return answer(1), nil
		}, records("payment"))
		if err != nil || out.Attempt != 1 || out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
		if asked.get("before claim") != 0 || saw.get(unavez.SawLeased) != 1 || saw.get(unavez.SawClaimed) != 0 {
			t.Errorf("%d claims, saw %v", asked.get("before claim"), saw.n)
		}
		for _, worker := range []*unavez.Engine[Tx]{here, elsewhere} {
			again, err := worker.Lease(t.Context(), repeatable("4711"), charges(&gateway), records("payment"))
			if err != nil || !again.Replayed || string(again.Result.Body) != `{"run":1}` {
				t.Errorf("%+v, %v", again, err)
			}
		}
		<-time.After(2 * time.Minute) // the mark is gone
		if again, err := elsewhere.Lease(t.Context(), repeatable("4711"), charges(&gateway), records("payment")); err != nil || !again.Replayed {
			t.Errorf("%+v, %v", again, err)
		}
		if gateway.count() != 1 || asked.get("before claim") != 0 {
			t.Errorf("%d calls, %d claims", gateway.count(), asked.get("before claim"))
		}
		sameKey(t, &gateway, repeatable("4711"))
		wantRow(t, s, "payment", `{"run":1}`)
	})
}

func TestOnlyTheRepeatableIsClaimedByTheLease(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := eager(t, s, fast(t), nil)
	for _, policy := range []unavez.Unknown{nil, unavez.Hold, unavez.Steps, unavez.Probe(nil)} {
		op := repeatable("4711")
		op.Unknown = policy
		_, err := engine.Lease(t.Context(), op, charges(&outside{}), nil)
		wantCode(t, err, unavez.CodeInvalid)
	}
}

func TestAKilledHolderOfTheLeaseAloneLeavesNothingAndTheNextRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := newStore(), fast(t)
		engine, op := eager(t, s, l, nil), repeatable("4711")
		// What a worker that was killed in its work leaves behind.
		if held, _, _, err := l.Acquire(t.Context(), op.Identity().Key().String(), lease.Value{Token: "dead"}, op.Lease); !held || err != nil {
			t.Fatal(held, err)
		}
		var gateway outside
		_, err := engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
		if e := wantCode(t, err, unavez.CodeInFlight); e.RetryAfter > op.Lease {
			t.Errorf("retry after %v", e.RetryAfter)
		}
		<-time.After(op.Lease)
		out, err := engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
		if err != nil || out.Replayed || gateway.count() != 1 {
			t.Errorf("%+v, %v, %d calls", out, err, gateway.count())
		}
		sameKey(t, &gateway, op)
	})
}

func TestWhatTakesLongIsClaimedAfterAThirdOfItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := newStore(), fast(t)
		var saw counter
		here, elsewhere, bare := eager(t, s, l, &saw), eager(t, s, l, nil), eager(t, s, nil, nil)
		op := repeatable("4711")
		var gateway outside
		out, err := here.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			gateway.call(a.DerivedKey())
			for second := range 9 { // three leases long
				<-time.After(time.Second)
				<-time.After(time.Millisecond)
				_, err := elsewhere.Lease(t.Context(), op, charges(&gateway), records("payment"))
				wantCode(t, err, unavez.CodeInFlight)
				_, err = bare.Lease(t.Context(), op, charges(&gateway), records("payment"))
				wantCode(t, err, unavez.CodeInFlight) // from the first second on there is a claim
				if a.Fence() != 1 || !a.Held() {
					t.Errorf("after %d s: attempt %d, held %v", second+1, a.Fence(), a.Held())
				}
			}
			return answer(1), ctx.Err()
		}, records("payment"))
		if err != nil || out.Attempt != 1 || gateway.count() != 1 || saw.get(unavez.SawClaimed) != 1 {
			t.Errorf("%+v, %v, %d calls, saw %v", out, err, gateway.count(), saw.n)
		}
		wantRow(t, s, "payment", `{"run":1}`)
	})
}

func TestAPausedHolderOfTheLeaseAloneAnswersWithTheOthersOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := newStore(), fast(t)
		var saw counter
		paused, other := eager(t, s, l, &saw), eager(t, s, l, nil)
		op := repeatable("4711")
		var gateway outside
		out, err := paused.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			s.set(failing("before claim", -1, store.ErrUnavailable)) // nothing of this worker gets through
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), store.ErrLeaseLost) || a.Held() {
				t.Errorf("cancelled by %v, held %v", context.Cause(ctx), a.Held())
			}
			s.set(nil)
			if _, err := other.Lease(t.Context(), op, charges(&gateway), records("payment")); err != nil {
				t.Error(err)
			}
			gateway.call(a.DerivedKey()) // sent late: nobody can recall it
			return answer(99), nil
		}, records("payment"))
		if err != nil || !out.Replayed || string(out.Result.Body) != `{"run":1}` {
			t.Errorf("%+v, %v", out, err)
		}
		if saw.get(unavez.SawLeaseLost) != 1 || saw.get(unavez.SawCompleted) != 0 {
			t.Errorf("saw %v", saw.n)
		}
		sameKey(t, &gateway, op)
		wantRow(t, s, "payment", `{"run":1}`)
	})
}

func TestWithAFastLeaseThatLiesThereIsOneOutcomeAndOneAnswer(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*liar{"grants all": {held: true}, "fails": {err: errLost}, "denies all": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var saw counter
				var workers []*unavez.Engine[Tx]
				for range 8 {
					workers = append(workers, eager(t, s, l, &saw))
				}
				var gateway outside
				var wg sync.WaitGroup
				var mu sync.Mutex
				answers, finishes := map[string]int{}, 0
				for i := range 24 {
					wg.Go(func() {
						for until := time.Now().Add(2 * time.Minute); ; <-time.After(time.Second) {
							out, err := workers[i%8].Lease(t.Context(), repeatable("4711"), func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
								gateway.call(a.DerivedKey())
								<-time.After(100 * time.Millisecond) // all are in it
								return answer(i), nil
							}, func(_ context.Context, tx Tx, result *unavez.Result) error {
								mu.Lock()
								finishes++
								mu.Unlock()
								return tx.Put("payment", string(result.Body))
							})
							if err == nil {
								mu.Lock()
								answers[string(out.Result.Body)]++
								mu.Unlock()
								return
							}
							if unavez.CodeOf(err) != unavez.CodeInFlight || time.Now().After(until) {
								t.Errorf("caller %d: %v", i, err)
								return
							}
						}
					})
				}
				wg.Wait()
				if len(answers) != 1 || finishes != 1 || saw.get(unavez.SawCompleted) != 1 {
					t.Errorf("answers %v, %d finishes, saw %v", answers, finishes, saw.n)
				}
				calls := 1
				if l.held {
					calls = 8 // one a worker: each was told that it alone has the lease
				}
				if gateway.count() != calls || saw.get(unavez.SawLeaseLost) != calls-1 {
					t.Errorf("%d calls, want %d; %d saw their lease lost", gateway.count(), calls, saw.get(unavez.SawLeaseLost))
				}
				sameKey(t, &gateway, repeatable("4711"))
				for body := range answers {
					wantRow(t, s, "payment", body)
				}
			})
		})
	}
}

func TestOneByTheLeaseAndOneByAClaimGetTheFirstOutcome(t *testing.T) {
	t.Parallel()
	for name, claimFirst := range map[string]bool{"the claim finishes first": true, "the lease finishes first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var saw counter
				leased, claimed := eager(t, s, fast(t), &saw), eager(t, s, nil, &saw)
				op := repeatable("4711")
				op.Lease = time.Minute
				turn := map[bool]chan struct{}{true: make(chan struct{}), false: make(chan struct{})}
				var gateway outside
				runs := func(claim bool) func(context.Context, *unavez.Attempt) (unavez.Result, error) {
					return func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
						gateway.call(a.DerivedKey())
						<-turn[claim]
						if claim {
							return answer(1), nil
						}
						return answer(2), nil
					}
				}
				results := map[bool]chan unavez.Outcome{true: make(chan unavez.Outcome, 1), false: make(chan unavez.Outcome, 1)}
				begin := func(claim bool, worker *unavez.Engine[Tx]) {
					go func() {
						out, err := worker.Lease(t.Context(), op, runs(claim), records("payment"))
						if err != nil {
							t.Error(err)
						}
						results[claim] <- out
					}()
					synctest.Wait()
				}
				begin(false, leased) // looks, and finds nothing
				begin(true, claimed)
				close(turn[claimFirst])
				first := <-results[claimFirst]
				close(turn[!claimFirst])
				second := <-results[!claimFirst]
				if first.Replayed || !second.Replayed || string(first.Result.Body) != string(second.Result.Body) || gateway.count() != 2 {
					t.Errorf("%+v and %+v, %d calls", first, second, gateway.count())
				}
				if saw.get(unavez.SawLeaseLost) != 1 || saw.get(unavez.SawCompleted) != 1 {
					t.Errorf("saw %v", saw.n)
				}
				sameKey(t, &gateway, op)
				wantRow(t, s, "payment", string(first.Result.Body))
			})
		})
	}
}

func TestAClaimThatIsThereIsHonoured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		leased, claimed := eager(t, s, fast(t), nil), eager(t, s, nil, nil)
		op := repeatable("4711")
		var gateway outside
		_, err := claimed.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			_, err := leased.Lease(ctx, op, charges(&gateway), records("payment"))
			wantCode(t, err, unavez.CodeInFlight)
			gateway.call(a.DerivedKey())
			return unavez.Result{}, errLost
		}, nil)
		wantCode(t, err, unavez.CodeUnknown)
		out, err := leased.Lease(t.Context(), op, charges(&gateway), records("payment"))
		if err != nil || out.Attempt != 2 || gateway.count() != 2 {
			t.Errorf("%+v, %v, %d calls", out, err, gateway.count())
		}
	})
}

func TestWorkByTheLeaseAloneThatDoesNotTellIsLeftUnknown(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*outside) func(context.Context, *unavez.Attempt) (unavez.Result, error){
		"an error": loses,
		"a panic": func(o *outside) func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
				o.call(a.DerivedKey())
				panic(errLost)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				engine, op := eager(t, s, fast(t), nil), repeatable("4711")
				var gateway outside
				func() {
					defer func() { _ = recover() }() // the panic is not the engine's
					_, err := engine.Lease(t.Context(), op, run(&gateway), records("payment"))
					wantCode(t, err, unavez.CodeUnknown)
				}()
				_, err := engine.Look(t.Context(), op)
				wantCode(t, err, unavez.CodeUnknown)
				out, err := engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
				if err != nil || out.Attempt != 2 || gateway.count() != 2 {
					t.Errorf("%+v, %v, %d calls", out, err, gateway.count())
				}
				sameKey(t, &gateway, op)
			})
		})
	}
}

func TestWhatNeverStartedByTheLeaseAloneLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStore()
	var asked counter
	s.set(asked.hook(nil))
	engine := eager(t, s, fast(t), nil)
	down := errors.New("connection refused")
	for range 2 {
		_, err := engine.Lease(t.Context(), repeatable("4711"), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return unavez.Result{}, unavez.NeverStarted(down)
		}, nil)
		if !errors.Is(err, down) {
			t.Errorf("got %v", err)
		}
	}
	if asked.get("before claim") != 0 || asked.get("before rest") != 0 {
		t.Errorf("asked %v", asked.n)
	}
}

func TestANoFromOutsideByTheLeaseAloneIsFrozen(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := eager(t, s, fast(t), nil)
	for i := range 2 {
		out, err := engine.Lease(t.Context(), repeatable("4711"), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 402}, nil)
		}, records("payment"))
		if err != nil || out.Result.Code != 402 || out.Replayed != (i == 1) {
			t.Errorf("call %d: %+v, %v", i+1, out, err)
		}
	}
	wantRow(t, s, "payment", "")
}

func TestAFinishedStepIsRememberedByAClaim(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine, op := eager(t, s, fast(t), nil), repeatable("4711")
	var authorize, capture outside
	lost := true
	run := func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		if _, err := unavez.Step(ctx, a, "authorize", func(_ context.Context, key string) (int, error) {
			authorize.call(key)
			return 1, nil
		}, nil); err != nil {
			return unavez.Result{}, err
		}
		_, err := unavez.Step(ctx, a, "capture", func(_ context.Context, key string) (int, error) {
			capture.call(key)
			if lost {
				return 0, errLost
			}
			return 1, nil
		}, nil)
		return answer(1), err
	}
	_, err := engine.Lease(t.Context(), op, run, nil)
	wantCode(t, err, unavez.CodeUnknown)
	lost = false
	out, err := engine.Lease(t.Context(), op, run, nil)
	if err != nil || out.Attempt != 2 || authorize.count() != 1 || capture.count() != 2 {
		t.Errorf("%+v, %v, %d and %d calls", out, err, authorize.count(), capture.count())
	}
}

func TestFinishWithoutAClaimIsTriedAgainWithoutCallingAgain(t *testing.T) {
	t.Parallel()
	lost := errors.Join(store.ErrCommitUnknown, errLost)
	for name, fault := range map[string]func(string) error{
		"store down at the finish":     failing("before finish", 2, store.ErrUnavailable),
		"commit lost and not done":     failing("before commit", 1, lost),
		"commit lost and done":         failing("after commit", 1, lost),
		"database gave it up":          failing("before commit", 1, store.ErrAborted),
		"over the limit of the commit": failing("before commit", 1, store.ErrLimit),
		"a claim moved under it":       failing("before commit", 1, store.ErrLeaseLost),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var saw counter
				engine := eager(t, s, fast(t), &saw)
				s.set(fault)
				var gateway outside
				out, err := engine.Lease(t.Context(), repeatable("4711"), charges(&gateway), records("payment"))
				if err != nil || out.Replayed || gateway.count() != 1 || saw.get(unavez.SawLeaseLost) != 0 {
					t.Errorf("%+v, %v, %d calls, saw %v", out, err, gateway.count(), saw.n)
				}
				wantRow(t, s, "payment", `{"run":1}`)
			})
		})
	}
}

func TestTheStoreDownThroughoutLeavesWhatIsRepeatableToTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine, op := eager(t, s, fast(t), nil), repeatable("4711")
		var gateway outside
		down := func(step string) error { return store.ErrUnavailable }
		_, err := engine.Lease(t.Context(), op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
			gateway.call(a.DerivedKey())
			s.set(down)
			return answer(1), nil
		}, records("payment"))
		wantCode(t, err, unavez.CodeUnknown)
		s.set(nil)
		out, err := engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
		if err != nil || out.Attempt != 1 || gateway.count() != 2 {
			t.Errorf("%+v, %v, %d calls", out, err, gateway.count())
		}
		sameKey(t, &gateway, op)
		wantRow(t, s, "payment", `{"run":1}`)
	})
}

func TestAFinishWithoutAClaimIsRefusedAfterTheRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, l := newStore(), fast(t)
		var saw counter
		paused, other := eager(t, s, l, &saw), eager(t, s, l, nil)
		op := repeatable("4711")
		op.Retention, op.Tombstone = time.Minute, -1
		var gateway outside
		_, err := paused.Lease(t.Context(), op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			s.set(failing("before claim", -1, store.ErrUnavailable))
			<-time.After(10 * time.Second)
			if _, err := other.Lease(t.Context(), op, charges(&gateway), records("payment")); err != nil {
				t.Error(err)
			}
			<-time.After(op.Retention) // the other's outcome is forgotten
			return answer(99), nil
		}, records("payment"))
		wantCode(t, err, unavez.CodeLeaseLost)
		if saw.get(unavez.SawLeaseLost) != 1 {
			t.Errorf("saw %v", saw.n)
		}
		wantRow(t, s, "payment", `{"run":1}`)
	})
}
