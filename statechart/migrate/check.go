package migrate

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Finding is one thing that a check found.
type Finding struct {
	// States are the ids of the old active leaves; empty if it is about the whole.
	States []string
	// Text says what, and what to declare.
	Text string
}

// String gives states and text.
func (f Finding) String() string {
	if len(f.States) == 0 {
		return f.Text
	}
	return "in " + strings.Join(f.States, ", ") + ": " + f.Text
}

// Report is the result of a check.
type Report struct {
	// Checked is how many snapshots were looked at.
	Checked int
	// Faults stop a migration: processes in these states could not be taken over.
	Faults []Finding
	// Notes are for a person to look at: states that go, timers that begin or end,
	// eventless transitions that may now be open, kinds of values that differ.
	Notes []Finding
}

// maxFindings bounds each list of a report.
const maxFindings = 500

// Place says where the plan takes a snapshot: the states, history and status
// under the new definition, without context and without doing anything. It is the
// move that analyze.Report.Migrated asks for, and errs where Apply would.
func (m *Migration) Place(s *statechart.Snapshot) (statechart.Parts, error) {
	parts, err := m.structure(s)
	if err != nil {
		return statechart.Parts{}, fmt.Errorf("migrate: %w", err)
	}
	r, err := statechart.Outline(m.new, parts, m.added)
	if err != nil {
		return statechart.Parts{}, fmt.Errorf("migrate: %w", err)
	}
	return r.Snapshot.Parts(), nil
}

// Check applies the structure of the plan to each snapshot: states, history,
// timers, invokes, added states. Guards, actions and the context of the snapshots
// play no part, so snapshots that differ only there need not be given twice. The
// plan's context is computed once, from the old chart's initial context if that
// is constant.
func (m *Migration) Check(reachable iter.Seq[*statechart.Snapshot]) Report {
	c := &checking{m: m, seen: map[string]bool{}, noted: map[string]bool{}}
	for s := range reachable {
		if !c.seen[s.Key()] {
			c.seen[s.Key()] = true
			c.snapshot(s)
		}
	}
	c.report.Checked = len(c.seen)
	c.initialContext()
	return c.report
}

type checking struct {
	m      *Migration
	report Report
	seen   map[string]bool // keys
	noted  map[string]bool // texts of notes
}

func (c *checking) fault(states []string, text string) {
	if len(c.report.Faults) < maxFindings {
		c.report.Faults = append(c.report.Faults, Finding{states, text})
	}
}

// note keeps one note a text: the first states that show it.
func (c *checking) note(states []string, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !c.noted[text] && len(c.report.Notes) < maxFindings {
		c.noted[text] = true
		c.report.Notes = append(c.report.Notes, Finding{states, text})
	}
}

func (c *checking) snapshot(s *statechart.Snapshot) {
	m := c.m
	states := s.Parts().States
	parts, err := m.structure(s)
	if err != nil {
		c.fault(states, err.Error())
		return
	}
	for _, n := range s.Active() {
		if _, ok := m.new.Node(n.ID); !ok {
			c.note(states, "the state %q is gone and processes can be in it; they go to %q", n.ID, m.home(n.ID))
		}
	}
	r, err := statechart.Outline(m.new, parts, m.added)
	if err != nil {
		c.fault(states, err.Error())
		return
	}
	var result Result
	for _, err := range []error{m.moveTimers(s, r.Snapshot, &result), m.moveInvokes(s, r.Snapshot, r.Invoke, &result)} {
		if err != nil {
			c.fault(states, err.Error())
		}
	}
	for _, t := range result.Drop {
		c.note(states, "the timer %q of %q ends", t.Delay, t.State)
	}
	for _, t := range result.Arm {
		c.note(states, "the timer %q of %q begins at the migration", t.Delay, t.State)
	}
	for _, i := range result.Stop {
		c.note(states, "the invoke %q of %q ends: its answer will be dropped", i.ID, i.State)
	}
	c.settled(s, r.Snapshot, states)
}

// settled looks for eventless transitions that the process was not asked about
// before: they may be taken at its next event, whatever that is.
func (c *checking) settled(old, now *statechart.Snapshot, states []string) {
	before := map[string]bool{}
	for _, n := range old.Active() {
		for _, t := range n.Always {
			before[eventless(c.m.home(n.ID), t)] = true
		}
	}
	for _, n := range now.Active() {
		for _, t := range n.Always {
			if !before[eventless(n.ID, t)] {
				c.note(states, "the eventless transition of %q at %s may be taken at the next event of any type", n.ID, t.At)
			}
		}
	}
}

func eventless(state string, t *statechart.Transition) string {
	return state + " " + guard(t.Guard)
}

func guard(g *statechart.Guard) string {
	if g == nil {
		return ""
	}
	s := fmt.Sprint(g.Op, g.Name, "(")
	if g.Params != nil {
		text, _ := json.Marshal(g.Params.Const)
		s += string(text)
	}
	for _, n := range g.States {
		s += n.ID + ","
	}
	for _, a := range g.Args {
		s += guard(a) + ","
	}
	return s + ")"
}

// initialContext computes the plan's context once and compares kinds of values
// with the new chart's initial context.
func (c *checking) initialContext() {
	old := map[string]any{}
	if v := c.m.old.Context(); v != nil {
		constant, ok := v.Const.(map[string]any)
		if !ok {
			c.note(nil, "the old chart computes its initial context; the plan's context was not tried")
			return
		}
		old = constant
	}
	context, err := c.m.context(old)
	if err != nil {
		c.fault(nil, err.Error())
		return
	}
	v := c.m.new.Context()
	if v == nil {
		return
	}
	want, _ := v.Const.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		have, need := kind(context[key]), kind(want[key])
		if have != need && have != "null" && need != "null" {
			c.note(nil, "context: %q would be %s, and is %s in the new chart's initial context", key, have, need)
		}
	}
}

func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case string:
		return "a string"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	return "a number"
}
