package analyze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Parts gives a configuration in the form from which [statechart.Assemble] makes
// a snapshot, so that a plan of migration can be tried on every configuration in
// which a process may stand.
func (c Configuration) Parts() statechart.Parts {
	p := statechart.Parts{States: slices.Clone(c.States), History: c.History}
	if c.Done {
		p.Status = statechart.Done
	}
	return p
}

// key tells configurations apart, in any order of discovery.
func (c Configuration) key() string {
	if c.Done {
		return "done"
	}
	text := strings.Join(c.States, ",")
	for _, id := range sortedKeys(c.History) {
		text += ";" + id + "=" + strings.Join(c.History[id], ",")
	}
	return text
}

// Change is what became worse from one chart to another.
type Change struct {
	// Event by its type.
	Event string `json:"event"`
	// Configuration of the new chart, by its label; "" for the event as a whole.
	Configuration string `json:"configuration,omitempty"`
	// Before and After are its classes, and Message says both.
	Before  Class  `json:"before"`
	After   Class  `json:"after"`
	Message string `json:"message"`
	// Action is set if the class of the event stays and what a second delivery runs
	// is worse: the member that is assigned, or the name. Its classes are beside it;
	// that before is "" if no second delivery ran it.
	Action       string      `json:"action,omitempty"`
	State        string      `json:"state,omitempty"`
	ActionBefore ActionClass `json:"action_before,omitempty"`
	ActionAfter  ActionClass `json:"action_after,omitempty"`
	// Pointer, Line and Column of the place in the new chart; "" and 0 without one.
	Pointer string `json:"pointer,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
}

// Compare tells what a change of a chart makes worse for a process that goes on
// under the new one: an event type whose class sinks; where it does not, an action
// that a second delivery runs and whose class sinks, or that none ran before; and an
// event that could be dropped for ever (LATE) in a configuration and now can act
// there again, so that a mark that was not kept is missed.
//
// Move gives the configuration of the new chart for one of the old, and false if
// there is none; nil keeps the states by their ids.
func Compare(before, after *Report, move func(Configuration) (Configuration, bool)) []Change {
	if move == nil {
		move = func(c Configuration) (Configuration, bool) { return c, true }
	}
	var changes []Change
	was := map[string]Event{}
	for _, e := range before.Events {
		was[e.Type] = e
	}
	for _, e := range after.Events {
		old, ok := was[e.Type]
		if !ok || e.Class.rank() < 0 {
			continue // a new type has no old duplicates
		}
		if e.Class.rank() <= old.Class.rank() {
			changes = append(changes, compareActions(old, e)...)
			continue
		}
		changes = append(changes, Change{
			Event: e.Type, Before: old.Class, After: e.Class,
			Message: fmt.Sprintf("%s was %s and is %s", e.Type, word(old.Class), word(e.Class)),
			Pointer: e.Pointer, Line: e.Line, Column: e.Column,
		})
	}
	now := map[string]int{}
	for _, c := range after.Configurations {
		now[c.key()] = c.Index
	}
	place := map[int]int{} // old configuration to new
	for _, c := range before.Configurations {
		if moved, ok := move(c); ok {
			if i, ok := now[moved.key()]; ok {
				place[c.Index] = i
			}
		}
	}
	events := map[string]Event{}
	for _, e := range after.Events {
		events[e.Type] = e
	}
	cells := map[string]Cell{}
	for _, c := range after.Cells {
		cells[fmt.Sprint(c.Configuration, " ", c.Event)] = c
	}
	for _, old := range before.Cells {
		i, ok := place[old.Configuration]
		if !ok || old.Class != Late {
			continue
		}
		c, ok := cells[fmt.Sprint(i, " ", old.Event)]
		if !ok || c.Class == Late {
			continue
		}
		label := after.Configurations[i].Label
		changes = append(changes, Change{
			Event: old.Event, Configuration: label, Before: Late, After: c.Class,
			Message: fmt.Sprintf("%s could be dropped for ever in %s and can act again: %s", old.Event, label, word(c.Class)),
			Pointer: events[old.Event].Pointer, Line: events[old.Event].Line, Column: events[old.Event].Column,
		})
	}
	return changes
}

// compareActions tells what a second delivery does worse than it did. An action is
// found again by its name and its state; one of another state is compared with the
// worst of its name.
func compareActions(before, after Event) []Change {
	var changes []Change
	for _, now := range after.Again {
		var was ActionClass
		here := false
		for _, old := range before.Again {
			if old.Name != now.Name || here && old.State != now.State {
				continue
			}
			if same := old.State == now.State; same && !here {
				was, here = old.Class, true
			} else if was == "" || old.Class.worse(was) {
				was = old.Class
			}
		}
		if !now.Class.worse(cmp.Or(was, Constant)) {
			continue // what is constant or absorbing is no harm, new or not
		}
		c := Change{
			Event: after.Type, Before: before.Class, After: after.Class,
			Action: now.Name, State: now.State, ActionBefore: was, ActionAfter: now.Class,
			Pointer: now.Pointer, Line: now.Line, Column: now.Column,
			Message: fmt.Sprintf("a duplicate of %s runs %s, which was %s and is %s", after.Type, now.Text, was, now.Class),
		}
		if was == "" {
			c.Message = fmt.Sprintf("a duplicate of %s runs %s, which is %s and was not run before", after.Type, now.Text, now.Class)
		}
		changes = append(changes, c)
	}
	return changes
}

// Against adds what is worse than in an earlier report, as findings of rule
// DUP010. One that the chart declares is a note.
func (r *Report) Against(before *Report) {
	told := map[string]int{} // event with a finding about LATE cells
	for _, c := range Compare(before, r, nil) {
		if c.Configuration != "" {
			if i, ok := told[c.Event]; ok {
				r.Findings[i].Message = c.Event + " could be dropped for ever in several configurations and can act again, in " + c.Configuration + " for one"
				continue
			}
			told[c.Event] = len(r.Findings)
		}
		f := Finding{
			Rule: "DUP010", Level: LevelError, Event: c.Event, Configuration: -1, Message: c.Message, Ways: rule("DUP010").Ways,
			State:       c.State,
			Fingerprint: fingerprint(r.Chart.ID, "DUP010", c.State, c.Event, cmp.Or(c.Action, map[bool]string{true: "late"}[c.Configuration != ""])),
			Pointer:     c.Pointer, Line: c.Line, Column: c.Column,
		}
		for _, e := range r.Events {
			if e.Type == c.Event {
				if d, ok := declarable(e.Declared); ok && e.Class.rank() <= d.rank() {
					f.Level, f.Accepted = LevelNote, true
				}
			}
		}
		r.Findings = append(r.Findings, f)
	}
}
