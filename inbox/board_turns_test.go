package inbox

import (
	"slices"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
)

func TestBoardGivesLanesTheirTurns(t *testing.T) {
	onDesk(t, func(d *desk) {
		d.picks("")
		one, two, three := d.take(1), d.take(2), d.take(3)
		rd := newReading([]*lane{one, two, three}, "0")
		for _, name := range []string{"a", "b", "c"} {
			d.reads(rd, one, name, 1)
		}
		d.reads(rd, two, "d", 1)
		d.reads(rd, three, "e", 1)
		d.reads(rd, three, "f", 1)
		tasks := []*task{d.picks("a"), d.picks("d"), d.picks("e"), d.picks("b")}
		ended := d.ended
		d.sees("held 6", "lane 1 mark 0 [0 3] busy 2", "a 1 runs", "b 1 runs", "c 1 ready", "lane 2 mark 0 [0 1] busy 1", "d 1 runs",
			"lane 3 mark 0 [0 2] busy 1", "e 1 runs", "f 1 ready", "turns 3 1")
		d.remove(tasks[1].lines[0], tasks[1].lines[0].items[0])
		d.reads(rd, one, "a", 2) // whose line runs
		for n, task := range tasks {
			d.ends(task)
			if l := task.lines[0]; d.ended != ended+n+1 || l.ended != d.ended {
				d.Errorf("%s: task %d has ended, noted as %d and %d", l.text(), ended+n+1, d.ended, l.ended)
			}
		}
		d.sees("held 6", "lane 1 mark 0 [0 4]", "a 1 2 ready", "b 1 ready", "c 1 ready", "lane 2 mark 0 [0 0]",
			"lane 3 mark 0 [0 2]", "e 1 ready", "f 1 ready", "turns 3 1")
		for _, name := range []string{"f", "c", "e", "a", "b", ""} {
			d.picks(name)
		}
	})
}

func TestBoardRunsNothingOfALaneThatIsNotReady(t *testing.T) {
	onDesk(t, func(d *desk) {
		batch := &trait{batch: true}
		unloaded, leaving, lost, own := d.take(1), d.take(2), d.take(3), d.take(4)
		rd := newReading([]*lane{unloaded, leaving, lost, own}, "0")
		for n, ln := range []*lane{unloaded, leaving, lost, own} {
			d.with(batch, rd, ln, string(rune('a'+n)), 1)
			d.with(nil, rd, ln, string(rune('p'+n)), 1)
		}
		unloaded.loaded, leaving.leaving = false, true
		d.lose(lost)
		d.turns = []*lane{own, unloaded, leaving, lost} // a batch looks at all of them
		d.picks("d1")
		d.picks("s")
		d.picks("")
		d.sees("held 6", "lane 1 mark 0 [0 2]", "a 1 ready", "p 1 ready", "lane 2 mark 0 [0 2]", "b 1 ready", "q 1 ready",
			"lane 4 mark 0 [0 2] busy 2", "d 1 runs", "s 1 runs")
		unloaded.loaded = true
		d.queue(unloaded)
		d.queue(unloaded)
		d.queue(own) // in which nothing is ready
		d.picks("a1")
		d.picks("p")
		d.picks("")
	})
}

func TestBoardRunsSuspectsOneAtATime(t *testing.T) {
	onDesk(t, func(d *desk) {
		ln, other := d.take(0), d.take(1)
		ln.doubt, ln.suspects, other.doubt, other.suspects = true, 3, true, 1
		rd := newReading([]*lane{ln, other}, "0")
		for _, name := range []string{"a", "b", "c", "d"} {
			d.reads(rd, ln, name, 1)
		}
		d.reads(rd, other, "e", 1)
		first := d.picks("a")
		d.picks("e") // another lane's
		good := d.picks("d")
		d.picks("")
		d.sees("held 5", "lane 0 mark 0 [0 4] busy 2", "a 1 suspect runs", "b 1 suspect suspended", "c 1 suspect suspended", "d 1 runs",
			"lane 1 mark 0 [0 1] busy 1", "e 1 suspect runs")
		d.ends(good)
		d.sees("held 5", "lane 0 mark 0 [0 4] busy 1", "a 1 suspect runs", "b 1 suspect suspended", "c 1 suspect suspended", "d 1 ready",
			"lane 1 mark 0 [0 1] busy 1", "e 1 suspect runs", "turns 0")
		lineOf(ln, "a").suspect = false // it was charged, and came to its end
		d.ends(first)
		d.sees("held 5", "lane 0 mark 0 [0 4]", "a 1 ready", "b 1 suspect ready", "c 1 suspect suspended", "d 1 ready",
			"lane 1 mark 0 [0 1] busy 1", "e 1 suspect runs", "turns 0")
		second := d.picks("b")
		for _, name := range []string{"d", "a"} {
			d.picks(name)
		}
		d.picks("")
		d.ends(second)
		third := d.picks("c")
		d.picks("")
		d.remove(third.lines[0], third.lines[0].items[0])
		d.ends(third) // which leaves nothing behind but the next suspect
		d.ends(d.picks("b"))
		d.ends(d.picks("b")) // behind which none is suspended
		d.picks("b")
		d.picks("")
	})
}

