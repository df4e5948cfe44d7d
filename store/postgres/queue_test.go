package postgres_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// entryOf is an entry of the ordering key, with a payload that is the same
// wherever the name is.
func entryOf(name string, ordering ...string) store.Entry {
	id := store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{name}}
	note := store.Note{Event: id, Identity: id, Ordering: ordering, Source: "shop", Type: "order/paid"}
	payload := []byte("payload of " + name)
	sum := sha256.Sum256(payload)
	return store.Entry{
		Key: id.Key(), Operation: id.Key(), Order: note.Order(), Fingerprint: store.Fingerprint{Version: 1, Sum: sum[:]},
		Note: note, Payload: payload,
	}
}

// nameOf is the name that entryOf was given.
func nameOf(e store.Entry) string { return e.Note.Identity.Parts[0] }

func namesOf(entries []store.Entry) []string {
	names := make([]string, len(entries))
	for i := range entries {
		names[i] = nameOf(entries[i])
	}
	return names
}

func inSequence(entries []store.Entry) bool {
	return slices.IsSortedFunc(entries, func(a, b store.Entry) int { return int(a.Sequence - b.Sequence) })
}

// append appends entries in one flush.
func (w *worker) append(t *testing.T, entries ...store.Entry) []store.Appended {
	t.Helper()
	said, err := w.Append(t.Context(), store.Arrival{Entries: entries})
	must(t, "Append", err)
	return said
}

// everyLane are all lanes.
func (w *worker) everyLane() []int {
	all := make([]int, w.Lanes())
	for i := range all {
		all[i] = i
	}
	return all
}

// readAll reads everything between two cursors, and tells the new one.
func (w *worker) readAll(ctx context.Context, since string, limit int) ([]store.Entry, string, error) {
	var all []store.Entry
	reading := store.Reading{Lanes: w.everyLane(), Since: since, Limit: limit}
	for {
		page, err := w.Read(ctx, reading)
		if err != nil {
			return nil, "", err
		}
		all = append(all, page.Entries...)
		if !page.More {
			return all, page.Until, nil
		}
		reading.Until, reading.After = page.Until, page.Entries[len(page.Entries)-1].Sequence
	}
}

func (w *worker) read(t *testing.T, since string, limit int) ([]store.Entry, string) {
	t.Helper()
	all, until, err := w.readAll(t.Context(), since, limit)
	must(t, "Read", err)
	return all, until
}

// X8: entries are numbered as they arrive, whatever the order of their keys in
// the INSERT.
func TestArrivalsAreNumberedInTheirOrder(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	var all []store.Entry
	var want []string
	for i := range 300 {
		name := fmt.Sprint("event ", i)
		all, want = append(all, entryOf(name, "one order")), append(want, name)
	}
	w.append(t, all[:200]...)
	w.append(t, all[200:]...)
	for _, limit := range []int{1000, 300, 299, 7} {
		got, _ := w.read(t, "", limit)
		if names := namesOf(got); !slices.Equal(names, want) {
			t.Errorf("limit %d: read %q", limit, names)
		}
		if !inSequence(got) || got[0].Sequence < 1 {
			t.Errorf("limit %d: sequences are not in order", limit)
		}
	}
	if slices.IsSortedFunc(all, func(a, b store.Entry) int { return strings.Compare(a.Key.String(), b.Key.String()) }) {
		t.Error("the keys are in the order of arrival: this test proves nothing")
	}
}

func TestAppendIsOneTripAndEnqueueOneStatement(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	w.append(t, entryOf("warm"))
	ctx := t.Context()
	if n := w.wire.count(func() { w.append(t, entryOf("a"), entryOf("b"), entryOf("a")) }); n != 1 {
		t.Errorf("Append took %d trips", n)
	}
	if n := w.wire.count(func() {
		_, err := w.Append(ctx, store.Arrival{Entries: []store.Entry{entryOf("c")}, Quarantined: []store.Quarantined{{Key: entryOf("d").Key}}})
		must(t, "Append", err)
	}); n != 1 {
		t.Errorf("Append with an item for quarantine took %d trips", n)
	}
	if n := w.wire.count(func() { w.read(t, "", 10) }); n > 2 { // the first prepares
		t.Errorf("Read took %d trips", n)
	}
	if n := w.wire.count(func() { w.read(t, "", 10) }); n != 1 {
		t.Errorf("Read took %d trips", n)
	}
	tx, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	for round, want := range []int{2, 1} {  // the first prepares
		if n := w.wire.count(func() {
			_, err := w.Enqueue(ctx, tx, []store.Entry{entryOf(fmt.Sprint("e", round), "x"), entryOf(fmt.Sprint("f", round), "y")})
			must(t, "Enqueue", err)
		}); n != want {
			t.Errorf("Enqueue took %d trips, want %d", n, want)
		}
	}
	must(t, "Commit", tx.Commit(ctx))
	got, _ := w.read(t, "", 10)
	if names := namesOf(got); !slices.Equal(names, []string{"warm", "a", "b", "c", "e0", "f0", "e1", "f1"}) {
		t.Errorf("read %q", names)
	}
}

