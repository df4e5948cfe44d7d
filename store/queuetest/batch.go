package queuetest

import (
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// batchTests hold: the operations of a batch end together or not at all.
func batchTests[Tx any]() []test[Tx] {
	wants := []string{"Batches"}
	return []test[Tx]{
		{name: "the operations of a batch end in one commit", wants: wants, run: batchEnds[Tx]},
		{name: "a batch that is rolled back leaves everything free", wants: wants, run: batchRolledBack[Tx]},
		{name: "a batch leaves out what it finds", wants: []string{"Batches", "Attempts"}, run: batchFinds[Tx]},
		{name: "a batch that finds nothing free is none", wants: wants, run: batchOfNone[Tx]},
		{name: "an operation of a batch without an end stays free", wants: wants, run: batchNil[Tx]},
		{name: "one outcome made elsewhere undoes the whole batch", wants: wants, needs: func(h *Harness[Tx]) bool { return !h.Exclusive }, run: batchDuplicate[Tx]},
		{name: "an operation is in one of two batches that run at once", wants: wants, run: batchesAtOnce[Tx]},
		{name: "a batch whose answer was lost has ended as a whole or not at all", wants: wants, needs: losesAnswers[Tx], run: batchLost[Tx]},
		{name: "a batch makes its entries done", wants: wants, run: batchDone[Tx]},
		{name: "a batch that makes no sense is refused", wants: wants, run: batchRefused[Tx]},
	}
}

// versionTests hold: a version moves with the effect that it describes.
func versionTests[Tx any]() []test[Tx] {
	wants := []string{"Versions"}
	return []test[Tx]{
		{name: "a version comes and goes with its transaction", wants: wants, run: versionCommits[Tx]},
		{name: "versions of different ordering keys are apart", wants: wants, run: versionsApart[Tx]},
		{name: "a savepoint gives a version up", wants: wants, needs: func(h *Harness[Tx]) bool { return h.Savepoint != nil }, run: versionSavepoint[Tx]},
		{name: "a version is undone by an outcome made elsewhere", wants: wants, needs: func(h *Harness[Tx]) bool { return !h.Exclusive }, run: versionDuplicate[Tx]},
	}
}

// gates are those of events with the given names.
func gates(names ...string) []store.Gate {
	var all []store.Gate
	for _, name := range names {
		all = append(all, gate(event(name)))
	}
	return all
}

// batch begins a batch in which all operations must be free.
func (b *bed[Tx]) batch(w worker[Tx], all []store.Gate) store.Batch[Tx] {
	b.Helper()
	batch, verdicts, err := w.batches.BeginBatch(b.ctx, all)
	b.must("BeginBatch", err)
	if batch == nil || len(verdicts) != len(all) {
		b.Fatalf("BeginBatch: batch %v, %d verdicts for %d gates", batch != nil, len(verdicts), len(all))
	}
	for i, v := range verdicts {
		if v.State != store.Free || v.Outcome != nil || v.Attempt != nil {
			b.Fatalf("BeginBatch: verdict %d is %+v, want free", i+1, v)
		}
	}
	return batch
}

// ends are ends of which each names its gate.
func ends(all []store.Gate) []*store.End {
	var out []*store.End
	for _, g := range all {
		end := completed("done " + g.Identity.Parts[1])
		out = append(out, &end)
	}
	return out
}

// states checks what is stored of the operations of gates.
func (b *bed[Tx]) states(all []store.Gate, want ...store.State) {
	b.Helper()
	for i, g := range all {
		if v := b.look(g.Key); v.State != want[i] {
			b.Fatalf("operation %d of the batch is %v, want %v", i+1, v.State, want[i])
		}
	}
}

func batchEnds[Tx any](b *bed[Tx]) {
	all := gates("a", "b", "c")
	batch := b.batch(b.worker(0), all)
	b.must("Write", b.Write(b.ctx, batch.Tx(), "one"))
	b.must("Write", b.Write(b.ctx, batch.Tx(), "two"))
	b.states(all, store.Free, store.Free, store.Free)
	for i, g := range all { // whose locks it holds
		if v, err := b.worker(i).ledger.Settle(b.ctx, g.Key); err != nil || v.State != store.Processing {
			b.Fatalf("operation %d of an open batch: %v, %v; want it processing", i+1, v.State, err)
		}
	}
	given := ends(all)
	given[1].State = store.Discarded
	outcomes, err := batch.Commit(b.ctx, given)
	b.must("Commit", err)
	b.states(all, store.Completed, store.Discarded, store.Completed)
	b.rows("one", "two")
	for i, o := range outcomes {
		if o == nil || o.State != given[i].State || string(o.Result.Body) != string(given[i].Result.Body) || o.Attempt != 1 || o.Replayed || o.At.IsZero() ||
			!o.Fingerprint.Equal(all[i].Fingerprint) {
			b.Fatalf("outcome %d: %+v", i+1, o)
		}
		if found := b.look(all[i].Key).Outcome; string(found.Result.Body) != string(o.Result.Body) || !found.At.Equal(o.At) {
			b.Errorf("outcome %d as stored: %+v, as made: %+v", i+1, found, o)
		}
	}
	if len(outcomes) != len(all) {
		b.Errorf("%d outcomes for %d gates", len(outcomes), len(all))
	}
	if _, err := batch.Commit(b.ctx, given); err == nil {
		b.Error("a second commit of a batch: no error")
	}
	b.must("Rollback after the end", batch.Rollback(b.ctx))
}

func batchRolledBack[Tx any](b *bed[Tx]) {
	all := gates("a", "b")
	batch := b.batch(b.worker(0), all)
	b.must("Write", b.Write(b.ctx, batch.Tx(), "row"))
	b.must("Rollback", batch.Rollback(b.ctx))
	b.must("Rollback again", batch.Rollback(b.ctx))
	b.states(all, store.Free, store.Free)
	b.rows()
	b.must("Rollback", b.batch(b.worker(1), all).Rollback(b.ctx))
	for _, g := range all {
		b.end(b.worker(1), g)
	}
}

func batchFinds[Tx any](b *bed[Tx]) {
	w := b.worker(0)
	all := gates("completed", "free", "leased", "retryable", "running", "also free", "expired")
	b.end(w, all[0])
	for i, state := range map[int]store.State{2: store.Processing, 3: store.Retryable} {
		a, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: all[i], Lease: lease, DerivedKey: "uv1-test"})
		b.must("Claim", err)
		if a == nil {
			b.Fatal("Claim: refused")
		}
		if state == store.Retryable {
			b.must("Rest", w.attempts.Rest(b.ctx, all[i].Key, 1, store.Rest{State: state, Reason: "busy"}))
		}
	}
	short := all[6]
	short.Retention = margin
	b.end(w, short)
	b.Advance(b.T, 2*margin)
	running := b.begin(b.worker(1), all[4])
	all[3].From = 1 // a batch takes nothing over
	batch, verdicts, err := w.batches.BeginBatch(b.ctx, all)
	b.must("BeginBatch", err)
	if batch == nil || len(verdicts) != len(all) {
		b.Fatalf("BeginBatch: batch %v, %d verdicts", batch != nil, len(verdicts))
	}
	want := []store.State{
		store.Completed, store.Free, store.Processing, store.Retryable, store.Processing, store.Free, store.Expired,
	}
	for i, v := range verdicts {
		if v.State != want[i] {
			b.Errorf("verdict %d: %v, want %v", i+1, v.State, want[i])
		}
	}
	if o := verdicts[0].Outcome; o == nil || !o.Replayed || string(o.Result.Body) != "completed" {
		b.Errorf("the outcome that was found: %+v", o)
	}
	if verdicts[2].Attempt == nil || verdicts[3].Attempt == nil || verdicts[4].Attempt != nil {
		b.Errorf("attempts that were found: %+v", verdicts[2:5])
	}
	b.must("Rollback of another worker", running.Rollback(b.ctx))
	given := make([]*store.End, len(all))
	for i := range all {
		if verdicts[i].State == store.Free {
			end := completed("by the batch")
			given[i] = &end
		}
	}
	outcomes, err := batch.Commit(b.ctx, given)
	b.must("Commit", err)
	for i, o := range outcomes {
		if (o != nil) != (given[i] != nil) {
			b.Errorf("outcome %d: %+v beside end %+v", i+1, o, given[i])
		}
	}
	b.states(all, store.Completed, store.Completed, store.Processing, store.Retryable, store.Free, store.Completed, store.Expired)
}

