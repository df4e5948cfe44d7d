package analyze

import (
	"fmt"

	"github.com/unavez/unavez/statechart"
)

// structure reports what is odd about the chart itself.
func (b *builder) structure() {
	b.unreachable()
	taken := b.taken()
	b.domains(taken)
	b.failing()
	b.earlyEvents()
	b.deadEnds()
	b.unused(taken)
	b.forbidden()
}

// forbidden: transitions that do nothing, which is what is left of one whose code
// an export lost. A description says that it is meant.
func (b *builder) forbidden() {
	eachTransition(b.definition, func(t *statechart.Transition) {
		if !t.Forbidden || t.Description != "" {
			return
		}
		name := t.Event
		if t.Origin == statechart.FromAlways {
			name = "always"
		}
		f := Finding{
			Rule: "SC009", State: t.Source.ID, Configuration: -1,
			Message: fmt.Sprintf("the transition of %s on %s has neither target nor actions: it forbids the event and does nothing. If it had code in TypeScript, the export lost it: give that code a name", t.Source.ID, name),
		}
		if t.Origin == statechart.FromOn {
			f.Event = t.Event
		}
		f.at(t.At)
		b.add(f, name, t.At.Pointer[len(t.Source.At.Pointer):])
	})
}

// unreachable: states that no configuration holds.
func (b *builder) unreachable() {
	if !b.report.Complete {
		return
	}
	active := map[*statechart.Node]bool{}
	for _, s := range b.states {
		for _, n := range s.snapshot.Active() {
			active[n] = true
		}
	}
	// What a step passes through, or ends in, is reached too.
	b.eachStep(func(s *step) {
		for _, r := range s.ran {
			active[r.Node] = true
		}
		for _, t := range s.taken {
			for _, n := range t.Targets {
				for ; n != nil; n = n.Parent {
					active[n] = true
				}
			}
			active[t.Source] = true
		}
	})
	for _, n := range b.definition.Nodes() {
		if n.Kind == statechart.History || active[n] || n.Parent != nil && !active[n.Parent] {
			continue // the outermost says it
		}
		f := Finding{Rule: "SC001", State: n.ID, Configuration: -1, Message: fmt.Sprintf("no event leads to %s", n.ID)}
		f.at(n.At)
		b.add(f)
	}
}

func (b *builder) eachStep(visit func(*step)) {
	for _, s := range b.initials {
		visit(s)
	}
	for _, s := range b.states {
		for _, steps := range s.out {
			for _, st := range steps {
				visit(st)
			}
		}
	}
}

// taken gives every transition that some step takes, with the first such step.
func (b *builder) taken() map[*statechart.Transition]*step {
	first := map[*statechart.Transition]*step{}
	b.eachStep(func(s *step) {
		for _, t := range s.taken {
			if first[t] == nil {
				first[t] = s
			}
		}
	})
	return first
}

// domains: transitions to the history of an active parent, and those that enter
// every region of a parallel state again.
func (b *builder) domains(taken map[*statechart.Transition]*step) {
	eachTransition(b.definition, func(t *statechart.Transition) {
		s := taken[t]
		if s == nil || s.from == nil {
			return
		}
		f := Finding{State: t.Source.ID, Event: b.letters[s.letter].name, Configuration: s.from.place}
		f.at(t.At)
		for _, n := range t.Targets {
			if n.Kind == statechart.History && s.from.snapshot.In(n.Parent.ID) {
				f.Rule = "SC002"
				f.Message = fmt.Sprintf("a transition of %s leads to the history of %s while that is active: it records and restores in one step", t.Source.ID, n.Parent.ID)
				b.add(f)
				return
			}
		}
		if d := domain(t); d != nil && d.Kind == statechart.Parallel {
			f.Rule = "SC003"
			f.Message = fmt.Sprintf("a transition of %s crosses the regions of %s: all of them are left and entered again, with their actions", t.Source.ID, d.ID)
			b.add(f, t.At.Pointer)
		}
	})
}

// domain is the node inside which a transition exits and enters; nil without
// one.
func domain(t *statechart.Transition) *statechart.Node {
	if len(t.Targets) == 0 {
		return nil
	}
	inside := !t.Reenter
	for _, n := range t.Targets {
		inside = inside && n.In(t.Source)
	}
	if inside {
		return t.Source
	}
	for d := t.Targets[0].Parent; d != nil; d = d.Parent {
		all := t.Source.In(d) && t.Source != d
		for _, n := range t.Targets {
			all = all && n.In(d) && n != d
		}
		if all {
			return d
		}
	}
	return nil
}

func eachTransition(d *statechart.Definition, visit func(*statechart.Transition)) {
	for _, n := range d.Nodes() {
		for _, t := range n.Transitions {
			visit(t)
		}
		for _, t := range n.Always {
			visit(t)
		}
	}
}

// earlyEvents: those that can come before their time without a word about it.
func (b *builder) earlyEvents() {
	told := map[string]bool{}
	for _, e := range b.report.Events {
		if e.Early != "" || e.Kind != "external" {
			continue
		}
		for _, c := range b.report.Cells {
			if c.Event != e.Type || c.Class != Early || told[e.Type] {
				continue
			}
			told[e.Type] = true
			f := Finding{
				Rule: "SC005", Event: e.Type, Configuration: c.Configuration,
				Message: fmt.Sprintf("%s can come early, in %s for one: declare \"early\": {%q: \"defer\"} (it waits), \"reject\" (it is refused) or \"ignore\" (it is dropped)", e.Type, b.report.Configurations[c.Configuration].Label, e.Type),
			}
			f.Pointer, f.Line, f.Column = e.Pointer, e.Line, e.Column
			b.add(f)
		}
	}
}

// deadEnds: configurations without a way on that are not the end.
func (b *builder) deadEnds() {
	told := map[string]bool{}
	for _, s := range b.states {
		if s.done || !s.expanded {
			continue
		}
		moves := false
		for l, steps := range s.out {
			moves = moves || s.open[l]
			for _, st := range steps {
				moves = moves || st.changes
			}
		}
		if moves {
			continue
		}
		active := s.snapshot.Active()
		n := active[len(active)-1]
		if told[n.ID] {
			continue
		}
		told[n.ID] = true
		f := Finding{
			Rule: "SC006", State: n.ID, Configuration: s.place,
			Message: fmt.Sprintf("in %s no event has an effect any more, and the process has not ended", b.report.Configurations[s.place].Label),
		}
		f.at(n.At)
		b.add(f)
	}
}

// unused: transitions that no step takes.
func (b *builder) unused(taken map[*statechart.Transition]*step) {
	if !b.report.Complete {
		return
	}
	reached := map[*statechart.Node]bool{}
	for _, s := range b.states {
		for _, n := range s.snapshot.Active() {
			reached[n] = true
		}
	}
	eachTransition(b.definition, func(t *statechart.Transition) {
		if taken[t] != nil || !reached[t.Source] || t.Forbidden {
			return
		}
		name := t.Event
		if t.Origin == statechart.FromAlways {
			name = "always"
		}
		f := Finding{
			Rule: "SC007", State: t.Source.ID, Configuration: -1,
			Message: fmt.Sprintf("the transition of %s on %s is never taken: another one always comes first", t.Source.ID, name),
		}
		f.at(t.At)
		b.add(f, name, t.At.Pointer[len(t.Source.At.Pointer):])
	})
}
