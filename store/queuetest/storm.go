package queuetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/unavez/unavez/store"
)

// stormTests hold the whole: entries take effect once and in order, whatever
// becomes of the workers that run them.
func stormTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "entries take effect once and in the order of their keys, whoever holds their lanes", run: storm[Tx]},
	}
}

// run is one run of the storm: entries and what is known of their order.
type run[Tx any] struct {
	*bed[Tx]
	seed    uint64
	earlier map[store.Key][]store.Key // of an entry: those before it of its ordering key
	entries []store.Entry

	mu     sync.Mutex
	faults []string
	paused []func() error // transactions that a stopped worker has left open
}

func (r *run[Tx]) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// arrive appends entries of a few ordering keys.
func (r *run[Tx]) arrive(n int) {
	r.Helper()
	for range n {
		e := event(fmt.Sprint(len(r.entries)), fmt.Sprint("key ", len(r.entries)%5))
		for _, before := range r.entries {
			if before.Order == e.Order {
				r.earlier[e.Key] = append(r.earlier[e.Key], before.Key)
			}
		}
		r.appended(r.worker(len(r.entries)), store.New, e)
		r.entries = append(r.entries, e)
	}
}

// storm has workers share the lanes, fail, give lanes back, stop in silence, or
// stop inside a transaction and go on when another has taken the lane.
func storm[Tx any](b *bed[Tx]) {
	r := &run[Tx]{bed: b, seed: rand.Uint64(), earlier: map[store.Key][]store.Key{}}
	for phase := range 5 {
		r.arrive(10)
		late := r.paused
		r.paused = nil
		var wg sync.WaitGroup
		for i := range 3 {
			l := r.life(phase, i)
			wg.Go(func() {
				for range 3 {
					if err := l.round(); err != nil {
						if !errors.Is(err, errStopped) {
							r.fault("%s: %v", l.name, err)
						}
						return
					}
				}
				if err := l.end(); err != nil {
					r.fault("%s: %v", l.name, err)
				}
			})
		}
		for _, goOn := range late {
			wg.Go(func() {
				if err := goOn(); err != nil && !errors.Is(err, store.ErrLaneLost) && !errors.Is(err, store.ErrLost) {
					r.fault("after a pause: %v", err)
				}
			})
		}
		wg.Wait()
		r.judge()
		b.Advance(b.T, lease+margin) // whoever stopped has lost its lanes
	}
	for _, goOn := range r.paused {
		_ = goOn() // by now it may have the lane or not
	}
	b.Advance(b.T, lease+margin)
	last := r.life(99, 0)
	last.steady = true
	b.poll("everything is done", func() bool {
		b.must("round", last.round())
		r.judge()
		left, _ := b.reading(b.worker(0), "")
		return len(left) == 0
	})
	b.rows(names(r.entries)...)
	if waiting, err := b.worker(0).Waiting(b.ctx, nil, store.Place{}, 10); err != nil || len(waiting) != 0 {
		b.Errorf("seed %d: blocked rows when everything is done: %+v, %v", r.seed, waiting, err)
	}
}

func (r *run[Tx]) judge() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 {
		r.Fatalf("seed %d: %v", r.seed, r.faults)
	}
}

// life is one worker from its start to its stop.
type life[Tx any] struct {
	*run[Tx]
	w      worker[Tx]
	r      *rand.Rand
	name   string
	steady bool // neither fails nor stops
	lanes  []*laneRead
}

// laneRead is a lane that the worker holds, and how far it has read it.
type laneRead struct {
	store.Hold
	since string
}

func (r *run[Tx]) life(phase, i int) *life[Tx] {
	return &life[Tx]{
		run: r, w: r.worker(phase + i), name: fmt.Sprintf("worker %d of phase %d", i, phase),
		r: rand.New(rand.NewPCG(r.seed, uint64(phase*10+i))),
	}
}

var (
	errStopped = errors.New("the worker stopped")
	errWaits   = errors.New("the entry has to wait")
)

func (l *life[Tx]) marks() []store.Mark {
	var marks []store.Mark
	for _, lane := range l.lanes {
		marks = append(marks, store.Mark{Hold: lane.Hold, Cursor: lane.since})
	}
	return marks
}

// end gives the lanes back, or leaves them to time.
func (l *life[Tx]) end() error {
	if l.r.IntN(2) == 0 {
		return nil
	}
	return l.w.HandBack(l.ctx, l.name, l.marks(), true)
}

