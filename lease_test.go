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
	"github.com/unavez/unavez/store"
)

// outside is the other system: it remembers every call by key.
type outside struct {
	mu    sync.Mutex
	calls []string
}

func (o *outside) call(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, key)
}

func (o *outside) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.calls)
}

// charges is a run that calls outside once and answers.
func charges(o *outside) func(context.Context, *unavez.Attempt) (unavez.Result, error) {
	return func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
		o.call(a.DerivedKey())
		return answer(1), nil
	}
}

// loses is a run that calls outside and loses the answer.
func loses(o *outside) func(context.Context, *unavez.Attempt) (unavez.Result, error) {
	return func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
		o.call(a.DerivedKey())
		return unavez.Result{}, errLost
	}
}

var errLost = errors.New("connection reset by peer")

// records is a finish that writes one row.
func records(row string) func(context.Context, Tx, *unavez.Result) error {
	return func(_ context.Context, tx Tx, result *unavez.Result) error {
		tx.Put(row, string(result.Body))
		return nil
	}
}

func TestLeasedOperationCallsOnceAndRecordsOnce(t *testing.T) {
	t.Parallel()
	s := newStore()
	workers := []*unavez.Engine[Tx]{newEngine(t, s, nil), newEngine(t, s, &unavez.Options{CacheSize: -1})}
	var gateway outside
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			op := operation("4711")
			op.Wait = time.Minute
			out, err := workers[i%2].Lease(t.Context(), op, charges(&gateway), records("payment"))
			if err != nil || string(out.Result.Body) != `{"run":1}` {
				t.Errorf("caller %d: %+v, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	if gateway.count() != 1 || gateway.calls[0] != operation("4711").Identity().DerivedKey("") {
		t.Errorf("calls %v", gateway.calls)
	}
	wantRow(t, s, "payment", `{"run":1}`)
}

func TestRunningLeaseIsRenewedAndAnswersWithWhatRemains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		here, elsewhere := newEngine(t, s, nil), newEngine(t, s, nil)
		op := operation("4711")
		op.Lease, op.Payload = 2*time.Second, []byte("10 EUR")
		forged := op
		forged.Payload = []byte("99 EUR")
		out, err := here.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			for range 6 { // three leases long
				<-time.After(time.Second)
				for _, worker := range []*unavez.Engine[Tx]{here, elsewhere} {
					_, err := worker.Lease(t.Context(), op, charges(&outside{}), nil)
					if e := wantCode(t, err, unavez.CodeInFlight); e.RetryAfter > 2*time.Second {
						t.Errorf("retry after %v, the lease has 2s", e.RetryAfter)
					}
					_, err = worker.Lease(t.Context(), forged, charges(&outside{}), nil)
					wantCode(t, err, unavez.CodeMismatch)
				}
			}
			return answer(1), ctx.Err()
		}, nil)
		if err != nil || out.Attempt != 1 {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestLostAnswerMakesItUnknownAndThePolicyDecides(t *testing.T) {
	t.Parallel()
	probe := func(verdict unavez.Verdict, err error) unavez.Probe {
		return func(_ context.Context, a *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
			if a.DerivedKey() != operation("4711").Identity().DerivedKey("") || a.Fence() != 1 {
				t.Errorf("probed with %s, attempt %d", a.DerivedKey(), a.Fence())
			}
			return answer(7), verdict, err
		}
	}
	cases := map[string]struct {
		policy  unavez.Unknown
		code    unavez.Code
		calls   int
		payment string
	}{
		"nothing said":          {nil, unavez.CodeUnknown, 1, ""},
		"hold":                  {unavez.Hold, unavez.CodeUnknown, 1, ""},
		"retry":                 {unavez.Retry, "", 2, `{"run":1}`},
		"probe says done":       {probe(unavez.Done, nil), "", 1, `{"run":7}`},
		"probe says not done":   {probe(unavez.NotDone, nil), "", 2, `{"run":1}`},
		"probe cannot tell":     {probe(unavez.CannotTell, nil), unavez.CodeUnknown, 1, ""},
		"probe fails with done": {probe(unavez.Done, errLost), unavez.CodeUnknown, 1, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore()
			engine := newEngine(t, s, nil)
			var gateway outside
			op := operation("4711")
			op.Unknown = c.policy
			_, err := engine.Lease(t.Context(), op, loses(&gateway), records("payment"))
			if wantCode(t, err, unavez.CodeUnknown); !errors.Is(err, errLost) {
				t.Errorf("the cause is gone: %v", err)
			}
			_, err = engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
			if got := unavez.CodeOf(err); got != c.code {
				t.Errorf("next call: %v", err)
			}
			if gateway.count() != c.calls {
				t.Errorf("%d calls, want %d", gateway.count(), c.calls)
			}
			wantRow(t, s, "payment", c.payment)
			if c.code != "" {
				_, err = engine.Do(t.Context(), op, writes("order", &counter{}))
				wantCode(t, err, unavez.CodeUnknown) // nor does the other mode run it
			}
		})
	}
}

