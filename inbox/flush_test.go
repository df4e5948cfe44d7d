package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// recorder is a queue that takes a set time for each append, and notes them.
type recorder struct {
	store.Queue
	took  time.Duration
	lanes int
	fail  func(store.Arrival) error

	mu       sync.Mutex
	groups   [][]store.Entry
	starts   []time.Time
	flying   int
	most     int
	lane     map[int]bool
	overlaps int
}

func (r *recorder) Lanes() int { return r.lanes }

// Keep and HandBack are not asked for here.
func (r *recorder) Keep(context.Context, store.Keeping) (store.Share, error) { panic("unused") }

func (r *recorder) HandBack(context.Context, string, []store.Mark, bool) error { panic("unused") }

// Append takes its time by the clock of the test's bubble.
func (r *recorder) Append(ctx context.Context, in store.Arrival) ([]store.Appended, error) {
	r.mu.Lock()
	r.groups, r.starts = append(r.groups, in.Entries), append(r.starts, time.Now())
	r.flying++
	r.most = max(r.most, r.flying)
	if r.lane == nil {
		r.lane = map[int]bool{}
	}
	mine := map[int]bool{}
	for _, e := range in.Entries {
		lane := store.LaneOf(e.Order, r.lanes)
		if r.lane[lane] && !mine[lane] {
			r.overlaps++
		}
		r.lane[lane], mine[lane] = true, true
	}
	r.mu.Unlock()
	select {
	case <-time.After(r.took):
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flying--
	for lane := range mine {
		delete(r.lane, lane)
	}
	if r.fail != nil {
		if err := r.fail(in); err != nil {
			return nil, err
		}
	}
	said := make([]store.Appended, len(in.Entries))
	for i := range said {
		said[i] = store.New
	}
	return said, nil
}

// ordered is one of an ordering key.
func ordered(order, name string) store.Entry {
	id := store.Identity{Tenant: "t", Effect: "e", Parts: []string{name}}
	note := store.Note{Event: id, Identity: id, Ordering: []string{order}}
	return store.Entry{Key: id.Key(), Operation: id.Key(), Order: note.Order(), Note: note, Payload: []byte(name)}
}

func TestALoneArrivalGoesAtOnceAndOthersShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: 10 * time.Millisecond, lanes: 1 << 20}
		f := newFlusher(r, 2*time.Millisecond, 500)
		var all sync.WaitGroup
		began := time.Now()
		send := func(name string) {
			all.Go(func() {
				if said, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered(name, name)}}); err != nil || len(said) != 1 {
					t.Errorf("%s: %v, %v", name, said, err)
				}
			})
			synctest.Wait()
		}
		send("first")
		for i := range 10 {
			send(fmt.Sprint("other", i))
		}
		all.Wait()
		if len(r.groups) != 2 || len(r.groups[0]) != 1 || len(r.groups[1]) != 10 {
			t.Fatalf("%d commits", len(r.groups))
		}
		if at := r.starts[0].Sub(began); at != 0 {
			t.Errorf("the lone one waited %v", at)
		}
		if at := r.starts[1].Sub(began); at != 2*time.Millisecond {
			t.Errorf("the others went after %v, want the pause", at)
		}
	})
}

func TestAFullGroupDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: time.Hour, lanes: 1 << 20}
		f := newFlusher(r, time.Second, 4)
		var all sync.WaitGroup
		for i := range 13 {
			all.Go(func() {
				_, _ = f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered(fmt.Sprint(i), fmt.Sprint(i))}})
			})
			synctest.Wait()
		}
		if len(r.groups) != 4 || r.most != 4 {
			t.Errorf("%d commits in the air, want 4: one alone, then three of 4", len(r.groups))
		}
		all.Wait()
	})
}

func TestALaneIsInOneFlushAndKeepsItsOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: 5 * time.Millisecond, lanes: 8}
		f := newFlusher(r, 2*time.Millisecond, 10)
		var all sync.WaitGroup
		const arrivals = 400
		for i := range arrivals {
			in := store.Arrival{}
			for n := range 1 + random.IntN(3) {
				in.Entries = append(in.Entries, ordered(fmt.Sprint(random.IntN(20)), fmt.Sprintf("%06d-%d", i, n)))
			}
			all.Go(func() {
				if _, err := f.append(t.Context(), in); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if random.IntN(5) == 0 {
				<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
			}
		}
		all.Wait()
		last, n := map[store.Key]string{}, 0
		for _, group := range r.groups {
			for _, e := range group {
				n++
				if name := e.Note.Event.Parts[0]; name <= last[e.Order] {
					t.Errorf("%s was stored after %s of the same ordering key", name, last[e.Order])
				} else {
					last[e.Order] = name
				}
			}
		}
		if r.overlaps != 0 || r.most < 2 || n < arrivals {
			t.Errorf("%d lanes were in two flushes; %d flushes in the air at most; %d entries", r.overlaps, r.most, n)
		}
	})
}