func batchOfNone[Tx any](b *bed[Tx]) {
	all := gates("a", "b")
	for _, g := range all {
		b.end(b.worker(0), g)
	}
	batch, verdicts, err := b.worker(1).batches.BeginBatch(b.ctx, all)
	b.must("BeginBatch", err)
	if batch != nil || len(verdicts) != 2 {
		b.Fatalf("a batch of what has ended: batch %v, %d verdicts", batch != nil, len(verdicts))
	}
	for i, v := range verdicts {
		if v.State != store.Completed || v.Outcome == nil {
			b.Errorf("verdict %d: %+v", i+1, v)
		}
	}
	other := b.begin(b.worker(0), gate(event("c")))
	if batch, _, err := b.worker(1).batches.BeginBatch(b.ctx, gates("c")); err != nil || batch != nil {
		b.Errorf("a batch of what runs elsewhere: batch %v, %v", batch != nil, err)
	}
	b.must("Rollback", other.Rollback(b.ctx))
}

func batchNil[Tx any](b *bed[Tx]) {
	all := gates("a", "b", "c")
	batch := b.batch(b.worker(0), all)
	b.must("Write", b.Write(b.ctx, batch.Tx(), "row"))
	given := ends(all)
	given[1] = nil
	outcomes, err := batch.Commit(b.ctx, given)
	b.must("Commit", err)
	if outcomes[0] == nil || outcomes[1] != nil || outcomes[2] == nil {
		b.Errorf("outcomes: %+v", outcomes)
	}
	b.states(all, store.Completed, store.Free, store.Completed)
	b.end(b.worker(1), all[1])
	b.rows("row", "b")
}

