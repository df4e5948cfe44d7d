package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

// The times that the tests use. A clock that runs while a test does moves by
// seconds; nothing here is decided by less than a quarter of an hour.
const (
	retention = 48 * time.Hour
	tombstone = 30 * 24 * time.Hour
	lease     = time.Hour
	margin    = 15 * time.Minute
	// patience bounds each test, so that a call that waits for ever fails.
	patience = 2 * time.Minute
)

// bed is what one test works on.
type bed[Tx any] struct {
	*testing.T
	Harness[Tx]
	ctx      context.Context
	workers  []store.Ledger[Tx] // the first, and the second where there is one
	attempts store.Attempts[Tx]
	ops      store.Operations
	upkeep   store.Upkeep
}

func newBed[Tx any](t *testing.T, h Harness[Tx]) *bed[Tx] {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	b := &bed[Tx]{T: t, Harness: h, ctx: ctx, workers: []store.Ledger[Tx]{h.Ledger}}
	b.attempts, _ = h.Ledger.(store.Attempts[Tx])
	b.ops, _ = h.Ledger.(store.Operations)
	b.upkeep, _ = h.Ledger.(store.Upkeep)
	if h.Second != nil {
		b.workers = append(b.workers, h.Second(t))
	}
	return b
}

// gate is the gate of an operation with the given key parts.
func (b *bed[Tx]) gate(parts ...string) store.Gate {
	return gateOf(store.Identity{Tenant: "tenant", Effect: "order.create.v1", Parts: parts})
}

func gateOf(id store.Identity) store.Gate {
	return store.Gate{
		Identity: id, Key: id.Key(), Fingerprint: store.Fingerprint{Version: 1, Sum: []byte("fingerprint of " + id.Parts[0])},
		Limit: patience, Retention: retention, Tombstone: tombstone,
	}
}

// claimOf asks for the lease of the gate's operation.
func claimOf(gate store.Gate) store.Claim {
	return store.Claim{Gate: gate, Lease: lease, DerivedKey: gate.Identity.DerivedKey(""), Origin: "POST /orders"}
}

// answer is a result with a body of its own.
func answer(body string) store.Result {
	return store.Result{
		Code: 201, Body: []byte(body),
		Header: []store.Field{{Name: "Location", Value: "/orders/" + body}},
	}
}

func completed(result store.Result) store.End {
	return store.End{State: store.Completed, Result: result}
}

// begin opens a transaction of an operation that must be free.
func (b *bed[Tx]) begin(l store.Ledger[Tx], gate store.Gate) store.Txn[Tx] {
	b.Helper()
	txn, v, err := l.Begin(b.ctx, gate)
	if err != nil {
		b.Fatalf("Begin: %v", err)
	}
	if txn == nil || v.State != store.Free {
		b.Fatalf("Begin: state %v, transaction %v; want a free operation's transaction", v.State, txn != nil)
	}
	return txn
}

// refused is the verdict of a Begin that must not open a transaction.
func (b *bed[Tx]) refused(l store.Ledger[Tx], gate store.Gate, want store.State) store.Verdict {
	b.Helper()
	txn, v, err := l.Begin(b.ctx, gate)
	if err != nil {
		b.Fatalf("Begin: %v", err)
	}
	if txn != nil {
		b.rollback(txn)
		b.Fatalf("Begin: opened a transaction with state %v; want %v and none", v.State, want)
	}
	b.verdict("Begin", v, want)
	return v
}

// verdict checks the state and that exactly what belongs to it is set.
func (b *bed[Tx]) verdict(call string, v store.Verdict, want store.State) {
	b.Helper()
	if v.State != want {
		b.Fatalf("%s: state %v, want %v", call, v.State, want)
	}
	if (v.Outcome != nil) != want.Final() {
		b.Errorf("%s: %v with outcome %+v", call, want, v.Outcome)
	}
	switch want {
	case store.Retryable, store.Parked, store.Unknown, store.Dead:
		if v.Attempt == nil || v.Attempt.State != want {
			b.Fatalf("%s: %v with attempt %+v", call, want, v.Attempt)
		}
	case store.Processing: // with an attempt under a lease, without in a transaction
	default:
		if v.Attempt != nil {
			b.Errorf("%s: %v with attempt %+v", call, want, v.Attempt)
		}
	}
}

// look is the verdict of a plain read.
func (b *bed[Tx]) look(gate store.Gate, want store.State) store.Verdict {
	b.Helper()
	v, err := b.Ledger.Look(b.ctx, gate.Key)
	if err != nil {
		b.Fatalf("Look: %v", err)
	}
	b.verdict("Look", v, want)
	return v
}