// An append knows what it was told before: in the queue, at rest, ended,
// forgotten.
func TestAppendKnowsWhatWasAppendedBefore(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	other := func(e store.Entry) store.Entry {
		e.Fingerprint.Sum = []byte("another payload's fingerprint")
		return e
	}
	a, b := entryOf("a"), entryOf("b")
	if said := w.append(t, a, b, a, other(a), other(b)); !slices.Equal(said, []store.Appended{store.New, store.New, store.Duplicate, store.Conflict, store.Conflict}) {
		t.Errorf("in one arrival: %v", said)
	}
	if said := w.append(t, other(a), a, b); !slices.Equal(said, []store.Appended{store.Conflict, store.Duplicate, store.Duplicate}) {
		t.Errorf("in the queue: %v", said)
	}
	tx, err := w.pool.Begin(t.Context())
	must(t, "Begin", err)
	said, err := w.Enqueue(t.Context(), tx, []store.Entry{a, other(b), entryOf("c"), entryOf("c")})
	must(t, "Enqueue", err)
	if !slices.Equal(said, []store.Appended{store.Duplicate, store.Conflict, store.New, store.Duplicate}) {
		t.Errorf("Enqueue: %v", said)
	}
	must(t, "Commit", tx.Commit(t.Context()))
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.delivery"); n != 6 {
		t.Errorf("%d deliveries were noted, want those of Append", n)
	}
}

// fetched is how many blocks of the queue a transaction has looked at.
func fetched(t *testing.T, tx pgx.Tx) (blocks int64) {
	t.Helper()
	const text = `SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::bigint FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
		WHERE coalesce(i.indrelid, c.oid) IN (SELECT oid FROM pg_class WHERE relnamespace = 'unavez'::regnamespace AND relname ~ '^queue_[0-3]$')`
	must(t, "blocks", tx.QueryRow(t.Context(), text).Scan(&blocks))
	return blocks
}

// X10: what a read costs does not grow with what came in behind a transaction
// that stays open.
func TestReadingBehindAnOpenWriterCostsWhatIsNew(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	open, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer open.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	_, err = w.Enqueue(ctx, open, []store.Entry{entryOf("late", "one")})
	must(t, "Enqueue", err)

	fill := func(round, rows int) {
		t.Helper()
		for at := 0; at < rows; at += store.MaxAppend {
			some := make([]store.Entry, min(store.MaxAppend, rows-at))
			for i := range some {
				some[i] = entryOf(fmt.Sprint(round, "/", at+i), "many")
			}
			w.append(t, some...)
		}
	}
	// cost is how many blocks of the queue a read looks at.
	cost := func(since string) (blocks int64, found int) {
		t.Helper()
		tx, err := w.pool.Begin(ctx)
		must(t, "Begin", err)
		defer tx.Rollback(ctx) //nolint:errcheck // it has only read
		_, snapshot, _ := strings.Cut(since, "/")
		before := fetched(t, tx)
		const text = "SELECT count(key) FROM unavez.read_since($1::text::pg_snapshot, NULL, decode(repeat('ff', 32), 'hex'), 0, 1001)"
		must(t, "read_since", tx.QueryRow(ctx, text, snapshot).Scan(&found))
		return fetched(t, tx) - before, found
	}
	fill(0, 2000)
	_, since := w.read(t, "", 1000)
	few, _ := cost(since)
	fill(1, 30_000)
	_, since = w.read(t, since, 1000)
	w.append(t, entryOf("new", "one"))
	many, found := cost(since)
	if found != 1 {
		t.Errorf("%d entries are new, want 1", found)
	}
	if most := int64(500); few > most || many > most { // each transaction that runs on the server takes some
		t.Errorf("%d blocks behind 32,000 entries, %d behind 2,000", many, few)
	}
	t.Logf("%d blocks behind 2,000 entries, %d behind 32,000", few, many)
	must(t, "Commit", open.Commit(ctx))
	got, since := w.read(t, since, 10)
	if names := namesOf(got); !slices.Equal(names, []string{"late", "new"}) {
		t.Errorf("read %q", names)
	}
	if after, _ := cost(since); after > 500 {
		t.Errorf("%d blocks after the writer has committed", after)
	}
}

