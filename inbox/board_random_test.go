package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// play is a worker that does with its board what the inbox does, one thing at a
// time and in any order, and what a store would have kept of that.
type play struct {
	*desk
	in   *Inbox[*memory.Tx] // for what it decides without its store
	rnd  *rand.Rand
	jobs []*job
	calm bool // nothing goes wrong any more
	seen map[string]int

	traits  []*trait  // of the effects, by their keys
	entries []*stored // by sequence
	commit  int       // the number of the last one; a cursor is one of them
	rows    map[store.Key]*stored
	cursors map[int]string
	clean   map[int]bool

	page *sheet     // that was read, and not taken yet
	now  []*reading // those of this round of reading
	more bool       // of the main one
	look []store.Waiting
	from map[int]*lane // that the look is of
	then int           // the tasks that had ended before it
}

const playLanes, playKeys, playWindow, playMost = 3, 9, 40, 3

// stored is an entry, and what became of it.
type stored struct {
	store.Entry
	lane   int
	commit int  // with which it became visible, 0 while it is not
	late   bool // later than one of its key with a larger number
	drawn  int  // the last commit before its number was drawn
	trait  *trait
	early  bool // its version comes before its turn
	gap    bool // it has a row of its own
	done   bool
	state  store.State
	fence  int64
	due    time.Time
}

// sheet is a page of a reading.
type sheet struct {
	rd             *reading
	entries        []*stored
	until          string
	more           bool
	taken, drained int
}

func (p *play) chance(n int) bool { return p.rnd.IntN(n) == 0 }

func (p *play) trouble(n int) bool { return !p.calm && p.chance(n) }

func (p *play) saw(what string) { p.seen[what]++ }

func TestBoardForgetsNothingWhateverHappens(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	seen := map[string]int{}
	for game := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t, rand.New(rand.NewPCG(seed, game)), func(d time.Duration) { time.Sleep(d) })
			p.seen = seen
			if err := p.play(400); err != nil {
				t.Fatalf("seed %d, game %d: %v", seed, game, err)
			}
		})
		if t.Failed() {
			return
		}
	}
	for _, what := range []string{
		"late", "spill", "page", "unblock", "covered", "charged", "parked", "gap closed", "batch", "apart", "lost", "handed back", "trouble", "unread", "passed before a page", "old look",
	} {
		if seen[what] == 0 {
			t.Errorf("seed %d: never %s", seed, what)
		}
	}
}

func newPlay(t *testing.T, rnd *rand.Rand, wait func(time.Duration)) *play {
	in := &Inbox[*memory.Tx]{board: newBoard(), opts: Options{Window: playWindow, Observe: func(Sight) {}, Alert: func(Condition) {}}}
	return &play{
		desk: &desk{T: t, board: &in.board, wait: wait}, in: in, rnd: rnd,
		traits: []*trait{nil, {name: "a", batch: true}, {name: "b", batch: true}, {name: "c", contiguous: true}},
		rows:   map[store.Key]*stored{}, cursors: map[int]string{}, clean: map[int]bool{0: true, 1: true, 2: true},
	}
}

// play plays, then lets everything come to its end.
func (p *play) play(steps int) error {
	for range steps {
		p.acts()
		if err := p.holds(); err != nil {
			return err
		}
	}
	p.calm = true
	p.commits(len(p.entries))
	for range 400 {
		p.redrive(len(p.entries))
		for number := range playLanes {
			p.keeps(number)
		}
		for range 20 {
			p.readsOn()
			p.pumps()
			for _, j := range slices.Clone(p.jobs) {
				j.next()
			}
			p.watches()
			if err := p.holds(); err != nil {
				return err
			}
		}
		if p.left() == "" {
			return nil
		}
		p.wait(time.Second)
	}
	return fmt.Errorf("never at rest: %s", p.left())
}

// acts does one thing.
func (p *play) acts() {
	switch n := p.rnd.IntN(100); {
	case n < 8:
		p.appends()
	case n < 12:
		p.commits(1 + p.rnd.IntN(12))
	case n < 30:
		p.readsOn()
	case n < 45:
		p.pumps()
	case n < 85:
		if len(p.jobs) > 0 {
			p.jobs[p.rnd.IntN(len(p.jobs))].next()
		}
	case n < 90:
		p.wait(time.Duration(p.rnd.IntN(1500)) * time.Millisecond)
	case n < 93:
		p.watches()
	case n < 95:
		p.redrive(3)
	case n < 99:
		p.keeps(p.rnd.IntN(playLanes))
	default:
		p.gives(p.rnd.IntN(playLanes))
	}
}

