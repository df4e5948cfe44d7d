package inbox

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

// board is what a worker knows of its lanes and of the entries that it has read.
// It decides what runs next, and what may be forgotten; it does nothing itself.
// The inbox's mutex guards it.
type board struct {
	lanes map[int]*lane
	turns []*lane // those with ready lines, in the order of their turns
	later delays  // lines that wait for a time
	held  int     // items in memory
	taken int     // counts the lanes that were taken
	ended int     // counts the tasks that have ended

	drained int              // counts the keys of which nothing waits any more
	gapped  map[*line]string // lines with gaps, and their effect's name
}

// lane is one lane that the worker holds, or believes to.
type lane struct {
	hold   store.Hold
	ctx    context.Context // ends when the lane is lost
	cancel context.CancelFunc
	lines  map[store.Key]*line
	ready  []*line
	turn   bool // it is in board.turns
	busy   int  // tasks that run for it

	loaded  bool // its blocked rows are known
	leaving bool // to be handed back as soon as nothing runs
	lost    bool // nothing of it counts any more

	position string     // everything up to here has been read
	reading  *reading   // that it takes part in, nil between two
	segments []*segment // parts of readings with entries that are held, oldest first
	stored   string     // the cursor that is stored

	// Where the holder before has not handed the lane back, it may have run, when
	// it was lost, any entry that was the first of its key: a suspect, since it
	// may be what killed the worker. Suspects run one at a time.
	number     int  // of the taking; the doubt ends with a reading that goes beyond it
	catching   bool // nobody knows yet what was visible when it was taken
	doubt      bool
	suspects   int // how many more there can be
	suspecting bool
	suspended  []*line // suspects that wait for the one that runs
}

// reading is one walk from cursor to cursor over the entries of some lanes.
type reading struct {
	lanes    []*lane
	since    string
	until    string
	after    int64
	taken    int // board.taken when until was fixed
	segments map[*lane]*segment
}

// segment is the part of a reading that is one lane's.
type segment struct {
	since   string
	pending int // entries that are held
}

// item is an entry in the worker's memory.
type item struct {
	entry    store.Entry
	trait    *trait   // of its effect, nil if there is none of that name
	segment  *segment // nil if the blocked row of its key covers it
	fence    int64    // of the attempt that rests, as far as known
	known    bool     // it may be done, or have an attempt, already
	alone    bool     // it does not go into a batch
	gap      bool     // it has a blocked row of its own, since its version came early
	forced   bool     // a person has released it though its version is early
	asked    int      // how often it was found to run elsewhere, or to be unknown
	troubles int      // runs that the store's trouble has ended
	aborts   int      // runs that the database has given up
	alert    string   // the kind of the condition that was told of it, "" if none
}

// line is what waits of one ordering key. It has at most one task at a time.
type line struct {
	order store.Key
	lane  *lane
	items []*item // by sequence
	gaps  []*gap  // entries that came early, each with a blocked row of its own
	check bool    // whether one of the gaps has closed is to be looked at
	last  string  // the version that took effect last, where gaps matter; "" if not known

	running bool
	ended   int       // board.ended when its last task ended
	queued  bool      // in lane.ready or lane.suspended
	until   time.Time // its first entry is not run before; zero is now
	at      time.Time // when it has its next turn, while it is in board.later
	index   int       // in board.later, from 1
	suspect bool      // its first entry is one

	// row is the sequence of the key's blocked row, 0 if there is none for certain.
	// While paging is set, what comes after the sequence after is in the store
	// only: the reader passes it by and notes that it did. A row without paging
	// is to be removed: it is leftover from then on, until that has succeeded,
	// and counts no more, since its removal may have happened without an answer.
	row      int64
	leftover int64
	unsure   bool // nobody knows whether the row is still there
	paging   bool
	after    int64
	passed   int64        // the first that the reader has passed by since the store was asked, 0 if none
	rest     *rest        // what the key waits for, nil if nothing
	debts    []*segment   // pending until the line is drained, or has a row for certain
	spill    *store.Entry // the first that is covered by no row, and by nothing that is held; it needs one
}

// rest is what the first entry of a line waits for.
type rest struct {
	key, operation store.Key
	state          store.State
	fence          int64
	due            time.Time // when to try again; zero where only a person can move it
	asked          int       // how often it was asked for in vain
	alert          string    // the kind of the condition that was told, "" if none
	stuck          bool      // this worker cannot run it, whatever its state
	unread         bool      // entries before it may not have been read yet
}