// Nothing is lost and nothing is in the wrong order of its ordering key,
// whatever commits when: transactions that hold a row of their aggregate enqueue
// its next event, and readers with small pages follow.
func TestReadersMissNothingAndKeepTheOrder(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "CREATE TABLE public.aggregate (name text PRIMARY KEY, version int NOT NULL); GRANT ALL ON public.aggregate TO unavez_app")
	const aggregates, writers, each = 6, 12, 40
	for i := range aggregates {
		d.exec(t, "INSERT INTO public.aggregate VALUES ($1, 0)", fmt.Sprint("aggregate ", i))
	}
	w := d.worker(t, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writing, reading sync.WaitGroup
	var appended atomic.Int64
	for writer := range writers {
		random := rand.New(rand.NewPCG(seed, uint64(writer)))
		writing.Go(func() {
			for range each {
				name := fmt.Sprint("aggregate ", random.IntN(aggregates))
				gives := random.IntN(5) == 0
				err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/200); err != nil {
						return err
					}
					var version int
					if err := tx.QueryRow(ctx, "UPDATE public.aggregate SET version = version + 1 WHERE name = $1 RETURNING version", name).Scan(&version); err != nil {
						return err
					}
					if _, err := w.Enqueue(ctx, tx, []store.Entry{entryOf(fmt.Sprint(name, "/", version), name)}); err != nil {
						return err
					}
					if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/100); err != nil {
						return err
					}
					if gives {
						return errStop
					}
					return nil
				})
				if err == nil {
					appended.Add(1)
				} else if !errors.Is(err, errStop) {
					t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	for reader, limit := range []int{1, 5, 1000} {
		reading.Go(func() {
			since, seen, last := "", map[string]bool{}, map[string]int{}
			for final := false; ; {
				got, until, err := w.readAll(t.Context(), since, limit)
				if err != nil {
					t.Errorf("reader %d: %v", reader, err)
					return
				}
				since = until
				for _, e := range got {
					name, number, _ := strings.Cut(nameOf(e), "/")
					version, _ := strconv.Atoi(number)
					if seen[nameOf(e)] || version != last[name]+1 {
						t.Errorf("reader %d: %s comes behind version %d", reader, nameOf(e), last[name])
					}
					seen[nameOf(e)], last[name] = true, version
				}
				if final {
					if n := int(appended.Load()); len(seen) != n {
						t.Errorf("reader %d: %d entries of %d", reader, len(seen), n)
					}
					return
				}
				final = ctx.Err() != nil // one more look
			}
		})
	}
	writing.Wait()
	cancel()
	reading.Wait()
}

var errStop = errors.New("rolled back")

// X15: where the ordering key is enqueued before the aggregate's lock, the order
// is still that of the commits.
func TestEnqueueDrawsTheSequenceUnderTheLockOfTheOrderingKey(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	begin := func() pgx.Tx {
		tx, err := w.pool.Begin(ctx)
		must(t, "Begin", err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it has ended by then
		return tx
	}
	first, second := begin(), begin()
	_, err := w.Enqueue(ctx, first, []store.Entry{entryOf("a1", "a"), entryOf("b1", "b")})
	must(t, "Enqueue", err)
	behind := make(chan error, 1)
	go func() {
		// The keys in the other order: the locks are taken in their own.
		_, err := w.Enqueue(ctx, second, []store.Entry{entryOf("b2", "b"), entryOf("a2", "a")})
		if err == nil {
			err = second.Commit(ctx)
		}
		behind <- err
	}()
	eventually(t, "the second waits for the first", func() bool {
		return ask[int](t, d, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
	})
	w.append(t, entryOf("beside", "c")) // nobody else waits
	_, since := w.read(t, "", 10)
	must(t, "Commit", first.Commit(ctx))
	must(t, "the second", <-behind)
	got, _ := w.read(t, since, 10)
	if names := namesOf(got); !slices.Equal(names, []string{"a1", "b1", "b2", "a2"}) {
		t.Errorf("read %q", names)
	}
}

// The number is drawn under all locks: who waits for one key meanwhile has none
// yet for another, in which others append and commit.
func TestEnqueueThatWaitsForOneKeyComesBehindWhoCommitsInAnother(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	held, free := "x", "y" // the lock of held is taken before that of free
	if entryOf("", held).Order.OrderLock() > entryOf("", free).Order.OrderLock() {
		held, free = free, held
	}
	holder, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) }) // it has ended by then
	_, err = w.Enqueue(ctx, holder, []store.Entry{entryOf("holder", held)})
	must(t, "Enqueue", err)
	waited := make(chan error, 1)
	go func() {
		waited <- pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			_, err := w.Enqueue(ctx, tx, []store.Entry{entryOf("waits", held), entryOf("second", free)})
			return err
		})
	}()
	eventually(t, "it waits", func() bool { return d.waits(t) == 1 })
	must(t, "enqueue beside", pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := w.Enqueue(ctx, tx, []store.Entry{entryOf("first", free)})
		return err
	}))
	must(t, "Commit", holder.Commit(ctx))
	must(t, "the one that waited", <-waited)
	got, _ := w.read(t, "", 10)
	if names := namesOf(got); slices.Index(names, "first") > slices.Index(names, "second") || len(names) != 4 {
		t.Errorf("read %q", names)
	}
}