// appends draws numbers for entries, which become visible with a commit.
func (p *play) appends() {
	key := byte('a' + p.rnd.IntN(playKeys))
	for range 1 + p.rnd.IntN(7) {
		if p.chance(3) {
			key = byte('a' + p.rnd.IntN(playKeys))
		}
		trait := p.traits[int(key)%len(p.traits)]
		e := &stored{Entry: entryOf(string(key), int64(len(p.entries)+1)), lane: int(key) % playLanes, drawn: p.commit, trait: trait, early: trait != nil && trait.contiguous && p.chance(4)}
		e.Operation = e.Key
		p.entries = append(p.entries, e)
	}
	if p.chance(2) {
		p.commits(len(p.entries))
	}
}

// commits makes entries visible: of one key in any order, too.
func (p *play) commits(n int) {
	p.commit++
	for _, at := range p.rnd.Perm(len(p.entries)) {
		if e := p.entries[at]; e.commit == 0 && n > 0 {
			e.commit = p.commit
			n--
			e.late = slices.ContainsFunc(p.entries[at:], func(o *stored) bool { return o.Order == e.Order && 0 < o.commit && o.commit < e.commit })
			if e.late {
				p.saw("late")
			}
		}
	}
}

// readsOn is the next thing of the reader.
func (p *play) readsOn() {
	switch {
	case p.page != nil:
		p.takesPage()
	case len(p.now) > 0:
		rd := p.now[0]
		s := &sheet{rd: rd, taken: p.taken, drained: p.drained, more: true, until: rd.until}
		if room := min(p.in.room(), 1+p.rnd.IntN(9)); room > 0 {
			s.read(p, room)
		}
		p.page = s
	default:
		if main := p.in.plan(); main != nil {
			p.now = []*reading{main}
		}
	}
}

// read is what the store says to a reading.
func (s *sheet) read(p *play, limit int) {
	if s.until == "" {
		s.until = strconv.Itoa(p.commit)
	}
	since, _ := strconv.Atoi(s.rd.since)
	until, _ := strconv.Atoi(s.until)
	for _, e := range p.entries {
		in := slices.ContainsFunc(s.rd.lanes, func(ln *lane) bool { return ln.hold.Lane == e.lane })
		if in && since < e.commit && e.commit <= until && e.Sequence > s.rd.after && (s.rd.since != "" || !e.done) {
			s.entries = append(s.entries, e)
		}
	}
	s.more = len(s.entries) > limit
	s.entries = s.entries[:min(limit, len(s.entries))]
}

// takesPage lets the entries of a page arrive, as readPage and readOn do.
func (p *play) takesPage() {
	r, s := &p.in.reader, p.page
	rd := s.rd
	if s.until != "" && rd.until != s.until {
		rd.until, rd.taken = s.until, s.taken
	}
	for _, e := range s.entries {
		rd.after = e.Sequence
		ln := p.lanes[e.lane]
		if ln == nil || ln.reading != rd || ln.leaving {
			continue
		}
		p.arrive(ln, rd, e.Entry, e.trait, s.drained != p.drained || ln.catching && rd.since != "", playMost)
		if l := ln.lines[e.Order]; l != nil && l.spill != nil {
			p.saw("spill")
		}
	}
	p.page, p.now = nil, p.now[1:]
	if rd == r.main {
		p.more = s.more
		p.now = p.in.lag(rd)
	} else if !s.more {
		p.in.arrived(rd)
		r.lags = slices.DeleteFunc(r.lags, func(other *reading) bool { return other == rd })
	}
	if len(p.now) == 0 && !p.more {
		p.in.arrived(r.main)
		r.main, r.target, r.taken = nil, r.main.until, r.main.taken
	}
}

// pumps starts tasks while there is room for them.
func (p *play) pumps() {
	p.due(time.Now())
	for len(p.jobs) < 4 {
		t := p.pick()
		if t == nil {
			return
		}
		p.tasks = append(p.tasks, t)
		j := &job{task: t}
		p.jobs = append(p.jobs, j)
		if t.sizes[0] > 0 {
			j.next = func() { p.together(j) }
		} else {
			j.next = func() { p.step(j) }
		}
	}
}

// waiting are the rows of lanes, as the store lists them.
func (p *play) waiting(lanes map[int]*lane) (rows []store.Waiting) {
	for _, e := range p.entries {
		row := p.rows[e.Order] == e
		if lanes[e.lane] == nil || !row && !e.gap {
			continue
		}
		w := store.Waiting{
			Place: store.Place{Order: e.Order, Sequence: e.Sequence}, Lane: e.lane, Key: e.Key, Operation: e.Operation,
			Gap: !row, State: e.state, Done: e.done, Fence: e.fence, DueIn: time.Until(e.due),
		}
		if e.done {
			w.State = store.Completed
		}
		rows = append(rows, w)
	}
	slices.SortStableFunc(rows, func(a, b store.Waiting) int { return cmp.Compare(a.Order[0], b.Order[0]) })
	return rows
}