func batchDuplicate[Tx any](b *bed[Tx]) {
	all := gates("a", "b", "c")
	batch := b.batch(b.worker(0), all)
	b.must("Write", b.Write(b.ctx, batch.Tx(), "row"))
	b.Smuggle(b.T, all[1].Identity)
	outcomes, err := batch.Commit(b.ctx, ends(all))
	b.is("Commit", err, store.ErrDuplicate)
	if outcomes != nil {
		b.Errorf("outcomes of a commit that failed: %+v", outcomes)
	}
	b.must("Rollback", batch.Rollback(b.ctx))
	b.states(all, store.Free, store.Completed, store.Free)
	b.rows()
	b.end(b.worker(1), all[0]) // nothing of the batch is in its way
}

func batchesAtOnce[Tx any](b *bed[Tx]) {
	const workers, operations = 4, 12
	b.together(workers, func(i int) error {
		var mine []string
		for n := range operations {
			mine = append(mine, fmt.Sprint((n+i*5)%operations)) // in different orders
		}
		for {
			batch, verdicts, err := b.worker(i).batches.BeginBatch(b.ctx, gates(mine...))
			if err != nil {
				return err
			}
			open := false
			given := make([]*store.End, len(mine))
			for n, v := range verdicts {
				if v.State == store.Free {
					end := completed("done")
					given[n] = &end
					if err := b.Write(b.ctx, batch.Tx(), mine[n]); err != nil {
						return err
					}
				}
				open = open || !v.State.Final()
			}
			if !open {
				return nil
			}
			if batch != nil {
				if _, err := batch.Commit(b.ctx, given); err != nil {
					return err
				}
			}
		}
	})
	var want []string
	for n := range operations {
		want = append(want, fmt.Sprint(n))
	}
	b.rows(want...)
}

func batchLost[Tx any](b *bed[Tx]) {
	for _, took := range []bool{true, false} {
		all := gates(fmt.Sprint("a ", took), fmt.Sprint("b ", took))
		batch := b.batch(b.worker(0), all)
		b.must("Write", b.Write(b.ctx, batch.Tx(), fmt.Sprint("row ", took)))
		b.LoseAnswer(b.T, took)
		_, err := batch.Commit(b.ctx, ends(all))
		b.is("Commit", err, store.ErrCommitUnknown)
		want := map[bool]store.State{true: store.Completed, false: store.Free}[took]
		for _, g := range all {
			b.poll("the batch's fate is known", func() bool {
				v, err := b.worker(1).ledger.Settle(b.ctx, g.Key)
				b.must("Settle", err)
				if v.State != want && v.State != store.Processing {
					b.Fatalf("the operation is %v, want %v", v.State, want)
				}
				return v.State == want
			})
		}
	}
	b.rows("row true")
}

func batchDone[Tx any](b *bed[Tx]) {
	a, c := event("a", "x"), event("c", "x")
	b.appended(b.worker(0), store.New, a, c)
	held := b.takes(b.worker(0), "holder", true, "")
	all := []store.Gate{gate(a), gate(c)}
	for i := range all {
		all[i].Hold = b.laneOf(held, a)
	}
	batch := b.batch(b.worker(0), all)
	given := ends(all)
	given[1] = nil
	_, err := batch.Commit(b.ctx, given)
	b.must("Commit", err)
	b.reads(b.worker(1), "", "c")
}

