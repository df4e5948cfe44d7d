package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// desk is a board as a test drives it, with a clock of the test's own.
type desk struct {
	*testing.T
	*board
	wait  func(time.Duration) // lets time pass
	all   []*lane             // those that were held at any time
	tasks []*task             // those that run
}

func onDesk(t *testing.T, run func(d *desk)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		run(&desk{T: t, board: &b, wait: func(d time.Duration) { time.Sleep(d) }})
	})
}

// onLane is onDesk with one lane that is being read.
func onLane(t *testing.T, run func(d *desk, ln *lane, rd *reading)) {
	t.Helper()
	onDesk(t, func(d *desk) {
		ln := d.take(0)
		run(d, ln, newReading([]*lane{ln}, "0"))
	})
}

// inbox is one that has the board, for what it decides without its store.
func (d *desk) inbox() *Inbox[*memory.Tx] {
	in := &Inbox[*memory.Tx]{board: *d.board}
	d.board = &in.board
	return in
}

// take makes a lane whose blocked rows are known.
func (d *desk) take(number int) *lane {
	d.taken++
	ln := &lane{
		hold: store.Hold{Lane: number, Epoch: int64(d.taken)}, number: d.taken,
		lines: map[store.Key]*line{}, position: "0", stored: "0", loaded: true,
	}
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	d.lanes[number] = ln
	d.all = append(d.all, ln)
	return ln
}

// lineOf is the line of the ordering key that a letter names.
func lineOf(ln *lane, name string) *line { return ln.line(store.Key{name[0]}) }

func entryOf(name string, sequence int64) store.Entry {
	return store.Entry{Sequence: sequence, Order: store.Key{name[0]}, Key: store.Key{name[0], byte(sequence >> 8), byte(sequence)}}
}

// reads lets entries of one key arrive, of which two are held at most.
func (d *desk) reads(rd *reading, ln *lane, name string, sequences ...int64) {
	for _, s := range sequences {
		d.arrive(ln, rd, entryOf(name, s), nil, false, 2)
	}
}

// with lets entries of an effect arrive, and gives the last of them.
func (d *desk) with(trait *trait, rd *reading, ln *lane, name string, sequences ...int64) (last *item) {
	for _, s := range sequences {
		d.arrive(ln, rd, entryOf(name, s), trait, false, 1000)
		items := lineOf(ln, name).items
		last = items[len(items)-1]
	}
	return last
}

// picks takes the next task, which has to be of these keys, each with the number
// of its entries in a batch; "" is for none.
func (d *desk) picks(want string) *task {
	d.Helper()
	t, got := d.pick(), ""
	if t != nil {
		d.tasks = append(d.tasks, t)
		for n, l := range t.lines {
			got += string(l.order[:1])
			if t.sizes[n] > 0 {
				got += fmt.Sprint(t.sizes[n])
			}
		}
	}
	if got != want {
		d.Fatalf("picked %q, want %q", got, want)
	}
	return t
}

// ends ends a task.
func (d *desk) ends(t *task) {
	d.tasks = slices.DeleteFunc(d.tasks, func(other *task) bool { return other == t })
	d.leave(t)
}

// sees compares all that the board knows: what is held, the lanes with their marks
// and segments, the lines by their keys, and the turns.
func (d *desk) sees(want ...string) {
	d.Helper()
	got := []string{fmt.Sprint("held ", d.held)}
	for _, ln := range d.all {
		if !ln.lost {
			got = append(got, ln.text())
		}
		for _, l := range sorted(ln) {
			got = append(got, l.text())
		}
	}
	if len(d.turns) > 0 {
		turns := "turns"
		for _, ln := range d.turns {
			turns += fmt.Sprint(" ", ln.hold.Lane)
		}
		got = append(got, turns)
	}
	if !slices.Equal(got, want) {
		d.Fatalf("seen\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	if err := d.sound(); err != nil {
		d.Fatal(err)
	}
}

func sorted(ln *lane) []*line {
	var lines []*line
	for _, l := range ln.lines {
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b *line) int { return strings.Compare(string(a.order[:]), string(b.order[:])) })
	return lines
}