// round keeps the lanes and passes through each of them.
func (l *life[Tx]) round() error {
	share, err := l.w.Keep(l.ctx, store.Keeping{Worker: l.name, Lease: lease, Marks: l.marks()})
	if errors.Is(err, store.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	var lanes []*laneRead
	for _, h := range share.Held {
		lane := &laneRead{Hold: h.Hold, since: h.Cursor}
		for _, known := range l.lanes {
			if known.Hold == h.Hold {
				lane = known
			}
		}
		lanes = append(lanes, lane)
	}
	l.lanes = lanes[:len(lanes)-share.Spare]
	var spare []store.Mark
	for _, lane := range lanes[len(l.lanes):] {
		spare = append(spare, store.Mark{Hold: lane.Hold, Cursor: lane.since})
	}
	if err := l.w.HandBack(l.ctx, l.name, spare, false); err != nil {
		return err
	}
	for _, lane := range slices.Clone(l.lanes) {
		err := l.pass(lane)
		if errors.Is(err, store.ErrLaneLost) {
			l.lanes = slices.DeleteFunc(l.lanes, func(other *laneRead) bool { return other == lane })
			continue
		}
		if err != nil && !errors.Is(err, errWaits) {
			return err
		}
	}
	return nil
}

// pass runs what has become visible in a lane and what waits there. Only when all
// of it is done or blocked the cursor moves.
func (l *life[Tx]) pass(lane *laneRead) error {
	entries, cursor, err := l.follow(l.w, store.Reading{Lanes: []int{lane.Lane}, Since: lane.since, Limit: 4})
	if err != nil {
		return err
	}
	waiting, err := l.w.Waiting(l.ctx, []int{lane.Lane}, store.Place{}, 100)
	if err != nil {
		return err
	}
	blocked := map[store.Key]bool{}
	for _, row := range waiting {
		if blocked[row.Order], err = l.unblocks(lane, row); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if blocked[e.Order] {
			continue
		}
		if blocked[e.Order], err = l.stays(lane, e); err != nil {
			return err
		}
	}
	lane.since = cursor
	return nil
}

// unblocks tries what a row waits for, then its followers, and reports whether
// the ordering key is still blocked.
func (l *life[Tx]) unblocks(lane *laneRead, row store.Waiting) (still bool, err error) {
	if !row.Done {
		e, err := l.w.Load(l.ctx, row.Key)
		if err != nil {
			return true, err
		}
		if still, err := l.stays(lane, e); err != nil || still {
			return true, err
		}
	}
	for after := row.Sequence; ; {
		page, err := l.w.Followers(l.ctx, row.Order, after, 2)
		if err != nil {
			return true, err
		}
		for _, e := range page {
			if still, err := l.stays(lane, e); err != nil || still {
				return true, err // the row has moved to this one
			}
			after = e.Sequence
		}
		if len(page) < 2 {
			return false, l.w.Unblock(l.ctx, lane.Hold, row.Order, row.Sequence)
		}
	}
}

// stays runs an entry and blocks it where it is not done after that.
func (l *life[Tx]) stays(lane *laneRead, e store.Entry) (blocked bool, err error) {
	fence, err := l.try(lane, e)
	if !errors.Is(err, errWaits) {
		return false, err
	}
	blocking := store.Blocking{Hold: lane.Hold, Entry: &e}
	if fence >= 0 { // it ran, and failed
		blocking.Attempt = &store.Resting{Found: fence, Fence: fence + 1, Rest: store.Rest{State: store.Retryable, Reason: "failed"}, DerivedKey: "uv1-storm"}
	}
	err = l.w.Block(l.ctx, blocking)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrDuplicate) || errors.Is(err, store.ErrUnavailable) {
		return true, errWaits // look again in the next round, from the same cursor
	}
	return true, err
}

// try runs an entry once. errWaits comes with the fence that was taken over, 0
// for a first attempt, or -1 where the entry did not run.
func (l *life[Tx]) try(lane *laneRead, e store.Entry) (fence int64, err error) {
	g := gate(e)
	g.Hold = lane.Hold
	for {
		txn, v, err := l.w.ledger.Begin(l.ctx, g)
		switch {
		case errors.Is(err, store.ErrUnavailable):
			return -1, errWaits
		case err != nil:
			return -1, err
		case txn != nil:
			return g.From, l.work(txn, e)
		case v.State.Final():
			return 0, nil
		case v.State == store.Retryable && v.Attempt.Fence != g.From:
			g.From = v.Attempt.Fence
		default:
			return -1, errWaits
		}
	}
}

// work ends an entry in its transaction, or fails, or stops in the middle.
func (l *life[Tx]) work(txn store.Txn[Tx], e store.Entry) error {
	name := e.Note.Event.Parts[1]
	finish := func() error {
		behind := ""
		for _, key := range l.earlier[e.Key] {
			v, err := l.w.ledger.Look(l.ctx, key)
			if err == nil && !v.State.Final() {
				behind = key.String()
			}
		}
		err := l.Write(l.ctx, txn.Tx(), name)
		if err == nil {
			_, err = txn.Commit(l.ctx, completed(name))
		}
		if err != nil {
			_ = txn.Rollback(l.ctx) // it is the first error that tells
		} else if behind != "" {
			l.fault("%s: entry %s took effect before %s of the same ordering key", l.name, name, behind)
		}
		return err
	}
	switch n := l.r.IntN(12); {
	case l.steady || n > 2:
		err := finish()
		if errors.Is(err, store.ErrUnavailable) {
			return errWaits
		}
		return err
	case n > 0:
		if err := txn.Rollback(l.ctx); err != nil {
			return err
		}
		return errWaits
	}
	l.Cleanup(func() { _ = txn.Rollback(context.WithoutCancel(l.ctx)) }) // where the storm fails before it goes on
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = append(l.paused, finish)
	return errStopped
}
