package queuetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

// history is what became of the entries of a schedule, by a clock of its own.
type history struct {
	name    string // of the schedule, in the names of its entries
	mu      sync.Mutex
	entries map[string]*passage
	clock   atomic.Int64
}

// passage is the way of one entry.
type passage struct {
	order   string
	arrived int64 // before its append began
	durable int64 // after its commit was answered; 0 if it was rolled back
}

func newHistory(name string) *history { return &history{name: name, entries: map[string]*passage{}} }

// arrives makes an entry that is about to be appended.
func (h *history) arrives(order string) (store.Entry, *passage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &passage{order: order, arrived: h.clock.Add(1)}
	name := fmt.Sprint(h.name, len(h.entries))
	h.entries[name] = p
	return event(name, order), p
}

// endures says that entries are durable.
func (h *history) endures(all ...*passage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.clock.Add(1)
	for _, p := range all {
		p.durable = at
	}
}

// judge holds what a reader saw to the promise: everything that is durable, once,
// and before another of its ordering key that arrived when it was durable.
func (h *history) judge(seen []store.Entry) (lost int, faults []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	place := map[string]int{}
	newest := map[string]int64{} // by ordering key: the latest arrival read so far
	for i, e := range seen {
		name := e.Note.Event.Parts[1]
		p := h.entries[name]
		switch {
		case p == nil || p.durable == 0:
			faults = append(faults, fmt.Sprintf("entry %s was read and never committed", name))
			continue
		case place[name] != 0:
			faults = append(faults, fmt.Sprintf("entry %s was read twice", name))
		case p.durable < newest[p.order]:
			faults = append(faults, fmt.Sprintf("entry %s of key %s was durable before the arrival of one that was read before it", name, p.order))
		}
		place[name] = i + 1
		newest[p.order] = max(newest[p.order], p.arrived)
	}
	for _, p := range h.entries {
		if p.durable != 0 {
			lost++
		}
	}
	return lost - len(place), faults
}

// check fails where a reader lost something or got it out of order.
func (h *history) check(t *testing.T, seed uint64, reader string, seen []store.Entry) {
	t.Helper()
	lost, faults := h.judge(seen)
	for _, fault := range faults[:min(len(faults), 5)] {
		t.Errorf("seed %d, %s: %s", seed, reader, fault)
	}
	if lost > 0 {
		t.Errorf("seed %d, %s: %d entries lost", seed, reader, lost)
	}
}

// follower is a reader that goes on from cursor to cursor.
type follower[Tx any] struct {
	cursor string
	seen   []store.Entry
}

func (f *follower[Tx]) read(b *bed[Tx], w worker[Tx], limit int) error {
	entries, cursor, err := b.follow(w, store.Reading{Lanes: b.all(), Since: f.cursor, Limit: limit})
	if err == nil {
		f.seen, f.cursor = append(f.seen, entries...), cursor
	}
	return err
}

// schedules runs random schedules of appends in one goroutine: some at once, some
// in transactions that stay open while others commit. A reader whose cursor is a
// sequence must lose entries in the same schedule.
func schedules[Tx any](b *bed[Tx]) {
	naively := 0
	for round, seed := range []uint64{1, 2, rand.Uint64()} {
		naively += schedule(b, seed, fmt.Sprint("round ", round, " "))
	}
	if naively == 0 {
		b.Error("a reader by sequence loses nothing in these schedules, so they prove nothing")
	}
}

