package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/store"
)

// retentionTests hold: retention is counted per row from the outcome's time,
// whether anything has been purged or not.
func retentionTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a result is kept, then remembered, then forgotten", run: lifetime[Tx]},
		{name: "retention is counted for each operation by itself", run: perRow[Tx]},
		{name: "retention ends at its edge", needs: func(h *Harness[Tx]) bool { return h.Frozen }, run: edges[Tx]},
		{name: "without a tombstone the operation is free after its retention", run: noTombstone[Tx]},
		{name: "a forgotten operation takes effect again once", run: forgottenAgain[Tx]},
	}
}

// expired is the verdict on an operation of which only the identity is left.
func (b *bed[Tx]) expired(l store.Ledger[Tx], gate store.Gate) {
	b.Helper()
	v := b.refused(l, gate, store.Expired)
	if !bytes.Equal(v.Short, gate.Fingerprint.Short()) {
		b.Errorf("front of the fingerprint: %x, want %x", v.Short, gate.Fingerprint.Short())
	}
	if v := b.look(gate, store.Expired); !bytes.Equal(v.Short, gate.Fingerprint.Short()) {
		b.Errorf("Look: front of the fingerprint: %x, want %x", v.Short, gate.Fingerprint.Short())
	}
}

// purgeAll purges until nothing is left.
func (b *bed[Tx]) purgeAll() {
	b.Helper()
	if b.upkeep == nil {
		return
	}
	for {
		n, err := b.upkeep.Purge(b.ctx, 100)
		b.must("Purge", err)
		if n < 100 {
			return
		}
	}
}

func lifetime[Tx any](b *bed[Tx]) {
	for _, purges := range []bool{false, true} {
		gate := b.gate("lifetime", fmt.Sprint(purges))
		purge := func() {
			b.Helper()
			if purges {
				b.purgeAll()
			}
		}
		b.do(gate, "lifetime")
		b.Advance(b.T, retention-margin)
		purge()
		b.refused(b.worker(1), gate, store.Completed)
		b.Advance(b.T, 2*margin)
		b.expired(b.worker(1), gate)
		purge()
		b.expired(b.worker(0), gate)
		if b.attempts != nil {
			attempt, v, err := b.attempts.Claim(b.ctx, claimOf(gate))
			b.must("Claim", err)
			b.verdict("Claim", v, store.Expired)
			if attempt != nil {
				b.Fatal("Claim of an expired operation")
			}
		}
		b.Advance(b.T, tombstone-3*margin)
		purge()
		b.expired(b.worker(1), gate)
		b.Advance(b.T, 4*margin)
		b.look(gate, store.Free)
		b.rollback(b.begin(b.worker(1), gate))
		purge()
		b.rollback(b.begin(b.worker(0), gate))
	}
}

func perRow[Tx any](b *bed[Tx]) {
	short, long := b.gate("short"), b.gate("long")
	short.Retention, short.Tombstone = time.Hour, time.Hour
	long.Retention, long.Tombstone = 4*time.Hour, 10*time.Hour
	b.do(short, "short")
	b.do(long, "long")
	b.Advance(b.T, time.Hour+margin)
	b.purgeAll()
	b.expired(b.Ledger, short)
	b.refused(b.Ledger, long, store.Completed)
	b.Advance(b.T, time.Hour)
	b.purgeAll()
	b.look(short, store.Free)
	b.refused(b.Ledger, long, store.Completed)
	// The duplicate's own wishes count for nothing.
	eager := long
	eager.Retention, eager.Tombstone = time.Minute, time.Minute
	b.refused(b.Ledger, eager, store.Completed)
	b.Advance(b.T, 2*time.Hour)
	b.expired(b.Ledger, long)
}

