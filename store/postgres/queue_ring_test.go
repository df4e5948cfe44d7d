package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// queueSlots tells the states of the slots of the queue.
func queueSlots(t *testing.T, d *database) string {
	t.Helper()
	return ask[string](t, d, "SELECT string_agg(state, ' ' ORDER BY number) FROM unavez.queue_slot")
}

// finish ends the operation of an entry.
func (w *worker) finish(t *testing.T, entries ...store.Entry) {
	t.Helper()
	for _, e := range entries {
		gate := dayGate()
		gate.Identity, gate.Key, gate.Fingerprint, gate.Retention = e.Note.Event, e.Key, e.Fingerprint, 30*day
		txn := w.begin(t, gate)
		_, err := txn.Commit(t.Context(), completed(nameOf(e)))
		must(t, "Commit", err)
	}
}

// half is for how long a slot of the queue is written to, by default.
const half = payloads/2 + time.Minute

// Entries come and are done, some are left: the ring turns and turns, and what is
// left goes with it, in its order.
func TestQueueTurnsAndCarriesWhatIsLeft(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	var left []string
	cursor := ""
	for round := range 9 {
		stays, goes := entryOf(fmt.Sprint("stays ", round), "one"), entryOf(fmt.Sprint("goes ", round), "one")
		w.append(t, stays, goes)
		left = append(left, nameOf(stays))
		w.finish(t, goes)
		d.advance(t, half)
		w.purge(t)
		got, next := w.read(t, cursor, 3)
		cursor = next
		if names := namesOf(got); !inSequence(got) || !slices.Contains(names, nameOf(stays)) {
			t.Errorf("round %d: read %q", round, names)
		}
		if got, _ := w.read(t, "", 4); !slices.Equal(namesOf(got), left) {
			t.Fatalf("round %d: read %q from the beginning, want %q", round, namesOf(got), left)
		}
		if n := ask[int](t, d, "SELECT count(DISTINCT key) FROM unavez.queue"); n > len(left)+3 {
			t.Errorf("round %d: %d entries are in the queue, of which %d wait", round, n, len(left))
		}
	}
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.queue_slot WHERE state = 'empty'"); n == 0 {
		t.Errorf("no slot was emptied: %s", queueSlots(t, d))
	}
	followers, err := w.Followers(t.Context(), entryOf("", "one").Order, 0, 1000)
	must(t, "Followers", err)
	if names := namesOf(followers); !slices.Equal(names, left) {
		t.Errorf("followers %q", names)
	}
}

// X4: a slot with an append under way is not emptied, and what was appended
// there is found.
func TestAppendUnderWayIsNotLostWithItsSlot(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	before := entryOf("before", "one")
	w.append(t, before)
	w.finish(t, before)
	tx, err := w.pool.Begin(ctx)
	must(t, "Begin", err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it has ended by then
	late := entryOf("late", "one")
	_, err = w.Enqueue(ctx, tx, []store.Entry{late})
	must(t, "Enqueue", err)
	d.advance(t, half)
	w.purge(t)
	if got := queueSlots(t, d); got != "current empty empty empty" {
		t.Errorf("with an append under way: %s", got)
	}
	// When it is overdue the ring turns; the slot is neither closed nor emptied.
	for range 3 {
		d.advance(t, half)
		w.purge(t)
	}
	if got := queueSlots(t, d); !strings.HasPrefix(got, "sealed") || !strings.Contains(got, "current") {
		t.Errorf("overdue: %s", got)
	}
	if ask[bool](t, d, "SELECT closed IS NOT NULL FROM unavez.queue_slot WHERE number = 0") {
		t.Error("a slot with an append under way was closed")
	}
	beside := entryOf("beside", "one")
	beside.Order = beside.Key // the ordering key is locked by the open transaction
	w.append(t, beside)
	must(t, "Commit", tx.Commit(ctx))
	if said := w.append(t, late); said[0] != store.Duplicate {
		t.Errorf("appended again: %v", said)
	}
	for range 2 {
		d.advance(t, half)
		w.purge(t)
		if got, _ := w.read(t, "", 10); !slices.Equal(namesOf(got), []string{"late", "beside"}) {
			t.Fatalf("read %q", namesOf(got))
		}
	}
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.queue_0 WHERE key = $1", [16]byte(late.Key)); n != 0 {
		t.Error("the slot was not emptied")
	}
}

