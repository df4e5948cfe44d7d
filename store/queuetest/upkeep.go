package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/unavez/unavez/store"
)

// upkeepTests hold: nothing that waits is ever purged, and what is forgotten is
// forgotten as a whole.
func upkeepTests[Tx any]() []test[Tx] {
	upkeep := []string{"Upkeep"}
	return []test[Tx]{
		{name: "a purge never removes an entry that is not done", wants: []string{"Upkeep", "Attempts"}, needs: purges[Tx], run: purgeUndone[Tx]},
		{name: "an entry that is done is kept as long as was promised", wants: upkeep, needs: purges[Tx], run: doneKept[Tx]},
		{name: "a purge leaves cursors and orders as they were", wants: upkeep, needs: purges[Tx], run: purgeAndRead[Tx]},
		{name: "an entry that is done stays done when the ledger forgets it", wants: upkeep, run: doneForEver[Tx]},
		{name: "an operation that comes again once it is forgotten changes no other entry", run: forgottenAlone[Tx]},
		{name: "what is appended beside a purge is never lost", wants: upkeep, needs: purges[Tx], run: purgeBeside[Tx]},
		{
			name:  "what is appended and not committed outlives any purge",
			wants: []string{"Upkeep", "Enqueuer"}, needs: func(h *Harness[Tx]) bool { return purges(h) && !h.Exclusive }, run: purgeUncommitted[Tx],
		},
		{name: "erasing a person keeps the identities", wants: []string{"Privacy", "Quarantine"}, run: erased[Tx]},
		{name: "erasing an account takes what belongs to it, and keeps the identities", wants: []string{"Privacy", "Quarantine"}, run: accountErased[Tx]},
		{name: "a queue tells how much waits, and for how long", wants: []string{"QueueCounter", "Quarantine"}, run: counted[Tx]},
		{name: "a full queue says so", wants: []string{"QueueCounter"}, needs: func(h *Harness[Tx]) bool { return h.Fill != nil }, run: countedFull[Tx]},
		{name: "a signal wakes those who listen", wants: []string{"Signal"}, run: woken[Tx]},
	}
}

// rounds purges for four times the time that payloads are kept.
func (b *bed[Tx]) rounds() {
	b.Helper()
	for range 8 {
		b.Advance(b.T, b.Payloads/2+margin)
		b.purge()
	}
}

func purgeUndone[Tx any](b *bed[Tx]) {
	l := b.line(event("free", "a"), event("leased", "b"), event("retryable", "c"), event("dead", "d"), event("done", "e"), event("follower", "c"))
	w := b.worker(0)
	a, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: gate(l.entries[1]), Lease: lease, DerivedKey: "uv1-test"})
	b.must("Claim", err)
	if a == nil {
		b.Fatal("Claim: refused")
	}
	l.block(2, false, l.resting(2, 0, 1, store.Retryable, lease))
	l.block(3, false, l.resting(3, 0, 1, store.Dead, 0))
	b.done(w, l.entries[4])
	// Another event has named the operation of this one.
	named := entryOf(store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"event", "late"}}, l.entries[4].Note.Identity, "late")
	b.appended(w, store.New, named)
	named = b.load(w, named.Key)
	b.purged(l.entries[4])
	b.rounds()
	b.reads(b.worker(1), "", "free", "leased", "retryable", "dead", "follower", "late")
	for _, e := range append(slices.Delete(slices.Clone(l.entries), 4, 5), named) {
		got := b.load(b.worker(1), e.Key)
		if string(got.Payload) != string(e.Payload) || got.Sequence != e.Sequence || got.Order != e.Order || got.Key != e.Key {
			b.Errorf("after purges: %+v, want %+v", got, e)
		}
	}
	l.waits(2, 3)
	b.appended(w, store.Duplicate, l.entries[0], l.entries[1], l.entries[2], l.entries[3], l.entries[4])
}

