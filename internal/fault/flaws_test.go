package fault_test

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

// flaw is a store with one protection less, or one lie more.
type flaw struct {
	name string
	flow func() *flow[tx]
	// breaks is the invariant that the search must find broken.
	breaks string
	store  func(backing[tx]) backing[tx]
}

// flaws are the mistakes that a store could make.
func flaws() []flaw {
	return []flaw{
		{"a commit is acknowledged before it is known", doFlow[tx], "I2", func(s backing[tx]) backing[tx] { return ackingEarly{s} }},
		{"what settles a commit does not wait for it", doFlow[tx], "I1", func(s backing[tx]) backing[tx] { return settlingEarly{s} }},
		{"a duplicate is served something else", doFlow[tx], "I2", func(s backing[tx]) backing[tx] { return serving{s, forge} }},
		{"payloads are not compared", crowdFlow[tx], "I3", func(s backing[tx]) backing[tx] { return blind{s} }},
		{"a finish does not look at its fence", func() *flow[tx] { return leaseFlow[tx]("fenceless", unavez.Retry) }, "I6", func(s backing[tx]) backing[tx] { return fenceless{s} }},
		{"an expired claim is taken for a free operation", func() *flow[tx] { return leaseFlow[tx]("careless", unavez.Hold) }, "I9", func(s backing[tx]) backing[tx] { return careless{s} }},
		{"each attempt has a derived key of its own", func() *flow[tx] { return leaseFlow[tx]("renaming", unavez.Retry) }, "I10", func(s backing[tx]) backing[tx] { return renaming{s} }},
		{"a takeover keeps the fence", func() *flow[tx] { return leaseFlow[tx]("repeating", unavez.Retry) }, "I5", func(s backing[tx]) backing[tx] { return repeating{s} }},
		{"the purge forgets what is over its retention", func() *flow[tx] {
			return purgeFlow[tx]("early", []time.Duration{2 * time.Second})
		}, "I12", func(s backing[tx]) backing[tx] { return &purgingEarly{backing: s} }},
		{"what settles a caller's commit does not wait for it", joinFlow[tx], "I1", func(s backing[tx]) backing[tx] { return settlingEarly{s} }},
		{"a lease that was taken over is renewed", func() *flow[tx] { return longFlow[tx]() }, "I6", func(s backing[tx]) backing[tx] { return renewing{s} }},
		{"a person ends what has ended", personFlow[tx], "I8", func(s backing[tx]) backing[tx] { return ending{s} }},
		{"events are acknowledged before they are stored", func() *flow[tx] { return inboxFlow(singly) }, "I4", func(s backing[tx]) backing[tx] { return forgetting{s.(*memory.Store)} }},
		{"a lane does not look at its epoch", func() *flow[tx] { return inboxFlow(singly) }, "I6", func(s backing[tx]) backing[tx] { return laneless{s.(*memory.Store)} }},
		{"an entry is read behind one that came later", func() *flow[tx] { return inboxFlow(singly) }, "I7", func(s backing[tx]) backing[tx] { return &impatient{Store: s.(*memory.Store)} }},
		{"rows are committed without their outcome", doFlow[tx], "I8", func(s backing[tx]) backing[tx] { return bare{s} }},
	}
}

// A search that finds nothing wrong with a wrong store says nothing about a right one.
func TestSearchFindsEveryFlaw(t *testing.T) {
	t.Parallel()
	for _, f := range flaws() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			e := newEvidence(f.name)
			explore(t, f.flow(), search{bounds: []bounds{single(0)}, flaw: f.store, until: f.breaks}, e)
			if e.Sometimes["broken "+f.breaks] == 0 {
				t.Errorf("not found in %d schedules; %d violations of others: %v", e.Schedules, e.Violations, e.Sometimes)
			}
			t.Logf("found in schedule %d", e.Schedules+e.Pairs)
		})
	}
}

// flawedTxn is a transaction whose commit is another.
type flawedTxn struct {
	store.Txn[tx]
	commit func(ctx context.Context, end store.End) (*store.Outcome, error)
}

func (t flawedTxn) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	return t.commit(ctx, end)
}

// flawed changes the commit of a transaction.
func flawed(txn store.Txn[tx], commit func(ctx context.Context, end store.End) (*store.Outcome, error)) store.Txn[tx] {
	if txn == nil {
		return nil
	}
	return flawedTxn{txn, commit}
}

// ackingEarly says yes to a commit that then fails.
type ackingEarly struct{ backing[tx] }

func (s ackingEarly) Begin(ctx context.Context, gate store.Gate) (store.Txn[tx], store.Verdict, error) {
	txn, v, err := s.backing.Begin(ctx, gate)
	return flawed(txn, func(ctx context.Context, end store.End) (*store.Outcome, error) {
		out, err := txn.Commit(ctx, end)
		if err != nil {
			return &store.Outcome{State: end.State, Result: end.Result, Fingerprint: gate.Fingerprint, Attempt: 1}, nil
		}
		return out, nil
	}), v, err
}

// settlingEarly takes a transaction that is still open for one that is gone.
type settlingEarly struct{ backing[tx] }