func TestKilledHolderBecomesUnknownWhenItsLeaseRunsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Lease, op.Unknown = 2*time.Second, unavez.Retry
		gate := store.Gate{Identity: op.Identity(), Key: op.Identity().Key(), Retention: time.Hour}
		claim := store.Claim{Gate: gate, Lease: op.Lease, DerivedKey: "uv1-of-the-dead"}
		if _, _, err := s.Store.Claim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		var gateway outside
		_, err := engine.Lease(t.Context(), op, charges(&gateway), nil)
		wantCode(t, err, unavez.CodeInFlight)
		<-time.After(2100 * time.Millisecond)
		out, err := engine.Lease(t.Context(), op, charges(&gateway), nil)
		if err != nil || out.Attempt != 2 || gateway.count() != 1 || gateway.calls[0] != "uv1-of-the-dead" {
			t.Errorf("%+v, %v, calls %v", out, err, gateway.calls)
		}
	})
}

func TestPausedHolderIsRefusedAtItsFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var lost counter
		paused := newEngine(t, s, &unavez.Options{Observe: func(o unavez.Observation) { lost.add(o.What) }})
		other := newEngine(t, s, nil)
		op := operation("4711")
		op.Lease, op.Unknown = 2*time.Second, unavez.Retry
		var gateway outside
		down := errors.New("paused")
		_, err := paused.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			s.set(failing("before renew", -1, down))
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), store.ErrLeaseLost) || a.Held() {
				t.Errorf("cancelled by %v, held %v", context.Cause(ctx), a.Held())
			}
			s.set(nil)
			if _, err := other.Lease(ctx, op, charges(&gateway), records("payment")); unavez.CodeOf(err) != unavez.CodeUnavailable {
				t.Errorf("a cancelled caller got %v", err)
			}
			if _, err := other.Lease(t.Context(), op, charges(&gateway), records("payment")); err != nil {
				t.Error(err)
			}
			return answer(99), nil
		}, records("payment"))
		wantCode(t, err, unavez.CodeLeaseLost)
		if lost.get(unavez.SawLeaseLost) != 1 {
			t.Errorf("seen %d times", lost.get(unavez.SawLeaseLost))
		}
		wantRow(t, s, "payment", `{"run":1}`)
		out, err := paused.Lease(t.Context(), op, charges(&gateway), nil)
		if err != nil || !out.Replayed || string(out.Result.Body) != `{"run":1}` {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// The database counts from the claim, the worker from before it asked: an answer
// that was long under way has used the lease up.
func TestLeaseIsCountedFromTheQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Lease = 2 * time.Second
		s.set(func(step string) error {
			switch step {
			case "after claim":
				<-time.After(1500 * time.Millisecond)
			case "before renew":
				return errors.New("not to be reached")
			}
			return nil
		})
		out, err := engine.Lease(t.Context(), op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
			if !a.Held() {
				t.Error("lost after 1.5s of 2s")
			}
			<-time.After(600 * time.Millisecond)
			if a.Held() {
				t.Error("held after 2.1s of 2s")
			}
			return answer(1), nil
		}, nil)
		if err != nil || out.Attempt != 1 { // nobody has overtaken it
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestAnAttemptThatWasEndedMeanwhileLearnsItWithItsLostAnswer(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	op := operation("4711")
	_, err := engine.Lease(t.Context(), op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
		if err := s.Store.Rest(t.Context(), a.Key(), a.Fence(), store.Rest{State: store.Unknown}); err != nil {
			t.Error(err)
		}
		action := store.Action{Key: a.Key(), Actor: "ana", Reason: "seen at the gateway"}
		if err := s.Complete(t.Context(), action, answer(7), time.Hour, time.Hour); err != nil {
			t.Error(err)
		}
		return unavez.Result{}, errLost
	}, nil)
	wantCode(t, err, unavez.CodeLeaseLost)
	if out, err := engine.Lease(t.Context(), op, charges(&outside{}), nil); err != nil || string(out.Result.Body) != `{"run":7}` {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestAStoreThatDoesNotAnswerHoldsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, silent{s}, nil)
		op := operation("4711")
		op.Limit = 2 * time.Second
		begin := time.Now()
		var gateway outside
		_, err := engine.Lease(t.Context(), op, charges(&gateway), nil)
		if wantCode(t, err, unavez.CodeUnavailable); gateway.count() != 0 || time.Since(begin) > 3*time.Second {
			t.Errorf("%d calls, after %v", gateway.count(), time.Since(begin))
		}
	})
}