func doneKept[Tx any](b *bed[Tx]) {
	a := event("a")
	b.appended(b.worker(0), store.New, a)
	b.done(b.worker(0), a)
	for range 2 {
		b.purge()
		b.Advance(b.T, b.Payloads/2-margin)
	}
	b.purge()
	if e := b.load(b.worker(1), a.Key); string(e.Payload) != "payload of a" {
		b.Errorf("payload %q", e.Payload)
	}
	b.purged(a)
}

func purgeAndRead[Tx any](b *bed[Tx]) {
	a, c, d := event("a", "x"), event("c", "x"), event("d", "x")
	b.appended(b.worker(0), store.New, a, c)
	cursor := b.reads(b.worker(0), "", "a", "c")
	b.done(b.worker(0), a)
	b.rounds()
	entries, next := b.reading(b.worker(1), cursor)
	for _, e := range entries { // one that was carried may come again
		if e.Key != c.Key || e.Sequence != b.load(b.worker(0), c.Key).Sequence {
			b.Fatalf("read %v since the cursor, want nothing, or c once more", names(entries))
		}
	}
	b.appended(b.worker(0), store.New, d)
	next = b.reads(b.worker(1), next, "d")
	b.reads(b.worker(0), next)
	b.reads(b.worker(0), "", "c", "d")
	if one, two := b.load(b.worker(0), c.Key).Sequence, b.load(b.worker(0), d.Key).Sequence; one >= two {
		b.Errorf("the later entry has sequence %d, the earlier %d", two, one)
	}
}

// forgotten ends entries, and has the ledger forget their operations.
func (b *bed[Tx]) forgotten(entries ...store.Entry) {
	b.Helper()
	for _, e := range entries {
		g := gate(e)
		g.Retention, g.Tombstone = lease, lease
		b.end(b.worker(0), g)
	}
	b.Advance(b.T, 2*lease+margin)
	for _, e := range entries {
		if v := b.look(e.Key); v.State != store.Free {
			b.Fatalf("the operation is %v, want it forgotten", v.State)
		}
	}
}

func doneForEver[Tx any](b *bed[Tx]) {
	a, c := event("a"), event("c")
	b.appended(b.worker(0), store.New, a, c)
	b.forgotten(a)
	b.reads(b.worker(1), "", "c")
	b.appended(b.worker(1), store.Duplicate, a) // it is in the queue
	for range 3 {
		b.purge()
		b.reads(b.worker(1), "", "c")
		b.Advance(b.T, lease)
	}
	// Once it is gone too, the same key is a new entry, and not done.
	if b.Payloads > 0 {
		b.purged(a)
		b.appended(b.worker(1), store.New, a)
		b.reads(b.worker(0), "", "c", "a")
		b.purge()
		b.reads(b.worker(0), "", "c", "a")
	}
}

func forgottenAlone[Tx any](b *bed[Tx]) {
	a, c, d := event("a"), event("c"), event("d")
	b.appended(b.worker(0), store.New, a, c, d)
	b.forgotten(a, c)
	b.end(b.worker(0), gate(a)) // by itself: what is left of its first life goes
	b.reads(b.worker(1), "", "d")
	if e := b.load(b.worker(1), d.Key); string(e.Payload) != "payload of d" {
		b.Errorf("payload of d: %q", e.Payload)
	}
}