func TestBoardBatchesWhatMayShareATransaction(t *testing.T) {
	t.Parallel()
	batch, other, single := &trait{batch: true}, &trait{batch: true}, &trait{}
	items := func(traits ...*trait) (all []*item) {
		for n, trait := range traits {
			all = append(all, &item{entry: entryOf("a", int64(n+1)), trait: trait})
		}
		return all
	}
	with := func(change func(it *item), at int) []*item {
		all := items(batch, batch, batch)
		change(all[at])
		return all
	}
	for name, c := range map[string]struct {
		line line
		room int
		want int
	}{
		"nothing":                          {line{row: 1}, 9, 0},
		"all":                              {line{items: items(batch, batch, batch)}, 9, 3},
		"what there is room for":           {line{items: items(batch, batch, batch)}, 2, 2},
		"no room":                          {line{items: items(batch, batch, batch)}, 0, 0},
		"another effect behind":            {line{items: items(batch, batch, other)}, 9, 2},
		"an effect that runs singly":       {line{items: items(single, single)}, 9, 0},
		"no effect of the name":            {line{items: items(nil, batch)}, 9, 0},
		"the first is to be alone":         {line{items: with(func(it *item) { it.alone = true }, 0)}, 9, 0},
		"another is to be alone":           {line{items: with(func(it *item) { it.alone = true }, 1)}, 9, 1},
		"the first has an attempt":         {line{items: with(func(it *item) { it.fence = 1 }, 0)}, 9, 0},
		"another has an attempt":           {line{items: with(func(it *item) { it.fence = 1 }, 2)}, 9, 2},
		"one out of the room is alone":     {line{items: with(func(it *item) { it.alone = true }, 2)}, 2, 2},
		"a suspect":                        {line{items: items(batch), suspect: true}, 9, 0},
		"a gap is to be looked at":         {line{items: items(batch), check: true}, 9, 0},
		"an entry waits that came early":   {line{items: items(batch), gaps: []*gap{{}}}, 9, 0},
		"it is at rest":                    {line{items: items(batch), row: 1, rest: &rest{}}, 9, 0},
		"it stands before what is at rest": {line{items: items(batch), row: 2, rest: &rest{}}, 9, 1},
		"behind a row":                     {line{items: items(batch), row: 1, paging: true}, 9, 1},
	} {
		if got := c.line.batch(c.room); got != c.want {
			t.Errorf("%s: %d of a batch, want %d", name, got, c.want)
		}
	}
}

func TestBoardFillsABatch(t *testing.T) {
	onDesk(t, func(d *desk) {
		batch, other := &trait{batch: true}, &trait{batch: true}
		one, two, three := d.take(1), d.take(2), d.take(3)
		rd := newReading([]*lane{one, two, three}, "0")
		d.with(batch, rd, one, "a", 1, 2)
		d.with(other, rd, one, "b", 1)
		d.with(nil, rd, one, "c", 1)
		d.with(batch, rd, one, "d", 1)
		lineOf(one, "e").row = 1
		d.schedule(lineOf(one, "e"))
		d.with(batch, rd, one, "f", 1).alone = true
		d.with(other, rd, two, "g", 1)
		d.with(batch, rd, three, "h", 1)
		d.with(nil, rd, three, "h", 2)
		d.with(batch, rd, three, "i", 1)
		task := d.picks("a2d1h1i1")
		if !slices.Equal(task.lanes(), []*lane{one, three}) || task.suspect {
			d.Fatalf("the batch: %+v", task)
		}
		d.sees("held 10", "lane 1 mark 0 [0 6] busy 1", "a 1 2 runs", "b 1 ready", "c 1 ready", "d 1 runs", "e row 1 ready", "f 1 ready",
			"lane 2 mark 0 [0 1]", "g 1 ready", "lane 3 mark 0 [0 3] busy 1", "h 1 2 runs", "i 1 runs", "turns 2 3 1")
		d.picks("g1b1")
		for n, l := range task.lines {
			d.remove(l, l.items[0])
			if n == 0 {
				d.remove(l, l.items[0])
			}
		}
		d.ends(task)
		d.sees("held 5", "lane 1 mark 0 [0 3] busy 1", "b 1 runs", "c 1 ready", "e row 1 ready", "f 1 ready",
			"lane 2 mark 0 [0 1] busy 1", "g 1 runs", "lane 3 mark 0 [0 1]", "h 2 ready", "turns 3 1")
		for _, name := range []string{"h", "c", "e", "f", ""} {
			d.picks(name)
		}
	})
}

