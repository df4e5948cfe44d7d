package unavez_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// Tx is the transaction type of these tests.
type Tx = *memory.Tx

// faulty is a store whose steps can fail: hook is called before and after each
// named step, and its error takes the place of the step's own answer. After a
// step, the step has happened: its answer is lost.
type faulty struct {
	*memory.Store
	mu   sync.Mutex
	hook func(step string) error
}

func (f *faulty) set(hook func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *faulty) at(step string) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(step)
}

func (f *faulty) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	if err := f.at("before begin"); err != nil {
		return nil, store.Verdict{}, err
	}
	txn, verdict, err := f.Store.Begin(ctx, gate)
	if txn == nil {
		return nil, verdict, err
	}
	return &faultyTxn{Txn: txn, faulty: f}, verdict, err
}

func (f *faulty) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	if err := f.at("before settle"); err != nil {
		return store.Verdict{}, err
	}
	return f.Store.Settle(ctx, key)
}

func (f *faulty) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	if err := f.at("before claim"); err != nil {
		return nil, store.Verdict{}, err
	}
	a, verdict, err := f.Store.Claim(ctx, claim)
	if lost := f.at("after claim"); lost != nil {
		return nil, store.Verdict{}, lost
	}
	return a, verdict, err
}

func (f *faulty) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	if err := f.at("before renew"); err != nil {
		return err
	}
	return f.Store.Renew(ctx, key, fence, lease)
}

func (f *faulty) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[Tx], error) {
	if err := f.at("before finish"); err != nil {
		return nil, err
	}
	txn, err := f.Store.Finish(ctx, gate, fence)
	if txn == nil {
		return nil, err
	}
	return &faultyTxn{Txn: txn, faulty: f}, err
}

func (f *faulty) Rest(ctx context.Context, key store.Key, fence int64, rest store.Rest) error {
	if err := f.at("before rest"); err != nil {
		return err
	}
	return f.Store.Rest(ctx, key, fence, rest)
}

func (f *faulty) SaveStep(ctx context.Context, key store.Key, fence int64, step store.Step) error {
	if err := f.at("before save step"); err != nil {
		return err
	}
	return f.Store.SaveStep(ctx, key, fence, step)
}

// faultyTxn is a transaction of a faulty store.
type faultyTxn struct {
	store.Txn[Tx]
	faulty *faulty
}

func (t *faultyTxn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if err := t.faulty.at("before commit"); err != nil {
		_ = t.Txn.Rollback(ctx)
		return nil, err
	}
	out, err := t.Txn.Commit(ctx, end)
	if lost := t.faulty.at("after commit"); lost != nil {
		return nil, lost
	}
	return out, err
}

// failing is a hook that fails one step, a number of times, with one error.
func failing(step string, times int, err error) func(string) error {
	var mu sync.Mutex
	return func(at string) error {
		mu.Lock()
		defer mu.Unlock()
		if at != step || times == 0 {
			return nil
		}
		times--
		return err
	}
}

// newStore is a store whose clock is time.Now, virtual inside a bubble.
func newStore() *faulty {
	return &faulty{Store: memory.New(&memory.Options{Now: time.Now})}
}

// newEngine is a worker over the store; it is closed with the test.
func newEngine(t *testing.T, ledger store.Ledger[Tx], opts *unavez.Options) *unavez.Engine[Tx] {
	t.Helper()
	engine, err := unavez.New(ledger, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return engine
}

// operation is an order of the tests' tenant.
func operation(name string) unavez.Operation {
	return unavez.Operation{Tenant: "acme", Effect: "order.create.v1", Key: []string{name}}
}

// writes is a handler that writes one row and answers.
func writes(row string, runs *counter) func(context.Context, Tx) (unavez.Result, error) {
	return func(_ context.Context, tx Tx) (unavez.Result, error) {
		n := runs.add(row)
		tx.Put(row, fmt.Sprint(n))
		return answer(n), nil
	}
}

// answer is a result that tells which run made it.
func answer(n int) unavez.Result {
	return unavez.Result{Code: 201, Body: fmt.Appendf(nil, `{"run":%d}`, n)}
}

// counter counts by name.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
	return c.n[name]
}

func (c *counter) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

// wantCode fails unless err has the code.
func wantCode(t *testing.T, err error, want unavez.Code) *unavez.Error {
	t.Helper()
	if got := unavez.CodeOf(err); got != want {
		t.Fatalf("code %q (%v), want %q", got, err, want)
	}
	var e *unavez.Error
	errors.As(err, &e)
	return e
}

// wantRow fails unless the committed rows hold name exactly as given ("" = not at all).
func wantRow(t *testing.T, s *faulty, name, want string) {
	t.Helper()
	if got, _ := s.Get(name); got != want {
		t.Fatalf("row %s is %q, want %q", name, got, want)
	}
}
