package statechart

import (
	"errors"
	"maps"
	"slices"
)

func errNotBool() error { return errors.New("the result is not a bool") }

// round takes the selected transitions: a microstep. Domains are computed once,
// from the history before the round. What a history state stands for when it is
// entered counts what this round recorded, and lies inside the same domain.
func (x *step) round() error {
	x.touched = false
	if len(x.selected) == 0 {
		return nil
	}
	x.chosen = x.chosen[:0]
	for _, t := range x.selected {
		x.consider(t)
	}
	copy(x.was, x.active)
	if err := x.exit(); err != nil {
		return err
	}
	for _, c := range x.chosen {
		if x.answer != nil {
			x.taken = append(x.taken, c.t)
		}
		if err := x.run(c.t.Actions, c.t.Source); err != nil {
			return err
		}
	}
	x.toEnter.clear()
	x.byItself.clear()
	for i := range x.chosen {
		// A leaf may lead to itself through a history state, with nothing to exit of
		// its own; if another transition left it meanwhile, it is not entered again.
		if c := &x.chosen[i]; c.domain != c.t.Source || !x.exits.has(c.domain) {
			x.plan(c)
		}
	}
	return x.enter()
}

// consider adds a transition to the chosen ones, unless it conflicts: of two
// transitions whose exit sets meet, the one whose source lies inside the other's
// wins, else the earlier one.
func (x *step) consider(t *Transition) {
	x.targets = x.targets[:0]
	for _, target := range t.Targets {
		x.effective(target)
		x.rejoins = x.rejoins || target.Kind == History && x.active.has(target.Parent)
	}
	c := choice{t, x.domain(t, x.targets)}
	if len(x.selected) > 1 && len(t.Targets) > 0 {
		x.exits.clear()
		x.exitSet(&c, x.exits)
		kept := x.chosen
		for i := range kept {
			if len(kept[i].t.Targets) == 0 {
				continue
			}
			x.scratch.clear()
			x.exitSet(&kept[i], x.scratch)
			if !x.scratch.meets(x.exits) {
				continue
			}
			if t.Source == kept[i].t.Source || !t.Source.In(kept[i].t.Source) {
				return
			}
		}
		x.chosen = slices.DeleteFunc(kept, func(k choice) bool {
			if len(k.t.Targets) == 0 {
				return false
			}
			x.scratch.clear()
			x.exitSet(&k, x.scratch)
			return x.scratch.meets(x.exits)
		})
	}
	x.chosen = append(x.chosen, c)
}

// effective adds a target; a history node stands for what it recorded, else for
// where it falls back to.
func (x *step) effective(target *Node) {
	add := func(n *Node) { x.targets = append(x.targets, n) }
	switch {
	case target.Kind != History:
		add(target)
	case x.history[target.Order] != nil:
		for _, i := range x.history[target.Order] {
			add(x.d.nodes[i])
		}
	case target.Default != nil:
		for _, n := range target.Default.Targets {
			add(n)
		}
	case target.Parent.Kind == Parallel:
		add(target.Parent)
	default:
		add(target.Parent.Initial.Targets[0])
	}
}

// domain is the node inside which a transition happens; nil if it is everything.
func (x *step) domain(t *Transition, targets []*Node) *Node {
	if len(targets) == 0 {
		return t.Source
	}
	if !t.Reenter && !slices.ContainsFunc(targets, func(n *Node) bool { return !n.In(t.Source) }) {
		return t.Source
	}
	for n := targets[0].Parent; n != nil; n = n.Parent {
		inside := func(m *Node) bool { return m != n && m.In(n) }
		if inside(t.Source) && !slices.ContainsFunc(targets, func(m *Node) bool { return !inside(m) }) {
			return n
		}
	}
	if t.Reenter {
		return nil
	}
	return x.d.nodes[0]
}

// exitSet adds the active nodes that a transition leaves.
func (x *step) exitSet(c *choice, to set) {
	if len(c.t.Targets) == 0 {
		return
	}
	from, end := 0, len(x.d.nodes)
	if c.domain != nil {
		from, end = c.domain.Order+1, c.domain.last
	}
	for i := x.active.next(from, end); i >= 0; i = x.active.next(i+1, end) {
		to.add(x.d.nodes[i])
	}
}