func (ln *lane) text() string {
	text := fmt.Sprintf("lane %d mark %s", ln.hold.Lane, ln.mark())
	for _, s := range ln.segments {
		text += fmt.Sprintf(" [%s %d]", s.since, s.pending)
	}
	if ln.busy != 0 {
		text += fmt.Sprint(" busy ", ln.busy)
	}
	return text
}

func (l *line) text() string {
	text := string(l.order[:1])
	add := func(is bool, format string, args ...any) {
		if is {
			text += fmt.Sprintf(" "+format, args...)
		}
	}
	for _, it := range l.items {
		add(true, "%d", it.entry.Sequence)
	}
	add(l.row != 0, "row %d", l.row)
	add(l.unsure, "unsure")
	add(l.leftover != 0, "leftover %d", l.leftover)
	add(l.paging, "after %d", l.after)
	add(l.passed != 0, "passed %d", l.passed)
	for _, s := range l.debts {
		add(true, "debt %s", s.since)
	}
	if l.spill != nil {
		add(true, "spill %d", l.spill.Sequence)
	}
	for _, g := range l.gaps {
		add(true, "gap %d", g.sequence)
	}
	add(l.check, "check")
	add(l.suspect, "suspect")
	add(l.running, "runs")
	add(slices.Contains(l.lane.ready, l), "ready")
	add(slices.Contains(l.lane.suspended, l), "suspended")
	add(l.index != 0, "in %v", time.Until(l.at))
	return text
}

func TestBoardHoldsAnEntryOnceAndInOrder(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		d.sees("held 0", "lane 0 mark 0")
		d.reads(rd, ln, "b", 2)
		d.reads(rd, ln, "a", 5, 3)
		d.sees("held 3", "lane 0 mark 0 [0 3]", "a 3 5 ready", "b 2 ready", "turns 0")
		d.reads(rd, ln, "a", 5, 3, 5)
		d.sees("held 3", "lane 0 mark 0 [0 3]", "a 3 5 ready", "b 2 ready", "turns 0")
		l := lineOf(ln, "a")
		d.hold(l, &item{entry: entryOf("a", 3), segment: l.items[0].segment})
		d.hold(l, &item{entry: entryOf("a", 4)}) // of a page: its row covers it
		d.sees("held 4", "lane 0 mark 0 [0 3]", "a 3 4 5 ready", "b 2 ready", "turns 0")
		d.remove(l, &item{entry: entryOf("a", 4)}) // let go of, and read again meanwhile
		d.remove(l, &item{entry: entryOf("a", 9)})
		d.sees("held 4", "lane 0 mark 0 [0 3]", "a 3 4 5 ready", "b 2 ready", "turns 0")
		d.remove(l, l.items[1])
		d.sees("held 3", "lane 0 mark 0 [0 3]", "a 3 5 ready", "b 2 ready", "turns 0")
		task := d.picks("b")
		d.remove(task.lines[0], task.lines[0].items[0])
		d.sees("held 2", "lane 0 mark 0 [0 2] busy 1", "a 3 5 ready", "b runs", "turns 0")
		d.ends(task)
		d.sees("held 2", "lane 0 mark 0 [0 2]", "a 3 5 ready", "turns 0")
	})
}

func TestBoardTellsWhatItKnowsOfAnEntry(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		effect := &trait{}
		d.arrive(ln, rd, entryOf("a", 1), effect, true, 8)
		d.arrive(ln, rd, entryOf("a", 2), nil, false, 8)
		for n, want := range []item{
			{entry: entryOf("a", 1), trait: effect, segment: rd.segments[ln], known: true},
			{entry: entryOf("a", 2), segment: rd.segments[ln]},
		} {
			it := lineOf(ln, "a").items[n]
			if it.entry.Key != want.entry.Key || it.trait != want.trait || it.segment != want.segment || it.known != want.known {
				d.Errorf("item %d: %+v, want %+v", n, it, want)
			}
		}
	})
}