// settled is the verdict of Settle.
func (b *bed[Tx]) settled(gate store.Gate, want store.State) store.Verdict {
	b.Helper()
	v, err := b.Ledger.Settle(b.ctx, gate.Key)
	if err != nil {
		b.Fatalf("Settle: %v", err)
	}
	b.verdict("Settle", v, want)
	return v
}

func (b *bed[Tx]) write(txn store.Txn[Tx], row string) {
	b.Helper()
	if err := b.Write(b.ctx, txn.Tx(), row); err != nil {
		b.Fatalf("Write: %v", err)
	}
}

func (b *bed[Tx]) commit(txn store.Txn[Tx], end store.End) *store.Outcome {
	b.Helper()
	o, err := txn.Commit(b.ctx, end)
	if err != nil {
		b.Fatalf("Commit: %v", err)
	}
	if o == nil {
		b.Fatal("Commit: no outcome and no error")
	}
	return o
}

// commitFails commits in vain: the error is the wanted one and nothing happened.
func (b *bed[Tx]) commitFails(txn store.Txn[Tx], end store.End, want error) {
	b.Helper()
	if o, err := txn.Commit(b.ctx, end); !errors.Is(err, want) || o != nil {
		b.Fatalf("Commit: outcome %+v, error %v; want no outcome and %q", o, err, want)
	}
	if err := txn.Rollback(b.ctx); err != nil {
		b.Errorf("Rollback after a failed commit: %v", err)
	}
}

func (b *bed[Tx]) rollback(txn store.Txn[Tx]) {
	b.Helper()
	if err := txn.Rollback(b.ctx); err != nil {
		b.Fatalf("Rollback: %v", err)
	}
}

// do runs the operation once, with one business row.
func (b *bed[Tx]) do(gate store.Gate, row string) *store.Outcome {
	b.Helper()
	txn := b.begin(b.Ledger, gate)
	b.write(txn, row)
	return b.commit(txn, completed(answer(row)))
}

// rows compares the committed business rows, in any order.
func (b *bed[Tx]) rows(want ...string) {
	b.Helper()
	got := slices.Clone(b.Rows(b.T))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.Fatalf("committed rows: %q, want %q", got, want)
	}
}

// is checks an error that must be the wanted one.
func (b *bed[Tx]) is(call string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("%s: error %v, want %v", call, err, want)
	}
}

// must stops the test at an error.
func (b *bed[Tx]) must(call string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", call, err)
	}
}

// together runs n functions at once and reports their errors.
func (b *bed[Tx]) together(n int, run func(i int) error) {
	b.Helper()
	var wg sync.WaitGroup
	start, errs := make(chan struct{}), make([]error, n)
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = run(i)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// worker gives the workers in turn.
func (b *bed[Tx]) worker(i int) store.Ledger[Tx] { return b.workers[i%len(b.workers)] }

// claimer gives the workers' lease mode in turn.
func (b *bed[Tx]) claimer(i int) store.Attempts[Tx] {
	return b.worker(i).(store.Attempts[Tx])
}

// sameResult compares results; nil and empty are one.
func sameResult(a, b store.Result) bool {
	return a.Code == b.Code && a.NotReplayable == b.NotReplayable &&
		bytes.Equal(a.Body, b.Body) && slices.Equal(a.Header, b.Header)
}

// sameOutcome compares what is frozen of an outcome, and its instant.
func sameOutcome(a, b *store.Outcome) error {
	switch {
	case a.State != b.State:
		return fmt.Errorf("state %v and %v", a.State, b.State)
	case !sameResult(a.Result, b.Result):
		return fmt.Errorf("result %.300s and %.300s", fmt.Sprintf("%+v", a.Result), fmt.Sprintf("%+v", b.Result))
	case !a.Fingerprint.Equal(b.Fingerprint):
		return fmt.Errorf("fingerprint %v and %v", a.Fingerprint, b.Fingerprint)
	case a.Attempt != b.Attempt:
		return fmt.Errorf("attempt %d and %d", a.Attempt, b.Attempt)
	case !a.At.Equal(b.At):
		return fmt.Errorf("time %v and %v", a.At, b.At)
	}
	return nil
}

// around checks a remaining time: at most want, and not much less.
func (b *bed[Tx]) around(what string, got, want time.Duration) {
	b.Helper()
	if got > want || got < want-margin {
		b.Errorf("%s: %v, want %v or a little less", what, got, want)
	}
}