// The last look at a slot, under its lock, finds what should not be there: then
// nothing is emptied.
func TestSlotIsEmptiedOnlyWhenNothingCameInSinceItWasClosed(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	w.append(t, entryOf("done"))
	w.finish(t, entryOf("done"))
	d.advance(t, half)
	w.purge(t)
	if got := queueSlots(t, d); got != "sealed current empty empty" {
		t.Fatalf("after the turn: %s", got)
	}
	// Past the protocol.
	w.append(t, entryOf("smuggled"))
	d.exec(t, "WITH row AS (DELETE FROM unavez.queue_1 RETURNING *) INSERT INTO unavez.queue_0 SELECT * FROM row")
	d.exec(t, "UPDATE unavez.queue_slot SET checked = 1000000000 WHERE number = 0")
	d.advance(t, half)
	w.purge(t)
	if n := ask[int](t, d, "SELECT count(*) FROM unavez.queue WHERE key = $1", [16]byte(entryOf("smuggled").Key)); n == 0 {
		t.Error("an entry was emptied away")
	}
	d.advance(t, half)
	w.purge(t)
	if got, _ := w.read(t, "", 10); !slices.Equal(namesOf(got), []string{"smuggled"}) {
		t.Errorf("read %q", namesOf(got))
	}
}

// A page of a reading finds what was carried to another slot after the page
// before, in its place.
func TestReadingGoesOnWhileEntriesAreCarried(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"the beginning", "a cursor"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			d := fresh(t, nil)
			w := d.worker(t, nil)
			_, since := w.read(t, "", 1)
			if from == "the beginning" {
				since = ""
			}
			var want []string
			for i := range 30 { // in two slots
				if i == 15 {
					d.advance(t, half)
					w.purge(t)
				}
				e := entryOf(fmt.Sprintf("%02d", i), "one")
				w.append(t, e)
				want = append(want, nameOf(e))
			}
			if got := queueSlots(t, d); got != "sealed current empty empty" {
				t.Fatalf("slots: %s", got)
			}
			reading := store.Reading{Lanes: w.everyLane(), Since: since, Limit: 4}
			var got []string
			for n := 0; ; n++ {
				page, err := w.Read(t.Context(), reading)
				must(t, "Read", err)
				got = append(got, namesOf(page.Entries)...)
				if n == 1 {
					d.advance(t, half)
					w.purge(t)
					if n := ask[int](t, d, "SELECT count(*) FROM unavez.queue_0"); n != 0 {
						t.Fatalf("%d rows were not carried", n)
					}
				}
				if !page.More {
					break
				}
				reading.Until, reading.After = page.Until, page.Entries[len(page.Entries)-1].Sequence
			}
			if !slices.Equal(got, want) {
				t.Errorf("read %q", got)
			}
		})
	}
}

// Appends, readers and purges beside each other, with slots that turn all the
// time: every entry comes once to each reader that looks at what it has seen,
// and none is lost.
func TestQueueTurnsBesideAppendsAndReaders(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.exec(t, "UPDATE unavez.setting SET value = '0' WHERE name = 'queue_payload'")
	const writers, each = 4, 150
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stores := make([]*worker, writers+2)
	for i := range stores {
		stores[i] = d.worker(t, nil)
	}
	var writing, beside sync.WaitGroup
	for i := range writers {
		w := stores[i]
		writing.Go(func() {
			for n := range each {
				e := entryOf(fmt.Sprint(i, "/", n), fmt.Sprint(i))
				var err error
				if n%4 == 0 {
					err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
						_, err := w.Enqueue(ctx, tx, []store.Entry{e})
						return err
					})
				} else {
					_, err = w.Append(ctx, store.Arrival{Entries: []store.Entry{e}})
				}
				if err != nil {
					t.Errorf("append %d of %d: %v", n, i, err)
					return
				}
			}
		})
	}
	turned := 0
	beside.Go(func() {
		for ctx.Err() == nil {
			if _, err := stores[writers].Purge(context.WithoutCancel(ctx), 1000); err != nil {
				t.Errorf("Purge: %v", err)
				return
			}
			turned++
		}
	})
	seen := map[string]bool{}
	beside.Go(func() {
		since, last := "", map[int]int{}
		for final := false; ; {
			got, until, err := stores[writers+1].readAll(context.WithoutCancel(ctx), since, 20)
			if err != nil {
				t.Errorf("Read: %v", err)
				return
			}
			since = until
			for _, e := range got {
				if seen[nameOf(e)] {
					continue // it was carried
				}
				seen[nameOf(e)] = true
				var writer, n int
				_, _ = fmt.Sscanf(nameOf(e), "%d/%d", &writer, &n) // it is one of ours
				if want := last[writer]; n != want {
					t.Errorf("read %s, want number %d", nameOf(e), want)
				}
				last[writer] = n + 1
			}
			if final {
				return
			}
			final = ctx.Err() != nil
		}
	})
	writing.Wait()
	cancel()
	beside.Wait()
	if len(seen) != writers*each {
		t.Errorf("%d entries were read, want %d", len(seen), writers*each)
	}
	got, _ := stores[0].read(t, "", 1000)
	if len(got) != writers*each {
		t.Errorf("%d entries are in the queue, want %d", len(got), writers*each)
	}
	t.Logf("%d purges, slots are %s", turned, queueSlots(t, d))
}

