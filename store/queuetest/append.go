package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// appendTests hold: what was accepted is durable, once, in the order of arrival.
func appendTests[Tx any]() []test[Tx] {
	quarantine := []string{"Quarantine"}
	return []test[Tx]{
		{name: "an entry is kept as it arrived", run: keptWhole[Tx]},
		{name: "the order of arrival is the order of the sequence", run: arrivalOrder[Tx]},
		{name: "a later append has larger sequences, whoever appends", run: appendsInTurn[Tx]},
		{name: "of two entries of one arrival with one key the first counts", run: twiceInArrival[Tx]},
		{name: "an entry that is in the queue is not appended again", run: duplicateInQueue[Tx]},
		{name: "a conflict leaves a delivery and no second entry", wants: quarantine, run: conflictSeen[Tx]},
		{name: "an entry that is done is a duplicate", run: duplicateOfDone[Tx]},
		{name: "a purged entry is a duplicate by its outcome, then by its tombstone", wants: []string{"Upkeep"}, needs: purges[Tx], run: duplicateOfPurged[Tx]},
		{name: "an entry with an unfinished attempt is a duplicate", wants: []string{"Attempts"}, run: duplicateOfAttempt[Tx]},
		{name: "two events that name one operation are two entries", run: twoEventsOneOperation[Tx]},
		{name: "entries that arrive at many workers at once are one", run: onceAmongWorkers[Tx]},
		{name: "an arrival is kept as a whole or not at all", wants: quarantine, needs: func(h *Harness[Tx]) bool { return h.Break != nil }, run: allOrNothing[Tx]},
		{name: "an append whose answer was lost is a duplicate when it is repeated", needs: func(h *Harness[Tx]) bool { return h.LoseAnswer != nil }, run: answerLost[Tx]},
		{name: "an arrival that is out of bounds is refused whole", run: outOfBounds[Tx]},
		{name: "a full queue takes nothing", wants: quarantine, needs: func(h *Harness[Tx]) bool { return h.Fill != nil }, run: full[Tx]},
	}
}

func purges[Tx any](h *Harness[Tx]) bool { return h.Payloads > 0 }

func keptWhole[Tx any](b *bed[Tx]) {
	e := event("whole", "customer", "7")
	e.Subject = store.SubjectKey("tenant", []string{"customer", "7"})
	e.Payload = []byte{0, 1, 0xff, '\n', 0}
	e.Note.Version, e.Note.Time = "17", time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC)
	e.Note.Subject, e.Note.Delivery, e.Note.Correlation = []string{"order", "é"}, "d-1", "c-1"
	e.Note.Unsigned, e.Note.Hint, e.Note.Account = true, true, "shop-7"
	e.Sequence, e.Size, e.Erased, e.Arrived = 77, 78, true, time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // the store's own
	empty := event("empty")
	empty.Payload, empty.Fingerprint = nil, store.Fingerprint{}
	b.appended(b.worker(0), store.New, e, empty)
	want, err := e.Note.Encode()
	b.must("Encode", err)
	check := func(call string, got store.Entry) {
		b.Helper()
		note, err := got.Note.Encode()
		b.must("Encode", err)
		if got.Key != e.Key || got.Operation != e.Operation || got.Order != e.Order || got.Subject != e.Subject ||
			!got.Fingerprint.Equal(e.Fingerprint) || string(got.Payload) != string(e.Payload) || string(note) != string(want) {
			b.Errorf("%s: %+v, want %+v", call, got, e)
		}
		if got.Size != len(e.Payload) || got.Erased || got.Sequence < 1 || got.Sequence == 77 || got.Arrived.Year() < 2000 {
			b.Errorf("%s: size %d, erased %v, sequence %d, arrived %v", call, got.Size, got.Erased, got.Sequence, got.Arrived)
		}
	}
	for i := range b.workers {
		w := b.worker(i)
		entries, _ := b.reading(w, "")
		if len(entries) != 2 {
			b.Fatalf("read %d entries, want 2", len(entries))
		}
		check("Read", entries[0])
		if got := entries[1]; len(got.Payload) != 0 || got.Size != 0 || !got.Fingerprint.Equal(empty.Fingerprint) || got.Order != empty.Key {
			b.Errorf("Read of an empty one: %+v", got)
		}
		check("Load", b.load(w, e.Key))
		// What is handed out is the caller's.
		entries[0].Payload[0] ^= 1
		entries[0].Note.ID[0] = "changed"
		check("Load after a change of what was read", b.load(w, e.Key))
	}
	_, err = b.worker(0).Load(b.ctx, event("never seen").Key)
	b.is("Load of nothing", err, store.ErrNotFound)
}