func purgeBeside[Tx any](b *bed[Tx]) {
	const writers, rounds = 3, 12
	var want []string
	for round := range 4 {
		working, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-working:
					stopped <- nil
					return
				default:
				}
				if _, err := b.worker(1).upkeep.Purge(b.ctx, 10); err != nil && !errors.Is(err, store.ErrUnavailable) {
					stopped <- err
					return
				}
			}
		}()
		b.together(writers, func(i int) error {
			for n := range rounds {
				e := event(fmt.Sprint(round, i, n), fmt.Sprint(i))
				if _, err := b.worker(i).Append(b.ctx, store.Arrival{Entries: []store.Entry{e}}); err != nil {
					return err
				}
				if n%3 == 0 {
					continue // stays
				}
				txn, v, err := b.worker(i).ledger.Begin(b.ctx, gate(e))
				if err != nil {
					return err
				}
				if txn == nil {
					return fmt.Errorf("begin: refused, %v", v.State)
				}
				if _, err := txn.Commit(b.ctx, completed("done")); err != nil {
					return err
				}
			}
			return nil
		})
		close(working)
		b.must("Purge", <-stopped)
		for i := range writers {
			for n := 0; n < rounds; n += 3 {
				want = append(want, fmt.Sprint(round, i, n))
			}
		}
		b.Advance(b.T, b.Payloads/2+margin)
	}
	b.rounds()
	entries, _ := b.reading(b.worker(0), "")
	got := names(entries)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.Errorf("in the queue are %d entries, want the %d that are not done", len(got), len(want))
	}
}

func purgeUncommitted[Tx any](b *bed[Tx]) {
	done := event("done", "x")
	b.appended(b.worker(0), store.New, done)
	cursor := b.reads(b.worker(0), "", "done")
	f := b.caller()
	b.enqueue(f.tx, store.New, event("a", "y"), event("c", "z"))
	b.done(b.worker(1), done)
	b.rounds()
	b.must("commit", f.commit())
	b.reads(b.worker(1), cursor, "a", "c")
	b.rounds()
	b.reads(b.worker(1), "", "a", "c")
}

func erased[Tx any](b *bed[Tx]) {
	subject := store.SubjectKey("tenant", []string{"customer", "7"})
	mine, done, other := event("mine", "x"), event("done", "x"), event("other", "x")
	mine.Subject, done.Subject = subject, subject
	other.Subject = store.SubjectKey("tenant", []string{"customer", "8"})
	kept, gone := item("kept", "shop"), item("gone", "shop")
	gone.Subject = subject
	b.appended(b.worker(0), store.New, mine, done, other)
	b.quarantines(b.worker(0), kept, gone)
	b.done(b.worker(0), done)
	cursor, sequence := b.reads(b.worker(0), "", "mine", "other"), b.load(b.worker(0), mine.Key).Sequence
	erase := store.Action{Key: subject, Actor: "ana", Reason: "asked for it"}
	for _, want := range []int{3, 0} {
		n, err := b.worker(1).privacy.Erase(b.ctx, erase)
		b.must("Erase", err)
		if n != want {
			b.Fatalf("erased %d payloads, want %d", n, want)
		}
	}
	b.reads(b.worker(0), "", "mine", "other") // it still waits
	for _, e := range []store.Entry{mine, done} {
		got := b.load(b.worker(0), e.Key)
		if len(got.Payload) != 0 || !got.Erased || got.Key != e.Key || got.Operation != e.Operation || !got.Fingerprint.Equal(e.Fingerprint) {
			b.Errorf("erased: %+v", got)
		}
	}
	if got := b.load(b.worker(0), mine.Key); got.Sequence != sequence {
		b.Errorf("sequence %d after the erasure, %d before", got.Sequence, sequence)
	}
	if got := b.load(b.worker(0), other.Key); string(got.Payload) != "payload of other" || got.Erased {
		b.Errorf("of another subject: %+v", got)
	}
	for _, q := range []store.Quarantined{kept, gone} {
		got, err := b.worker(0).quarantine.ShowQuarantined(b.ctx, q.Key)
		b.must("ShowQuarantined", err)
		if got.Erased != (q.Key == gone.Key) || (len(got.Payload) == 0) != got.Erased {
			b.Errorf("quarantined: %+v", got)
		}
	}
	b.appended(b.worker(1), store.Duplicate, mine, done)
	b.appended(b.worker(1), store.Conflict, altered(mine), altered(done))
	b.reads(b.worker(0), cursor)
	for _, action := range []store.Action{{Key: subject, Reason: "nobody"}, {Key: subject, Actor: "no reason"}} {
		if _, err := b.worker(0).privacy.Erase(b.ctx, action); err == nil {
			b.Errorf("Erase by %q because of %q: no error", action.Actor, action.Reason)
		}
	}
	n, err := b.worker(0).privacy.Erase(b.ctx, store.Action{Key: store.SubjectKey("tenant", []string{"nobody"}), Actor: "ana", Reason: "asked for it"})
	if err != nil || n != 0 {
		b.Errorf("Erase of nobody: %d, %v", n, err)
	}
}

