package analyze_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
)

var (
	soundnessSeed   = flag.Uint64("soundness.seed", 0, "seed of the soundness test; 0 takes a random one")
	soundnessChecks = flag.Int("soundness.checks", 0, "late duplicates to replay; 0 means 5,000, with -short 1,000")
)

// The claim of the analysis, against the engine: random charts are run with
// random events, and after every step each event that had its effect before is
// delivered once more, on the side. Nothing that was called protected may act,
// nothing may act at once unless it was called exposed, no sooner than the
// shortest witness says, and no effect may be missing from the table.
func TestNoDuplicateContradictsTheReport(t *testing.T) {
	t.Parallel()
	seed, want := *soundnessSeed, *soundnessChecks
	if seed == 0 {
		seed = rand.Uint64()
	}
	if want == 0 {
		want = 5_000
		if testing.Short() {
			want = 1_000
		}
	}
	t.Logf("seed: -soundness.seed=%d", seed)
	var total tally
	// Until each class was met: a run without one shows nothing about it.
	for i := uint64(0); total.checks < want || !total.all() && total.checks < 20*max(want, 5_000); i++ {
		random := rand.New(rand.NewPCG(seed, i))
		d := &dice{Rand: random}
		text := d.chart()
		c := &trial{t: t, random: random, types: d.types, text: text}
		c.run(&total)
		if t.Failed() {
			t.Fatalf("-soundness.seed=%d, chart %d:\n%s", seed, i, text)
		}
		if i > 1_000_000 {
			t.Fatalf("only %d checks in %d charts", total.checks, i)
		}
	}
	t.Logf("%d charts (%d more over budget, %d refused or failing), %d late duplicates, %d of them acted; on cells %v; events without effect %d",
		total.charts, total.over, total.refused, total.checks, total.acted, total.classes, total.quiet)
	for _, c := range met() {
		if total.classes[c] == 0 {
			t.Errorf("no duplicate met a cell of class %s: the charts show nothing about it", c)
		}
	}
}

type tally struct {
	charts, over, refused, checks, acted, quiet int
	classes                                     map[analyze.Class]int
}

// met are the classes that the duplicates have to meet.
func met() []analyze.Class {
	return []analyze.Class{analyze.Terminal, analyze.Protected, analyze.ProtectedByData, analyze.ProtectedUntilCycle, analyze.Exposed}
}

func (t *tally) all() bool {
	return !slices.ContainsFunc(met(), func(c analyze.Class) bool { return t.classes[c] == 0 })
}

type trial struct {
	t      *testing.T
	random *rand.Rand
	types  []string
	text   []byte
	d      *statechart.Definition
	report *analyze.Report
	cells  map[string]analyze.Cell
	places map[string]int
}

// past is an event that had its effect.
type past struct {
	event statechart.Event
	name  string
	cell  analyze.Cell
	since int // effective steps since
}

func (c *trial) run(total *tally) {
	if total.classes == nil {
		total.classes = map[analyze.Class]int{}
	}
	d, err := statechart.Load(c.text, &statechart.Options{
		Expressions: toy{},
		Actions:     map[string]statechart.ActionFunc{"note": {Kind: statechart.Effect}},
		Invokes:     []string{"job"},
	})
	if err != nil {
		total.refused++
		return
	}
	c.d = d
	report, err := analyze.Analyze(c.t.Context(), d, &analyze.Options{MaxConfigurations: 120, MaxSteps: 10_000, MaxAnswers: 64})
	if err != nil {
		total.refused++ // it cannot start
		return
	}
	if !report.Complete {
		total.over++
		return
	}
	c.report, c.cells, c.places = report, map[string]analyze.Cell{}, map[string]int{}
	for _, cell := range report.Cells {
		c.cells[fmt.Sprint(cell.Configuration, " ", cell.Event)] = cell
	}
	for _, x := range report.Configurations {
		s, err := statechart.Assemble(d, x.Parts())
		if err != nil {
			c.t.Errorf("configuration %d cannot be assembled: %v", x.Index, err)
			return
		}
		key := s.Key()
		if x.Done {
			key = "done"
		}
		c.places[key] = x.Index
	}
	total.charts++
	for range 2 {
		c.walk(total)
	}
}