func arrivalOrder[Tx any](b *bed[Tx]) {
	var arrival []store.Entry
	var want []string
	for i := range 200 { // whose keys are in no order
		name := fmt.Sprint(i)
		arrival, want = append(arrival, event(name, "one key")), append(want, name)
	}
	b.appended(b.worker(0), store.New, arrival...)
	b.reads(b.worker(1), "", want...)
	followers, err := b.worker(1).Followers(b.ctx, arrival[0].Order, 0, store.MaxReading)
	b.must("Followers", err)
	if got := names(followers); !slices.Equal(got, want) {
		b.Errorf("followers %v", got)
	}
}

func appendsInTurn[Tx any](b *bed[Tx]) {
	last, cursor := int64(0), ""
	var want []string
	for i := range 30 {
		name, key := fmt.Sprint(i), fmt.Sprint(i%3)
		e := event(name, key)
		b.appended(b.worker(i), store.New, e)
		if got := b.load(b.worker(i+1), e.Key); got.Sequence <= last {
			b.Fatalf("entry %d: sequence %d after %d", i, got.Sequence, last)
		} else {
			last = got.Sequence
		}
		cursor = b.reads(b.worker(i+1), cursor, name)
		want = append(want, name)
	}
	b.reads(b.worker(0), "", want...)
}

func twiceInArrival[Tx any](b *bed[Tx]) {
	a, c := event("a"), event("c")
	got := b.append(b.worker(0), a, c, a, altered(a), c)
	want := []store.Appended{store.New, store.New, store.Duplicate, store.Conflict, store.Duplicate}
	if !slices.Equal(got, want) {
		b.Fatalf("said %v, want %v", got, want)
	}
	b.reads(b.worker(1), "", "a", "c")
	if got := b.load(b.worker(1), a.Key); string(got.Payload) != "payload of a" {
		b.Errorf("payload %q, want the first one", got.Payload)
	}
	b.deliveries(a, store.Duplicate, store.Conflict)
}

func duplicateInQueue[Tx any](b *bed[Tx]) {
	a, other := event("a"), event("b")
	b.appended(b.worker(0), store.New, a)
	cursor := b.reads(b.worker(0), "", "a")
	for i := range 3 {
		got := b.append(b.worker(i), a, other)
		if want := []store.Appended{store.Duplicate, []store.Appended{store.New, store.Duplicate, store.Duplicate}[i]}; !slices.Equal(got, want) {
			b.Fatalf("said %v, want %v", got, want)
		}
	}
	b.reads(b.worker(1), cursor, "b")
	b.reads(b.worker(1), "", "a", "b")
	b.deliveries(a, store.Duplicate, store.Duplicate, store.Duplicate)
}

func conflictSeen[Tx any](b *bed[Tx]) {
	a := event("a")
	b.appended(b.worker(0), store.New, a)
	cursor := b.reads(b.worker(0), "", "a")
	first := b.load(b.worker(0), a.Key)
	other := altered(a)
	for i := range 2 {
		b.appended(b.worker(i), store.Conflict, other)
	}
	version := a
	version.Fingerprint.Version = 2 // of another algorithm: not the same for certain
	b.appended(b.worker(0), store.Conflict, version)
	b.reads(b.worker(1), cursor)
	b.reads(b.worker(1), "", "a")
	if got := b.load(b.worker(1), a.Key); string(got.Payload) != string(first.Payload) || got.Sequence != first.Sequence || !got.Fingerprint.Equal(a.Fingerprint) {
		b.Errorf("the entry was changed by a conflict: %+v", got)
	}
	b.deliveries(a, store.Conflict, store.Conflict, store.Conflict)
	seen, err := b.worker(0).quarantine.Deliveries(b.ctx, a.Key, 1)
	b.must("Deliveries", err)
	if len(seen) != 1 || !slices.Equal(seen[0].Sum, other.Fingerprint.Short()) {
		b.Errorf("deliveries, at most one: %+v, want the front %x", seen, other.Fingerprint.Short())
	}
	b.deliveries(event("never seen"))
}

func duplicateOfDone[Tx any](b *bed[Tx]) {
	a := event("a")
	b.appended(b.worker(0), store.New, a)
	b.done(b.worker(0), a)
	for i := range b.workers {
		b.appended(b.worker(i), store.Duplicate, a)
		b.appended(b.worker(i), store.Conflict, altered(a))
	}
	b.reads(b.worker(1), "")
	// Done by a request or a program, and never in the queue.
	elsewhere := event("elsewhere")
	b.done(b.worker(0), elsewhere)
	b.appended(b.worker(1), store.Duplicate, elsewhere)
	b.appended(b.worker(1), store.Conflict, altered(elsewhere))
	b.reads(b.worker(1), "")
}