// accountErased erases ever more: one account of a source, a source, a tenant.
func accountErased[Tx any](b *bed[Tx]) {
	at := func(id, tenant, source, account string) store.Entry {
		e := event(id, "x")
		e.Note.Event.Tenant, e.Note.Identity.Tenant, e.Note.Source, e.Note.Account = tenant, tenant, source, account
		e.Key, e.Operation, e.Order = e.Note.Event.Key(), e.Note.Identity.Key(), e.Note.Order()
		return e
	}
	kept := func(id, tenant, source, account string) store.Quarantined {
		q := item(id, source)
		q.Tenant, q.Note.Source, q.Note.Account = tenant, source, account
		return q
	}
	entries := []store.Entry{
		at("mine", "t", "shop", "7"), at("done", "t", "shop", "7"), at("account", "t", "shop", "8"),
		at("source", "t", "bank", "7"), at("tenant", "u", "shop", "7"),
	}
	items := []store.Quarantined{
		kept("q-mine", "t", "shop", "7"), kept("q-account", "t", "shop", "8"), kept("q-source", "t", "bank", "7"), kept("q-tenant", "u", "shop", "7"),
	}
	b.appended(b.worker(0), store.New, entries...)
	b.quarantines(b.worker(0), items...)
	b.done(b.worker(0), entries[1])
	left := func() (names []string) {
		for _, e := range entries {
			got := b.load(b.worker(0), e.Key)
			if got.Erased != (len(got.Payload) == 0) || got.Key != e.Key || !got.Fingerprint.Equal(e.Fingerprint) {
				b.Errorf("%+v", got)
			}
			if !got.Erased {
				names = append(names, e.Note.Account+" of "+e.Note.Source+" of "+e.Note.Event.Tenant)
			}
		}
		for _, q := range items {
			got, err := b.worker(0).quarantine.ShowQuarantined(b.ctx, q.Key)
			b.must("ShowQuarantined", err)
			if got.Erased != (len(got.Payload) == 0) {
				b.Errorf("%+v", got)
			}
			if !got.Erased {
				names = append(names, "item "+q.Note.Account+" of "+q.Source+" of "+q.Tenant)
			}
		}
		return names
	}
	for _, step := range []struct {
		of   store.Account
		want int
		left []string
	}{
		{store.Account{Tenant: "v"}, 0, nil},
		{store.Account{Tenant: "t", Source: "shop", Name: "9"}, 0, nil},
		{store.Account{Tenant: "t", Source: "shop", Name: "7"}, 3, []string{"8 of shop of t", "7 of bank of t", "7 of shop of u", "item 8 of shop of t", "item 7 of bank of t", "item 7 of shop of u"}},
		{store.Account{Tenant: "t", Source: "shop"}, 2, []string{"7 of bank of t", "7 of shop of u", "item 7 of bank of t", "item 7 of shop of u"}},
		{store.Account{Tenant: "t"}, 2, []string{"7 of shop of u", "item 7 of shop of u"}},
	} {
		for _, want := range []int{step.want, 0} {
			n, err := b.worker(1).privacy.EraseAccount(b.ctx, store.Action{Key: step.of.Key(), Actor: "ana", Reason: "it has left"}, step.of)
			b.must("EraseAccount", err)
			if n != want {
				b.Fatalf("%+v: erased %d payloads, want %d", step.of, n, want)
			}
		}
		if got := left(); step.left != nil && !slices.Equal(got, step.left) {
			b.Fatalf("%+v: left is %q, want %q", step.of, got, step.left)
		}
	}
	b.appended(b.worker(1), store.Duplicate, entries...)
	for _, action := range []store.Action{{Key: store.Account{}.Key(), Reason: "nobody"}, {Key: store.Account{}.Key(), Actor: "no reason"}, {Actor: "ana", Reason: "no key"}} {
		if _, err := b.worker(0).privacy.EraseAccount(b.ctx, action, store.Account{}); err == nil {
			b.Errorf("EraseAccount by %+v: no error", action)
		}
	}
}