func TestBoardPassesByWhatCameEarly(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		for _, s := range []int64{3, 4, 6} {
			d.addGap(l, &gap{sequence: s}, "effect")
		}
		d.schedule(l)
		d.reads(rd, ln, "a", 3, 6)
		d.sees("held 0", "lane 0 mark 0", "a gap 3 gap 4 gap 6")
		d.reads(rd, ln, "a", 5)
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 5 gap 3 gap 4 gap 6 ready", "turns 0")
		task := d.picks("a")
		d.remove(l, l.items[0])
		d.forgetGap(l, 4)
		d.sees("held 0", "lane 0 mark 0 [0 0] busy 1", "a gap 3 gap 6 runs")
		d.ends(task)
		d.sees("held 0", "lane 0 mark 0 [0 0]", "a gap 3 gap 6")
		d.forgetGap(l, 3)
		d.forgetGap(l, 6)
		d.schedule(l)
		d.sees("held 0", "lane 0 mark 0 [0 0]")
	})
}

// What is too much of one key stays in the store, from where nothing of it is
// missed: the cursor stays before it until it is behind a row.
func TestBoardLeavesWhatIsTooMuchOfAKeyInTheStore(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		d.reads(rd, ln, "a", 11, 14)
		d.sees("held 2", "lane 0 mark 0 [0 2]", "a 11 14 ready", "turns 0")
		d.reads(rd, ln, "a", 17)
		d.sees("held 2", "lane 0 mark 0 [0 3]", "a 11 14 after 14 passed 17 debt 0 spill 17 ready", "turns 0")
		d.reads(rd, ln, "a", 18, 17)
		d.sees("held 2", "lane 0 mark 0 [0 3]", "a 11 14 after 14 passed 17 debt 0 spill 17 ready", "turns 0")
		d.reads(rd, ln, "a", 12, 5, 15) // held all the same: the row will be behind them
		d.sees("held 5", "lane 0 mark 0 [0 6]", "a 5 11 12 14 15 after 14 passed 17 debt 0 spill 17 ready", "turns 0")
		ln.position = "1"
		rd = newReading([]*lane{ln}, "1")
		d.reads(rd, ln, "a", 19, 20)
		d.sees("held 5", "lane 0 mark 0 [0 6] [1 1]", "a 5 11 12 14 15 after 14 passed 17 debt 0 debt 1 spill 17 ready", "turns 0")
		l := lineOf(ln, "a")
		l.row = 17
		d.pay(l)
		d.sees("held 5", "lane 0 mark 0 [0 5] [1 0]", "a 5 11 12 14 15 row 17 after 14 passed 17 ready", "turns 0")
		d.reads(rd, ln, "a", 21, 16) // behind the row; and before it, where no row covers it
		d.sees("held 6", "lane 0 mark 0 [0 5] [1 1]", "a 5 11 12 14 15 16 row 17 after 14 passed 17 ready", "turns 0")
	})
}

// What was read with the followers of a row holds the cursor when the reader comes
// by it, unless the row covers it.
func TestBoardHoldsItsMarkBeforeWhatNoRowCovers(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		l.row, l.paging, l.after = 5, true, 7
		for _, s := range []int64{4, 5, 7} {
			d.hold(l, &item{entry: entryOf("a", s)})
		}
		d.schedule(l)
		d.reads(rd, ln, "a", 4, 5, 7, 4)
		d.sees("held 3", "lane 0 mark 0 [0 1]", "a 4 5 7 row 5 after 7 ready", "turns 0")
		l.unsure = true
		d.reads(rd, ln, "a", 7, 7)
		d.sees("held 3", "lane 0 mark 0 [0 2]", "a 4 5 7 row 5 unsure after 7 ready", "turns 0")
		ln.position, ln.reading = "1", nil
		for n := 3; n > 0; n-- {
			d.remove(l, l.items[0])
		}
		d.sees("held 0", "lane 0 mark 1", "a row 5 unsure after 7 ready", "turns 0")
	})
}