// exit records history for the whole exit set, then leaves its nodes in reverse
// document order.
func (x *step) exit() error {
	x.exits.clear()
	for i := range x.chosen {
		x.exitSet(&x.chosen[i], x.exits)
	}
	for i := x.exits.next(0, len(x.d.nodes)); i >= 0; i = x.exits.next(i+1, len(x.d.nodes)) {
		for _, h := range x.d.nodes[i].history {
			x.record(h)
		}
	}
	for i := x.exits.last(len(x.d.nodes)); i >= 0; i = x.exits.last(i) {
		n := x.d.nodes[i]
		if err := x.run(n.Exit, n); err != nil {
			return err
		}
		x.touched = x.touched || len(n.Invokes) > 0
		x.active.remove(n)
	}
	return nil
}

// record keeps what is active below a history node's parent.
func (x *step) record(h *Node) {
	x.touched = true
	var nodes []int
	end := h.Parent.last
	for i := x.active.next(h.Parent.Order+1, end); i >= 0; i = x.active.next(i+1, end) {
		if n := x.d.nodes[i]; h.Deep && len(n.regions) == 0 || !h.Deep && n.Parent == h.Parent {
			nodes = append(nodes, i)
		}
	}
	if slices.Equal(x.history[h.Order], nodes) {
		return
	}
	if !x.ownHistory {
		x.ownHistory = true
		if x.history = maps.Clone(x.history); x.history == nil {
			x.history = map[int][]int{}
		}
	}
	x.history[h.Order] = nodes
	x.changed = true
}

// plan adds what one transition enters.
func (x *step) plan(c *choice) {
	for _, n := range c.t.Targets {
		if n.Kind != History && (n != c.t.Source || c.t.Source != c.domain || c.t.Reenter) {
			x.toEnter.add(n)
			x.byItself.add(n)
		}
		x.descend(n)
	}
	within := c.domain
	if c.t.Source.Parent == nil && c.t.Reenter {
		within = nil
	}
	// The history of a parent that this round left counts as it is now.
	x.targets = x.targets[:0]
	for _, n := range c.t.Targets {
		x.effective(n)
	}
	for _, n := range x.targets {
		x.ascend(n, c.domain, within)
		if c.domain != nil && c.domain.Kind == Parallel {
			x.ancestor(c.domain, within)
		}
	}
}

// descend adds what is entered below a node that is entered.
func (x *step) descend(n *Node) {
	switch n.Kind {
	case History:
		x.descendHistory(n)
	case Compound:
		child := n.Initial.Targets[0]
		x.toEnter.add(child)
		x.byItself.add(child)
		x.descend(child)
	case Parallel:
		for _, c := range n.regions {
			if !x.toEnter.inside(c) {
				x.toEnter.add(c)
				x.byItself.add(c)
				x.descend(c)
			}
		}
	}
}

func (x *step) descendHistory(h *Node) {
	mark := len(x.targets)
	x.effective(h)
	fallback := x.history[h.Order] == nil && h.Default == nil && h.Parent.Kind == Compound
	if fallback {
		x.byItself.add(h.Parent)
	}
	for i := mark; i < len(x.targets); i++ {
		x.toEnter.add(x.targets[i])
		x.descend(x.targets[i])
	}
	for i := mark; i < len(x.targets); i++ {
		x.ascend(x.targets[i], h.Parent, nil)
	}
	x.targets = x.targets[:mark]
}

// ascend adds the nodes between a node and the domain.
func (x *step) ascend(n, domain, within *Node) {
	if n == domain {
		return
	}
	for a := n.Parent; a != nil && a != domain; a = a.Parent {
		x.ancestor(a, within)
	}
}

// ancestor adds a node above a target, and the regions of a parallel one that
// nothing else enters.
func (x *step) ancestor(a, within *Node) {
	if within == nil || a != within && a.In(within) {
		x.toEnter.add(a)
	}
	if a.Kind != Parallel {
		return
	}
	for _, c := range a.regions {
		if !x.toEnter.inside(c) {
			x.toEnter.add(c)
			x.descend(c)
		}
	}
}

