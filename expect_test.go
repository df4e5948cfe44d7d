package unavez_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// asked is a store that counts gates and reads.
type asked struct {
	*faulty
	begins, looks int
}

func (a *asked) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	a.begins++
	return a.faulty.Begin(ctx, gate)
}

func (a *asked) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	a.looks++
	if err := a.at("before look"); err != nil {
		return store.Verdict{}, err
	}
	return a.faulty.Look(ctx, key)
}

func TestWhereReplaysComeInARowEachIsOneRead(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	engine := newEngine(t, s, &unavez.Options{CacheSize: -1})
	var runs counter
	do := func(n int, want string) {
		t.Helper()
		out, err := engine.Do(t.Context(), operation(fmt.Sprint(n)), writes(fmt.Sprint(n), &runs))
		if err != nil || string(out.Result.Body) != want || runs.get(fmt.Sprint(n)) != 1 {
			t.Errorf("operation %d: %s, %v, run %d times", n, out.Result.Body, err, runs.get(fmt.Sprint(n)))
		}
	}
	const operations, learning = 100, 8
	for n := range operations {
		do(n, `{"run":1}`)
	}
	if s.looks != 0 {
		t.Errorf("%d reads ahead of gates of new operations", s.looks)
	}
	s.begins = 0
	for n := range operations {
		do(n, `{"run":1}`)
	}
	if s.begins > learning || s.begins+s.looks != operations {
		t.Errorf("%d gates and %d reads for %d replays", s.begins, s.looks, operations)
	}
	s.set(failing("before look", 1, store.ErrUnavailable)) // a read that fails decides nothing
	do(0, `{"run":1}`)
	s.looks = 0
	for n := operations; n < 2*operations; n++ {
		do(n, `{"run":1}`)
	}
	if s.looks > learning {
		t.Errorf("%d reads ahead of gates of new operations", s.looks)
	}
}

func TestAReadAheadOfTheGateComparesThePayload(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	engine := newEngine(t, s, &unavez.Options{CacheSize: -1})
	op := operation("4711")
	op.Payload = []byte("10 EUR")
	var runs counter
	for range 20 {
		if _, err := engine.Do(t.Context(), op, writes("order", &runs)); err != nil {
			t.Fatal(err)
		}
	}
	op.Payload = []byte("99 EUR")
	looks := s.looks
	_, err := engine.Do(t.Context(), op, writes("order", &runs))
	if wantCode(t, err, unavez.CodeMismatch); s.looks != looks+1 || runs.get("order") != 1 {
		t.Errorf("%d reads, run %d times", s.looks-looks, runs.get("order"))
	}
}

func TestABurstOfRepeatsOfWhatIsDoneGetsTheAnswerByOneRead(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(context.Context, *unavez.Engine[Tx], unavez.Operation, *counter) (unavez.Outcome, error){
		"transaction mode": func(ctx context.Context, e *unavez.Engine[Tx], op unavez.Operation, runs *counter) (unavez.Outcome, error) {
			return e.Do(ctx, op, writes("order", runs))
		},
		"lease mode": func(ctx context.Context, e *unavez.Engine[Tx], op unavez.Operation, runs *counter) (unavez.Outcome, error) {
			return e.Lease(ctx, op, func(context.Context, *unavez.Attempt) (unavez.Result, error) { return answer(runs.add("order")), nil }, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var runs, gates counter
				if _, err := run(t.Context(), newEngine(t, s, nil), operation("4711"), &runs); err != nil {
					t.Fatal(err)
				}
				s.set(func(step string) error {
					if step == "before begin" || step == "before claim" {
						gates.add("gate")
						<-time.After(20 * time.Millisecond) // the others come meanwhile
					}
					return nil
				})
				cold := newEngine(t, s, &unavez.Options{CacheSize: -1})
				var burst sync.WaitGroup
				for i := range 32 {
					burst.Go(func() {
						out, err := run(t.Context(), cold, operation("4711"), &runs)
						if err != nil || !out.Replayed || string(out.Result.Body) != `{"run":1}` {
							t.Errorf("repeat %d: %+v, %v", i, out, err)
						}
					})
				}
				burst.Wait()
				if gates.get("gate") != 1 || runs.get("order") != 1 {
					t.Errorf("%d gates, %d runs", gates.get("gate"), runs.get("order"))
				}
				// Of what runs, a duplicate is told at once.
				_, err := cold.Do(t.Context(), operation("4712"), func(context.Context, Tx) (unavez.Result, error) {
					began := time.Now()
					_, err := run(t.Context(), cold, operation("4712"), &runs)
					if wantCode(t, err, unavez.CodeInFlight); time.Since(began) != 0 {
						t.Errorf("told after %v", time.Since(began))
					}
					return answer(1), nil
				})
				if err != nil {
					t.Error(err)
				}
				// And while a gate hangs, soon.
				s.set(func(step string) error {
					if step == "before begin" {
						<-time.After(5 * time.Second)
					}
					return nil
				})
				hanging := make(chan error, 1)
				go func() {
					_, err := cold.Do(t.Context(), operation("4713"), writes("hanging", &runs))
					hanging <- err
				}()
				synctest.Wait()
				began := time.Now()
				_, err = run(t.Context(), cold, operation("4713"), &runs)
				if wantCode(t, err, unavez.CodeInFlight); time.Since(began) > 300*time.Millisecond {
					t.Errorf("told after %v", time.Since(began))
				}
				if err := <-hanging; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Replays that a read has answered count as much as those of gates: a few new
// operations between them do not end the reading.
func TestReadsKeepUpWhatTheyWereBegunFor(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	engine := newEngine(t, s, &unavez.Options{CacheSize: -1})
	do := func(name string) {
		t.Helper()
		if _, err := engine.Do(t.Context(), operation(name), writes(name, &counter{})); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		do("again")
	}
	for n := range 3 {
		do(fmt.Sprint(n))
	}
	s.begins, s.looks = 0, 0
	do("again")
	if s.begins != 0 || s.looks != 1 {
		t.Errorf("a replay took %d gates and %d reads, want one read", s.begins, s.looks)
	}
}

// What is forgotten but for its identity has no outcome: a read ahead of its gate
// would be one in vain.
func TestRepeatsOfWhatIsForgottenAreNotReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &asked{faulty: newStore()}
		engine := newEngine(t, s, nil)
		if _, err := engine.Do(t.Context(), operation("4711"), writes("order", &counter{})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(unavez.DefaultRetention + time.Second)
		for range 50 {
			_, err := engine.Do(t.Context(), operation("4711"), writes("order", &counter{}))
			wantCode(t, err, unavez.CodeExpired)
		}
		if s.looks != 0 {
			t.Errorf("%d reads in vain", s.looks)
		}
	})
}
