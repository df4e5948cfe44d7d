package inbox

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// sound tells what of the board's own knowledge does not fit together.
func (d *desk) sound() error {
	held := 0
	for _, ln := range d.all {
		n, err := ln.items()
		if err == nil {
			err = d.soundLane(ln)
		}
		if err != nil {
			return fmt.Errorf("lane %d: %w", ln.hold.Lane, err)
		}
		held += n
	}
	if held != d.held {
		return fmt.Errorf("%d items are held, and %d counted", held, d.held)
	}
	for i, l := range d.later {
		switch {
		case l.index != i+1:
			return fmt.Errorf("line %s: place %d among those that wait, noted as %d", l.text(), i+1, l.index)
		case i > 0 && l.at.Before(d.later[(i+1)/2-1].at):
			return fmt.Errorf("line %s: comes before one that stands before it", l.text())
		case l.lane.lost || l.lane.lines[l.order] != l:
			return fmt.Errorf("line %s: waits, and is forgotten", l.text())
		}
	}
	for _, l := range d.later[len(d.later):cap(d.later)] {
		if l != nil {
			return fmt.Errorf("line %s: is kept behind the last that waits", l.text())
		}
	}
	for l := range d.gapped {
		if len(l.gaps) == 0 || l.lane.lost || l.lane.lines[l.order] != l {
			return fmt.Errorf("line %s: is noted for gaps", l.text())
		}
	}
	return nil
}

// items counts what is held of a lane, and compares its segments with that.
func (ln *lane) items() (held int, err error) {
	pending := map[*segment]int{}
	for order, l := range ln.lines {
		last := int64(0)
		for _, it := range l.items {
			if it.entry.Sequence <= last || it.entry.Order != order {
				return 0, fmt.Errorf("line %s: out of order", l.text())
			}
			last = it.entry.Sequence
			held++
			if it.segment != nil {
				pending[it.segment]++
			}
		}
		for n, s := range l.debts {
			if n > 0 && l.debts[n-1] == s {
				return 0, fmt.Errorf("line %s: owes a segment twice", l.text())
			}
			pending[s]++
		}
		switch {
		case len(l.items) == 0 && l.items != nil:
			return 0, fmt.Errorf("line %s: keeps room for nothing", l.text())
		case len(l.debts) > 0 && l.row != 0 && !l.unsure, (len(l.debts) > 0 || l.unsure || l.rest != nil) && !l.paging, l.spill != nil && l.row != 0:
			return 0, fmt.Errorf("line %s: owes what has a row", l.text())
		}
	}
	for _, s := range ln.segments {
		if s.pending != pending[s] {
			return 0, fmt.Errorf("segment %s: %d are pending, noted as %d", s.since, pending[s], s.pending)
		}
		delete(pending, s)
	}
	if len(pending) > 0 {
		return 0, fmt.Errorf("%d segments are forgotten", len(pending))
	}
	return held, nil
}

// soundLane looks at the places of a lane's lines.
func (d *desk) soundLane(ln *lane) error {
	busy, suspects := 0, 0
	for _, t := range d.tasks {
		if slices.Contains(t.lanes(), ln) {
			busy++
		}
		if t.suspect && t.lane == ln {
			suspects++
		}
	}
	turns := 0
	for _, other := range d.turns {
		if other == ln {
			turns++
		}
	}
	switch {
	case ln.busy != busy:
		return fmt.Errorf("%d tasks run, noted as %d", busy, ln.busy)
	case ln.lost:
		if len(ln.lines)+len(ln.ready)+len(ln.suspended)+len(ln.segments) > 0 || d.lanes[ln.hold.Lane] == ln || ln.ctx.Err() == nil {
			return fmt.Errorf("is lost, and kept")
		}
		return nil
	case d.lanes[ln.hold.Lane] != ln || ln.ctx.Err() != nil:
		return fmt.Errorf("is held, and forgotten")
	case turns > 1 || ln.turn != (turns == 1):
		return fmt.Errorf("%d turns, noted as %v", turns, ln.turn)
	case len(ln.ready) > 0 && !ln.turn && ln.loaded && !ln.leaving:
		return fmt.Errorf("is ready, and has no turn")
	case suspects > 1 || ln.suspecting != (suspects == 1):
		return fmt.Errorf("%d suspects run, noted as %v", suspects, ln.suspecting)
	case len(ln.suspended) > 0 && suspects == 0 && !slices.ContainsFunc(ln.ready, func(l *line) bool { return l.suspect }):
		return fmt.Errorf("%d suspects wait for nothing", len(ln.suspended))
	}
	places := map[*line]int{}
	for _, l := range slices.Concat(ln.ready, ln.suspended) {
		if places[l]++; !l.queued {
			return fmt.Errorf("line %s: is queued, and not noted so", l.text())
		}
	}
	for _, l := range ln.lines {
		queued, places := places[l], places[l]
		if l.index != 0 {
			places++
		}
		if l.running {
			places++
		}
		at, some := wants(l)
		_, noted := d.gapped[l]
		switch {
		case places > 1, l.queued != (queued == 1):
			return fmt.Errorf("line %s: is at %d places, queued %v", l.text(), places, l.queued)
		case places == 0 && some:
			return fmt.Errorf("line %s: has something to do, and no place", l.text())
		case places == 0 && l.rest == nil && len(l.gaps) == 0:
			return fmt.Errorf("line %s: has nothing to do, and is kept", l.text())
		case l.index != 0 && some && !l.at.Equal(at):
			return fmt.Errorf("line %s: waits until %v, wants %v (%v)", l.text(), l.at, at, some)
		case len(l.gaps) > 0 && !noted:
			return fmt.Errorf("line %s: is not noted for its gaps", l.text())
		}
	}
	return nil
}

// wants says when a line has something to do, if it does without anybody else.
func wants(l *line) (at time.Time, some bool) {
	first := int64(math.MaxInt64)
	if len(l.items) > 0 {
		first = l.items[0].entry.Sequence
	}
	switch {
	case l.rest != nil && first >= l.row:
		return latest(l.rest.due, l.until), !l.rest.due.IsZero()
	case first == math.MaxInt64 && l.row == 0 && l.leftover == 0 && !l.paging && !l.check:
		return time.Time{}, false
	}
	return l.until, true
}