func edges[Tx any](b *bed[Tx]) {
	gate := b.gate("edge")
	gate.Retention, gate.Tombstone = time.Hour, time.Hour
	b.do(gate, "edge")
	b.Advance(b.T, time.Hour-time.Millisecond)
	if left := b.refused(b.Ledger, gate, store.Completed).Outcome.Left; left != time.Millisecond {
		b.Errorf("left %v, want 1ms", left)
	}
	b.Advance(b.T, time.Millisecond)
	b.expired(b.Ledger, gate)
	b.Advance(b.T, time.Hour-time.Millisecond)
	b.expired(b.Ledger, gate)
	b.Advance(b.T, time.Millisecond)
	b.look(gate, store.Free)
	b.do(gate, "edge again")

	if b.attempts == nil {
		return
	}
	gate = b.gate("edge of a lease")
	b.claim(gate)
	b.Advance(b.T, lease-time.Millisecond)
	b.must("Renew at the last moment", b.attempts.Renew(b.ctx, gate.Key, 1, lease))
	b.Advance(b.T, lease)
	b.is("Renew at the edge", b.attempts.Renew(b.ctx, gate.Key, 1, lease), store.ErrLeaseLost)
	b.refused(b.Ledger, gate, store.Unknown)
	gate = b.gate("edge of a delay")
	b.claim(gate)
	b.must("Rest", b.attempts.Rest(b.ctx, gate.Key, 1, store.Rest{State: store.Retryable, Reason: "busy", DueIn: time.Minute}))
	gate.From = 1
	b.Advance(b.T, time.Minute-time.Millisecond)
	b.claimRefused(gate, store.Retryable)
	b.Advance(b.T, time.Millisecond)
	b.claim(gate)
}

func noTombstone[Tx any](b *bed[Tx]) {
	gate := b.gate("no tombstone")
	gate.Tombstone = 0
	b.do(gate, "first")
	b.Advance(b.T, retention-margin)
	b.refused(b.Ledger, gate, store.Completed)
	b.Advance(b.T, 2*margin)
	b.look(gate, store.Free)
	b.do(gate, "second")
	b.rows("first", "second")
}

// forgottenAgain meets the rows of the operation's first life, purged or not.
func forgottenAgain[Tx any](b *bed[Tx]) {
	var want []string
	for _, purges := range []int{0, 1, 2} {
		gate := b.gate("forgotten", fmt.Sprint(purges))
		row := fmt.Sprintf("life one, %d purges", purges)
		b.do(gate, row)
		b.Advance(b.T, retention+margin)
		if purges > 0 {
			b.purgeAll()
		}
		b.Advance(b.T, tombstone)
		if purges > 1 {
			b.purgeAll()
		}
		again := fmt.Sprintf("life two, %d purges", purges)
		want = append(want, row, again)
		gate.Fingerprint = store.Fingerprint{Version: 3, Sum: []byte("another payload")}
		made := b.do(gate, again)
		b.purgeAll()
		v := b.refused(b.worker(1), gate, store.Completed)
		if err := sameOutcome(made, v.Outcome); err != nil {
			b.Errorf("%d purges: second life: %v", purges, err)
		}
		b.around("left of the second life", v.Outcome.Left, retention)
		b.Advance(b.T, retention+margin)
		b.expired(b.worker(1), gate)
		b.purgeAll()
		b.expired(b.worker(0), gate)
	}
	b.rows(want...)
}

// purgeTests hold: purging only forgets what is over, in small batches.
func purgeTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "purge works in batches of the given size", run: purgeBatches[Tx]},
		{name: "purge never touches what is kept or unfinished", run: purgeSpares[Tx]},
		{name: "purge never opens a gap for a late duplicate", run: purgeRace[Tx]},
		{name: "purge does not take a new outcome for the old one", run: purgeNewLife[Tx]},
	}
}

func purgeBatches[Tx any](b *bed[Tx]) {
	purge := func(limit, want int) {
		b.Helper()
		n, err := b.upkeep.Purge(b.ctx, limit)
		b.must("Purge", err)
		if n != want {
			b.Fatalf("Purge(%d) changed %d rows, want %d", limit, n, want)
		}
	}
	gates := make([]store.Gate, 5)
	for i := range gates {
		gates[i] = b.gate("batch", fmt.Sprint(i))
		b.do(gates[i], fmt.Sprint(i))
	}
	purge(2, 0)
	b.Advance(b.T, retention+margin)
	for _, want := range []int{2, 2, 1, 0} {
		purge(2, want)
		for _, gate := range gates {
			b.expired(b.Ledger, gate)
		}
	}
	b.Advance(b.T, tombstone)
	for _, want := range []int{3, 2, 0} {
		purge(3, want)
		for _, gate := range gates {
			b.look(gate, store.Free)
		}
	}
	gone := b.gate("no tombstone")
	gone.Tombstone = 0
	b.do(gone, "gone")
	b.Advance(b.T, retention+margin)
	purge(10, 1)
	purge(10, 0)
}