// gap is an entry that waits for an earlier version.
type gap struct {
	sequence       int64
	key, operation store.Key
	fence          int64
	released       bool      // by a person
	version        string    // "" while not known
	deadline       time.Time // by the worker's clock; zero while the version is not known, or once it was told
}

// forgetGap forgets an entry that came early: its row has become another, or is gone.
func (b *board) forgetGap(l *line, sequence int64) {
	l.gaps = slices.DeleteFunc(l.gaps, func(g *gap) bool { return g.sequence == sequence })
	if len(l.gaps) == 0 {
		delete(b.gapped, l)
	}
}

func newBoard() board { return board{lanes: map[int]*lane{}, gapped: map[*line]string{}} }

// line finds the line of an ordering key, or makes it.
func (ln *lane) line(order store.Key) *line {
	l := ln.lines[order]
	if l == nil {
		l = &line{order: order, lane: ln}
		ln.lines[order] = l
	}
	return l
}

// arrive takes an entry that was read, unless most entries of its key are held:
// then those that follow are left behind a blocked row. Only the task of a line
// writes its rows: a row for a later entry, written beside it, could take the
// place of one whose entry has just ended, and uncover those in between.
func (b *board) arrive(ln *lane, rd *reading, e store.Entry, trait *trait, known bool, most int) {
	l := ln.line(e.Order)
	at, there := l.find(e.Sequence)
	switch {
	case there:
		if it := l.items[at]; it.segment == nil && (l.unsure || e.Sequence < l.row) {
			it.segment = rd.segment(ln) // it was read with what is behind a row, which does not cover it
			it.segment.pending++
		}
		return
	case l.gapOf(e.Sequence) != nil:
		return
	case e.Sequence < l.row, l.spill != nil && e.Sequence < l.spill.Sequence, l.paging && e.Sequence <= l.after:
		// Two transactions that ran at the same time: the later number came first.
		// Nothing else reads it, so it is held however many there are.
	case l.paging:
		b.pass(l, rd.segment(ln), e.Sequence)
		return
	case len(l.items) >= most && at == len(l.items):
		l.paging, l.after = true, l.items[at-1].entry.Sequence
		b.pass(l, rd.segment(ln), e.Sequence)
		if l.row == 0 {
			l.spill = &e
		}
		return
	}
	if at == 0 && len(l.items) > 0 {
		l.until = time.Time{} // whatever it waited for, this one comes before
	}
	b.hold(l, &item{entry: e, trait: trait, segment: rd.segment(ln), known: known})
	if ln.doubt && ln.suspects > 0 && len(l.items) == 1 && !l.running {
		ln.suspects--
		l.suspect = true
	}
	b.schedule(l)
}

// pass leaves an entry in the store. Where no row is certain to be before it, the
// cursor stays before its reading.
func (b *board) pass(l *line, s *segment, sequence int64) {
	if l.passed == 0 {
		l.passed = sequence
	}
	l.passed = min(l.passed, sequence)
	if n := len(l.debts); (l.row == 0 || l.unsure) && (n == 0 || l.debts[n-1] != s) {
		s.pending++
		l.debts = append(l.debts, s)
	}
}

// segment is the part of the reading that is the lane's.
func (rd *reading) segment(ln *lane) *segment {
	s := rd.segments[ln]
	if s == nil {
		s = &segment{since: rd.since}
		rd.segments[ln] = s
		ln.segments = append(ln.segments, s)
	}
	return s
}

// find is the place of a sequence among the items.
func (l *line) find(sequence int64) (at int, there bool) {
	return slices.BinarySearchFunc(l.items, sequence, func(it *item, s int64) int { return cmp.Compare(it.entry.Sequence, s) })
}

func (l *line) gapOf(sequence int64) *gap {
	for _, g := range l.gaps {
		if g.sequence == sequence {
			return g
		}
	}
	return nil
}

// hold puts an item into its place.
func (b *board) hold(l *line, it *item) {
	at, there := l.find(it.entry.Sequence)
	if there {
		return
	}
	l.items = slices.Insert(l.items, at, it)
	b.held++
	if it.segment != nil {
		it.segment.pending++
	}
}

// remove lets go of an item that is done, or has a row of its own.
func (b *board) remove(l *line, it *item) {
	if at, there := l.find(it.entry.Sequence); there && l.items[at] == it {
		b.drop(l, at, at+1)
	}
}

// cover lets go of the items from a sequence on: they are behind a blocked row.
func (b *board) cover(l *line, sequence int64) {
	at, _ := l.find(sequence)
	b.drop(l, at, len(l.items))
}