func batchRefused[Tx any](b *bed[Tx]) {
	if batch, _, err := b.worker(0).batches.BeginBatch(b.ctx, nil); err == nil {
		b.Errorf("a batch of no gates: %v, no error", batch != nil)
	}
	all := gates("a", "b")
	want := store.Completed
	if w := b.worker(0); w.attempts == nil {
		b.end(w, all[1])
	} else {
		_, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: all[1], Lease: lease, DerivedKey: "uv1-test"})
		b.must("Claim", err)
		want = store.Processing
	}
	for _, given := range [][]*store.End{ends(all), ends(all)[:1], nil} {
		batch, _, err := b.worker(0).batches.BeginBatch(b.ctx, all)
		b.must("BeginBatch", err)
		if outcomes, err := batch.Commit(b.ctx, given); err == nil {
			b.Errorf("%d ends for one free gate of two: %+v, no error", len(given), outcomes)
		}
		b.must("Rollback", batch.Rollback(b.ctx))
	}
	b.states(all, store.Free, want)
}

// version checks the version that a fresh transaction sees.
func (b *bed[Tx]) version(order store.Key, want string) {
	b.Helper()
	f := b.caller()
	v, there, err := b.worker(0).versions.Version(b.ctx, f.tx, order)
	b.must("Version", err)
	b.must("rollback", f.rollback())
	if there != (want != "") || v.Number != want || there && string(v.Content) != "content "+want {
		b.Fatalf("version %+v, there %v; want %q", v, there, want)
	}
}

func (b *bed[Tx]) setVersion(tx Tx, order store.Key, number string) {
	b.Helper()
	b.must("SetVersion", b.worker(0).versions.SetVersion(b.ctx, tx, order, store.Version{Number: number, Content: []byte("content " + number)}))
}

// sees checks the version that a transaction sees.
func (b *bed[Tx]) sees(tx Tx, order store.Key, want string) {
	b.Helper()
	v, _, err := b.worker(0).versions.Version(b.ctx, tx, order)
	b.must("Version", err)
	if v.Number != want {
		b.Fatalf("the transaction sees version %q, want %q", v.Number, want)
	}
}

func versionCommits[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	b.version(e.Order, "")
	for i, commits := range []bool{false, true, false, true} {
		number := fmt.Sprint(i + 1)
		txn := b.begin(b.worker(0), gate(event(number, "x")))
		b.setVersion(txn.Tx(), e.Order, number)
		b.sees(txn.Tx(), e.Order, number)
		b.setVersion(txn.Tx(), e.Order, number+number)
		b.sees(txn.Tx(), e.Order, number+number)
		if !commits {
			b.must("Rollback", txn.Rollback(b.ctx))
			continue
		}
		_, err := txn.Commit(b.ctx, completed(number))
		b.must("Commit", err)
		b.version(e.Order, number+number)
	}
	b.version(e.Order, "44")
}

func versionsApart[Tx any](b *bed[Tx]) {
	x, y := event("a", "x").Order, event("a", "y").Order
	txn := b.begin(b.worker(0), gate(event("1", "x")))
	b.setVersion(txn.Tx(), x, "1")
	_, err := txn.Commit(b.ctx, completed("1"))
	b.must("Commit", err)
	b.version(x, "1")
	b.version(y, "")
}

func versionSavepoint[Tx any](b *bed[Tx]) {
	order := event("a", "x").Order
	f := b.caller()
	b.setVersion(f.tx, order, "1")
	back, err := b.Savepoint(b.ctx, f.tx)
	b.must("Savepoint", err)
	b.setVersion(f.tx, order, "2")
	b.must("rollback to the savepoint", back())
	b.sees(f.tx, order, "1")
	b.must("commit", f.commit())
	b.version(order, "1")
}

func versionDuplicate[Tx any](b *bed[Tx]) {
	e := event("a", "x")
	txn := b.begin(b.worker(0), gate(e))
	b.setVersion(txn.Tx(), e.Order, "1")
	b.Smuggle(b.T, e.Note.Event)
	_, err := txn.Commit(b.ctx, completed("done"))
	b.is("Commit", err, store.ErrDuplicate)
	b.must("Rollback", txn.Rollback(b.ctx))
	b.version(e.Order, "")
	if got := slices.Clone(b.Rows(b.T)); len(got) != 0 {
		b.Errorf("rows: %v", got)
	}
}
