package inbox

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// patience bounds what a test waits for.
const patience = time.Minute

// database is what the workers of a test share.
type database[Tx any] interface {
	// open gives another worker's view of it, and what cuts that off: nil where
	// the worker's open transactions are to be rolled back one by one.
	open(t testing.TB) (view backend[Tx], cut func())
	// get and set work on the business rows in a transaction.
	get(ctx context.Context, tx Tx, key string) (string, error)
	set(ctx context.Context, tx Tx, key, value string) error
	// rows are the committed ones.
	rows(t testing.TB) map[string]string
}

// backend is a store with everything that an inbox asks for.
type backend[Tx any] interface {
	store.Ledger[Tx]
	store.Attempts[Tx]
	store.Operations
	store.Queue
	store.Lanes
	store.Quarantine
	store.Enqueuer[Tx]
	store.Versions[Tx]
	store.Batches[Tx]
}

// inMemory is a database in memory.
type inMemory struct{ *memory.Store }

func (m inMemory) open(testing.TB) (backend[*memory.Tx], func()) { return m.Store, nil }

func (m inMemory) get(_ context.Context, tx *memory.Tx, key string) (string, error) {
	value, _, err := tx.Get(key)
	return value, err
}

func (m inMemory) set(_ context.Context, tx *memory.Tx, key, value string) error {
	return tx.Put(key, value)
}

func (m inMemory) rows(testing.TB) map[string]string { return m.All() }

// bed is one test's database and workers.
type bed[Tx any] struct {
	pass func(time.Duration) // lets time pass, in a bubble
	*testing.T
	database[Tx]
	queue backend[Tx] // the test's own view
	real  bool        // on a server or a file, and not in a bubble

	patience time.Duration

	mu      sync.Mutex
	sights  []Sight
	alerts  []Condition
	faults  []string
	workers int
}

func newBed[Tx any](t *testing.T, db database[Tx]) *bed[Tx] {
	queue, _ := db.open(t)
	return &bed[Tx]{T: t, database: db, queue: queue, patience: patience}
}

// quick are options under which a worker notices everything soon, and a lane is
// not lost because the machine has other things to do.
func (b *bed[Tx]) quick() *Options {
	if b.real {
		return &Options{Lease: 3 * time.Second, Poll: 20 * time.Millisecond}
	}
	return quick()
}

// calm are options for tests in which, in a bubble, hours pass.
func (b *bed[Tx]) calm() *Options {
	if b.real {
		return b.quick()
	}
	return calm()
}

// unit is the first pause before another try: a second, in a bubble.
func (b *bed[Tx]) unit() time.Duration {
	if b.real {
		return 2 * time.Millisecond
	}
	return time.Second
}

// quick are options under which a worker notices everything soon.
func quick() *Options {
	return &Options{Lease: 600 * time.Millisecond, Poll: 10 * time.Millisecond}
}

// calm are options for tests in which hours pass on a clock of their own.
func calm() *Options { return &Options{Lease: 30 * time.Second, Poll: 2 * time.Second} }

// member is one worker of a bed.
type member[Tx any] struct {
	*Inbox[Tx]
	engine *unavez.Engine[Tx]
}

// worker makes a worker; wrap may be nil.
func (b *bed[Tx]) worker(opts *Options, wrap func(backend[Tx]) backend[Tx], sources []Source, effects ...Effect[Tx]) *member[Tx] {
	b.Helper()
	view, cut := b.open(b.T)
	if wrap != nil {
		view = wrap(view)
		if m, ok := view.(*mortal[Tx]); ok {
			m.cut = cut
		}
	}
	engine, err := unavez.New[Tx](view, &unavez.Options{SingleTenant: true, CacheSize: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.mu.Lock()
	b.workers++
	n := b.workers
	b.mu.Unlock()
	o := *opts
	o.Worker = fmt.Sprintf("worker-%d", n)
	o.Observe, o.Alert = b.observe, b.alerted
	in, err := New(engine, view, sources, effects, &o)
	if err != nil {
		b.Fatal(err)
	}
	return &member[Tx]{in, engine}
}

// start starts a worker, and stops it with the test.
func (b *bed[Tx]) start(m *member[Tx]) *member[Tx] {
	b.Helper()
	if err := m.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Stop(ctx); err != nil {
			b.Errorf("stop: %v", err)
		}
		if err := m.engine.Close(ctx); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return m
}

func (b *bed[Tx]) observe(s Sight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sights = append(b.sights, s)
}

func (b *bed[Tx]) alerted(c Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alerts = append(b.alerts, c)
}

// fault notes what must not happen, from any goroutine.
func (b *bed[Tx]) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// sound fails the test if something happened that must not.
func (b *bed[Tx]) sound() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, text := range b.faults {
		if i == 10 {
			b.Fatalf("and %d more", len(b.faults)-i)
		}
		b.Error(text)
	}
}

// count is how often something was seen.
func (b *bed[Tx]) count(what string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sights {
		if s.What == what {
			n += s.Count
		}
	}
	return n
}

// eventually waits for a condition.
func (b *bed[Tx]) eventually(what string, is func() bool) {
	b.Helper()
	deadline := time.NewTimer(b.patience)
	defer deadline.Stop()
	pause := max(b.patience/30_000, 2*time.Millisecond)
	if b.real {
		pause = 20 * time.Millisecond
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.Fatalf("never: %s", what)
		}
	}
}

