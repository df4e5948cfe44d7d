package inbox

import (
	"errors"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// job is a task that runs, and what it does next.
type job struct {
	*task
	steps int
	next  func()
	fails func() // where the store has trouble; nil for nothing
}

func (p *play) over(j *job) {
	p.jobs = slices.DeleteFunc(p.jobs, func(other *job) bool { return other == j })
	p.ends(j.task)
}

// goesOn is what a step comes to: the line has more to do at once, or not.
func (p *play) goesOn(j *job, on bool) {
	if j.steps++; on && j.steps < 9 {
		p.step(j)
		return
	}
	p.over(j)
}

var errPlay = errors.New("the store has trouble")

// stores does something in the store, and then something else with the board.
func (p *play) stores(j *job, l *line, it *item, do func(), then func()) {
	j.next = func() {
		if l.lane.lost || p.trouble(15) {
			if !l.lane.lost && p.chance(2) {
				do() // whose answer is lost
			}
			p.saw("trouble")
			if j.fails != nil {
				j.fails()
			}
			p.in.troubled(l, it, errPlay)
			p.over(j)
			return
		}
		do()
		j.next = then
	}
}

// step is step of the inbox.
func (p *play) step(j *job) {
	l, ln, now := j.lines[0], j.lane, time.Now()
	due, resting := l.resting()
	if ln.lost || ln.leaving || l.until.After(now) || resting && (due.IsZero() || due.After(now)) {
		p.over(j)
		return
	}
	l.until = time.Time{}
	behind, row := l.paging, l.row != 0 || l.leftover != 0
	switch {
	case l.spill != nil:
		e := p.of(l.spill.Sequence)
		p.stores(j, l, nil, func() { p.blocks(e) }, func() {
			if !ln.lost {
				p.stand(l, e.Sequence)
			}
			p.goesOn(j, !ln.lost)
		})
	case resting:
		p.pages(j, l)
	case l.check:
		p.closes(j, l)
	case len(l.items) > 0 && l.items[0].gap && behind && l.after < l.items[0].entry.Sequence:
		p.pages(j, l)
	case len(l.items) > 0:
		p.attempts(j, l, l.items[0], func(on bool) { p.goesOn(j, on && (behind || row)) })
	case behind:
		p.pages(j, l)
	case row:
		p.unblocks(j, l)
	default:
		p.over(j)
	}
}

// pages is page of the inbox.
func (p *play) pages(j *job, l *line) {
	l.passed = 0
	after, rested, limit := l.after, l.rest, 1
	if rested == nil {
		limit = max(1, min(5, p.in.room()))
	}
	var entries []*stored
	p.stores(j, l, nil, func() { entries = p.followers(l.order, after, limit) }, func() {
		switch {
		case l.lane.lost:
			p.over(j)
			return
		case len(entries) == 0:
			if l.passed == 0 {
				p.drain(l)
			}
			p.goesOn(j, true)
			return
		}
		for i, e := range entries {
			if l.passed != 0 && e.Sequence > l.passed {
				p.saw("passed before a page")
				if i == 0 {
					p.goesOn(j, true)
					return
				}
				break
			}
			l.after = e.Sequence
			if l.gapOf(e.Sequence) == nil {
				it := &item{entry: e.Entry, trait: e.trait}
				if rested != nil && rested.key == e.Key {
					it.fence = rested.fence
				}
				p.hold(l, it)
			}
		}
		l.rest = nil
		p.clothe(l)
		p.saw("page")
		p.goesOn(j, l.batch(2) < 2)
	})
}

func (p *play) followers(order store.Key, after int64, limit int) (found []*stored) {
	for _, e := range p.entries {
		if e.Order == order && e.Sequence > after && e.commit > 0 && !e.done && len(found) < limit {
			found = append(found, e)
		}
	}
	return found
}

// unblocks is unblock of the inbox.
func (p *play) unblocks(j *job, l *line) {
	if l.row != 0 {
		l.leftover, l.row = l.row, 0
	}
	row := l.leftover
	p.stores(j, l, nil, func() {
		if e := p.rows[l.order]; e != nil && e.Sequence == row {
			delete(p.rows, l.order)
		}
	}, func() {
		if !l.lane.lost {
			l.leftover = 0
			p.drained++
			p.saw("unblock")
		}
		p.goesOn(j, !l.lane.lost)
	})
}

// blocks writes the row of an entry, unless that of an earlier one stands.
func (p *play) blocks(e *stored) {
	e.gap = false
	if row := p.rows[e.Order]; row == nil || row.done || row.Sequence >= e.Sequence {
		p.rows[e.Order] = e
	}
}

func (p *play) of(sequence int64) *stored { return p.entries[sequence-1] }

// attempts is attempt of the inbox.
func (p *play) attempts(j *job, l *line, it *item, on func(bool)) {
	e := p.of(it.entry.Sequence)
	runs := func() { p.runs(j, l, it, e, on) }
	if !l.suspect {
		runs()
		return
	}
	charged := false
	p.stores(j, l, it, func() {
		if charged = !e.done && (e.state == store.Free || e.state == store.Retryable && !e.due.After(time.Now())); charged {
			e.fence++
			e.state, e.due = store.Retryable, time.Now()
			if !it.gap {
				p.blocks(e)
			}
		}
	}, func() {
		l.suspect = false
		if it.known = it.known || !charged; charged {
			p.saw("charged")
			it.fence = e.fence
			if !it.gap && !l.lane.lost {
				if l.rest != nil {
					p.saw("charged before a row")
				}
				p.precede(l, e.Sequence)
			}
		}
		runs()
	})
}

// runs lets an entry take effect, or not.
func (p *play) runs(j *job, l *line, it *item, e *stored, on func(bool)) {
	class := ended
	if e.early && !it.forced {
		p.bare(l, e.Sequence)
	}
	p.stores(j, l, it, func() {
		switch rests := e.state == store.Dead || e.state == store.Retryable && e.due.After(time.Now()); {
		case e.done:
		case rests:
			class = failed
			p.blocks(e)
		case e.early && !it.forced && p.rows[e.Order] != e: // else its row would keep the key no more, until another commit
			class = soon
			e.gap, e.state, e.fence = true, store.Parked, max(e.fence, 1)
		case p.trouble(4):
			class = failed
			e.fence++
			if e.state, e.due = store.Retryable, time.Now().Add(time.Duration(p.rnd.IntN(3000))*time.Millisecond); p.chance(4) {
				e.state = store.Dead
			}
			p.blocks(e)
		default:
			p.happens(e)
		}
	}, func() {
		switch class {
		case failed:
			p.saw("covered")
			it.fence = e.fence
			p.in.covered(l, it, p.in.resting(it.trait, e.state, &store.Attempt{Fence: e.fence, DueIn: time.Until(e.due)}, 0, 0), nil)
			on(false)
		case soon:
			if !l.lane.lost {
				p.remove(l, it)
				p.clothe(l)
				p.forgetGap(l, e.Sequence)
				p.addGap(l, &gap{sequence: e.Sequence, key: e.Key, operation: e.Operation, fence: e.fence}, "c")
				l.suspect = false
				p.saw("parked")
			}
			on(true)
		default:
			p.finishes(j, l, it, e, on)
		}
	})
}

// finishes is finished of the inbox.
func (p *play) finishes(j *job, l *line, it *item, e *stored, on func(bool)) {
	lets := func() {
		if !l.lane.lost {
			p.remove(l, it)
			l.suspect = false
			if it.trait != nil && it.trait.contiguous {
				l.check = len(l.gaps) > 0
			}
		}
		on(true)
	}
	if !it.gap {
		lets()
		return
	}
	p.stores(j, l, it, func() { e.gap = false }, lets)
}

// closes is closeGap of the inbox.
func (p *play) closes(j *job, l *line) {
	l.check = false
	var g *gap
	for _, other := range l.gaps {
		if other.released || p.of(other.sequence).done || g == nil && p.chance(2) {
			g = other
		}
	}
	if g == nil {
		p.goesOn(j, true)
		return
	}
	e := p.of(g.sequence)
	j.fails = func() { l.check = true }
	p.stores(j, l, nil, func() {
		if !e.done && !g.released {
			e.early, e.state, e.due = false, store.Retryable, time.Now()
		}
	}, func() {
		j.fails = nil
		if !l.lane.lost {
			p.forgetGap(l, g.sequence)
			p.hold(l, &item{entry: e.Entry, trait: e.trait, gap: true, forced: g.released, fence: max(e.fence, 1), known: true})
			p.saw("gap closed")
		}
		p.goesOn(j, true)
	})
}

// together is together of the inbox.
func (p *play) together(j *job) {
	var items []*item
	var lines []*line
	for n, l := range j.lines {
		if l.lane.lost || l.lane.leaving {
			continue
		}
		l.until = time.Time{}
		for _, it := range l.items[:min(j.sizes[n], len(l.items))] {
			items, lines = append(items, it), append(lines, l)
		}
	}
	j.next = func() {
		apart := p.trouble(5) || slices.ContainsFunc(lines, func(l *line) bool { return l.lane.lost })
		waits := map[*line]bool{}
		done := make([]bool, len(items))
		for n, it := range items {
			e := p.of(it.entry.Sequence)
			switch {
			case apart || waits[lines[n]]:
			case e.done:
				done[n] = true
			case e.state != store.Free || p.trouble(9):
				waits[lines[n]] = true
			default:
				done[n] = true
				p.happens(e)
			}
		}
		if apart {
			p.saw("apart")
		} else {
			p.saw("batch")
		}
		j.next = func() {
			for n, it := range items {
				if !done[n] {
					it.alone = true
				} else if !lines[n].lane.lost {
					p.remove(lines[n], it)
				}
			}
			p.over(j)
		}
	}
}

// happens is the effect of an entry: once, and behind those of its key that were
// durable when it arrived, unless these have committed late: then what has been read
// of the key meanwhile may pass them. One with a row of its own keeps no order.
func (p *play) happens(e *stored) {
	if e.done {
		p.Errorf("entry %d of %s took effect twice", e.Sequence, e.Order[:1])
	}
	for _, o := range p.entries[:e.Sequence-1] {
		if !e.gap && o.Order == e.Order && 0 < o.commit && o.commit <= e.drawn && !o.done && !o.gap && !o.late {
			p.Errorf("entry %d of %s took effect before %d", e.Sequence, e.Order[:1], o.Sequence)
		}
	}
	e.done = true
}
