package queuetest

import (
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
	retention = 1000 * 24 * time.Hour
	tombstone = 1000 * 24 * time.Hour
	lease     = time.Hour
	margin    = 15 * time.Minute
	// patience bounds each test, so that a call that waits for ever fails.
	patience = 2 * time.Minute
	// grace is the time in which a call that must wait can be seen not to.
	grace = 50 * time.Millisecond
)

// bed is what one test works on.
type bed[Tx any] struct {
	*testing.T
	Harness[Tx]
	ctx     context.Context
	workers []worker[Tx] // the first, and the second where there is one
}

// worker is one worker's view of the store, by capability.
type worker[Tx any] struct {
	store.Queue
	store.Lanes
	ledger     store.Ledger[Tx]
	attempts   store.Attempts[Tx]
	ops        store.Operations
	upkeep     store.Upkeep
	enqueuer   store.Enqueuer[Tx]
	versions   store.Versions[Tx]
	batches    store.Batches[Tx]
	quarantine store.Quarantine
	positions  store.Positions
	privacy    store.Privacy
	counter    store.QueueCounter
	signal     store.Signal
}

func workerOf[Tx any](l store.Ledger[Tx]) worker[Tx] {
	w := worker[Tx]{ledger: l}
	w.Queue, _ = l.(store.Queue)
	w.Lanes, _ = l.(store.Lanes)
	w.attempts, _ = l.(store.Attempts[Tx])
	w.ops, _ = l.(store.Operations)
	w.upkeep, _ = l.(store.Upkeep)
	w.enqueuer, _ = l.(store.Enqueuer[Tx])
	w.versions, _ = l.(store.Versions[Tx])
	w.batches, _ = l.(store.Batches[Tx])
	w.quarantine, _ = l.(store.Quarantine)
	w.positions, _ = l.(store.Positions)
	w.privacy, _ = l.(store.Privacy)
	w.counter, _ = l.(store.QueueCounter)
	w.signal, _ = l.(store.Signal)
	return w
}

func newBed[Tx any](t *testing.T, h Harness[Tx]) *bed[Tx] {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	b := &bed[Tx]{T: t, Harness: h, ctx: ctx, workers: []worker[Tx]{workerOf(h.Ledger)}}
	if h.Second != nil {
		b.workers = append(b.workers, workerOf(h.Second(t)))
	}
	return b
}

// worker gives the workers in turn.
func (b *bed[Tx]) worker(i int) worker[Tx] { return b.workers[i%len(b.workers)] }

// event is an entry of its own event: the operation takes its identity from it.
// Its ordering key is of the given parts; none means none.
func event(name string, ordering ...string) store.Entry {
	id := store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{"event", name}}
	return entryOf(id, id, "payload of "+name, ordering...)
}

// entryOf is an entry of an event that names an operation.
func entryOf(event, operation store.Identity, payload string, ordering ...string) store.Entry {
	note := store.Note{
		Event: event, Identity: operation, Ordering: ordering, Source: "shop", Type: "order/paid",
		ID: event.Parts, ContentType: "application/json", Attributes: map[string]string{"name": event.Parts[len(event.Parts)-1]},
	}
	return store.Entry{
		Key: event.Key(), Operation: operation.Key(), Order: note.Order(),
		Fingerprint: fingerprint(payload), Note: note, Payload: []byte(payload),
	}
}

// fingerprint differs in its first 8 bytes where the payloads do.
func fingerprint(payload string) store.Fingerprint {
	id := store.Identity{Effect: "fingerprint", Parts: []string{payload}}
	sum := id.Sum()
	return store.Fingerprint{Version: 1, Sum: sum[:]}
}

// altered is the same entry with another payload.
func altered(e store.Entry) store.Entry {
	e.Payload = []byte("another payload")
	e.Fingerprint = fingerprint("another payload of " + e.Note.Event.Text())
	return e
}