// What has been read of a key behind its row is never beyond the reader again: it
// is held though more arrives late than is held otherwise.
func TestBoardHoldsWhatComesLate(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		l.row, l.paging, l.after = 5, true, 9
		d.schedule(l)
		d.reads(rd, ln, "a", 6, 7, 8, 4, 9)
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 4 6 7 8 9 row 5 after 9 ready", "turns 0")
		d.reads(rd, ln, "a", 11, 10, 12) // which of them came first matters to who reads behind the row
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 4 6 7 8 9 row 5 after 9 passed 10 ready", "turns 0")

		l = lineOf(ln, "b") // whose row covers what is too much
		l.row, l.after = 5, 9
		d.schedule(l)
		d.reads(rd, ln, "b", 5, 7)
		d.reads(rd, ln, "b", 8)
		d.sees("held 7", "lane 0 mark 0 [0 7]", "a 4 6 7 8 9 row 5 after 9 passed 10 ready", "b 5 7 row 5 after 7 passed 8 ready", "turns 0")
	})
}

func TestBoardLetsGoOfWhatIsBehindARow(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		d.reads(rd, ln, "a", 8, 5, 3)
		d.hold(l, &item{entry: entryOf("a", 7)})
		d.sees("held 4", "lane 0 mark 0 [0 3]", "a 3 5 7 8 ready", "turns 0")
		d.cover(l, 5)
		l.row = 5
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 3 row 5 ready", "turns 0")
		l.paging, l.after = true, 4
		l.rest = &rest{}
		d.reads(rd, ln, "a", 5, 6, 4)
		d.sees("held 2", "lane 0 mark 0 [0 2]", "a 3 4 row 5 after 4 passed 5 ready", "turns 0")
		task := d.picks("a")
		d.cover(l, 3)
		l.row, l.after = 3, 2
		d.ends(task)
		d.sees("held 0", "lane 0 mark 0 [0 0]", "a row 3 after 2 passed 5")
	})
}

// A row that was not known counts only once it is known for certain: until then the
// cursor stays before what is behind it.
func TestBoardOwesWhatIsBehindAnUncertainRow(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		d.reads(rd, ln, "a", 8, 5, 3)
		ln.position = "1"
		rd = newReading([]*lane{ln}, "1")
		d.arrive(ln, rd, entryOf("a", 9), nil, false, 8)
		d.sees("held 4", "lane 0 mark 0 [0 3] [1 1]", "a 3 5 8 9 ready", "turns 0")
		d.owe(l, 5)
		l.paging, l.after = true, 4
		d.sees("held 1", "lane 0 mark 0 [0 2] [1 1]", "a 3 row 5 unsure after 4 passed 5 debt 0 debt 1 ready", "turns 0")
		ln.position = "2"
		rd = newReading([]*lane{ln}, "2")
		d.reads(rd, ln, "a", 12)
		d.sees("held 1", "lane 0 mark 0 [0 2] [1 1] [2 1]", "a 3 row 5 unsure after 4 passed 5 debt 0 debt 1 debt 2 ready", "turns 0")
		d.pay(l)
		d.sees("held 1", "lane 0 mark 0 [0 1] [2 0]", "a 3 row 5 after 4 passed 5 ready", "turns 0")

		l = lineOf(ln, "b") // what a row covered before it covers again
		d.hold(l, &item{entry: entryOf("b", 6)})
		d.owe(l, 6)
		l.paging, l.after = true, 5
		d.schedule(l)
		d.sees("held 1", "lane 0 mark 0 [0 1] [2 0]", "a 3 row 5 after 4 passed 5 ready", "b row 6 unsure after 5 ready", "turns 0")

		d.reads(rd, ln, "c", 31, 32, 33) // which wanted a row behind what is not held any more
		d.owe(lineOf(ln, "c"), 31)
		lineOf(ln, "c").after = 30
		d.sees("held 1", "lane 0 mark 0 [0 1] [2 1]", "a 3 row 5 after 4 passed 5 ready", "b row 6 unsure after 5 ready",
			"c row 31 unsure after 30 passed 31 debt 2 ready", "turns 0")

		for _, name := range []string{"a", "b", "c"} {
			l := lineOf(ln, name)
			l.rest = &rest{due: time.Now()}
			d.drain(l)
		}
		d.sees("held 1", "lane 0 mark 0 [0 1] [2 0]", "a 3 row 5 passed 5 ready", "b leftover 6 ready", "c leftover 31 passed 31 ready", "turns 0")
		for _, l := range sorted(ln) {
			if l.rest != nil {
				d.Errorf("%s: is at rest", l.text())
			}
		}
	})
}