func counted[Tx any](b *bed[Tx]) {
	count := func() store.QueueCounts {
		b.Helper()
		c, err := b.worker(1).counter.QueueCounts(b.ctx)
		b.must("QueueCounts", err)
		if c.Full < 0 || c.Full > 1 {
			b.Errorf("full to %v", c.Full)
		}
		return c
	}
	lanes := b.worker(0).Lanes.Lanes()
	if c := count(); c.Blocked != 0 || c.Orphans != lanes || c.Depth["shop"] != 0 || c.Quarantined["shop"] != 0 {
		b.Errorf("of an empty queue: %+v", c)
	}
	bank := event("bank", "z")
	bank.Note.Source = "bank"
	l := b.line(event("a", "x"), event("c", "y"), event("d", "x"), bank)
	b.quarantines(b.worker(0), item("1", "shop"), item("2", "shop"), item("3", "bank"))
	l.block(0, false, nil)
	l.block(1, true, nil)
	b.Advance(b.T, lease/2)
	b.appended(b.worker(0), store.New, event("young", "w"))
	c := count()
	if c.Blocked != 2 || c.Orphans != 0 || c.Depth["shop"] != 4 || c.Depth["bank"] != 1 || c.Quarantined["shop"] != 2 || c.Quarantined["bank"] != 1 {
		b.Errorf("counted %+v", c)
	}
	if age := c.Oldest["shop"]; age < lease/2 || age > lease/2+margin {
		b.Errorf("the oldest is %v old, want %v", age, lease/2)
	}
	b.done(b.worker(0), l.entries[0], l.entries[1], l.entries[2])
	l.unblock(0)
	c = count()
	if c.Blocked != 1 || c.Depth["shop"] != 1 || c.Oldest["shop"] > margin || c.Depth["bank"] != 1 {
		b.Errorf("counted when some were done: %+v", c)
	}
	b.Advance(b.T, lease)
	if c = count(); c.Orphans != lanes {
		b.Errorf("%d lanes without a living holder, want %d", c.Orphans, lanes)
	}
}

func countedFull[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("a"))
	before, err := b.worker(0).counter.QueueCounts(b.ctx)
	b.must("QueueCounts", err)
	drain := b.Fill(b.T)
	c, err := b.worker(0).counter.QueueCounts(b.ctx)
	b.must("QueueCounts", err)
	if c.Full <= before.Full || c.Full < 0.9 || c.Full > 1 {
		b.Errorf("full to %v, %v before; want nearly 1", c.Full, before.Full)
	}
	drain()
}

func woken[Tx any](b *bed[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	woke, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- b.worker(1).signal.Listen(ctx, func() {
			select {
			case woke <- struct{}{}:
			default:
			}
		})
	}()
	listening := func() {
		b.Helper()
		b.poll("the listener is woken", func() bool {
			select {
			case err := <-ended:
				b.Fatalf("Listen: ended with %v", err)
			case <-woke:
				return true
			default:
			}
			b.must("Notify", b.worker(0).signal.Notify(b.ctx))
			return false
		})
	}
	listening()
	listening()
	cancel()
	<-ended
	b.must("Notify of nobody", b.worker(0).signal.Notify(b.ctx))
}