// purged purges the queue until the entries are gone.
func (b *bed[Tx]) purged(entries ...store.Entry) {
	b.Helper()
	for range 8 {
		b.purge()
		gone := func(e store.Entry) bool {
			_, err := b.worker(0).Load(b.ctx, e.Key)
			return errors.Is(err, store.ErrNotFound)
		}
		if !slices.ContainsFunc(entries, func(e store.Entry) bool { return !gone(e) }) {
			return
		}
		b.Advance(b.T, b.Payloads/2+margin)
	}
	b.Fatalf("entries that are done are still in the queue after four times %v", b.Payloads)
}

// purge purges until nothing is left for now.
func (b *bed[Tx]) purge() {
	b.Helper()
	for {
		n, err := b.worker(0).upkeep.Purge(b.ctx, 100)
		b.must("Purge", err)
		if n < 100 {
			return
		}
	}
}

func duplicateOfPurged[Tx any](b *bed[Tx]) {
	a := event("a")
	b.appended(b.worker(0), store.New, a)
	b.done(b.worker(0), a)
	b.purged(a)
	b.appended(b.worker(1), store.Duplicate, a)
	b.appended(b.worker(1), store.Conflict, altered(a))
	b.Advance(b.T, retention)
	b.purge()
	if v := b.look(a.Key); v.State != store.Expired {
		b.Fatalf("the operation is %v, want expired", v.State)
	}
	b.appended(b.worker(1), store.Duplicate, a)
	b.appended(b.worker(0), store.Conflict, altered(a))
	b.reads(b.worker(0), "")
	b.Advance(b.T, tombstone+margin)
	b.appended(b.worker(1), store.New, altered(a)) // forgotten, so it is another one
	b.reads(b.worker(0), "", "a")
	b.purge()
	b.reads(b.worker(1), "", "a")
}

func duplicateOfAttempt[Tx any](b *bed[Tx]) {
	for _, state := range []store.State{store.Processing, store.Retryable, store.Parked, store.Unknown, store.Dead} {
		e := event(state.String())
		w := b.worker(0)
		a, _, err := w.attempts.Claim(b.ctx, store.Claim{Gate: gate(e), Lease: lease, DerivedKey: e.Note.Event.DerivedKey("")})
		b.must("Claim", err)
		if a == nil {
			b.Fatal("Claim: refused")
		}
		if state != store.Processing {
			b.must("Rest", w.attempts.Rest(b.ctx, e.Key, 1, store.Rest{State: state, Reason: "test"}))
		}
		b.appended(b.worker(1), store.Duplicate, e)
		b.appended(b.worker(1), store.Conflict, altered(e))
	}
	b.reads(b.worker(1), "")
}

func twoEventsOneOperation[Tx any](b *bed[Tx]) {
	operation := store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"order", "1001"}}
	named := func(name string) store.Entry {
		return entryOf(store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"event", name}}, operation, name, "1001")
	}
	created, paid := named("created"), named("paid")
	b.appended(b.worker(0), store.New, created, paid)
	b.reads(b.worker(0), "", "created", "paid")
	b.end(b.worker(0), gateOfOperation(created))
	b.reads(b.worker(0), "", "created", "paid") // neither is done by that
	b.appended(b.worker(1), store.Duplicate, created, paid)
	b.done(b.worker(0), created)
	b.reads(b.worker(1), "", "paid")
	cancelled := named("cancelled")
	b.appended(b.worker(1), store.New, cancelled)
	b.reads(b.worker(1), "", "paid", "cancelled")
}

func onceAmongWorkers[Tx any](b *bed[Tx]) {
	const events, senders = 20, 6
	var counts [senders]int
	b.together(senders, func(i int) error {
		for n := range events {
			// Different orders, so that rows are met from both sides.
			if i%2 == 1 {
				n = events - 1 - n
			}
			said, err := b.worker(i).Append(b.ctx, store.Arrival{Entries: []store.Entry{event(fmt.Sprint(n)), event(fmt.Sprint((n + 1) % events))}})
			if err != nil {
				return err
			}
			for _, s := range said {
				switch s {
				case store.New:
					counts[i]++
				case store.Duplicate:
				default:
					return fmt.Errorf("said %v of the same payload", s)
				}
			}
		}
		return nil
	})
	total := 0
	for _, n := range counts {
		total += n
	}
	entries, _ := b.reading(b.worker(0), "")
	if got := names(entries); total != events || len(got) != events {
		b.Fatalf("%d were new and %d are in the queue, want %d", total, len(got), events)
	}
}