// Where the row of a key has become that of an entry which came early, what is behind
// it is to be covered anew.
func TestBoardWantsARowForWhatIsLeftBare(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		l.row, l.paging, l.after = 5, true, 7
		d.hold(l, &item{entry: entryOf("a", 6)})
		d.schedule(l)
		d.bare(l, 4)
		d.clothe(l)
		d.sees("held 1", "lane 0 mark 0", "a 6 row 5 after 7 ready", "turns 0")
		l.unsure = true
		d.bare(l, 5)
		d.reads(rd, ln, "a", 8)
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 6 after 7 passed 8 debt 0 ready", "turns 0")
		d.clothe(l)
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 6 after 7 passed 8 debt 0 spill 6 ready", "turns 0")
		d.owe(l, 3)
		l.after = 2
		d.bare(l, 3)
		d.clothe(l)
		d.sees("held 0", "lane 0 mark 0 [0 1]", "a after 2 passed 8 debt 0 ready", "turns 0")

		l = lineOf(ln, "b") // nothing of which is in the store alone
		d.reads(rd, ln, "b", 11)
		d.hold(l, &item{entry: entryOf("b", 10), gap: true})
		d.clothe(l)
		d.sees("held 2", "lane 0 mark 0 [0 2]", "a after 2 passed 8 debt 0 ready", "b 10 11 ready", "turns 0")
		d.hold(l, &item{entry: entryOf("b", 12)}) // of a page
		d.clothe(l)
		d.sees("held 3", "lane 0 mark 0 [0 2]", "a after 2 passed 8 debt 0 ready", "b 10 11 12 spill 12 ready", "turns 0")
	})
}

func TestBoardsMarkIsBeforeAllThatIsHeld(t *testing.T) {
	onDesk(t, func(d *desk) {
		ln, other := d.take(0), d.take(1)
		rd := newReading([]*lane{ln, other}, "0")
		d.reads(rd, ln, "a", 1)
		d.reads(rd, ln, "b", 2)
		d.reads(rd, other, "c", 3)
		ln.position, ln.reading = "1", nil
		rd = newReading([]*lane{ln}, "1")
		d.reads(rd, ln, "a", 5)
		ln.position, ln.reading = "2", nil
		d.sees("held 4", "lane 0 mark 0 [0 2] [1 1]", "a 1 5 ready", "b 2 ready", "lane 1 mark 0 [0 1]", "c 3 ready", "turns 0 1")
		for _, name := range []string{"a", "c", "b"} {
			d.picks(name)
		}
		a, b := lineOf(ln, "a"), lineOf(ln, "b")
		d.remove(b, b.items[0])
		d.remove(a, a.items[1])
		d.sees("held 2", "lane 0 mark 0 [0 1] busy 2", "a 1 runs", "b runs", "lane 1 mark 0 [0 1] busy 1", "c 3 runs")
		d.remove(a, a.items[0])
		d.sees("held 1", "lane 0 mark 2 busy 2", "a runs", "b runs", "lane 1 mark 0 [0 1] busy 1", "c 3 runs")

		// What is still being read counts though nothing of it is held now.
		rd = newReading([]*lane{ln}, "2")
		d.reads(rd, ln, "a", 7)
		d.remove(a, a.items[0])
		d.sees("held 1", "lane 0 mark 2 [2 0] busy 2", "a runs", "b runs", "lane 1 mark 0 [0 1] busy 1", "c 3 runs")
		d.reads(rd, ln, "a", 8)
		ln.position, ln.reading = "3", nil
		d.sees("held 2", "lane 0 mark 2 [2 1] busy 2", "a 8 runs", "b runs", "lane 1 mark 0 [0 1] busy 1", "c 3 runs")
	})
}