// watches is a look at what waits; what it shows is taken up later.
func (p *play) watches() {
	if p.from == nil {
		p.from = map[int]*lane{}
		for number, ln := range p.lanes {
			if ln.loaded && !ln.leaving {
				p.from[number] = ln
			}
		}
		p.look, p.then = p.waiting(p.from), p.ended
		return
	}
	for i := range p.look {
		w := &p.look[i]
		ln := p.lanes[w.Lane]
		if ln == nil || ln != p.from[w.Lane] {
			continue
		}
		if l := ln.lines[w.Order]; l != nil && l.ended > p.then {
			p.saw("old look")
			continue
		}
		p.in.adopt(ln, w, false)
		if l := ln.lines[w.Order]; l != nil && l.unsure {
			p.saw("owed")
		}
	}
	p.from = nil
}

// redrive is a person who lets what is dead or early run.
func (p *play) redrive(n int) {
	for _, e := range p.entries {
		if n > 0 && !e.done && (e.state == store.Dead || e.state == store.Parked) && (p.calm || p.chance(2)) {
			e.state, e.due = store.Retryable, time.Now()
			n--
		}
	}
}

// keeps takes a lane, stores its cursor, or hands it back where it is to leave.
func (p *play) keeps(number int) {
	ln := p.lanes[number]
	switch {
	case ln == nil:
		p.in.take(store.Held{Hold: store.Hold{Lane: number, Epoch: int64(len(p.all) + 1)}, Taken: true, Cursor: p.cursors[number], Clean: p.clean[number]})
		p.all = append(p.all, p.lanes[number])
		p.clean[number] = false
	case !ln.loaded:
		rows := p.waiting(map[int]*lane{number: ln})
		for i := range rows {
			p.in.adopt(ln, &rows[i], true)
			if l := ln.lines[rows[i].Order]; l != nil && l.rest != nil && l.rest.unread {
				p.saw("unread")
			}
		}
		ln.loaded = true
		p.queue(ln)
	case ln.leaving && ln.busy == 0:
		p.saw("handed back")
		p.cursors[number], p.clean[number] = ln.mark(), true
		p.lose(ln)
	default:
		p.cursors[number] = ln.mark()
	}
}

// gives lets a lane go, at once or when nothing runs in it.
func (p *play) gives(number int) {
	switch ln := p.lanes[number]; {
	case ln == nil:
	case p.chance(2):
		ln.leaving = true
	default:
		p.saw("lost")
		p.in.lose(ln)
	}
}

// holds tells what is not as it has to be: the board's own knowledge, or a cursor
// that has passed what nobody would read again.
func (p *play) holds() error {
	if p.Failed() {
		return errors.New("see above")
	}
	if err := p.sound(); err != nil {
		return err
	}
	for number := range playLanes {
		cursors := []string{p.cursors[number]}
		if ln := p.lanes[number]; ln != nil {
			cursors = append(cursors, ln.mark())
		}
		for _, cursor := range cursors {
			at, _ := strconv.Atoi(cursor)
			for _, e := range p.entries {
				if row := p.rows[e.Order]; e.lane == number && 0 < e.commit && e.commit <= at && !e.done && !e.gap && (row == nil || row.Sequence > e.Sequence) {
					return fmt.Errorf("cursor %s of lane %d has passed entry %d of %s", cursor, number, e.Sequence, e.Order[:1])
				}
			}
		}
	}
	return nil
}

// left is what keeps the play from its end, in which everything has taken effect,
// and nothing is remembered; "" if nothing does.
func (p *play) left() (text string) {
	for _, e := range p.entries {
		if !e.done {
			text += fmt.Sprintf("\n\tentry %d of %s: %v", e.Sequence, e.Order[:1], e.state)
		}
	}
	for number := range playLanes {
		ln := p.lanes[number]
		if ln == nil {
			text += fmt.Sprintf("\n\tlane %d is not held", number)
			continue
		}
		for _, l := range sorted(ln) {
			text += "\n\t" + l.text()
		}
		if at := ln.mark(); at != strconv.Itoa(p.commit) {
			text += "\n\t" + ln.text()
		}
	}
	if n := len(p.rows) + len(p.jobs); n > 0 {
		text += fmt.Sprintf("\n\t%d rows and jobs", n)
	}
	return text
}