func TestBoardsBatchHasFiftyEntriesAtMost(t *testing.T) {
	onDesk(t, func(d *desk) {
		batch := &trait{batch: true}
		one, two := d.take(1), d.take(2)
		rd := newReading([]*lane{one, two}, "0")
		for s := range int64(60) {
			d.with(batch, rd, one, "a", s+1)
		}
		for s := range int64(20) {
			for _, name := range []string{"b", "c", "e"} {
				d.with(batch, rd, two, name, s+1)
			}
		}
		d.with(batch, rd, one, "d", 1)
		whole := d.picks("a50")
		if len(whole.beside) > 0 {
			d.Error("a lane beside a batch that has no room for it")
		}
		d.picks("b20c20e10")
		d.picks("d1")
		d.picks("")
	})
}

// Where the main reading has lost its lanes, those that lag behind it are read on.
func TestReadingGoesOnWhenTheMainOneHasLostItsLanes(t *testing.T) {
	onDesk(t, func(d *desk) {
		in := d.inbox()
		ahead, behind, gone := d.take(0), d.take(1), d.take(2)
		ahead.position = "5"
		in.reader.target = "5"
		main := in.plan()
		if main == nil || !slices.Equal(main.lanes, []*lane{ahead}) {
			d.Fatalf("the main reading: %+v", main)
		}
		main.until = "6"
		lags := in.lag(main)
		if len(lags) != 1 || len(lags[0].lanes) != 2 || lags[0].until != "6" {
			d.Fatalf("those that lag: %+v", lags)
		}
		d.lose(ahead)
		gone.leaving = true
		next := in.plan()
		if next != lags[0] || !slices.Equal(next.lanes, []*lane{behind}) || len(in.reader.lags) != 0 {
			d.Fatalf("what is read next: %+v", next)
		}
		if in.plan() != next {
			d.Error("another main reading beside it")
		}
		d.lose(behind)
		if next := in.plan(); next != nil {
			d.Errorf("something is read of no lane: %+v", next)
		}
	})
}

// A row that is there because more was read than is held waits until what is before
// it has been read, whatever becomes of its entry meanwhile.
func TestARowWaitsForWhatIsUnreadBeforeIt(t *testing.T) {
	t.Parallel()
	for _, state := range []store.State{store.Completed, store.Discarded, store.Retryable, store.Unknown, store.Dead} {
		t.Run(state.String(), func(t *testing.T) {
			onDesk(t, func(d *desk) {
				in := d.inbox()
				ln := d.take(0)
				ln.catching = true
				rd := newReading([]*lane{ln}, "0")
				rd.until, rd.taken = "1", ln.number
				row := store.Waiting{Place: store.Place{Order: store.Key{'a'}, Sequence: 5}}
				in.adopt(ln, &row, true)
				d.sees("held 0", "lane 0 mark 0", "a row 5 after 4")
				row.State, row.Done = state, state == store.Completed
				in.adopt(ln, &row, false)
				d.sees("held 0", "lane 0 mark 0", "a row 5 after 4")
				in.arrived(rd)
				d.sees("held 0", "lane 0 mark 1", "a row 5 after 4 ready", "turns 0")
			})
		})
	}
}

// A lane that has another holder leaves nothing behind, whatever still runs of it.
func TestBoardForgetsALaneThatIsLost(t *testing.T) {
	onDesk(t, func(d *desk) {
		batch := &trait{batch: true}
		old, other := d.take(1), d.take(2)
		old.doubt, old.suspects = true, 3
		rd := newReading([]*lane{old, other}, "0")
		for _, name := range []string{"a", "b", "c"} {
			d.reads(rd, old, name, 1, 2, 3)
		}
		runs := []*task{d.picks("a")}
		d.picks("")
		old.doubt = false
		d.with(batch, rd, other, "e", 1)
		d.with(batch, rd, old, "d", 1)
		runs = append(runs, d.picks("e1d1"))
		for n, name := range []string{"f", "g", "h", "i"} {
			lineOf(old, name).until = time.Now().Add(time.Duration(n+1) * time.Second)
			d.reads(rd, old, name, 1)
		}
		lineOf(other, "j").until = time.Now().Add(time.Minute)
		d.reads(rd, other, "j", 1)
		d.addGap(lineOf(old, "k"), &gap{sequence: 1}, "effect")
		d.addGap(lineOf(other, "l"), &gap{sequence: 1}, "effect")
		d.schedule(lineOf(old, "k"))
		d.schedule(lineOf(other, "l"))
		d.reads(rd, old, "m", 1)
		lines := sorted(old)
		d.lose(old)
		left := []string{"held 2", "lane 2 mark 0 [0 2] busy 1", "e 1 runs", "j 1 in 1m0s", "l gap 1", "turns 1"}
		d.sees(left...)
		for _, task := range runs {
			d.ends(task)
		}
		for _, l := range lines {
			d.schedule(l)
		}
		d.sees("held 2", "lane 2 mark 0 [0 2]", "e 1 ready", "j 1 in 1m0s", "l gap 1", "turns 1 2")
		if old.busy != 0 {
			d.Errorf("%d tasks of the lost lane", old.busy)
		}
		d.picks("e1")

		next := d.take(1)
		d.lose(old) // once more, which is not the lane of that number any more
		if d.lanes[1] != next || next.ctx.Err() != nil {
			d.Error("the next holder's lane is gone too")
		}
	})
}
