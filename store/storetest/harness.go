package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

// Harness describes one open database to the suite. It is used by one test;
// what must be closed is closed by t.Cleanup of the opening function. Functions
// may be called from several goroutines unless they take a *testing.T.
type Harness[Tx any] struct {
	// Ledger is the store under test. It is expected to be a store.Attempts,
	// a store.Operations and a store.Upkeep as well; see Lacks. A limit of its
	// own on handlers must be set so long that a busy machine does not reach it.
	Ledger store.Ledger[Tx]
	// Lacks names the interfaces that the store does not have by design:
	// "Attempts", "Operations", "Upkeep". An interface that is missing and not
	// named here is a failure.
	Lacks []string

	// Advance moves the database's clock forward, for all workers. A store that
	// uses its database's own clock moves all stored instants back instead.
	Advance func(t *testing.T, d time.Duration)
	// Frozen says that the clock moves by Advance only, so that edges can be
	// tested to the millisecond.
	Frozen bool

	// Write inserts a business row on the transaction. The same row may be
	// written twice, and then counts twice or once.
	Write func(ctx context.Context, tx Tx, row string) error
	// Read returns the business rows that the transaction sees, its own among
	// them, in any order.
	Read func(ctx context.Context, tx Tx) ([]string, error)
	// Rows returns the committed business rows in any order. It never waits
	// for a transaction.
	Rows func(t *testing.T) []string
	// BeginForeign opens a transaction of the caller's own, for Join, and
	// returns what ends it.
	BeginForeign func(ctx context.Context) (tx Tx, commit, rollback func() error, err error)
	// Damage flips a byte in the stored result body of an operation.
	Damage func(t *testing.T, key store.Key)
	// Smuggle inserts a completed outcome with code 299, attempt 1 and an hour
	// of retention and tombstone past the operation's lock and past every
	// check, as a worker with a broken lock would.
	Smuggle func(t *testing.T, id store.Identity)

	// Exclusive says that a foreign transaction keeps every other writer of the
	// database out, from its first call of Join to its end, so that nothing can
	// be smuggled past it.
	Exclusive bool

	// Second opens another worker on the same database. Nil only where the
	// database belongs to one worker by design.
	Second func(t *testing.T) store.Ledger[Tx]
	// Savepoint sets a savepoint in a foreign transaction and returns what rolls
	// back to it. Nil only where the database has none.
	Savepoint func(ctx context.Context, tx Tx) (rollbackTo func() error, err error)
	// EndByHandler are the ways in which a handler can try to end the engine's
	// transaction: commit and roll back, by method and by statement. Nil only
	// where the transaction's type offers none.
	EndByHandler []func(ctx context.Context, tx Tx) error
	// Abort makes the database give the transaction up, as a failed statement
	// or a lost conflict does. Nil only where the database never does.
	Abort func(ctx context.Context, tx Tx) error
	// LoseAnswer makes the next commit lose its answer, after it has taken
	// effect or instead of it. Nil where the commit's answer cannot be lost.
	LoseAnswer func(t *testing.T, took bool)
	// Crash begins the operation in a worker of its own, writes the row there
	// and kills that worker without a goodbye; it returns when it is dead. Nil
	// where the data do not outlive the worker.
	Crash func(t *testing.T, gate store.Gate, row string)
}

// test is one guarantee. Its name says which.
type test[Tx any] struct {
	name string
	// needs says whether the harness can run it; nil means always.
	needs func(h *Harness[Tx]) bool
	run   func(b *bed[Tx])
}

// Run holds a store to everything that package store promises. open is called
// once for each test, with that test's own t, and returns a fresh, empty
// database each time.
func Run[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	t.Helper()
	sample := open(t)
	if faults := sample.faults(); len(faults) > 0 {
		t.Fatalf("harness: %v", faults)
	}
	tests := slices.Concat(
		effectTests[Tx](), endTests[Tx](), frozenTests[Tx](), retentionTests[Tx](), joinTests[Tx](),
	)
	if sample.has("Attempts") {
		tests = slices.Concat(tests, claimTests[Tx](), fenceTests[Tx](), restTests[Tx](), takeoverTests[Tx]())
	}
	if sample.has("Operations") && sample.has("Attempts") {
		tests = slices.Concat(tests, listTests[Tx](), actionTests[Tx]())
	}
	if sample.has("Upkeep") {
		tests = slices.Concat(tests, purgeTests[Tx]())
	}
	if sample.has("Upkeep") && sample.has("Attempts") {
		tests = slices.Concat(tests, expireTests[Tx]())
	}
	for _, test := range tests {
		if test.needs != nil && !test.needs(&sample) {
			continue // a capability that the harness says is absent
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(newBed(t, open(t)))
		})
	}
	if len(sample.Lacks) == 0 {
		t.Run("a random list of operations gives the model's transcript", func(t *testing.T) {
			t.Parallel()
			random(t, open)
		})
	}
}

// has reports whether the store gives one of the optional interfaces.
func (h *Harness[Tx]) has(name string) bool {
	ok := false
	switch name {
	case "Attempts":
		_, ok = h.Ledger.(store.Attempts[Tx])
	case "Operations":
		_, ok = h.Ledger.(store.Operations)
	case "Upkeep":
		_, ok = h.Ledger.(store.Upkeep)
	}
	return ok
}

// faults names everything that a harness must have and this one has not.
func (h *Harness[Tx]) faults() (faults []string) {
	if h.Ledger == nil {
		return []string{"Ledger: nil"}
	}
	for _, name := range []string{"Attempts", "Operations", "Upkeep"} {
		if h.has(name) == slices.Contains(h.Lacks, name) {
			faults = append(faults, name+": the store and Harness.Lacks contradict each other")
		}
	}
	for name, missing := range map[string]bool{
		"Advance": h.Advance == nil, "Write": h.Write == nil, "Read": h.Read == nil, "Rows": h.Rows == nil,
		"BeginForeign": h.BeginForeign == nil, "Damage": h.Damage == nil, "Smuggle": h.Smuggle == nil,
	} {
		if missing {
			faults = append(faults, name+": nil")
		}
	}
	slices.Sort(faults)
	return faults
}
