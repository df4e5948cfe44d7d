package inbox

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// readLimit bounds one read of the store.
const readLimit = 30 * time.Second

// reader is where the reading stands. The inbox's mutex guards it.
//
// There is one main reading for all lanes that have been read equally far. Lanes
// that lag behind, such as those just taken, are read up to where the main one
// goes, and then join it.
type reader struct {
	main   *reading   // nil between two
	lags   []*reading // those that catch up
	target string     // where the last main reading went up to; "" before the first
	taken  int        // board.taken when that was fixed
	full   bool       // it waits for room in the window
}

// room is how many entries may still be read. The mutex is held.
func (in *Inbox[Tx]) room() int { return in.opts.Window - in.board.held }

// most is how many entries of one ordering key are held at a time, so that one
// busy key leaves room for the others.
func (in *Inbox[Tx]) most() int { return max(in.opts.Window/16, 8) }

// read reads, until ctx ends: at once where there is more or something was
// appended, else now and then.
func (in *Inbox[Tx]) read(ctx context.Context) {
	pause := in.opts.Poll
	for {
		more, err := in.readOn(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			in.log.Warn("inbox: the queue cannot be read", "error", err)
			pause = min(max(pause, in.opts.Poll)*2, max(troubleLast, in.opts.Poll))
		case more:
			continue
		default:
			pause = in.opts.Poll
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-in.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// readOn reads a page of every reading that is under way. It reports whether
// there is more to be read at once.
func (in *Inbox[Tx]) readOn(ctx context.Context) (more bool, err error) {
	in.mu.Lock()
	main := in.plan()
	in.mu.Unlock()
	if main == nil {
		return false, nil
	}
	moreMain, err := in.readPage(ctx, main)
	if err != nil {
		return false, err
	}
	in.mu.Lock()
	lags := in.lag(main)
	in.mu.Unlock()
	for _, rd := range lags {
		moreLag, err := in.readPage(ctx, rd)
		if err != nil {
			return false, err
		}
		more = more || moreLag
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !moreMain {
		in.arrived(main)
		in.reader.main, in.reader.target, in.reader.taken = nil, main.until, main.taken
	}
	in.reader.full = in.room() <= 0
	behind := slices.ContainsFunc(in.reader.lags, func(rd *reading) bool { return len(rd.lanes) > 0 })
	return !in.reader.full && (more || moreMain || behind), nil
}

// plan gives the main reading, a new one if there is none. The mutex is held.
func (in *Inbox[Tx]) plan() *reading {
	r := &in.reader
	if r.main != nil && !r.main.gone() {
		return r.main
	}
	r.main = nil
	groups := map[string][]*lane{}
	for _, ln := range in.board.lanes {
		if ln.loaded && !ln.leaving && ln.reading == nil {
			groups[ln.position] = append(groups[ln.position], ln)
		}
	}
	var best []*lane
	for position, lanes := range groups {
		if position == r.target && r.target != "" {
			best = lanes
			break
		}
		if len(lanes) > len(best) {
			best = lanes
		}
	}
	if best != nil {
		r.main = newReading(best, best[0].position)
		return r.main
	}
	r.lags = slices.DeleteFunc(r.lags, (*reading).gone)
	if len(r.lags) > 0 { // the main one has lost its lanes, and nothing else would read these
		r.main, r.lags = r.lags[0], r.lags[1:]
	}
	return r.main
}

func newReading(lanes []*lane, since string) *reading {
	rd := &reading{lanes: lanes, since: since, segments: map[*lane]*segment{}}
	for _, ln := range lanes {
		ln.reading = rd
	}
	return rd
}

// prune leaves out the lanes that are gone.
func (rd *reading) prune() {
	rd.lanes = slices.DeleteFunc(rd.lanes, func(ln *lane) bool { return ln.lost || ln.leaving })
}

// gone tells that all its lanes are.
func (rd *reading) gone() bool {
	rd.prune()
	return len(rd.lanes) == 0
}

// lag gives the readings of the lanes that are behind the main one, which has
// just been begun or gone on. The mutex is held.
func (in *Inbox[Tx]) lag(main *reading) []*reading {
	r := &in.reader
	groups := map[string][]*lane{}
	for _, ln := range in.board.lanes {
		if ln.loaded && !ln.leaving && ln.reading == nil && ln.position != main.until {
			groups[ln.position] = append(groups[ln.position], ln)
		}
	}
	for position, lanes := range groups {
		rd := newReading(lanes, position)
		rd.until, rd.taken = main.until, main.taken
		r.lags = append(r.lags, rd)
	}
	r.lags = slices.DeleteFunc(r.lags, (*reading).gone)
	return slices.Clone(r.lags)
}

// readPage reads the next page of a reading, if there is room, and lets what is
// in it begin.
func (in *Inbox[Tx]) readPage(ctx context.Context, rd *reading) (more bool, err error) {
	in.mu.Lock()
	room := min(in.room(), store.MaxReading)
	in.reader.full = room <= 0
	request := store.Reading{Since: rd.since, Until: rd.until, After: rd.after, Limit: room}
	for _, ln := range rd.lanes {
		request.Lanes = append(request.Lanes, ln.hold.Lane)
	}
	taken, drained := in.board.taken, in.board.drained
	in.mu.Unlock()
	if room <= 0 {
		return true, nil
	}
	limited, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	page, err := in.store.Read(limited, request)
	if err != nil {
		return false, err
	}
	in.mu.Lock()
	if rd.until != page.Until {
		rd.until, rd.taken = page.Until, taken
	}
	for i := range page.Entries {
		rd.after = page.Entries[i].Sequence
		in.arrive(rd, &page.Entries[i], drained != in.board.drained)
	}
	if rd != in.reader.main && !page.More {
		in.arrived(rd)
		in.reader.lags = slices.DeleteFunc(in.reader.lags, func(other *reading) bool { return other == rd })
	}
	in.pump()
	in.mu.Unlock()
	return page.More, nil
}

// arrive takes one entry of a page. The mutex is held.
func (in *Inbox[Tx]) arrive(rd *reading, e *store.Entry, drained bool) {
	ln := in.board.lanes[store.LaneOf(e.Order, in.store.Lanes.Lanes())]
	if ln == nil || ln.reading != rd || ln.leaving {
		return
	}
	in.clock.hear(e.Arrived)
	known := drained || ln.catching && rd.since != "" // else what is done is left out
	in.board.arrive(ln, rd, *e, in.trait(e), known, in.most())
}

// arrived ends a reading: its lanes have been read up to its end, but for those
// that left it, whose entries were not taken. The mutex is held.
func (in *Inbox[Tx]) arrived(rd *reading) {
	rd.prune()
	for _, ln := range rd.lanes {
		ln.position, ln.reading = rd.until, nil
		if rd.taken < ln.number || !ln.catching {
			continue
		}
		ln.catching, ln.doubt = false, false
		for _, l := range ln.lines {
			if l.rest != nil && l.rest.unread {
				l.rest.unread, l.rest.due = false, time.Now()
				in.board.schedule(l)
			}
		}
	}
}