func purgeSpares[Tx any](b *bed[Tx]) {
	if b.attempts == nil {
		return
	}
	states := []store.State{store.Retryable, store.Parked, store.Unknown, store.Dead}
	for _, state := range states {
		b.rest(b.gate("unfinished", state.String()), state)
	}
	b.claim(b.gate("unfinished", "processing"))
	kept := b.gate("kept")
	kept.Retention = 20 * 365 * 24 * time.Hour
	b.do(kept, "kept")
	b.Advance(b.T, 9*365*24*time.Hour)
	if n, err := b.upkeep.Purge(b.ctx, 100); err != nil || n != 0 {
		b.Errorf("Purge: %d rows, %v; want none", n, err)
	}
	for _, state := range states {
		b.refused(b.Ledger, b.gate("unfinished", state.String()), state)
	}
	b.refused(b.Ledger, b.gate("unfinished", "processing"), store.Unknown)
	b.refused(b.Ledger, kept, store.Completed)
}

// purgeRace asks for expired operations while they turn into tombstones.
func purgeRace[Tx any](b *bed[Tx]) {
	const n = 30
	gates := make([]store.Gate, n)
	for i := range gates {
		gates[i] = b.gate("late", fmt.Sprint(i))
		b.do(gates[i], fmt.Sprint(i))
	}
	b.Advance(b.T, retention+margin)
	var over atomic.Bool
	b.together(4, func(i int) error {
		if i == 0 {
			defer over.Store(true)
			for {
				changed, err := b.upkeep.Purge(b.ctx, 2)
				if err != nil || changed == 0 {
					return err
				}
			}
		}
		for round := 0; !over.Load() && b.ctx.Err() == nil; round++ {
			gate := gates[(round*7+i)%n]
			txn, v, err := b.worker(i).Begin(b.ctx, gate)
			if err != nil {
				return fmt.Errorf("begin: %w", err)
			}
			if txn != nil {
				return errors.Join(fmt.Errorf("operation %v ran again", gate.Identity.Parts), txn.Rollback(b.ctx))
			}
			// Two duplicates at once: one of them finds the other's lock.
			if v.State != store.Expired && v.State != store.Processing {
				return fmt.Errorf("state %v, want expired", v.State)
			}
			runtime.Gosched()
		}
		return nil
	})
}

// purgeNewLife commits operations anew while their first life is purged.
func purgeNewLife[Tx any](b *bed[Tx]) {
	const n = 20
	gates := make([]store.Gate, n)
	for i := range gates {
		gates[i] = b.gate("new life", fmt.Sprint(i))
		b.do(gates[i], fmt.Sprintf("one %d", i))
	}
	b.Advance(b.T, retention+margin)
	if _, err := b.upkeep.Purge(b.ctx, n/2); err != nil {
		b.Fatal(err)
	}
	b.Advance(b.T, tombstone)
	b.together(3, func(i int) error {
		if i == 0 {
			for {
				changed, err := b.upkeep.Purge(b.ctx, 1)
				if err != nil || changed == 0 {
					return err
				}
			}
		}
		for j := i - 1; j < n; j += 2 {
			txn, v, err := b.worker(i).Begin(b.ctx, gates[j])
			if err != nil || txn == nil {
				return fmt.Errorf("begin: state %v: %w", v.State, err)
			}
			if _, err := txn.Commit(b.ctx, completed(answer(fmt.Sprintf("two %d", j)))); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
		return nil
	})
	b.purgeAll()
	for j, gate := range gates {
		v := b.refused(b.Ledger, gate, store.Completed)
		if string(v.Outcome.Result.Body) != fmt.Sprintf("two %d", j) {
			b.Errorf("operation %d: %s", j, v.Outcome.Result.Body)
		}
	}
}