// enter enters the planned nodes in document order and queues done events.
func (x *step) enter() error {
	x.finished.clear()
	end := len(x.d.nodes)
	for i := x.toEnter.next(0, end); i >= 0; i = x.toEnter.next(i+1, end) {
		n := x.d.nodes[i]
		x.active.add(n)
		if n.slot >= 0 {
			if !x.ownGenerations {
				x.ownGenerations, x.generations = true, slices.Clone(x.generations)
			}
			x.generations[n.slot]++
			x.entered = append(x.entered, n)
			x.changed = true
		}
		loud := x.silent == nil || !x.silent.has(n)
		if loud {
			if err := x.run(n.Entry, n); err != nil {
				return err
			}
		}
		if err := x.invoke(n); err != nil {
			return err
		}
		if loud && n.Initial != nil && x.byItself.has(n) {
			if err := x.run(n.Initial.Actions, n); err != nil {
				return err
			}
		}
		if n.Kind == Final {
			if err := x.complete(n); err != nil {
				return err
			}
		}
	}
	if !slices.Equal(x.active, x.was) {
		x.touched = true
		if !x.d.legal(x.active) {
			return &Error{Code: CodeIllegal, Text: "the step would leave the legal configurations: " + x.names()}
		}
	}
	if x.status == Done {
		for i := x.active.last(end); i >= 0; i = x.active.last(i) {
			if err := x.run(x.d.nodes[i].Exit, x.d.nodes[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// names lists the active leaves for a message.
func (x *step) names() string {
	var s string
	for i := x.active.next(0, len(x.d.nodes)); i >= 0; i = x.active.next(i+1, len(x.d.nodes)) {
		if len(x.d.nodes[i].regions) == 0 {
			s += " #" + x.d.nodes[i].ID
		}
	}
	return "active would be" + s
}

func (x *step) invoke(n *Node) error {
	for _, inv := range n.Invokes {
		x.touched = true
		if inv.Input == nil || x.answer != nil {
			continue
		}
		input, err := inv.Input.eval(x.scope())
		if err != nil {
			return err
		}
		if x.inputs == nil {
			x.inputs = map[*InvokeDefinition]any{}
		}
		x.inputs[inv] = input
	}
	return nil
}

// complete queues the done events that entering a final node brings, or ends the
// process.
func (x *step) complete(n *Node) error {
	parent := n.Parent
	marker := parent
	if parent.Kind == Compound {
		output, has, err := x.evalOutput(n.Output)
		if err != nil {
			return err
		}
		x.queue = append(x.queue, doneEvent(parent, output, has))
		marker = parent.Parent
	}
	last := marker
	if last == nil {
		last = n
	}
	for marker != nil && marker.Kind == Parallel && !x.finished.has(marker) && x.ended(marker) {
		x.finished.add(marker)
		x.queue = append(x.queue, doneEvent(marker, nil, false))
		last, marker = marker, marker.Parent
	}
	if marker != nil {
		return nil
	}
	x.status, x.changed = Done, true
	root := x.d.nodes[0]
	if root.Output == nil || x.answer != nil {
		return nil
	}
	var output any
	var has bool
	if last.Parent != nil {
		var err error
		if output, has, err = x.evalOutput(last.Output); err != nil {
			return err
		}
	}
	event := doneEvent(last, output, has)
	scope := x.scope()
	scope.Event = event.Data
	result, err := root.Output.eval(scope)
	x.output, x.hasOutput = result, err == nil
	return err
}

func (x *step) evalOutput(v *Value) (output any, has bool, err error) {
	if v == nil || x.answer != nil {
		return nil, false, nil
	}
	output, err = v.eval(x.scope())
	return output, err == nil, err
}

func doneEvent(n *Node, output any, has bool) Event {
	data := map[string]any{"type": n.done}
	if has {
		data["output"] = output
	}
	return Event{Type: n.done, Data: data, source: fromInside}
}

// ended tells whether a region, or every region, is in a final state.
func (x *step) ended(n *Node) bool {
	switch n.Kind {
	case Compound:
		return slices.ContainsFunc(n.regions, func(c *Node) bool { return c.Kind == Final && x.active.has(c) })
	case Parallel:
		return !slices.ContainsFunc(n.regions, func(c *Node) bool { return !x.ended(c) })
	}
	return n.Kind == Final
}
