package fault_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// script is a director that has one fault for one step, and keeps what is on the
// wire until it is asked for.
type script struct {
	step string
	kind fault.Kind

	wire   chan struct{} // closed to let arrive what is on it
	landed chan fault.Note

	mu    sync.Mutex
	notes []fault.Note
}

func newScript(step string, kind fault.Kind) *script {
	return &script{step: step, kind: kind, wire: make(chan struct{}), landed: make(chan fault.Note, 8)}
}

func (s *script) Sent(fault.Point) {}

func (s *script) Arrive(_ context.Context, at fault.Point) fault.Kind {
	if at.Wire {
		<-s.wire
		return fault.None
	}
	if at.Step == s.step && at.Nth == 1 {
		return s.kind
	}
	return fault.None
}

func (s *script) Depart(n fault.Note) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, n)
	if n.Wire {
		s.landed <- n
	}
}

func gate() store.Gate {
	id := store.Identity{Tenant: "acme", Effect: "order.create.v1", Parts: []string{"4711"}}
	return store.Gate{Identity: id, Key: id.Key(), Limit: time.Minute, Retention: time.Hour}
}

// Each fault of a commit: what the worker is told, what the store has meanwhile,
// and what it has in the end.
func TestFaultOfACommitIsWhatItsNameSays(t *testing.T) {
	t.Parallel()
	for kind, want := range map[fault.Kind]struct {
		told       error // nil with an outcome; errDead when the worker is
		first, end store.State
	}{
		fault.None: {nil, store.Completed, store.Completed},
		fault.Fail: {store.ErrAborted, store.Free, store.Free},
		fault.Lose: {store.ErrCommitUnknown, store.Completed, store.Completed},
		fault.Cut:  {store.ErrCommitUnknown, store.Processing, store.Free},
		fault.Late: {store.ErrCommitUnknown, store.Processing, store.Completed},
		fault.Kill: {errDead, store.Processing, store.Free},
		fault.Die:  {errDead, store.Completed, store.Completed},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			m := memory.New(nil)
			d := newScript(fault.Commit, kind)
			life := fault.NewLife("one", d)
			told := errDead
			inLife(func() {
				w := fault.NewStore[tx](life, m)
				txn, _, err := w.Begin(t.Context(), gate())
				if err != nil {
					t.Error(err)
				}
				defer func() {
					if err := txn.Rollback(t.Context()); err != nil { // as the engine does
						t.Error(err)
					}
				}()
				out, err := txn.Commit(t.Context(), store.End{State: store.Completed})
				if (out == nil) == (err == nil) {
					t.Errorf("outcome %v, error %v", out, err)
				}
				told = err
			})
			if !errors.Is(told, want.told) {
				t.Errorf("told %v, want %v", told, want.told)
			}
			state := func(when string, want store.State) {
				if v, err := m.Settle(t.Context(), gate().Key); err != nil || v.State != want {
					t.Errorf("%s %v, %v; want %v", when, v.State, err, want)
				}
			}
			state("at first", want.first)
			close(d.wire)
			if want.first != want.end {
				<-d.landed
			}
			state("in the end", want.end)
			if life.Dead() != errors.Is(want.told, errDead) {
				t.Errorf("dead: %v", life.Dead())
			}
		})
	}
}

var errDead = errors.New("the worker is dead")

// inLife runs code that may end with its worker.
func inLife(run func()) {
	var wg sync.WaitGroup
	wg.Go(run)
	wg.Wait()
}

func TestDeadWorkerReachesNothing(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	d := newScript("", fault.None)
	life := fault.NewLife("one", d)
	w := fault.NewStore[tx](life, m)
	a, _, err := w.Claim(t.Context(), store.Claim{Gate: gate(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	life.Kill()
	for name, step := range map[string]func(){
		"rest":     func() { _ = w.Rest(t.Context(), a.Key, a.Fence, store.Rest{State: store.Free}) },
		"renew":    func() { _ = w.Renew(t.Context(), a.Key, a.Fence, time.Hour) },
		"finish":   func() { _, _ = w.Finish(t.Context(), gate(), a.Fence) },
		"code":     func() { _ = life.At(t.Context(), fault.Handler, nil) },
		"operator": func() { _ = fault.NewOperator(life, m).Discard(t.Context(), store.Action{Key: a.Key}, 0, 0) },
	} {
		inLife(func() {
			defer step() // what a dying goroutine has deferred is no more alive
			step()
			t.Errorf("%s: the worker went on", name)
		})
	}
	if len(d.notes) != 1 {
		t.Errorf("steps %v, want the claim alone", d.notes)
	}
}