// The first entry of a key is a suspect in a lane whose holder was lost, unless it
// was read when others of its key were held or ran.
func TestBoardSuspectsTheFirstOfAKeyWhileThereIsDoubt(t *testing.T) {
	onDesk(t, func(d *desk) {
		ln := d.take(0)
		ln.suspects = 5
		rd := newReading([]*lane{ln}, "0")
		d.reads(rd, ln, "a", 1)
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 1 ready", "turns 0")
		ln.doubt = true
		d.reads(rd, ln, "a", 2)
		d.reads(rd, ln, "b", 3, 4)
		ln.suspects = min(ln.suspects, 1) // of those that the window had room for
		d.reads(rd, ln, "c", 5)
		d.reads(rd, ln, "d", 6)
		d.sees("held 6", "lane 0 mark 0 [0 6]", "a 1 2 ready", "b 3 4 suspect ready", "c 5 suspect ready", "d 6 ready", "turns 0")
		ln.suspects = 5
		task := d.picks("a")
		d.remove(task.lines[0], task.lines[0].items[1])
		d.remove(task.lines[0], task.lines[0].items[0])
		d.reads(rd, ln, "a", 9)
		d.ends(task)
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 9 ready", "b 3 4 suspect ready", "c 5 suspect ready", "d 6 ready", "turns 0")
		if ln.suspects != 5 {
			d.Errorf("%d more suspects, want 5", ln.suspects)
		}
		d.reads(rd, ln, "e", 10)
		if ln.suspects != 4 {
			d.Errorf("%d more suspects, want 4", ln.suspects)
		}
	})
}

// An entry that comes before what waits for a time does not wait.
func TestBoardLetsAnEarlierEntryRunAtOnce(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		l := lineOf(ln, "a")
		l.until = time.Now().Add(5 * time.Second)
		d.reads(rd, ln, "a", 5)
		d.sees("held 1", "lane 0 mark 0 [0 1]", "a 5 in 5s")
		d.reads(rd, ln, "a", 5, 6)
		d.sees("held 2", "lane 0 mark 0 [0 2]", "a 5 6 in 5s")
		d.reads(rd, ln, "a", 3)
		d.sees("held 3", "lane 0 mark 0 [0 3]", "a 3 5 6 ready", "turns 0")
	})
}

