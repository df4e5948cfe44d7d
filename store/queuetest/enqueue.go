package queuetest

import (
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// enqueueTests hold: what a transaction appends shares its fate, and keeps the
// order of its ordering key.
func enqueueTests[Tx any]() []test[Tx] {
	wants := []string{"Enqueuer"}
	sideBySide := func(h *Harness[Tx]) bool { return !h.Exclusive }
	return []test[Tx]{
		{name: "an entry appended in a transaction comes with its commit", wants: wants, run: enqueueCommits[Tx]},
		{name: "an entry appended in the engine's transaction comes with the outcome", wants: wants, run: enqueueWithOutcome[Tx]},
		{name: "a transaction whose operation was ended elsewhere appends nothing", wants: wants, needs: sideBySide, run: enqueueDuplicate[Tx]},
		{name: "what is known already is not appended in a transaction", wants: wants, run: enqueueKnown[Tx]},
		{name: "what a savepoint gave up is not appended", wants: wants, needs: func(h *Harness[Tx]) bool { return h.Savepoint != nil }, run: enqueueSavepoint[Tx]},
		{name: "appending in a transaction is writing", wants: wants, run: enqueueWrites[Tx]},
		{name: "a transaction that appends out of bounds appends nothing", wants: wants, run: enqueueOutOfBounds[Tx]},
		{name: "transactions append to one ordering key in turn", wants: wants, run: enqueueInTurn[Tx]},
		{name: "an append waits for the transaction that has appended its key", wants: wants, run: appendWaits[Tx]},
		{name: "transactions that append to many ordering keys do not block each other for ever", wants: wants, run: enqueueCrosswise[Tx]},
		{name: "an entry that commits late is in the reading after its commit", wants: wants, needs: sideBySide, run: lateCommit[Tx]},
		{name: "readings lose, repeat and invert nothing, in any schedule", wants: wants, needs: sideBySide, run: schedules[Tx]},
		{name: "readings lose, repeat and invert nothing beside working writers", run: beside[Tx]},
	}
}

func enqueueCommits[Tx any](b *bed[Tx]) {
	cursor := b.reads(b.worker(0), "")
	f := b.caller()
	a, c := event("a", "x"), event("c", "x")
	b.enqueue(f.tx, store.New, a)
	b.enqueue(f.tx, store.New, c)
	b.enqueue(f.tx, store.Duplicate, a)
	b.enqueue(f.tx, store.Conflict, altered(c))
	for i := range b.workers {
		w := b.worker(i)
		b.reads(w, cursor)
		_, err := w.Load(b.ctx, a.Key)
		b.is("Load before the commit", err, store.ErrNotFound)
	}
	b.must("commit", f.commit())
	b.reads(b.worker(1), cursor, "a", "c")
	if got := b.load(b.worker(1), c.Key); string(got.Payload) != "payload of c" || got.Arrived.IsZero() || got.Size != len("payload of c") {
		b.Errorf("an entry of a transaction: %+v", got)
	}
	b.deliveries(a)
	b.deliveries(c)
	f = b.caller()
	b.enqueue(f.tx, store.New, event("d", "x"), event("e"))
	b.must("rollback", f.rollback())
	b.reads(b.worker(1), cursor, "a", "c")
	b.appended(b.worker(1), store.New, event("d", "x"), event("e"))
	b.reads(b.worker(0), cursor, "a", "c", "d", "e")
}

func enqueueWithOutcome[Tx any](b *bed[Tx]) {
	operation := event("operation")
	for _, commits := range []bool{false, true} {
		txn := b.begin(b.worker(0), gate(operation))
		b.must("Write", b.Write(b.ctx, txn.Tx(), "row"))
		b.enqueue(txn.Tx(), store.New, event("consequence"))
		if !commits {
			b.must("Rollback", txn.Rollback(b.ctx))
			b.reads(b.worker(1), "")
			continue
		}
		_, err := txn.Commit(b.ctx, completed("done"))
		b.must("Commit", err)
	}
	b.reads(b.worker(1), "", "consequence")
	b.rows("row")
}

func enqueueDuplicate[Tx any](b *bed[Tx]) {
	operation := event("operation")
	txn := b.begin(b.worker(0), gate(operation))
	b.enqueue(txn.Tx(), store.New, event("consequence"))
	b.Smuggle(b.T, operation.Note.Event)
	_, err := txn.Commit(b.ctx, completed("done"))
	b.is("Commit", err, store.ErrDuplicate)
	b.reads(b.worker(1), "")
	b.appended(b.worker(1), store.New, event("consequence"))
}

func enqueueKnown[Tx any](b *bed[Tx]) {
	queued, done, fresh := event("queued", "x"), event("done", "x"), event("fresh", "x")
	b.appended(b.worker(1), store.New, queued)
	b.done(b.worker(1), done)
	cursor := b.reads(b.worker(1), "", "queued")
	f := b.caller()
	said, err := b.worker(0).enqueuer.Enqueue(b.ctx, f.tx, []store.Entry{queued, altered(queued), fresh, done, altered(done), fresh})
	b.must("Enqueue", err)
	want := []store.Appended{store.Duplicate, store.Conflict, store.New, store.Duplicate, store.Conflict, store.Duplicate}
	if !slices.Equal(said, want) {
		b.Fatalf("said %v, want %v", said, want)
	}
	b.must("commit", f.commit())
	b.reads(b.worker(1), cursor, "fresh")
}

func enqueueSavepoint[Tx any](b *bed[Tx]) {
	f := b.caller()
	b.enqueue(f.tx, store.New, event("before", "x"))
	back, err := b.Savepoint(b.ctx, f.tx)
	b.must("Savepoint", err)
	b.enqueue(f.tx, store.New, event("given up", "x"))
	b.must("rollback to the savepoint", back())
	b.enqueue(f.tx, store.New, event("after", "x"))
	b.must("commit", f.commit())
	b.reads(b.worker(1), "", "before", "after")
	b.appended(b.worker(1), store.New, event("given up", "x"))
}

func enqueueWrites[Tx any](b *bed[Tx]) {
	txn := b.begin(b.worker(0), gate(event("operation")))
	b.enqueue(txn.Tx(), store.New, event("consequence"))
	end := completed("refused")
	end.Unwritten = true
	_, err := txn.Commit(b.ctx, end)
	b.is("Commit of an unwritten end", err, store.ErrWrote)
	b.must("Rollback", txn.Rollback(b.ctx))
	b.reads(b.worker(1), "")
}

func enqueueOutOfBounds[Tx any](b *bed[Tx]) {
	long := event("long")
	long.Note.Attributes = map[string]string{"long": string(make([]byte, store.MaxNote))}
	f := b.caller()
	if said, err := b.worker(0).enqueuer.Enqueue(b.ctx, f.tx, []store.Entry{event("good"), long}); err == nil {
		b.Fatalf("Enqueue of a note that is too long: said %v", said)
	}
	b.must("rollback", f.rollback())
	b.reads(b.worker(1), "")
}

// inCaller appends an entry in a transaction of its own, as another goroutine may.
func (b *bed[Tx]) inCaller(entries ...store.Entry) error {
	tx, commit, rollback, err := b.BeginForeign(b.ctx)
	if err != nil {
		return err
	}
	if _, err := b.worker(0).enqueuer.Enqueue(b.ctx, tx, entries); err != nil {
		_ = rollback() // it is the first error that tells
		return err
	}
	return commit()
}

func enqueueInTurn[Tx any](b *bed[Tx]) {
	cursor := b.reads(b.worker(0), "")
	for _, commits := range []bool{true, false} {
		first, second := event(fmt.Sprint("first ", commits), "x"), event(fmt.Sprint("second ", commits), "x")
		f := b.caller()
		b.enqueue(f.tx, store.New, first)
		finish := waits(b, "Enqueue to an ordering key that is taken", func() error { return b.inCaller(second) })
		b.reads(b.worker(1), cursor)
		if !commits {
			b.must("rollback", f.rollback())
			finish()
			cursor = b.reads(b.worker(1), cursor, "second false")
			continue
		}
		b.must("commit", f.commit())
		finish()
		if one, two := b.load(b.worker(0), first.Key).Sequence, b.load(b.worker(0), second.Key).Sequence; one >= two {
			b.Fatalf("the second has sequence %d, the first %d", two, one)
		}
		cursor = b.reads(b.worker(1), cursor, "first true", "second true")
	}
}

func appendWaits[Tx any](b *bed[Tx]) {
	for _, commits := range []bool{true, false} {
		name := fmt.Sprint("entry ", commits)
		f := b.caller()
		b.enqueue(f.tx, store.New, event(name))
		var said []store.Appended
		finish := waits(b, "Append of a key that a transaction has appended", func() (err error) {
			said, err = b.worker(1).Append(b.ctx, store.Arrival{Entries: []store.Entry{event(name)}})
			return err
		})
		want := store.New
		if commits {
			b.must("commit", f.commit())
			want = store.Duplicate
		} else {
			b.must("rollback", f.rollback())
		}
		finish()
		if len(said) != 1 || said[0] != want {
			b.Fatalf("said %v after the transaction, want %v", said, want)
		}
	}
	b.reads(b.worker(0), "", "entry true", "entry false")
}

func enqueueCrosswise[Tx any](b *bed[Tx]) {
	const writers, rounds = 4, 15
	b.together(writers, func(i int) error {
		for n := range rounds {
			var entries []store.Entry
			for k := range 4 {
				key := fmt.Sprint((i*7 + n + k*(1+i%3)) % 5) // in different orders
				entries = append(entries, event(fmt.Sprint(i, n, k), key))
			}
			if err := b.inCaller(entries...); err != nil {
				return fmt.Errorf("writer %d, round %d: %w", i, n, err)
			}
		}
		return nil
	})
	if entries, _ := b.reading(b.worker(0), ""); len(entries) != writers*rounds*4 {
		b.Errorf("read %d entries, want %d", len(entries), writers*rounds*4)
	}
}

// naive is a reader whose cursor is the last sequence: what commits late behind
// it is lost to it.
type naive[Tx any] struct {
	b    *bed[Tx]
	last int64
	seen []store.Entry
}

func (n *naive[Tx]) read() {
	n.b.Helper()
	entries, _ := n.b.pages(n.b.worker(1), store.Reading{Lanes: n.b.all(), After: n.last, Limit: 100})
	for _, e := range entries {
		n.last = max(n.last, e.Sequence)
	}
	n.seen = append(n.seen, entries...)
}

func lateCommit[Tx any](b *bed[Tx]) {
	cursor, plain := b.reads(b.worker(0), ""), naive[Tx]{b: b}
	f := b.caller()
	b.enqueue(f.tx, store.New, event("late", "x"))
	b.appended(b.worker(1), store.New, event("early", "y"))
	plain.read()
	between := b.reads(b.worker(0), cursor, "early")
	b.must("commit", f.commit())
	plain.read()
	late := b.reads(b.worker(1), between, "late")
	b.reads(b.worker(1), late)
	b.reads(b.worker(1), cursor, "late", "early") // in the order of their sequence
	b.reads(b.worker(1), "", "late", "early")
	if got := names(plain.seen); !slices.Equal(got, []string{"early"}) {
		b.Errorf("a reader by sequence saw %v; the schedule proves nothing", got)
	}
}
