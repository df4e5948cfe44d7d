package queuetest

import (
	"slices"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/storetest"
)

// Harness describes one open database to the suite: what storetest wants of it,
// and what only a queue needs. It is used by one test; what must be closed is
// closed by t.Cleanup of the opening function. Functions may be called from
// several goroutines unless they take a *testing.T.
type Harness[Tx any] struct {
	// Harness of the ledger. The suite uses Ledger, Advance, Write, Rows,
	// BeginForeign, Smuggle, Second, Savepoint; LoseAnswer, which here is also for
	// the commits of the queue's own methods; and Exclusive, which says that a
	// transaction keeps every other writer out from its first Enqueue to its end.
	storetest.Harness[Tx]

	// Absent names the interfaces that the store does not have by design, as
	// "Signal". An interface that is missing and not named here is a failure. Queue
	// and Lanes are never absent.
	Absent []string

	// Payloads is how long an entry that is done is kept after its arrival, at
	// least; a purge that comes twice that time after it was done removes it. Zero
	// means that the store does not promise to remove it; the tests that need its
	// absence are then left out.
	Payloads time.Duration

	// NewIncarnation makes the database's history another one, for all workers.
	// Nil where the store notices none.
	NewIncarnation func(t *testing.T)
	// Fill makes the queue full, whatever is in it, and returns what makes room
	// again. Nil where there is no bound.
	Fill func(t *testing.T) (drain func())
	// Break makes each commit of the queue's rows fail in its middle, after some of
	// them were written, until repair. Nil where a commit has no middle.
	Break func(t *testing.T) (repair func())
}

// test is one guarantee. Its name says which.
type test[Tx any] struct {
	name string
	// wants are the interfaces it needs besides Queue and Lanes.
	wants []string
	// needs says whether the harness can run it; nil means always.
	needs func(h *Harness[Tx]) bool
	run   func(b *bed[Tx])
}

// Run holds a queue to everything that package store promises of it. open is
// called once for each test, with that test's own t, and returns a fresh, empty
// database each time.
func Run[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	t.Helper()
	sample := open(t)
	if faults := sample.faults(); len(faults) > 0 {
		t.Fatalf("harness: %v", faults)
	}
	for _, test := range tests[Tx]() {
		lacks := func(name string) bool { return slices.Contains(sample.Absent, name) }
		if test.needs != nil && !test.needs(&sample) || slices.ContainsFunc(test.wants, lacks) {
			continue // a capability that the harness says is absent
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(newBed(t, open(t)))
		})
	}
	if len(sample.Absent) == 0 || slices.Equal(sample.Absent, []string{"Signal"}) { // the lists send none
		t.Run("a random list of operations gives the model's transcript", func(t *testing.T) {
			t.Parallel()
			random(t, open)
		})
	}
}

func tests[Tx any]() []test[Tx] {
	return slices.Concat(appendTests[Tx](), readTests[Tx](), enqueueTests[Tx](), laneTests[Tx](), holdTests[Tx](), blockTests[Tx](), batchTests[Tx](), versionTests[Tx](),
		quarantineTests[Tx](), positionTests[Tx](), upkeepTests[Tx](), stormTests[Tx]())
}

// optional are the interfaces that a store may lack, each with its assertion.
func optional[Tx any]() map[string]func(l store.Ledger[Tx]) bool {
	return map[string]func(l store.Ledger[Tx]) bool{
		"Attempts":     is[store.Attempts[Tx], Tx],
		"Operations":   is[store.Operations, Tx],
		"Upkeep":       is[store.Upkeep, Tx],
		"Enqueuer":     is[store.Enqueuer[Tx], Tx],
		"Versions":     is[store.Versions[Tx], Tx],
		"Batches":      is[store.Batches[Tx], Tx],
		"Quarantine":   is[store.Quarantine, Tx],
		"Positions":    is[store.Positions, Tx],
		"Privacy":      is[store.Privacy, Tx],
		"QueueCounter": is[store.QueueCounter, Tx],
		"Signal":       is[store.Signal, Tx],
	}
}

func is[I, Tx any](l store.Ledger[Tx]) bool {
	_, ok := l.(I)
	return ok
}

// faults names everything that a harness must have and this one has not.
func (h *Harness[Tx]) faults() (faults []string) {
	if h.Ledger == nil {
		return []string{"Ledger: nil"}
	}
	for name, has := range map[string]bool{"Queue": is[store.Queue](h.Ledger), "Lanes": is[store.Lanes](h.Ledger)} {
		if !has {
			faults = append(faults, name+": the store has none")
		}
	}
	known := optional[Tx]()
	for name, has := range known {
		if has(h.Ledger) == slices.Contains(h.Absent, name) {
			faults = append(faults, name+": the store and Harness.Absent contradict each other")
		}
	}
	for _, name := range h.Absent {
		if known[name] == nil {
			faults = append(faults, "Absent: no optional interface is called "+name)
		}
	}
	for name, missing := range map[string]bool{
		"Advance": h.Advance == nil, "Write": h.Write == nil, "Rows": h.Rows == nil,
		"BeginForeign": h.BeginForeign == nil, "Smuggle": h.Smuggle == nil,
	} {
		if missing {
			faults = append(faults, name+": nil")
		}
	}
	slices.Sort(faults)
	return faults
}