// A server process that is killed in the middle of an append has put nothing
// into the queue, and one whose answer was lost all of it.
func TestAnAppendIsInTheQueueWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	holder, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer holder.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	_, err = w.Enqueue(ctx, holder, []store.Entry{entryOf("held")})
	must(t, "Enqueue", err)
	some := store.Arrival{
		Entries:     []store.Entry{entryOf("a"), entryOf("held"), entryOf("z")},
		Quarantined: []store.Quarantined{{Key: entryOf("item").Key, Reason: "schema"}},
	}
	appending := make(chan error, 1)
	go func() {
		_, err := w.Append(ctx, some)
		appending <- err
	}()
	const waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid' AND query LIKE '%unavez.append%'"
	eventually(t, "the append waits for the key", func() bool { return ask[int](t, d, "SELECT count(*) FROM ("+waiting+") w") == 1 })
	d.exec(t, "SELECT pg_terminate_backend(pid) FROM ("+waiting+") w")
	if err := <-appending; !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrCommitUnknown) {
		t.Errorf("Append whose server process was killed: %v", err)
	}
	must(t, "Rollback", holder.Rollback(ctx))
	count := func() int {
		return ask[int](t, d, "SELECT (SELECT count(*) FROM unavez.queue) + (SELECT count(*) FROM unavez.quarantine)")
	}
	if n := count(); n != 0 {
		t.Errorf("%d rows are there", n)
	}
	for took, want := range map[bool]int{false: 0, true: 4} {
		must(t, "a connection that is known", errOf(w.Settle(ctx, entryOf("a").Key)))
		w.wire.lose(took)
		if _, err := w.Append(ctx, some); !errors.Is(err, store.ErrCommitUnknown) {
			t.Errorf("Append whose answer is lost: %v", err)
		}
		eventually(t, "the append is over", func() bool { return count() == want })
		if took {
			break
		}
		d.exec(t, "TRUNCATE unavez.queue_0, unavez.quarantine")
	}
	d.exec(t, "TRUNCATE unavez.queue_0, unavez.quarantine")
	must(t, "Append again", errOf(w.Append(ctx, some)))
	if n := count(); n != 4 {
		t.Errorf("%d rows, want 4", n)
	}
	said := w.append(t, some.Entries...)
	if !slices.Equal(said, []store.Appended{store.Duplicate, store.Duplicate, store.Duplicate}) {
		t.Errorf("appended again: %v", said)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestLanesAreChangedOnlyWhileNothingWaits(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	old := d.worker(t, nil)
	migrate := func(lanes int) error {
		return postgres.Migrate(t.Context(), d.pool(t, "unavez_migrate", nil), &postgres.Settings{Lanes: lanes})
	}
	refused := func(why string) {
		t.Helper()
		if err := migrate(3); err == nil || !strings.Contains(err.Error(), "let the queue run empty") {
			t.Errorf("%s: %v", why, err)
		}
	}
	old.append(t, entryOf("waits"))
	refused("an entry waits")
	gate := gateOf()
	gate.Identity = entryOf("waits").Note.Identity
	gate.Key = gate.Identity.Key()
	old.do(t, gate, "done")
	_, err := old.Keep(t.Context(), store.Keeping{Worker: "old", Lease: time.Minute})
	must(t, "Keep", err)
	refused("a worker lives")
	must(t, "HandBack", old.HandBack(t.Context(), "old", nil, true))
	must(t, "Migrate", migrate(3))
	if _, err := old.Append(t.Context(), store.Arrival{Entries: []store.Entry{entryOf("late")}}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Append by a worker that counts on other lanes: %v", err)
	}
	w := d.worker(t, &postgres.Options{Lanes: 3})
	share, err := w.Keep(t.Context(), store.Keeping{Worker: "new", Lease: time.Minute})
	must(t, "Keep", err)
	if len(share.Held) != 3 || w.Lanes() != 3 || share.Held[0].Epoch < 2 {
		t.Errorf("%d lanes are held of %d: %+v", len(share.Held), w.Lanes(), share.Held)
	}
	w.append(t, entryOf("new"))
	if _, err := postgres.New(w.pool, &postgres.Options{Lanes: 256}); err == nil || !strings.Contains(err.Error(), "Lanes: 256") {
		t.Errorf("a store that counts on other lanes: %v", err)
	}
	if err := migrate(-1); err == nil || !strings.Contains(err.Error(), "Lanes: -1") {
		t.Errorf("Migrate: %v", err)
	}
}
