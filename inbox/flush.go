package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

const (
	// maxFlying bounds the flushes in the air. More of them would only wait for
	// the same disk.
	maxFlying = 4
	// maxWaiting and maxWaitingBytes bound what waits for a flush, in arrivals and
	// in bytes of payload. Further ones are told to come again.
	maxWaiting      = 10_000
	maxWaitingBytes = 256 << 20
	// flushLimit bounds a flush, the second try after a lost answer included.
	flushLimit = 20 * time.Second
	// reach is how far behind the first waiting arrival a flush looks for those
	// whose lanes are free.
	reach = 2000
)

var (
	errClosed  = fmt.Errorf("%w: the inbox is shutting down", store.ErrUnavailable)
	errCrowded = fmt.Errorf("%w: too many deliveries wait to be stored", store.ErrUnavailable)
)

// flusher makes arrivals durable, several in one commit. A lone arrival goes at
// once. While flushes are in the air, others gather until there are size entries
// or the first has waited for the pause, and then go too. Arrivals of one lane
// keep their order: a lane is in one flush at a time, and an arrival does not
// overtake one that shares a lane with it.
type flusher struct {
	queue store.Queue
	lanes int
	pause time.Duration
	size  int
	room  int // arrivals that may wait

	mu      sync.Mutex
	waiting []*arrival
	entries int // that wait
	bytes   int // that wait
	flying  int
	busy    map[int]bool // lanes in the air
	timer   *time.Timer  // wakes for the first waiting arrival; nil if not set
	closed  bool
	empty   chan struct{} // closed when nothing is left after closing
}

// arrival is what one caller wants to be durable.
type arrival struct {
	store.Arrival
	lanes  []int
	bytes  int
	at     time.Time
	gone   <-chan struct{} // its caller no longer waits
	done   chan struct{}
	result []store.Appended
	err    error
}

func newFlusher(queue store.Queue, pause time.Duration, size int) *flusher {
	f := &flusher{queue: queue, lanes: 256, pause: pause, size: size, room: maxWaiting, busy: map[int]bool{}, empty: make(chan struct{})}
	if l, ok := queue.(store.Lanes); ok {
		f.lanes = l.Lanes()
	}
	return f
}

// append returns once the arrival is durable, or will not be. When ctx ends it
// returns, but a flush that has begun goes on.
func (f *flusher) append(ctx context.Context, in store.Arrival) ([]store.Appended, error) {
	a := &arrival{Arrival: in, at: time.Now(), gone: ctx.Done(), done: make(chan struct{})}
	for i := range in.Entries {
		a.lanes = append(a.lanes, store.LaneOf(in.Entries[i].Order, f.lanes))
		a.bytes += len(in.Entries[i].Payload)
	}
	slices.Sort(a.lanes)
	a.lanes = slices.Compact(a.lanes)
	for i := range in.Quarantined {
		a.bytes += len(in.Quarantined[i].Payload)
	}
	if err := f.enter(a); err != nil {
		return nil, err
	}
	select {
	case <-a.done:
		return a.result, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: not stored in time: %w", store.ErrUnavailable, context.Cause(ctx))
	}
}

func (f *flusher) enter(a *arrival) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return errClosed
	case len(f.waiting) > 0 && (len(f.waiting) >= f.room || f.bytes+a.bytes > maxWaitingBytes):
		return errCrowded
	}
	f.waiting = append(f.waiting, a)
	f.entries += len(a.Entries)
	f.bytes += a.bytes
	f.pump()
	return nil
}

// close refuses further arrivals and waits for those that are there.
func (f *flusher) close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.settle()
	f.mu.Unlock()
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle says that nothing is left. Locked.
func (f *flusher) settle() {
	if f.closed && f.flying == 0 && len(f.waiting) == 0 {
		select {
		case <-f.empty:
		default:
			close(f.empty)
		}
	}
}

// pump sends what can go. Locked.
func (f *flusher) pump() {
	for f.flying < maxFlying && len(f.waiting) > 0 {
		if wait := f.pause - time.Since(f.waiting[0].at); f.flying > 0 && f.entries < f.size && wait > 0 {
			f.wake(wait)
			return
		}
		group := f.take()
		if len(group) == 0 {
			return // their lanes are in the air; landing pumps
		}
		f.flying++
		go f.fly(group)
	}
}

// wake pumps after a time. Locked.
func (f *flusher) wake(after time.Duration) {
	if f.timer != nil {
		return
	}
	f.timer = time.AfterFunc(after, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.timer = nil
		f.pump()
		f.settle()
	})
}

// take removes the next group from what waits: in order of arrival, at most size
// entries, none of a lane that is in the air or that one left behind is of. Those
// whose caller has gone are dropped: its sender comes again. Locked.
func (f *flusher) take() (group []*arrival) {
	var left []*arrival
	behind := map[int]bool{}
	room := f.size
	for i, a := range f.waiting {
		if room <= 0 || i >= reach {
			left = append(left, f.waiting[i:]...)
			break
		}
		select {
		case <-a.gone:
			f.entries -= len(a.Entries)
			f.bytes -= a.bytes
			continue
		default:
		}
		blocked := slices.ContainsFunc(a.lanes, func(lane int) bool { return f.busy[lane] || behind[lane] })
		if rows := max(len(a.Entries), len(a.Quarantined), 1); blocked || len(group) > 0 && rows > room {
			for _, lane := range a.lanes {
				behind[lane] = true
			}
			left = append(left, a)
			continue
		}
		room -= max(len(a.Entries), len(a.Quarantined), 1)
		group = append(group, a)
		f.entries -= len(a.Entries)
		f.bytes -= a.bytes
	}
	for _, a := range group {
		for _, lane := range a.lanes {
			f.busy[lane] = true
		}
	}
	f.waiting = left
	return group
}

// fly is one flush.
func (f *flusher) fly(group []*arrival) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()
	f.commit(ctx, group)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range group {
		for _, lane := range a.lanes {
			delete(f.busy, lane)
		}
		close(a.done)
	}
	f.flying--
	f.pump()
	f.settle()
}

// commit makes a group durable in one commit. Where the store refuses it for
// another reason than being unavailable, one of them may be what it cannot take:
// each then stands for itself.
func (f *flusher) commit(ctx context.Context, group []*arrival) {
	var all store.Arrival
	for _, a := range group {
		all.Entries = append(all.Entries, a.Entries...)
		all.Quarantined = append(all.Quarantined, a.Quarantined...)
	}
	result, err := f.store(ctx, all)
	if err != nil && len(group) > 1 && !errors.Is(err, store.ErrUnavailable) {
		for _, a := range group {
			a.result, a.err = f.store(ctx, a.Arrival)
		}
		return
	}
	for _, a := range group {
		if a.err = err; err == nil {
			a.result, result = result[:len(a.Entries)], result[len(a.Entries):]
		}
	}
}

// store appends, and once more where the answer of the commit was lost: what was
// kept is found then.
func (f *flusher) store(ctx context.Context, in store.Arrival) ([]store.Appended, error) {
	result, err := f.queue.Append(ctx, in)
	if errors.Is(err, store.ErrCommitUnknown) {
		result, err = f.queue.Append(ctx, in)
	}
	switch {
	case err == nil && len(result) != len(in.Entries):
		return nil, fmt.Errorf("the store answered for %d entries of %d", len(result), len(in.Entries))
	case errors.Is(err, store.ErrCommitUnknown), err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return result, err
}