// silent is a store whose database is stopped: it takes a claim and says nothing.
type silent struct{ *faulty }

func (silent) Claim(ctx context.Context, _ store.Claim) (*store.Attempt, store.Verdict, error) {
	<-ctx.Done()
	return nil, store.Verdict{}, ctx.Err()
}

func TestWhatNeverStartedLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	refused := errors.New("connection refused")
	_, err := engine.Lease(t.Context(), operation("4711"), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
		return unavez.Result{}, unavez.NeverStarted(refused)
	}, nil)
	if !errors.Is(err, refused) {
		t.Fatalf("got %v", err)
	}
	_, err = engine.Look(t.Context(), operation("4711"))
	wantCode(t, err, unavez.CodeNotFound)
	out, err := engine.Lease(t.Context(), operation("4711"), charges(&outside{}), nil)
	if err != nil || out.Attempt != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestANoFromOutsideIsFrozenWithoutFinish(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	for i := range 2 {
		out, err := engine.Lease(t.Context(), operation("4711"), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			return unavez.Result{}, unavez.Refuse(unavez.Result{Code: 402}, nil)
		}, records("payment"))
		if err != nil || out.Result.Code != 402 || out.Replayed != (i == 1) {
			t.Errorf("call %d: %+v, %v", i+1, out, err)
		}
	}
	wantRow(t, s, "payment", "")
}

func TestPanicInTheWorkReachesTheCallerAndLeavesItUnknown(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	func() {
		defer func() {
			if p := recover(); p != errLost {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = engine.Lease(t.Context(), operation("4711"), func(context.Context, *unavez.Attempt) (unavez.Result, error) { panic(errLost) }, nil)
	}()
	_, err := engine.Lease(t.Context(), operation("4711"), charges(&outside{}), nil)
	wantCode(t, err, unavez.CodeUnknown)
}

func TestFinishIsTriedAgainWithoutCallingAgain(t *testing.T) {
	t.Parallel()
	lost := errors.Join(store.ErrCommitUnknown, errLost)
	faults := map[string]func(string) error{
		"store down at the finish":     failing("before finish", 2, store.ErrUnavailable),
		"commit lost and not done":     failing("before commit", 1, lost),
		"commit lost and done":         failing("after commit", 1, lost),
		"database gave it up":          failing("before commit", 1, store.ErrAborted),
		"over the limit of the commit": failing("before commit", 1, store.ErrLimit),
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				engine := newEngine(t, s, nil)
				s.set(fault)
				var gateway outside
				out, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), records("payment"))
				if err != nil || out.Replayed || gateway.count() != 1 {
					t.Errorf("%+v, %v, %d calls", out, err, gateway.count())
				}
				wantRow(t, s, "payment", `{"run":1}`)
			})
		})
	}
}

func TestFinishWhoseStatementTheStoreTookBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		var gateway outside
		tries := 0
		_, err := engine.Lease(t.Context(), operation("4711"), charges(&gateway), func(_ context.Context, tx Tx, result *unavez.Result) error {
			if tries++; tries < 3 {
				return store.ErrUnavailable
			}
			tx.Put("payment", string(result.Body))
			return nil
		})
		if err != nil || gateway.count() != 1 || tries != 3 {
			t.Errorf("%v, %d calls, %d tries", err, gateway.count(), tries)
		}
		wantRow(t, s, "payment", `{"run":1}`)
	})
}

func TestWhatCannotBeRecordedIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		var gateway outside
		s.set(failing("before finish", -1, store.ErrUnavailable))
		_, err := engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
		wantCode(t, err, unavez.CodeUnknown)
		s.set(nil)
		_, err = engine.Lease(t.Context(), op, charges(&gateway), records("payment"))
		if wantCode(t, err, unavez.CodeUnknown); gateway.count() != 1 {
			t.Errorf("%d calls", gateway.count())
		}
	})
}

func TestFinishedStepsAreSkippedAndTheInterruptedOneIsProbed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		verdict  unavez.Verdict
		noProbe  bool
		code     unavez.Code
		captures int
		result   string
	}{
		"done":                     {verdict: unavez.Done, captures: 1, result: "authorized/probed"},
		"not done":                 {verdict: unavez.NotDone, captures: 2, result: "authorized/captured"},
		"cannot tell":              {verdict: unavez.CannotTell, code: unavez.CodeUnknown, captures: 1},
		"receiver honours the key": {noProbe: true, captures: 2, result: "authorized/captured"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore()
			engine := newEngine(t, s, nil)
			var authorize, capture outside
			lost := true
			op := operation("4711")
			op.Unknown = unavez.Steps
			run := func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
				id, err := unavez.Step(ctx, a, "authorize", func(_ context.Context, key string) (string, error) {
					authorize.call(key)
					return "authorized", nil
				}, nil)
				if err != nil {
					return unavez.Result{}, err
				}
				probe := func(_ context.Context, key string) (string, unavez.Verdict, error) { return "probed", c.verdict, nil }
				if c.noProbe {
					probe = nil
				}
				receipt, err := unavez.Step(ctx, a, "capture", func(_ context.Context, key string) (string, error) {
					capture.call(key)
					if lost {
						return "", errLost
					}
					return "captured", nil
				}, probe)
				if err != nil {
					return unavez.Result{}, err
				}
				return unavez.Result{Body: []byte(id + "/" + receipt)}, nil
			}
			_, err := engine.Lease(t.Context(), op, run, nil)
			wantCode(t, err, unavez.CodeUnknown)
			lost = false
			out, err := engine.Lease(t.Context(), op, run, nil)
			if unavez.CodeOf(err) != c.code || string(out.Result.Body) != c.result {
				t.Errorf("%s, %v", out.Result.Body, err)
			}
			if authorize.count() != 1 || capture.count() != c.captures {
				t.Errorf("authorized %d times, captured %d times", authorize.count(), capture.count())
			}
			for _, key := range capture.calls {
				if key != op.Identity().DerivedKey("capture") {
					t.Errorf("captured with key %s", key)
				}
			}
		})
	}
}

func TestAStepWhoseResultCannotBeStoredEnds(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]error{"for good": errors.New("string or blob too big"), "for long": store.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				engine := newEngine(t, s, nil)
				s.set(failing("before save step", -1, broken))
				begin := time.Now()
				var gateway outside
				_, err := engine.Lease(t.Context(), operation("4711"), func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
					_, err := unavez.Step(ctx, a, "charge", func(_ context.Context, key string) (int, error) {
						gateway.call(key)
						return 1, nil
					}, nil)
					return answer(1), err
				}, nil)
				if wantCode(t, err, unavez.CodeUnknown); !errors.Is(err, broken) || gateway.count() != 1 || time.Since(begin) > 15*time.Second {
					t.Errorf("%v, %d calls, after %v", err, gateway.count(), time.Since(begin))
				}
			})
		})
	}
}