// schedule runs one, and returns how much the reader by sequence has lost.
func schedule[Tx any](b *bed[Tx], seed uint64, name string) int {
	type open struct {
		foreign[Tx]
		orders  map[string]bool
		entries []*passage
	}
	r, h := rand.New(rand.NewPCG(seed, 0x717565756574)), newHistory(name)
	var all []*open
	before, cursor := b.reading(b.worker(0), "") // of earlier schedules
	readers, plain := []*follower[Tx]{{cursor: cursor}, {cursor: cursor}}, naive[Tx]{b: b}
	for _, e := range before {
		plain.last = max(plain.last, e.Sequence)
	}
	free := func() string {
		order := fmt.Sprint("key ", r.IntN(6))
		for _, o := range all {
			if o.orders[order] {
				return "" // it would wait for that transaction
			}
		}
		return order
	}
	for range 150 {
		switch what := r.IntN(10); {
		case what < 3: // an arrival, also of keys whose transaction is open
			var entries []store.Entry
			var passages []*passage
			for range 1 + r.IntN(4) {
				e, p := h.arrives(fmt.Sprint("key ", r.IntN(6)))
				entries, passages = append(entries, e), append(passages, p)
			}
			b.appended(b.worker(r.IntN(2)), store.New, entries...)
			h.endures(passages...)
		case what < 5 && len(all) < 4:
			all = append(all, &open{foreign: b.caller(), orders: map[string]bool{}})
		case what < 7 && len(all) > 0:
			o := all[r.IntN(len(all))]
			order := free()
			if order == "" {
				continue
			}
			e, p := h.arrives(order)
			b.enqueue(o.tx, store.New, e)
			o.orders[order], o.entries = true, append(o.entries, p)
		case what < 8 && len(all) > 0:
			i := r.IntN(len(all))
			o := all[i]
			all = append(all[:i:i], all[i+1:]...)
			if r.IntN(5) == 0 {
				b.must("rollback", o.rollback())
				continue
			}
			b.must("commit", o.commit())
			h.endures(o.entries...)
		default:
			b.must("Read", readers[r.IntN(2)].read(b, b.worker(r.IntN(2)), 1+r.IntN(8)))
			plain.read()
		}
	}
	for _, o := range all {
		b.must("commit", o.commit())
		h.endures(o.entries...)
	}
	plain.read()
	for i, f := range readers {
		b.must("Read", f.read(b, b.worker(i), 100))
		h.check(b.T, seed, fmt.Sprintf("reader %d", i+1), f.seen)
	}
	lost, _ := h.judge(plain.seen)
	return lost
}

// beside runs writers and readers at once.
func beside[Tx any](b *bed[Tx]) {
	const writers, rounds = 4, 25
	seed := rand.Uint64()
	h := newHistory("")
	working := make(chan struct{})
	var wg sync.WaitGroup
	readers, errs := []*follower[Tx]{{}, {}}, make([]error, 2)
	for i, f := range readers {
		wg.Go(func() {
			for errs[i] == nil {
				select {
				case <-working:
					return
				default:
					errs[i] = f.read(b, b.worker(i), 1+i*50)
				}
			}
		})
	}
	b.together(writers, func(i int) error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			var entries []store.Entry
			var passages []*passage
			for range 1 + r.IntN(3) {
				e, p := h.arrives(fmt.Sprint("key ", r.IntN(5)))
				entries, passages = append(entries, e), append(passages, p)
			}
			if b.worker(0).enqueuer == nil || r.IntN(2) == 0 {
				if _, err := b.worker(i).Append(b.ctx, store.Arrival{Entries: entries}); err != nil {
					return err
				}
			} else if err := b.slowly(time.Duration(r.IntN(4))*time.Millisecond, entries); err != nil {
				return err
			}
			h.endures(passages...)
		}
		return nil
	})
	close(working)
	wg.Wait()
	for i, f := range readers {
		b.must("Read", errs[i])
		b.must("Read", f.read(b, b.worker(i), 100))
		h.check(b.T, seed, fmt.Sprintf("reader %d", i+1), f.seen)
	}
}

// slowly appends in a transaction that stays open for a while.
func (b *bed[Tx]) slowly(d time.Duration, entries []store.Entry) error {
	tx, commit, rollback, err := b.BeginForeign(b.ctx)
	if err != nil {
		return err
	}
	if _, err := b.worker(0).enqueuer.Enqueue(b.ctx, tx, entries); err != nil {
		_ = rollback() // it is the first error that tells
		return err
	}
	open := time.NewTimer(d)
	defer open.Stop()
	select {
	case <-open.C:
	case <-b.ctx.Done():
	}
	return commit()
}