// gate is the gate of the operation under which an entry is done.
func gate(e store.Entry) store.Gate {
	return store.Gate{
		Identity: e.Note.Event, Key: e.Key, Fingerprint: e.Fingerprint,
		Limit: patience, Retention: retention, Tombstone: tombstone,
	}
}

// gateOfOperation is the gate of the operation that an entry names.
func gateOfOperation(e store.Entry) store.Gate {
	g := gate(e)
	g.Identity, g.Key = e.Note.Identity, e.Operation
	return g
}

func completed(body string) store.End {
	return store.End{State: store.Completed, Result: store.Result{Code: 200, Body: []byte(body)}}
}

// append makes entries durable by one worker and returns what was said of them.
func (b *bed[Tx]) append(w worker[Tx], entries ...store.Entry) []store.Appended {
	b.Helper()
	said, err := w.Append(b.ctx, store.Arrival{Entries: entries})
	b.must("Append", err)
	if len(said) != len(entries) {
		b.Fatalf("Append: %d answers for %d entries", len(said), len(entries))
	}
	return said
}

// appended appends entries of which the given things must be said.
func (b *bed[Tx]) appended(w worker[Tx], want store.Appended, entries ...store.Entry) {
	b.Helper()
	for i, said := range b.append(w, entries...) {
		if said != want {
			b.Fatalf("Append: entry %d is %v, want %v", i+1, said, want)
		}
	}
}

// all are the numbers of all lanes.
func (b *bed[Tx]) all() []int {
	lanes := make([]int, b.worker(0).Lanes.Lanes())
	for i := range lanes {
		lanes[i] = i
	}
	return lanes
}

// reading reads everything of all lanes since a cursor and returns the next one.
func (b *bed[Tx]) reading(w worker[Tx], since string) ([]store.Entry, string) {
	b.Helper()
	return b.pages(w, store.Reading{Lanes: b.all(), Since: since, Limit: 100})
}

// pages reads until there is no more.
func (b *bed[Tx]) pages(w worker[Tx], r store.Reading) (entries []store.Entry, cursor string) {
	b.Helper()
	entries, cursor, err := b.follow(w, r)
	b.must("Read", err)
	return entries, cursor
}

// follow is pages for any goroutine.
func (b *bed[Tx]) follow(w worker[Tx], r store.Reading) (entries []store.Entry, cursor string, err error) {
	for {
		page, err := w.Read(b.ctx, r)
		switch {
		case err != nil:
			return nil, "", err
		case len(page.Entries) > r.Limit, page.Until == "", page.More && len(page.Entries) == 0:
			return nil, "", fmt.Errorf("%d entries of at most %d, cursor %q, more %v", len(page.Entries), r.Limit, page.Until, page.More)
		case r.Until != "" && page.Until != r.Until:
			return nil, "", fmt.Errorf("the pages of a reading go up to %q, then to %q", r.Until, page.Until)
		}
		for _, e := range page.Entries {
			if e.Sequence <= r.After {
				return nil, "", fmt.Errorf("sequence %d behind %d", e.Sequence, r.After)
			}
			r.After = e.Sequence
		}
		entries, r.Until = append(entries, page.Entries...), page.Until
		if !page.More {
			return entries, r.Until, nil
		}
	}
}

// reads checks what a reading since a cursor shows, by name and in order, and
// returns the next cursor.
func (b *bed[Tx]) reads(w worker[Tx], since string, want ...string) string {
	b.Helper()
	entries, cursor := b.reading(w, since)
	if got := names(entries); !slices.Equal(got, want) {
		b.Fatalf("read %v, want %v", got, want)
	}
	return cursor
}

// names are the last parts of the events.
func names(entries []store.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Note.Event.Parts[len(e.Note.Event.Parts)-1])
	}
	return all
}

// load is one entry as it is stored.
func (b *bed[Tx]) load(w worker[Tx], key store.Key) store.Entry {
	b.Helper()
	e, err := w.Load(b.ctx, key)
	b.must("Load", err)
	return e
}