func TestAStepThatNeverStartedKeepsTheFinishedOnes(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	var charge outside
	refuse := true
	run := func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		if _, err := unavez.Step(ctx, a, "charge", func(_ context.Context, key string) (int, error) {
			charge.call(key)
			return 1, nil
		}, nil); err != nil {
			return unavez.Result{}, err
		}
		if refuse {
			return unavez.Result{}, unavez.NeverStarted(errors.New("mail server refused the connection"))
		}
		return answer(1), nil
	}
	if _, err := engine.Lease(t.Context(), operation("4711"), run, nil); err == nil {
		t.Fatal("no error")
	}
	refuse = false
	if out, err := engine.Lease(t.Context(), operation("4711"), run, nil); err != nil || out.Attempt != 2 || charge.count() != 1 {
		t.Errorf("%+v, %v, %d charges", out, err, charge.count())
	}
}

func TestAStepIsNotCalledWithoutALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		engine := newEngine(t, s, nil)
		op := operation("4711")
		op.Lease = time.Second
		s.set(failing("before renew", -1, errLost))
		var gateway outside
		_, err := engine.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			<-time.After(2 * time.Second) // deaf to its context
			_, err := unavez.Step(ctx, a, "charge", func(_ context.Context, key string) (int, error) {
				gateway.call(key)
				return 1, nil
			}, nil)
			return answer(1), err
		}, nil)
		if wantCode(t, err, unavez.CodeLeaseLost); gateway.count() != 0 {
			t.Errorf("%d calls", gateway.count())
		}
	})
}

func TestAnotherPayloadIsTheDatabasesWordAlone(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, &unavez.Options{Leaser: &liar{fingerprint: []byte("somebody else's")}})
	op := operation("4711")
	op.Payload = []byte("10 EUR")
	var gateway outside
	if _, err := engine.Lease(t.Context(), op, charges(&gateway), nil); err != nil || gateway.count() != 1 {
		t.Errorf("%v, %d calls", err, gateway.count())
	}
}

// liar is a fast lease whose answers are made up.
type liar struct {
	held        bool
	err         error
	fingerprint []byte // of the holder it makes up; nil means the caller's own
	n           counter
}

func (l *liar) Acquire(_ context.Context, key string, v lease.Value, _ time.Duration) (bool, lease.Value, time.Duration, error) {
	l.n.add("acquire")
	if l.fingerprint != nil {
		v.Fingerprint = l.fingerprint
	}
	return l.held, lease.Value{Token: "somebody", Version: v.Version, Fingerprint: v.Fingerprint}, time.Hour, l.err
}

func (l *liar) Renew(context.Context, string, string, time.Duration) (bool, error) {
	return l.held, l.err
}

func (l *liar) Release(context.Context, string, string) error { return l.err }

func TestFastLeaseMayLieAndOnlyTimeChanges(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*liar{"grants all": {held: true}, "fails": {err: errLost}, "denies all": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				opts := unavez.Options{Leaser: l, CacheSize: -1}
				workers := []*unavez.Engine[Tx]{newEngine(t, s, &opts), newEngine(t, s, &opts)}
				var gateway outside
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						for until := time.Now().Add(2 * time.Minute); ; <-time.After(time.Second) {
							out, err := workers[i%2].Lease(t.Context(), operation("4711"), charges(&gateway), records("payment"))
							if err == nil {
								if string(out.Result.Body) != `{"run":1}` {
									t.Errorf("caller %d got %s", i, out.Result.Body)
								}
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
				if gateway.count() != 1 {
					t.Errorf("%d calls, want 1", gateway.count())
				}
				if l.n.get("acquire") == 0 {
					t.Error("the lease was never asked")
				}
			})
		})
	}
}