func (s settlingEarly) Settle(ctx context.Context, key store.Key) (store.Verdict, error) {
	v, err := s.backing.Settle(ctx, key)
	if v.State == store.Processing && v.Attempt == nil {
		v.State = store.Free
	}
	return v, err
}

// serving changes what duplicates are served.
type serving struct {
	backing[tx]
	change func(*store.Outcome)
}

func (s serving) Begin(ctx context.Context, gate store.Gate) (store.Txn[tx], store.Verdict, error) {
	txn, v, err := s.backing.Begin(ctx, gate)
	if v.Outcome != nil {
		s.change(v.Outcome)
	}
	return txn, v, err
}

func forge(o *store.Outcome) { o.Result.Body = []byte("another run") }

// blind takes every payload for the one that was.
type blind struct{ backing[tx] }

func (s blind) Begin(ctx context.Context, gate store.Gate) (store.Txn[tx], store.Verdict, error) {
	return serving{s.backing, func(o *store.Outcome) { o.Fingerprint = gate.Fingerprint }}.Begin(ctx, gate)
}

// bare commits the rows, and not the outcome.
type bare struct{ backing[tx] }

var errForgotten = errors.New("outcome was not written")

func (s bare) Begin(ctx context.Context, gate store.Gate) (store.Txn[tx], store.Verdict, error) {
	txn, v, err := s.backing.Begin(ctx, gate)
	return flawed(txn, func(ctx context.Context, end store.End) (*store.Outcome, error) {
		rows, err := txn.Tx().All()
		if err != nil {
			return nil, err
		}
		if err := txn.Rollback(ctx); err != nil {
			return nil, err
		}
		own, err := s.backing.(*memory.Store).BeginTx(ctx)
		if err != nil {
			return nil, err
		}
		for row, value := range rows {
			if err := own.Put(row, value); err != nil {
				return nil, err
			}
		}
		return nil, errors.Join(own.Commit(), errForgotten)
	}), v, err
}

// fenceless lets every attempt finish that finds no outcome.
type fenceless struct{ backing[tx] }

func (s fenceless) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[tx], error) {
	txn, err := s.backing.Finish(ctx, gate, fence)
	if errors.Is(err, store.ErrLeaseLost) {
		return s.backing.Finish(ctx, gate, 0)
	}
	return txn, err
}

// careless takes over what ended without telling, whoever asks.
type careless struct{ backing[tx] }

func (s careless) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	a, v, err := s.backing.Claim(ctx, claim)
	if v.State == store.Unknown && a == nil {
		claim.From = v.Attempt.Fence
		return s.backing.Claim(ctx, claim)
	}
	return a, v, err
}

// renaming makes the derived key from the fence too.
type renaming struct{ backing[tx] }

func (s renaming) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	a, v, err := s.backing.Claim(ctx, claim)
	if a != nil {
		a.DerivedKey = fmt.Sprint(a.DerivedKey, "-", a.Fence)
	}
	return a, v, err
}

// repeating says that every attempt is the first.
type repeating struct{ backing[tx] }

func (s repeating) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	a, v, err := s.backing.Claim(ctx, claim)
	if a != nil {
		a.Fence = 1
	}
	return a, v, err
}

// purgingEarly forgets the identity with the result.
type purgingEarly struct{ backing[tx] }

func (s *purgingEarly) Purge(ctx context.Context, limit int) (int, error) {
	n, err := s.backing.Purge(ctx, limit)
	if n > 0 {
		s.backing = memory.New(nil)
	}
	return n, err
}

// renewing never refuses.
type renewing struct{ backing[tx] }

func (s renewing) Renew(ctx context.Context, key store.Key, fence int64, lease time.Duration) error {
	err := s.backing.Renew(ctx, key, fence, lease)
	if errors.Is(err, store.ErrLeaseLost) {
		return nil
	}
	return err
}

// ending says that it has ended whatever a person wants ended.
type ending struct{ backing[tx] }

func (s ending) Complete(ctx context.Context, action store.Action, result store.Result, retention, tombstone time.Duration) error {
	err := s.backing.Complete(ctx, action, result, retention, tombstone)
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// forgetting acknowledges what it has not stored.
type forgetting struct{ *memory.Store }

func (s forgetting) Append(_ context.Context, a store.Arrival) ([]store.Appended, error) {
	all := make([]store.Appended, len(a.Entries))
	for i := range all {
		all[i] = store.New
	}
	return all, nil
}

// laneless lets every worker into every lane.
type laneless struct{ *memory.Store }

func (s laneless) Begin(ctx context.Context, gate store.Gate) (store.Txn[tx], store.Verdict, error) {
	gate.Hold = store.Hold{}
	return s.Store.Begin(ctx, gate)
}

// impatient shows the first entry behind the second.
type impatient struct {
	*memory.Store
	mu   sync.Mutex
	held []store.Entry
	done bool
}

func (s *impatient) Read(ctx context.Context, reading store.Reading) (store.Page, error) {
	page, err := s.Store.Read(ctx, reading)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil || s.done:
	case s.held == nil && len(page.Entries) > 0:
		s.held, page.Entries = page.Entries[:1], page.Entries[1:]
	case s.held != nil && len(page.Entries) > 0:
		page.Entries, s.done = append(page.Entries, s.held...), true
	}
	return page, err
}