// queued is an entry of its own event; its ordering key is of the given parts.
func queued(effect, name string, ordering ...string) store.Entry {
	id := store.Identity{Effect: effect, Parts: []string{"shop", name}}
	return named(id, id, ordering...)
}

// named is an entry of an event that names an operation.
func named(event, operation store.Identity, ordering ...string) store.Entry {
	name := event.Parts[len(event.Parts)-1]
	note := store.Note{Event: event, Identity: operation, Ordering: ordering, Source: "shop", Type: "order/paid", ID: []string{name}}
	return store.Entry{
		Key: event.Key(), Operation: operation.Key(), Order: note.Order(),
		Fingerprint: store.Fingerprint{Sum: []byte(name)}, Note: note, Payload: []byte(name),
	}
}

// append makes entries durable.
func (b *bed[Tx]) append(entries ...store.Entry) {
	b.Helper()
	for len(entries) > 0 {
		n := min(len(entries), store.MaxAppend)
		if _, err := b.queue.Append(b.Context(), store.Arrival{Entries: entries[:n]}); err != nil {
			b.Fatalf("append: %v", err)
		}
		entries = entries[n:]
	}
}

// chain is an effect that holds the order of each key by itself: the entries of
// a key are named "<key>/<n>", and each has to find its predecessor's number in
// the row of the key.
func (b *bed[Tx]) chain(name string) Effect[Tx] {
	return Effect[Tx]{Name: name, Handle: func(ctx context.Context, tx Tx, e *Event) error { return b.link(ctx, tx, e) }}
}

// link is the handler of chain.
func (b *bed[Tx]) link(ctx context.Context, tx Tx, e *Event) error {
	var key string
	var n int
	if _, err := fmt.Sscanf(string(e.Data), "%s %d", &key, &n); err != nil {
		b.fault("event %q: %v", e.Data, err)
		return nil
	}
	last, err := b.get(ctx, tx, "last "+key)
	if err != nil {
		return err
	}
	if before, _ := strconv.Atoi(last); before != n-1 {
		b.fault("entry %d of key %s found %q", n, key, last)
	}
	return b.set(ctx, tx, "last "+key, strconv.Itoa(n))
}

// links are the first entries of a key of a chain, from the given number on.
func links(effect, key string, from, to int) []store.Entry {
	var all []store.Entry
	for n := from; n <= to; n++ {
		e := queued(effect, fmt.Sprintf("%s %d", key, n), key)
		all = append(all, e)
	}
	return all
}

// linked waits until keys of a chain have come to their ends.
func (b *bed[Tx]) linked(ends map[string]int) {
	b.Helper()
	b.eventually("all entries took effect", func() bool {
		rows := b.rows(b.T)
		for key, n := range ends {
			if rows["last "+key] != strconv.Itoa(n) {
				return false
			}
		}
		return true
	})
	b.sound()
}

// settled waits until nothing waits in the queue.
func (b *bed[Tx]) settled() {
	b.Helper()
	b.eventually("no blocked row is left", func() bool {
		rows, err := b.queue.Waiting(b.Context(), nil, store.Place{}, 100)
		return err == nil && len(rows) == 0
	})
}

// watchHeld watches how many entries a worker holds; the returned function ends
// that and says how many it were at most.
func (m *member[Tx]) watchHeld(ctx context.Context) func() int {
	ctx, cancel := context.WithCancel(ctx)
	most := make(chan int)
	go func() {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		n := 0
		for ctx.Err() == nil {
			m.mu.Lock()
			n = max(n, m.board.held)
			m.mu.Unlock()
			<-tick.C
		}
		most <- n
	}()
	return func() int {
		cancel()
		return <-most
	}
}

// dump logs what a worker knows, and what is stored.
func (b *bed[Tx]) dump(in *Inbox[Tx]) {
	in.mu.Lock()
	defer in.mu.Unlock()
	b.Logf("worker %s: phase %d, %d lanes, %d held, %d run, %d turns, main %+v, %d lags", in.opts.Worker, in.phase, len(in.board.lanes), in.board.held, in.running, len(in.board.turns), in.reader.main, len(in.reader.lags))
	for _, ln := range in.board.lanes {
		for _, l := range ln.lines {
			b.Logf("  lane %d/%d loaded %v leaving %v catching %v doubt %v busy %d position %q: line %s %d items row %d paging %v after %d rest %+v until %v running %v queued %v index %d suspect %v gaps %d check %v",
				ln.hold.Lane, ln.hold.Epoch, ln.loaded, ln.leaving, ln.catching, ln.doubt, ln.busy, ln.position, l.order, len(l.items), l.row, l.paging, l.after, l.rest, time.Until(l.until), l.running, l.queued, l.index, l.suspect, len(l.gaps), l.check)
		}
	}
	rows, err := b.queue.Waiting(context.Background(), nil, store.Place{}, 20)
	b.Logf("  waiting %v: %+v", err, rows)
}