// end ends the operation of a gate, with its name as a business row.
func (b *bed[Tx]) end(w worker[Tx], g store.Gate) *store.Outcome {
	b.Helper()
	txn := b.begin(w, g)
	row := g.Identity.Parts[len(g.Identity.Parts)-1]
	b.must("Write", b.Write(b.ctx, txn.Tx(), row))
	o, err := txn.Commit(b.ctx, completed(row))
	b.must("Commit", err)
	return o
}

// done ends entries.
func (b *bed[Tx]) done(w worker[Tx], entries ...store.Entry) {
	b.Helper()
	for _, e := range entries {
		b.end(w, gate(e))
	}
}

// begin opens a transaction of an operation that may run.
func (b *bed[Tx]) begin(w worker[Tx], g store.Gate) store.Txn[Tx] {
	b.Helper()
	txn, v, err := w.ledger.Begin(b.ctx, g)
	b.must("Begin", err)
	if txn == nil {
		b.Fatalf("Begin: refused, %v", v.State)
	}
	return txn
}

// look is the state of an operation by a plain read.
func (b *bed[Tx]) look(key store.Key) store.Verdict {
	b.Helper()
	v, err := b.worker(0).ledger.Look(b.ctx, key)
	b.must("Look", err)
	return v
}

// foreign is a transaction of the caller's own.
type foreign[Tx any] struct {
	tx               Tx
	commit, rollback func() error
}

// caller opens one, with the first worker, and rolls it back with the test.
func (b *bed[Tx]) caller() foreign[Tx] {
	b.Helper()
	tx, commit, rollback, err := b.BeginForeign(b.ctx)
	b.must("BeginForeign", err)
	ended := false
	once := func(end func() error) func() error {
		return func() error { ended = true; return end() }
	}
	b.Cleanup(func() {
		if !ended {
			_ = rollback() // the test has failed already
		}
	})
	return foreign[Tx]{tx, once(commit), once(rollback)}
}

// enqueue appends in a transaction.
func (b *bed[Tx]) enqueue(tx Tx, want store.Appended, entries ...store.Entry) {
	b.Helper()
	said, err := b.worker(0).enqueuer.Enqueue(b.ctx, tx, entries)
	b.must("Enqueue", err)
	if len(said) != len(entries) {
		b.Fatalf("Enqueue: %d answers for %d entries", len(said), len(entries))
	}
	for i := range said {
		if said[i] != want {
			b.Fatalf("Enqueue: entry %d is %v, want %v", i+1, said[i], want)
		}
	}
}

// deliveries are what was seen of a key, as words.
func (b *bed[Tx]) deliveries(e store.Entry, want ...store.Appended) {
	b.Helper()
	if b.worker(0).quarantine == nil {
		return
	}
	seen, err := b.worker(0).quarantine.Deliveries(b.ctx, e.Key, 100)
	b.must("Deliveries", err)
	var got []store.Appended
	for _, d := range seen {
		got = append(got, d.What)
		if d.At.IsZero() {
			b.Error("a delivery without its time")
		}
	}
	if !slices.Equal(got, want) {
		b.Fatalf("deliveries: %v, want %v", got, want)
	}
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

// waits runs a call that must not return before release; it gives the call the
// time to be wrong. finish waits for it and must be called after the release.
func waits[Tx any](b *bed[Tx], call string, run func() error) (finish func()) {
	b.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	timer := time.NewTimer(grace)
	select {
	case err := <-ended:
		b.Fatalf("%s: returned with %v; want it to wait", call, err)
	case <-timer.C: // it waits, or has not come that far
	}
	return func() {
		b.Helper()
		b.must(call, <-ended)
	}
}

// poll runs check until it says true; it gives up with the test's patience.
func (b *bed[Tx]) poll(what string, check func() bool) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("%s: not in %v", what, patience)
		}
	}
}
