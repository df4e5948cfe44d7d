//go:build unix

package sqlite_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// numbered is the entry of a sender's n-th event; a sender has three ordering keys.
func numbered(sender string, n int) store.Entry {
	id := store.Identity{Tenant: "tenant", Effect: "order.import.v1", Parts: []string{sender, strconv.Itoa(n)}}
	note := store.Note{Event: id, Identity: id, Ordering: []string{sender, strconv.Itoa(n % 3)}, Source: sender}
	return store.Entry{
		Key: id.Key(), Operation: id.Key(), Order: note.Order(), Note: note,
		Fingerprint: store.Fingerprint{Version: 1, Sum: []byte(strconv.Itoa(n))}, Payload: []byte(strconv.Itoa(n)),
	}
}

// laneGate is the gate of an entry in its lane.
func laneGate(e store.Entry, h store.Hold) store.Gate {
	return store.Gate{
		Identity: e.Note.Event, Key: e.Key, Fingerprint: e.Fingerprint, Hold: h,
		Limit: time.Minute, Retention: time.Hour, Tombstone: time.Hour,
	}
}

// laneWorker takes lanes and does their entries, in batches, in order.
type laneWorker struct {
	s       *sqlite.Store
	name    string
	lease   time.Duration
	cursors map[store.Hold]string
}

// round is one turn of a worker: it keeps its lanes, and does what waits in them. It
// returns how many entries it has done and how many lanes it holds.
func (w *laneWorker) round(ctx context.Context) (done, held int, err error) {
	k := store.Keeping{Worker: w.name, Lease: w.lease}
	for h, cursor := range w.cursors {
		k.Marks = append(k.Marks, store.Mark{Hold: h, Cursor: cursor})
	}
	share, err := w.s.Keep(ctx, k)
	if err != nil {
		return 0, 0, err
	}
	cursors := map[store.Hold]string{}
	for _, h := range share.Held {
		if cursors[h.Hold] = w.cursors[h.Hold]; h.Taken {
			cursors[h.Hold] = h.Cursor
		}
	}
	w.cursors = cursors
	for h := range cursors {
		n, err := w.lane(ctx, h)
		if err != nil && !errors.Is(err, store.ErrLaneLost) {
			return done, len(cursors), err
		}
		done += n
	}
	return done, len(cursors), nil
}

// lane does what waits in one lane. The cursor moves behind what is done.
func (w *laneWorker) lane(ctx context.Context, h store.Hold) (n int, err error) {
	page, err := w.s.Read(ctx, store.Reading{Lanes: []int{h.Lane}, Since: w.cursors[h], Limit: 20})
	if err != nil || len(page.Entries) == 0 {
		if err == nil {
			w.cursors[h] = page.Until
		}
		return 0, err
	}
	var gates []store.Gate
	for _, e := range page.Entries {
		gates = append(gates, laneGate(e, h))
	}
	batch, verdicts, err := w.s.BeginBatch(ctx, gates)
	if err != nil {
		return 0, err
	}
	ends := make([]*store.End, len(gates))
	for i, v := range verdicts {
		switch v.State {
		case store.Free:
			end := completed("done")
			ends[i] = &end
			if err := write(ctx, batch.Tx(), strings.Join(gates[i].Identity.Parts, " ")); err != nil {
				return 0, errors.Join(err, batch.Rollback(ctx))
			}
			n++
		case store.Completed:
		default: // the holder before runs it still, and will fail: nothing behind it may run
			if batch != nil {
				return 0, batch.Rollback(ctx)
			}
			return 0, nil
		}
	}
	if batch != nil {
		if _, err := batch.Commit(ctx, ends); err != nil {
			return 0, err
		}
	}
	if !page.More {
		w.cursors[h] = page.Until
	} else {
		w.cursors[h] = strconv.FormatInt(page.Entries[len(page.Entries)-1].Sequence, 10)
	}
	return n, nil
}

// queueChild appends its events from a number on, and does whatever waits, until it
// is killed.
func queueChild(s *sqlite.Store, name, from string) error {
	ctx := context.Background()
	n, err := strconv.Atoi(from)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		w := &laneWorker{s: s, name: name + " " + from, lease: 300 * time.Millisecond}
		for {
			if _, _, err := w.round(ctx); err != nil {
				failed <- err
				return
			}
		}
	}()
	for ; ; n++ {
		if _, err := s.Append(ctx, store.Arrival{Entries: []store.Entry{numbered(name, n)}}); err != nil {
			return err
		}
		fmt.Printf("appended %d\n", n)
		select {
		case err := <-failed:
			return err
		default:
		}
	}
}