func (b *board) drop(l *line, from, to int) {
	for _, it := range l.items[from:to] {
		b.held--
		if it.segment != nil {
			it.segment.pending--
		}
	}
	l.items = slices.Delete(l.items, from, to)
	if len(l.items) == 0 {
		l.items = nil
	}
}

// owe lets go of the items behind a row that was not known: they are read again
// behind it, in order. Since nobody knows how old the look at that row was, the
// cursor stays where it is until the line is drained, or has a row for certain.
func (b *board) owe(l *line, sequence int64) {
	l.row, l.unsure, l.spill = sequence, true, nil
	at, _ := l.find(sequence)
	for _, it := range l.items[at:] {
		if it.segment != nil {
			b.pass(l, it.segment, it.entry.Sequence)
		}
	}
	b.drop(l, at, len(l.items))
}

// pay lets the cursor go on: nothing that was passed by is without a row before it.
func (b *board) pay(l *line) {
	for _, s := range l.debts {
		s.pending--
	}
	l.debts, l.spill, l.unsure = nil, nil, false
}

// drain ends the paging of a line, since nothing is left behind its row. A row of
// which nobody knows whether it is there is removed before it can count.
func (b *board) drain(l *line) {
	l.paging, l.rest = false, nil
	if l.unsure {
		l.row, l.leftover = 0, l.row
	}
	b.pay(l)
}

// bare takes its row from a line, if it is that of the given sequence: it becomes
// one of an entry that comes early, and keeps the line no more.
func (b *board) bare(l *line, sequence int64) {
	if l.row == sequence {
		l.row, l.unsure = 0, false
	}
}

// clothe has a row written before anything else of a line is done, where what was
// read or passed by behind the one before is covered by none.
func (b *board) clothe(l *line) {
	bare := func(it *item) bool { return !it.gap && (l.paging || it.segment == nil) }
	if at := slices.IndexFunc(l.items, bare); at >= 0 && l.row == 0 {
		l.spill = &l.items[at].entry
	}
}

// mark is the cursor that may be stored for a lane: nothing before it is held.
func (ln *lane) mark() string {
	ln.segments = slices.DeleteFunc(ln.segments, func(s *segment) bool {
		return s.pending == 0 && (ln.reading == nil || ln.reading.segments[ln] != s)
	})
	if len(ln.segments) > 0 {
		return ln.segments[0].since // which is the position, if it is what is being read
	}
	return ln.position
}

// still tells that a line has nothing to do, unless for entries that came early.
func (l *line) still() bool {
	return len(l.items) == 0 && l.row == 0 && l.leftover == 0 && !l.paging && !l.check
}

// resting tells that the first entry of a line is at rest in the store, and
// until when; zero is for a person to say.
func (l *line) resting() (due time.Time, is bool) {
	if l.rest == nil || len(l.items) > 0 && l.items[0].entry.Sequence < l.row {
		return time.Time{}, false
	}
	return l.rest.due, true
}

// next tells when a line has something to do; never, if not at all before
// something happens elsewhere.
func (l *line) next() (at time.Time, never bool) {
	if due, is := l.resting(); is {
		if due.Before(l.until) && !due.IsZero() {
			due = l.until // the store had trouble when it was due
		}
		return due, due.IsZero()
	}
	return l.until, l.still()
}

// schedule lets a line have its turn: now, or when its time has come.
func (b *board) schedule(l *line) {
	if l.running || l.queued || l.lane.lost {
		return
	}
	at, never := l.next()
	switch {
	case at.After(time.Now()):
		if l.at = at; l.index != 0 {
			heap.Fix(&b.later, l.index-1)
		} else {
			heap.Push(&b.later, l)
		}
		return
	case l.index != 0:
		heap.Remove(&b.later, l.index-1)
	}
	switch {
	case l.still() && len(l.gaps) == 0:
		delete(l.lane.lines, l.order) // nothing is left to remember
	case !never:
		l.queued = true
		l.lane.ready = append(l.lane.ready, l)
		b.queue(l.lane)
	}
}

// queue gives a lane a turn.
func (b *board) queue(ln *lane) {
	if !ln.turn && len(ln.ready) > 0 {
		ln.turn = true
		b.turns = append(b.turns, ln)
	}
}

// task is what one goroutine works on.
type task struct {
	lane    *lane
	beside  []*lane // further lanes, of a batch
	lines   []*line
	sizes   []int // of each line, how many of its first items are the batch's; 0 for one that runs singly
	suspect bool
}

// maxBatch bounds the entries of one transaction.
const maxBatch = 50