func allOrNothing[Tx any](b *bed[Tx]) {
	before := event("before")
	b.appended(b.worker(0), store.New, before)
	cursor := b.reads(b.worker(0), "", "before")
	repair := b.Break(b.T)
	arrival := store.Arrival{
		Entries:     []store.Entry{altered(before), event("a"), event("b"), event("c")},
		Quarantined: []store.Quarantined{item("q", "shop")},
	}
	_, err := b.worker(0).Append(b.ctx, arrival)
	if err == nil {
		b.Fatal("Append in a broken store: no error")
	}
	repair()
	b.reads(b.worker(1), cursor)
	b.reads(b.worker(1), "", "before")
	b.deliveries(before)
	if got, err := b.worker(1).quarantine.Quarantined(b.ctx, "", store.Key{}, 10); err != nil || len(got) != 0 {
		b.Fatalf("quarantined: %v, %v; want nothing", got, err)
	}
	said, err := b.worker(0).Append(b.ctx, arrival)
	b.must("Append", err)
	if want := []store.Appended{store.Conflict, store.New, store.New, store.New}; !slices.Equal(said, want) {
		b.Errorf("said after the repair: %v, want %v", said, want)
	}
	b.reads(b.worker(1), cursor, "a", "b", "c")
	if got, err := b.worker(1).quarantine.Quarantined(b.ctx, "", store.Key{}, 10); err != nil || len(got) != 1 {
		b.Fatalf("quarantined: %v, %v; want one", got, err)
	}
}

func answerLost[Tx any](b *bed[Tx]) {
	for _, took := range []bool{true, false} {
		entries := []store.Entry{event(fmt.Sprint("first ", took)), event(fmt.Sprint("second ", took))}
		b.LoseAnswer(b.T, took)
		said, err := b.worker(0).Append(b.ctx, store.Arrival{Entries: entries})
		if !errors.Is(err, store.ErrCommitUnknown) || said != nil {
			b.Fatalf("Append: said %v, error %v; want %v", said, err, store.ErrCommitUnknown)
		}
		want := store.New
		if took {
			want = store.Duplicate
		}
		b.appended(b.worker(0), want, entries...)
	}
	b.reads(b.worker(1), "", "first true", "second true", "first false", "second false")
}

func outOfBounds[Tx any](b *bed[Tx]) {
	refused := func(what string, bad ...store.Entry) {
		b.Helper()
		arrival := store.Arrival{Entries: append([]store.Entry{event("good")}, bad...)}
		if said, err := b.worker(0).Append(b.ctx, arrival); err == nil || errors.Is(err, store.ErrUnavailable) {
			b.Errorf("%s: said %v, error %v; want another error", what, said, err)
		}
	}
	many := make([]store.Entry, store.MaxAppend)
	for i := range many {
		many[i] = event(fmt.Sprint(i))
	}
	refused("too many entries", many...)
	long := event("long")
	long.Note.Attributes = map[string]string{"long": string(make([]byte, store.MaxNote))}
	refused("a note that is too long", long)
	b.reads(b.worker(1), "")
	said, err := b.worker(0).Append(b.ctx, store.Arrival{})
	if err != nil || len(said) != 0 {
		b.Errorf("an empty arrival: %v, %v", said, err)
	}
	b.appended(b.worker(0), store.New, many...)
	entries, _ := b.reading(b.worker(1), "")
	if len(entries) != store.MaxAppend {
		b.Errorf("read %d entries, want %d", len(entries), store.MaxAppend)
	}
}

func full[Tx any](b *bed[Tx]) {
	b.appended(b.worker(0), store.New, event("before"))
	drain := b.Fill(b.T)
	_, err := b.worker(0).Append(b.ctx, store.Arrival{
		Entries: []store.Entry{event("too much"), event("far too much")}, Quarantined: []store.Quarantined{item("q", "shop")},
	})
	b.is("Append to a full queue", err, store.ErrFull)
	b.is("Append to a full queue", err, store.ErrUnavailable)
	drain()
	b.reads(b.worker(0), "", "before")
	got, err := b.worker(0).quarantine.Quarantined(b.ctx, "", store.Key{}, 10)
	b.must("Quarantined", err)
	if len(got) != 0 {
		b.Errorf("quarantined by a refused append: %+v", got)
	}
	b.appended(b.worker(1), store.New, event("too much"))
	b.reads(b.worker(0), "", "before", "too much")
}

// item is something that cannot be an operation.
func item(name, source string) store.Quarantined {
	id := store.Identity{Tenant: "tenant", Effect: "quarantine", Parts: []string{source, name}}
	return store.Quarantined{
		Key: id.Key(), Tenant: "tenant", Source: source, Type: "order/broken", Reason: "schema", Detail: "no member id in " + name,
		Payload: []byte("payload of " + name), ContentType: "application/json",
	}
}