// What cannot be done any more is refused before the ring is full, and there is
// room again when some of it is done.
func TestFullQueueRefusesAndGoesOnWhenSomeIsDone(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	const room = 8 << 20
	d.exec(t, "UPDATE unavez.setting SET value = $1 WHERE name = 'queue_bytes'", fmt.Sprint(room))
	var all []store.Entry
	full := func() bool {
		some := make([]store.Entry, 100)
		for i := range some {
			some[i] = entryOf(fmt.Sprint("entry ", len(all)+i))
			some[i].Payload = []byte(strings.Repeat(fmt.Sprint(i), 700))
		}
		_, err := w.Append(t.Context(), store.Arrival{Entries: some})
		if err != nil {
			is(t, "Append", err, store.ErrFull)
			return true
		}
		all = append(all, some...)
		return false
	}
	for range 1000 {
		if full() {
			break
		}
		w.purge(t)
	}
	if !full() {
		t.Fatal("the queue is never full")
	}
	if n := ask[int64](t, d, "SELECT sum(pg_relation_size('unavez.queue_' || n)) FROM generate_series(0, 3) n"); n < room || n > 2*room {
		t.Errorf("%d bytes when it is full, want about %d", n, room)
	}
	got, _ := w.read(t, "", 1000)
	if len(got) != len(all) {
		t.Fatalf("%d of %d entries", len(got), len(all))
	}
	d.exec(t, `INSERT INTO unavez.outcome_table SELECT key, now(), now() + interval '30 days', now() + interval '60 days', 200, 1, 1, 6, false, 'tenant/effect/x', '', '', '', ''
		FROM unavez.queue ORDER BY sequence LIMIT $1`, len(all)*2/3)
	eventually(t, "there is room again", func() bool { w.purge(t); return !full() })
	if got, _ := w.read(t, "", 1000); len(got) != len(all)-(len(all)-100)*2/3 {
		t.Errorf("%d entries wait of %d", len(got), len(all))
	}
}

// An entry stays done as long as it is in the queue, however short its outcome
// was to be remembered; one that lives again does so as a whole.
func TestNoEntryIsForgottenBeforeItIsGone(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	postgres.SetSmall(w.Store, 0, 0)
	e := entryOf("short")
	w.append(t, e)
	gate := gateOf()
	gate.Identity, gate.Key, gate.Fingerprint = e.Note.Event, e.Key, e.Fingerprint
	w.do(t, gate, "once")
	for range 3 {
		d.advance(t, 26*time.Hour)
		w.purge(t)
		if got, _ := w.read(t, "", 10); len(got) != 0 {
			t.Fatalf("read %q", namesOf(got))
		}
	}
	w.state(t, gate, store.Free)
	w.do(t, gate, "again") // by another way than the queue
	if got, _ := w.read(t, "", 10); len(got) != 0 {
		t.Errorf("read %q", namesOf(got))
	}
	if _, err := w.Load(t.Context(), e.Key); err == nil {
		t.Error("the entry of the earlier life is still there")
	}
}