// pick takes the next task, nil if nothing is ready.
func (b *board) pick() *task {
	for len(b.turns) > 0 {
		ln := b.turns[0]
		b.turns = b.turns[1:]
		ln.turn = false
		if ln.leaving || !ln.loaded {
			continue
		}
		l := b.first(ln)
		if l == nil {
			continue
		}
		t := &task{lane: ln, lines: []*line{l}, sizes: []int{l.batch(maxBatch)}}
		if t.sizes[0] > 0 {
			b.fill(t)
		}
		for _, l := range t.lines {
			l.queued, l.running = false, true
		}
		t.suspect = l.suspect
		for _, ln := range t.lanes() {
			ln.busy++
			b.queue(ln)
		}
		return t
	}
	return nil
}

// first takes the first ready line of a lane. A suspect waits for the one that runs.
func (b *board) first(ln *lane) *line {
	for len(ln.ready) > 0 {
		l := ln.ready[0]
		ln.ready = ln.ready[1:]
		if !l.suspect {
			return l
		}
		if !ln.suspecting {
			ln.suspecting = true
			return l
		}
		ln.suspended = append(ln.suspended, l)
	}
	return nil
}

// batch is how many of the line's first items may share a transaction with
// others, at most n.
func (l *line) batch(n int) int {
	if _, is := l.resting(); is || l.suspect || l.check || len(l.gaps) > 0 || len(l.items) == 0 {
		return 0
	}
	first := l.items[0].trait
	if first == nil || !first.batch {
		return 0
	}
	for i, it := range l.items[:min(n, len(l.items))] {
		if it.trait != first || it.alone || it.fence != 0 {
			return i
		}
	}
	return min(n, len(l.items))
}

// lanes are those of the task.
func (t *task) lanes() []*lane { return append([]*lane{t.lane}, t.beside...) }

// fill adds ready lines whose first entries are of the same effect: of the lane,
// then of others, in the order of their turns.
func (b *board) fill(t *task) {
	t.take(t.lane)
	for _, ln := range b.turns {
		if t.room() == 0 {
			return
		}
		if !ln.leaving && ln.loaded && t.take(ln) {
			t.beside = append(t.beside, ln)
		}
	}
}

// room is how many more entries the batch may have.
func (t *task) room() int {
	room := maxBatch
	for _, n := range t.sizes {
		room -= n
	}
	return room
}

// take adds ready lines of a lane, and reports whether there were any.
func (t *task) take(ln *lane) (some bool) {
	effect, room := t.lines[0].items[0].trait, t.room()
	ln.ready = slices.DeleteFunc(ln.ready, func(l *line) bool {
		n := l.batch(room)
		if n == 0 || l.items[0].trait != effect {
			return false
		}
		room -= n
		t.lines, t.sizes = append(t.lines, l), append(t.sizes, n)
		some = true
		return true
	})
	return some
}

// leave ends a task's hold of its lines.
func (b *board) leave(t *task) {
	ln := t.lane
	for _, ln := range t.lanes() {
		ln.busy--
	}
	b.ended++
	for _, l := range t.lines {
		l.running, l.ended = false, b.ended
		b.schedule(l)
	}
	if t.suspect {
		ln.suspecting = false
		if len(ln.suspended) > 0 {
			ln.ready = slices.Insert(ln.ready, 0, ln.suspended[0])
			ln.suspended = ln.suspended[1:]
			b.queue(ln)
		}
	}
}

// lose forgets a lane: it has another holder, or none.
func (b *board) lose(ln *lane) {
	ln.lost = true
	ln.cancel()
	if b.lanes[ln.hold.Lane] == ln {
		delete(b.lanes, ln.hold.Lane)
	}
	for _, l := range ln.lines {
		b.drop(l, 0, len(l.items))
		if l.index != 0 {
			heap.Remove(&b.later, l.index-1)
		}
		delete(b.gapped, l)
	}
	ln.lines, ln.ready, ln.suspended, ln.segments = map[store.Key]*line{}, nil, nil, nil
}

// delays are lines by the time that they wait for.
type delays []*line

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d delays) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i+1, j+1
}

// Push adds a line; it is called by package heap.
func (d *delays) Push(x any) {
	l := x.(*line)
	*d = append(*d, l)
	l.index = len(*d)
}

// Pop removes the last line; it is called by package heap.
func (d *delays) Pop() any {
	old := *d
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	l.index = 0
	return l
}

// due schedules the lines whose time has come, and says when the next one's does.
func (b *board) due(now time.Time) (next time.Time, some bool) {
	for len(b.later) > 0 {
		l := b.later[0]
		if l.at.After(now) {
			return l.at, true
		}
		b.schedule(l) // which takes it out
	}
	return time.Time{}, false
}