func (c *trial) place(s *statechart.Snapshot) (int, bool) {
	key := s.Key()
	if s.Status() == statechart.Done {
		key = "done"
	}
	i, ok := c.places[key]
	return i, ok
}

// walk runs one process.
func (c *trial) walk(total *tally) {
	first, err := statechart.Start(c.d, nil)
	if err != nil {
		return
	}
	s := first.Snapshot
	var history []*past
	late := map[string]bool{} // types that were said to be over
	for n := 0; n < 16 && s.Status() == statechart.Active; n++ {
		place, ok := c.place(s)
		if !ok {
			c.t.Errorf("a process stands in %s, which was not found", s.Key())
			return
		}
		for _, p := range history {
			r, err := statechart.Next(c.d, s, p.event)
			if err != nil {
				continue // rolled back
			}
			total.checks++
			total.classes[p.cell.Class]++
			if r.Kind != statechart.Changed {
				continue
			}
			total.acted++
			switch p.cell.Class {
			case analyze.Exposed:
			case analyze.ProtectedUntilCycle:
				if far := len(p.cell.Witness.Steps) - 2; p.since < far {
					c.t.Errorf("%s acts again after %d steps in %s; the shortest witness has %d", p.name, p.since, s.Key(), far)
				}
			default:
				c.t.Errorf("%s was called %s in %s and acts again in %s", p.name, p.cell.Class, c.report.Configurations[p.cell.Configuration].Label, s.Key())
			}
		}
		event, name := c.event(s, n)
		r, err := statechart.Next(c.d, s, event)
		if err != nil {
			continue
		}
		cell, known := c.cells[fmt.Sprint(place, " ", name)]
		if r.Kind != statechart.Changed {
			total.quiet++
			if known && cell.Class == analyze.Late {
				late[name] = true
			}
			continue
		}
		switch {
		case !known, cell.Class == analyze.Late, cell.Class == analyze.Early:
			c.t.Errorf("%s acts in %s; the table says %q", name, s.Key(), cell.Class)
			return
		case late[name]:
			c.t.Errorf("%s was called late and acts in %s", name, s.Key())
			return
		}
		for _, p := range history {
			p.since++
		}
		history = append(history, &past{event: event, name: name, cell: cell})
		s = r.Snapshot
	}
	if s.Status() != statechart.Active {
		for _, p := range history {
			total.checks++
			total.classes[p.cell.Class]++
			if r, err := statechart.Next(c.d, s, p.event); err == nil && r.Kind == statechart.Changed {
				c.t.Errorf("%s acts on a process that has ended", p.name)
			}
		}
	}
}

// event makes the next event, with the name under which the report has it.
func (c *trial) event(s *statechart.Snapshot, n int) (statechart.Event, string) {
	if timers := s.Timers(); len(timers) > 0 && c.random.IntN(4) == 0 {
		t := timers[c.random.IntN(len(timers))]
		return statechart.TimerEvent(t), "after " + t.Delay + " in " + t.State
	}
	if invokes := s.Invokes(); len(invokes) > 0 && c.random.IntN(4) == 0 {
		i := invokes[c.random.IntN(len(invokes))]
		if c.random.IntN(2) == 0 {
			return statechart.DoneEvent(i, "x"), "done " + i.ID
		}
		return statechart.ErrorEvent(i, "x"), "error " + i.ID
	}
	types := append([]string{"x.y", "x.z", "ZZZ", "R1", "x"}, c.types...)
	kind := types[c.random.IntN(len(types))]
	e := statechart.Event{Type: kind, Data: map[string]any{
		"id": fmt.Sprintf("e%d", n), "ok": c.random.IntN(2) == 0, "v": json.Number(fmt.Sprint(c.random.IntN(6))),
	}}
	best := ""
	for _, x := range c.report.Events {
		if x.Type == kind {
			return e, kind
		}
		prefix, wild := strings.CutSuffix(x.Type, "§")
		if wild && (prefix == "" || strings.HasPrefix(kind, prefix) || kind == strings.TrimSuffix(prefix, ".")) && len(x.Type) > len(best) {
			best = x.Type
		}
	}
	return e, best
}