func TestBoardKnowsWhenALineHasSomethingToDo(t *testing.T) {
	onDesk(t, func(d *desk) {
		ln := d.take(0)
		now := time.Now()
		at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
		items := []*item{{entry: entryOf("a", 5)}}
		for n, c := range []struct {
			line line
			want string
		}{
			{line{}, "gone"},
			{line{items: items}, "a 5 ready"},
			{line{items: items, until: at(5)}, "a 5 in 5s"},
			{line{items: items, until: at(-5)}, "a 5 ready"},
			{line{row: 5}, "a row 5 ready"},
			{line{leftover: 5}, "a leftover 5 ready"},
			{line{leftover: 5, until: at(2)}, "a leftover 5 in 2s"},
			{line{paging: true, after: 5}, "a after 5 ready"},
			{line{gaps: []*gap{{sequence: 3}}}, "a gap 3"},
			{line{gaps: []*gap{{sequence: 3}}, until: at(-1)}, "a gap 3"},
			{line{gaps: []*gap{{sequence: 3}}, check: true}, "a gap 3 check ready"},
			{line{gaps: []*gap{{sequence: 3}}, check: true, until: at(1)}, "a gap 3 check in 1s"},
			{line{check: true}, "a check ready"},
			{line{row: 5, paging: true, rest: &rest{}}, "a row 5 after 0"},
			{line{row: 5, paging: true, rest: &rest{}, until: at(3)}, "a row 5 after 0"},
			{line{row: 5, paging: true, rest: &rest{}, check: true}, "a row 5 after 0 check"},
			{line{row: 5, paging: true, rest: &rest{due: at(7)}}, "a row 5 after 0 in 7s"},
			{line{row: 5, paging: true, rest: &rest{due: at(7)}, until: at(3)}, "a row 5 after 0 in 7s"},
			{line{row: 5, paging: true, rest: &rest{due: at(-1)}, until: at(3)}, "a row 5 after 0 in 3s"},
			{line{row: 5, paging: true, rest: &rest{due: at(-1)}}, "a row 5 after 0 ready"},
			{line{row: 5, paging: true, rest: &rest{due: at(7)}, items: items}, "a 5 row 5 after 0 in 7s"},
			{line{row: 6, paging: true, rest: &rest{due: at(7)}, items: items}, "a 5 row 6 after 0 ready"},
			{line{row: 6, paging: true, rest: &rest{}, items: items, until: at(4)}, "a 5 row 6 after 0 in 4s"},
			{line{row: 5, running: true}, "a row 5 runs"},
		} {
			l := &c.line
			l.order, l.lane = store.Key{'a'}, ln
			ln.lines[l.order] = l
			d.schedule(l)
			d.schedule(l) // which is the same
			got := l.text()
			if ln.lines[l.order] != l {
				got = "gone"
			}
			if got != c.want {
				d.Errorf("line %d: %q, want %q", n, got, c.want)
			}
			if n := strings.Count(got, "ready"); len(ln.ready) != n || len(d.turns) != n {
				d.Errorf("%s: %d lines are ready, and %d lanes have a turn", got, len(ln.ready), len(d.turns))
			}
			*d.board = newBoard()
			ln.lines, ln.ready, ln.turn = map[store.Key]*line{}, nil, false
		}
	})
}

func TestBoardWaitsForTheEarliestTime(t *testing.T) {
	onLane(t, func(d *desk, ln *lane, rd *reading) {
		waits := func(name string, seconds int) {
			l := lineOf(ln, name)
			l.until = time.Now().Add(time.Duration(seconds) * time.Second)
			if len(l.items) > 0 {
				d.schedule(l)
			} else {
				d.reads(rd, ln, name, 1)
			}
		}
		due := func(want time.Duration) {
			d.Helper()
			next, some := d.due(time.Now())
			if some != (want != 0) || some && time.Until(next) != want || !some && !next.IsZero() {
				d.Fatalf("next in %v (%v), want %v", time.Until(next), some, want)
			}
		}
		due(0)
		for name, seconds := range map[string]int{"a": 5, "b": 3, "c": 4, "d": 7, "e": 6} {
			waits(name, seconds)
		}
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 1 in 5s", "b 1 in 3s", "c 1 in 4s", "d 1 in 7s", "e 1 in 6s")
		due(3 * time.Second)
		waits("d", 1)
		due(time.Second)
		waits("d", 8)
		due(3 * time.Second)
		d.wait(3 * time.Second)
		due(time.Second)
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 1 in 2s", "b 1 ready", "c 1 in 1s", "d 1 in 5s", "e 1 in 3s", "turns 0")
		waits("a", 0)
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 1 ready", "b 1 ready", "c 1 in 1s", "d 1 in 5s", "e 1 in 3s", "turns 0")
		d.wait(4 * time.Second)
		due(time.Second)
		d.sees("held 5", "lane 0 mark 0 [0 5]", "a 1 ready", "b 1 ready", "c 1 ready", "d 1 in 1s", "e 1 ready", "turns 0")
		d.wait(2 * time.Second)
		due(0)
		for _, name := range []string{"b", "a", "c", "e", "d"} {
			d.picks(name)
		}
		d.picks("")
	})
}