func TestAnArrivalThatTheStoreCannotTakeStandsForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := errors.New("invalid byte sequence")
		r := &recorder{took: time.Millisecond, lanes: 1 << 20, fail: func(in store.Arrival) error {
			for _, e := range in.Entries {
				if e.Note.Event.Parts[0] == "poison" {
					return poison
				}
			}
			return nil
		}}
		f := newFlusher(r, time.Second, 500)
		var all sync.WaitGroup
		for _, name := range []string{"lone", "a", "poison", "b"} {
			all.Go(func() {
				_, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered(name, name)}})
				if (err != nil) != (name == "poison") {
					t.Errorf("%s: %v", name, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
	})
}

func TestALostAnswerOfTheCommitIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		times int
		after bool
		want  int // entries that are stored
		ok    bool
	}{{1, true, 1, true}, {1, false, 1, true}, {2, true, 1, false}, {2, false, 0, false}} {
		q := &failing{Queue: memory.New(nil), err: store.ErrCommitUnknown, times: tc.times, after: tc.after}
		f := newFlusher(q, time.Millisecond, 500)
		_, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered("a", "a")}})
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%+v: %v", tc, err)
		}
		if q.calls != 2 {
			t.Errorf("%+v: %d appends", tc, q.calls)
		}
		said, err := q.Queue.Append(t.Context(), store.Arrival{Entries: []store.Entry{ordered("a", "a")}})
		if err != nil || (said[0] == store.Duplicate) != (tc.want == 1) {
			t.Errorf("%+v: stored as %v, %v", tc, said, err)
		}
	}
}

func TestACallerGivesUpAndTheFlushGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: time.Minute / 4, lanes: 1 << 20}
		f := newFlusher(r, time.Millisecond, 500)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := f.append(ctx, store.Arrival{Entries: []store.Entry{ordered("a", "in the air")}})
		if !errors.Is(err, store.ErrUnavailable) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		// Of the same lane: it waits, and its caller goes before it is sent.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.append(ctx, store.Arrival{Entries: []store.Entry{ordered("a", "dropped")}}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("the second: %v", err)
		}
		if _, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered("a", "third")}}); err != nil {
			t.Errorf("the third: %v", err)
		}
		if len(r.groups) != 2 || r.groups[0][0].Note.Event.Parts[0] != "in the air" || r.groups[1][0].Note.Event.Parts[0] != "third" || len(r.groups[1]) != 1 {
			t.Errorf("%d groups", len(r.groups))
		}
	})
}

func TestWhatWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: time.Hour, lanes: 1}
		f := newFlusher(r, time.Millisecond, 500)
		f.room = 5
		var all sync.WaitGroup
		refused := 0
		for i := range f.room + 3 {
			all.Go(func() {
				if _, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered("a", fmt.Sprint(i))}}); err != nil {
					if !errors.Is(err, store.ErrUnavailable) {
						t.Error(err)
					}
					refused++
				}
			})
			synctest.Wait()
		}
		if refused != 2 {
			t.Errorf("%d refused, want 2: one is in the air and %d wait", refused, f.room)
		}
		large := store.Arrival{Quarantined: []store.Quarantined{{Payload: make([]byte, maxWaitingBytes)}}}
		if _, err := f.append(t.Context(), large); !errors.Is(err, errCrowded) {
			t.Errorf("over the bytes: %v", err)
		}
		all.Wait()
	})
}

func TestClosingWaitsForWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{took: time.Second, lanes: 1}
		f := newFlusher(r, time.Millisecond, 500)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if _, err := f.append(t.Context(), store.Arrival{Entries: []store.Entry{ordered("a", fmt.Sprint(i))}}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := f.close(short); err == nil {
			t.Error("closed while an arrival is in the air")
		}
		if _, err := f.append(t.Context(), store.Arrival{}); !errors.Is(err, errClosed) {
			t.Errorf("after closing: %v", err)
		}
		if err := f.close(t.Context()); err != nil {
			t.Error(err)
		}
		if len(r.groups) != 2 || len(r.groups[1]) != 2 {
			t.Errorf("%d groups", len(r.groups))
		}
		all.Wait()
	})
}
