package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// together runs the first entries of several lines in one transaction, in order:
// all that end do so in one commit. At any trouble it is taken back, and they run
// singly.
func (in *Inbox[Tx]) together(t *task) {
	in.mu.Lock()
	if in.phase != started {
		in.mu.Unlock()
		return
	}
	b := &together[Tx]{in: in}
	for n, l := range t.lines {
		if l.lane.lost || l.lane.leaving {
			continue
		}
		l.until = time.Time{}
		for _, it := range l.items[:min(t.sizes[n], len(l.items))] {
			b.items, b.lines = append(b.items, it), append(b.lines, l)
		}
	}
	in.mu.Unlock()
	if len(b.items) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(t.lane.ctx)
	defer cancel()
	for _, ln := range t.beside {
		defer context.AfterFunc(ln.ctx, cancel)()
	}
	done := false
	defer func() {
		if !done { // a handler has ended its goroutine
			in.apart(b.items)
		}
	}()
	err := b.run(ctx)
	done = true
	in.mu.Lock()
	switch {
	case unavez.CodeOf(err) == unavez.CodeLaneLost || errors.Is(err, store.ErrLaneLost):
		if len(t.beside) == 0 && !t.lane.lost {
			in.lose(t.lane)
		} // else each will tell when its entries run singly
	case err == nil:
		for n, it := range b.items {
			if b.lines[n].lane.lost {
				continue
			}
			if b.runs[n].class == ended {
				in.board.remove(b.lines[n], it)
			} else {
				it.alone = true
			}
		}
	}
	in.mu.Unlock()
	if err != nil {
		in.apart(b.items)
		return
	}
	for n, it := range b.items {
		if b.runs[n].class == ended {
			in.ends(it, b.runs[n])
		}
	}
}

// apart lets entries run singly from now on.
func (in *Inbox[Tx]) apart(items []*item) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, it := range items {
		it.alone = true
	}
}

// together is one such transaction.
type together[Tx any] struct {
	in    *Inbox[Tx]
	ef    *effect[Tx]
	items []*item
	lines []*line
	runs  []run // of the items

	ops   []unavez.Operation
	own   []int // of each item, the place of its own operation in ops
	named []int // of each item, the place of the operation that it names
}

// run is the transaction.
func (b *together[Tx]) run(ctx context.Context) error {
	in := b.in
	b.ef = in.effects[b.items[0].trait.name]
	b.runs = make([]run, len(b.items))
	places := map[store.Key]int{}
	place := func(key store.Key, op unavez.Operation) int {
		at, there := places[key]
		if !there {
			at = len(b.ops)
			places[key] = at
			b.ops = append(b.ops, op)
		}
		return at
	}
	for n, it := range b.items {
		if err := in.load(ctx, it); err != nil {
			return err
		}
		e := &it.entry
		hold := b.lines[n].lane.hold
		own := b.ef.operation(e.Note.Event, e, hold)
		own.Fingerprint = e.Fingerprint
		at := place(e.Key, own)
		b.own = append(b.own, at)
		if it.two() {
			at = place(e.Operation, b.ef.operation(e.Note.Identity, e, hold))
		}
		b.named = append(b.named, at)
	}
	var planned []run
	found, err := in.engine.Batch(ctx, b.ops, func(ctx context.Context, tx Tx, found []unavez.Found) ([]*unavez.End, error) {
		var ends []*unavez.End
		var err error
		planned, ends, err = b.effect(ctx, tx, found)
		return ends, err
	})
	if err != nil {
		return err
	}
	if planned == nil { // none may run
		planned, _, _ = b.plan(found)
	}
	for n := range b.items {
		b.runs[n] = planned[n]
		if out := found[b.own[n]].Outcome; b.runs[n].class == ended && out != nil && !out.Replayed {
			b.runs[n].at = out.At
		}
	}
	return nil
}

// errApart takes a batch back: one of its entries needs a transaction of its own.
var errApart = errors.New("an entry of the batch needs a transaction of its own")

// plan sorts the items by what was found of them: run those of todo, in order.
// Others have ended, or are left alone with all behind them of their key.
func (b *together[Tx]) plan(found []unavez.Found) (runs []run, todo []int, ends []*unavez.End) {
	runs, ends = make([]run, len(b.items)), make([]*unavez.End, len(b.ops))
	held := map[*line]bool{}
	running := map[int]bool{}
	for n, it := range b.items {
		own, named := found[b.own[n]], found[b.named[n]]
		switch {
		case held[b.lines[n]]:
			runs[n].class = later
		case own.Outcome != nil, final(own.Err):
			runs[n] = run{class: ended, how: "completed"}
		case own.Err != nil:
			runs[n].class, held[b.lines[n]] = later, true
		case it.two() && named.Outcome != nil:
			runs[n] = run{class: ended, how: "completed"}
			ends[b.own[n]] = &unavez.End{State: store.Completed}
		case named.Err != nil, running[b.named[n]]:
			runs[n].class, held[b.lines[n]] = later, true
		default:
			runs[n] = run{class: ended, how: "completed"}
			running[b.named[n]] = true
			todo = append(todo, n)
		}
	}
	return runs, todo, ends
}

// final tells that an entry has an outcome which a batch cannot show.
func final(err error) bool {
	switch unavez.CodeOf(err) {
	case unavez.CodeExpired, unavez.CodeDiscarded, unavez.CodeNotReplayable, unavez.CodeDamaged:
		return true
	}
	return false
}

// effect runs the handlers of those that may run.
func (b *together[Tx]) effect(ctx context.Context, tx Tx, found []unavez.Found) ([]run, []*unavez.End, error) {
	in := b.in
	runs, todo, ends := b.plan(found)
	var events []*Event
	for _, n := range todo {
		it := b.items[n]
		judged, err := in.judgeVersion(ctx, tx, b.ef, it)
		switch {
		case err != nil:
			return nil, nil, err
		case judged.is == early:
			return nil, nil, errApart
		case judged.is == stale:
			ends[b.own[n]] = &unavez.End{State: store.Discarded, Result: unavez.Result{Body: []byte(staleReason)}}
			runs[n].how = "stale"
			continue
		}
		event := eventOfEntry(&it.entry, 1)
		events = append(events, event)
		if b.ef.HandleBatch == nil {
			if err := in.caught(b.ef, func() error { return b.ef.Handle(ctx, tx, event) }); err != nil {
				return nil, nil, err
			}
		}
		if err := in.setVersion(ctx, tx, b.ef, it); err != nil {
			return nil, nil, err
		}
		ends[b.own[n]] = &unavez.End{State: store.Completed}
		ends[b.named[n]] = &unavez.End{State: store.Completed}
	}
	if b.ef.HandleBatch != nil && len(events) > 0 {
		if err := in.caught(b.ef, func() error { return b.ef.HandleBatch(ctx, tx, events) }); err != nil {
			return nil, nil, err
		}
	}
	return runs, ends, nil
}