// Two processes append and do entries; each is killed again and again, wherever it
// stands. What was acknowledged is done once, and in the order of its key.
func TestKilledWorkersLoseNoEntry(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		senders := []string{"a", "b"}
		acknowledged := make([]int, len(senders)) // how many of each
		for range 5 {
			var wg sync.WaitGroup
			for i, name := range senders {
				// The event whose answer was lost comes again.
				p := start(t, "queue", drv, w.path, name, strconv.Itoa(acknowledged[i]))
				defer p.kill()
				life := 10 + r.IntN(60)
				wg.Go(func() {
					for n := 1; p.out.Scan(); n++ {
						if p.out.Text() != fmt.Sprintf("appended %d", acknowledged[i]) {
							t.Errorf("process said %q, want number %d", p.out.Text(), acknowledged[i])
						}
						if acknowledged[i]++; n == life {
							p.kill()
						}
					}
				})
			}
			wg.Wait()
		}
		last := &laneWorker{s: w.store, name: "last", lease: time.Minute}
		eventually(t, "the last worker has all lanes and nothing is left", func() bool {
			done, held, err := last.round(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return done == 0 && held == w.store.Lanes()
		})
		seen, order := map[string]int{}, map[string]int{}
		for _, row := range w.rows(t) {
			seen[row]++
			var sender string
			var n int
			if _, err := fmt.Sscanf(row, "%s %d", &sender, &n); err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint(sender, n%3)
			if last, ok := order[key]; ok && n <= last {
				t.Errorf("%s was done behind %d of its key", row, last)
			}
			order[key] = n
		}
		for i, name := range senders {
			if acknowledged[i] < 50 {
				t.Errorf("only %d events of %s", acknowledged[i], name)
			}
			for n := range acknowledged[i] {
				if row := fmt.Sprint(name, " ", n); seen[row] != 1 {
					t.Errorf("event %s was acknowledged, and done %d times", row, seen[row])
				}
			}
		}
	})
}

// A worker that stands still inside its transaction stops appends and lanes of the
// others, which say so; reading goes on.
func TestStoppedWorkerStopsAppendsAndNoReading(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		opts := patient()
		opts.BusyTimeout = 100 * time.Millisecond
		w := fresh(t, drv, opts)
		ctx := t.Context()
		first := numbered("a", 0)
		if _, err := w.store.Append(ctx, store.Arrival{Entries: []store.Entry{first}}); err != nil {
			t.Fatal(err)
		}
		share, err := w.store.Keep(ctx, store.Keeping{Worker: "worker", Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		held := share.Held[store.LaneOf(first.Order, w.store.Lanes())].Hold
		p := start(t, "hold", drv, w.path, "held")
		defer p.kill()
		p.wait("wrote held")
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		loaded, err := w.store.Load(ctx, first.Key)
		if err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func() error{
			"Append": func() error {
				_, err := w.store.Append(ctx, store.Arrival{Entries: []store.Entry{numbered("a", 1)}})
				return err
			},
			"Keep": func() error {
				_, err := w.store.Keep(ctx, store.Keeping{Worker: "worker", Lease: time.Hour})
				return err
			},
			"HandBack": func() error { return w.store.HandBack(ctx, "worker", []store.Mark{{Hold: held}}, true) },
			"Block":    func() error { return w.store.Block(ctx, store.Blocking{Hold: held, Entry: &loaded}) },
			"batch": func() error {
				batch, _, err := w.store.BeginBatch(ctx, []store.Gate{laneGate(first, held)})
				if err != nil {
					return err
				}
				end := completed("x")
				_, err = batch.Commit(ctx, []*store.End{&end})
				return err
			},
			"Position": func() error {
				_, _, err := w.store.Position(ctx, "orders", "worker", time.Hour)
				return err
			},
		} {
			if err := call(); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFull) || strings.Contains(err.Error(), "locked") {
				t.Errorf("%s beside a stopped worker: %v", name, err)
			}
		}
		if page, err := w.store.Read(ctx, store.Reading{Lanes: []int{held.Lane}, Limit: 10}); err != nil || len(page.Entries) != 1 {
			t.Errorf("read beside a stopped worker: %d entries, %v", len(page.Entries), err)
		}
		if _, err := w.store.QueueCounts(ctx); err != nil {
			t.Errorf("counts beside a stopped worker: %v", err)
		}
		p.kill()
		if said, err := w.store.Append(ctx, store.Arrival{Entries: []store.Entry{numbered("a", 1)}}); err != nil || said[0] != store.New {
			t.Errorf("append after it was killed: %v, %v", said, err)
		}
		worker := &laneWorker{s: w.store, name: "worker", lease: time.Hour, cursors: map[store.Hold]string{held: ""}}
		if _, _, err := worker.round(ctx); err != nil {
			t.Error(err)
		}
		w.rowsAre(t, "a 0", "a 1")
	})
}
