package inbox

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/unavez/unavez/store"
)

// park lets an entry wait whose version came early, in a blocked row of its own:
// it does not keep the others of its key.
func (in *Inbox[Tx]) park(ctx context.Context, l *line, it *item, r run) bool {
	reason := fmt.Sprintf("version %s waits for version %s", it.entry.Note.Version, r.missing)
	in.mu.Lock()
	in.board.bare(l, it.entry.Sequence)
	in.mu.Unlock()
	fence, verdict, err := in.write(ctx, l, it, true, func(found int64) (int64, store.Rest) {
		return max(found, 1), store.Rest{State: store.Parked, Reason: reason}
	})
	if err != nil || fence == 0 {
		return in.written(ctx, l, it, fence, verdict, err, errEarly)
	}
	in.mu.Lock()
	if !l.lane.lost {
		in.board.remove(l, it)
		in.board.clothe(l)
		in.board.forgetGap(l, it.entry.Sequence)
		in.board.addGap(l, &gap{
			sequence: it.entry.Sequence, key: it.entry.Key, operation: it.entry.Operation, fence: fence,
			version: it.entry.Note.Version, deadline: in.deadline(it.trait, &it.entry),
		}, it.trait.name)
		l.suspect = false
	}
	in.mu.Unlock()
	in.observe(&it.entry, "parked", "gap", 0)
	return true
}

// deadline is when an early entry is left for its owner.
func (in *Inbox[Tx]) deadline(t *trait, e *store.Entry) time.Time {
	return time.Now().Add(t.gapWait - in.clock.since(e.Arrived))
}

func (b *board) addGap(l *line, g *gap, effect string) {
	l.gaps = append(l.gaps, g)
	b.gapped[l] = effect
}

// adoptGap does for the row of an early entry what adopt does for others.
func (in *Inbox[Tx]) adoptGap(ln *lane, w *store.Waiting, fresh bool) {
	l := ln.line(w.Order)
	if l.running {
		return
	}
	if _, there := l.find(w.Sequence); there {
		return // it is about to run
	}
	g := l.gapOf(w.Sequence)
	if g == nil {
		g = &gap{sequence: w.Sequence, key: w.Key, operation: w.Operation}
		in.board.addGap(l, g, "")
		l.check = true
	}
	g.fence = w.Fence
	if released := w.Done || w.State != store.Parked; released && (!g.released || fresh) {
		g.released, l.check = true, true
	}
	in.board.schedule(l)
}

// closeGap takes the first of the entries that came early, if its turn has come
// or nobody knows, and lets it run. It reports whether there is more to do.
func (in *Inbox[Tx]) closeGap(ctx context.Context, l *line) bool {
	in.mu.Lock()
	gaps := append([]*gap(nil), l.gaps...)
	last := l.last
	in.mu.Unlock()
	entries := map[*gap]*store.Entry{}
	for _, g := range gaps {
		if g.version != "" {
			continue
		}
		e, err := in.store.Load(ctx, g.key)
		if err != nil {
			return in.troubled(l, nil, err)
		}
		entries[g] = &e
	}
	in.mu.Lock()
	for g, e := range entries {
		g.version = e.Note.Version
		if t := in.trait(e); t != nil {
			g.deadline = in.deadline(t, e)
			in.board.gapped[l] = t.name
		}
	}
	g := nextGap(gaps, last)
	l.check = false
	in.mu.Unlock()
	if g == nil {
		return true
	}
	e, err := in.store.Load(ctx, g.key)
	if err != nil {
		return in.retryGap(l, err)
	}
	it := &item{entry: e, trait: in.trait(&e), gap: true, forced: g.released, fence: g.fence, known: true}
	if !g.released {
		fence, _, err := in.write(ctx, l, it, true, func(found int64) (int64, store.Rest) {
			return max(found, 1), store.Rest{State: store.Retryable, Reason: "the version that it waited for has taken effect"}
		})
		if err != nil {
			return in.retryGap(l, err)
		}
		it.fence = max(fence, it.fence)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !l.lane.lost {
		in.board.forgetGap(l, g.sequence)
		in.board.hold(l, it)
	}
	return true
}

// retryGap looks at the gaps once more after the store's trouble.
func (in *Inbox[Tx]) retryGap(l *line, err error) bool {
	in.mu.Lock()
	l.check = true
	in.mu.Unlock()
	return in.troubled(l, nil, err)
}

// nextGap is the entry whose turn it is or may be: one that a person has released,
// or the one with the smallest version, unless it is known to be too early.
func nextGap(gaps []*gap, last string) *gap {
	var first *gap
	var smallest *big.Int
	for _, g := range gaps {
		if g.released {
			return g
		}
		n, ok := new(big.Int).SetString(g.version, 10)
		if !ok {
			return g // the handler's transaction says what is wrong with it
		}
		if first == nil || n.Cmp(smallest) < 0 {
			first, smallest = g, n
		}
	}
	if first == nil {
		return nil
	}
	if before, ok := new(big.Int).SetString(last, 10); ok && smallest.Cmp(before.Add(before, big.NewInt(1))) > 0 {
		return nil
	}
	return first
}

// overdue tells the owners of early entries whose time is over.
func (in *Inbox[Tx]) overdue(now time.Time) {
	var told []Condition
	in.mu.Lock()
	for l, effect := range in.board.gapped {
		ef := in.effects[effect]
		if ef == nil {
			continue
		}
		for _, g := range l.gaps {
			if g.deadline.IsZero() || g.deadline.After(now) {
				continue
			}
			g.deadline = time.Time{}
			told = append(told, Condition{
				Kind: "held", Owner: ef.Owner, Effect: effect, Key: g.operation,
				Text: fmt.Sprintf("version %s of %s has waited %v for the versions before it: release it, or discard it", g.version, effect, ef.trait.gapWait),
			})
		}
	}
	in.mu.Unlock()
	for _, c := range told {
		in.opts.Alert(c)
	}
}
