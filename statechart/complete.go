package statechart

import "slices"

// Added says how a state is entered that a process was never in.
type Added uint8

// The ways to enter an added state. Its timers and invokes start either way: a
// process without them would wait for ever.
const (
	// Silently: its entry actions, and those of the states below it, do not run.
	Silently Added = iota + 1
	// WithEntry: they run, as do eventless transitions afterwards.
	WithEntry
)

// Complete makes a snapshot from parts that lack states which the definition has
// gained: regions of an active parallel state, or everything below an active
// state that had no states before. They are entered by default, each as added says
// by its id; one that added does not name is an error. The Reaction has the
// effects, timers and invokes of the added states only. Package migrate uses it.
func Complete(d *Definition, p Parts, added map[string]Added) (Reaction, error) {
	if len(d.unnamed) > 0 {
		return Reaction{}, noCode(d)
	}
	return complete(d, p, added, false)
}

// Outline is Complete without any code: no expression is computed, no action runs
// and no transition is taken. It tells whether the parts fit, and which timers and
// invokes would start; it works with definitions loaded with Options.NamesOnly.
func Outline(d *Definition, p Parts, added map[string]Added) (Reaction, error) {
	return complete(d, p, added, true)
}

func complete(d *Definition, p Parts, added map[string]Added, outline bool) (Reaction, error) {
	s, err := assemble(d, p)
	if err != nil {
		return Reaction{}, err
	}
	x := begin(d, s)
	defer x.end()
	x.event = Event{Type: "xstate.init", source: fromInside}
	if outline {
		x.explore(func(Question) bool { return false })
	}
	if err := x.missing(added); err != nil {
		return Reaction{}, err
	}
	if x.toEnter.next(0, len(d.nodes)) < 0 {
		if err := s.check(); err != nil {
			return Reaction{}, err
		}
		return Reaction{Snapshot: s, Kind: NoEffect}, nil
	}
	copy(x.was, x.active)
	if err := x.enter(); err != nil {
		return Reaction{}, err
	}
	if slices.Contains(collect(added), WithEntry) {
		if !outline {
			err = x.settle()
		}
	} else if len(x.queue) > 0 || x.status == Done {
		err = &Error{Code: CodeIllegal, Text: "a state that is entered silently would end its parent at once"}
	}
	if err != nil {
		return Reaction{}, err
	}
	r := x.react(Changed)
	r.Snapshot.revision = s.revision
	if outline && r.Snapshot.status == Done { // reached on the way, not given
		return r, nil
	}
	if err := r.Snapshot.check(); err != nil {
		return Reaction{}, err
	}
	return r, nil
}

func collect(added map[string]Added) []Added {
	var ways []Added
	for _, way := range added {
		ways = append(ways, way)
	}
	return ways
}

// missing plans the entry of what active nodes lack.
func (x *step) missing(added map[string]Added) error {
	x.toEnter.clear()
	x.byItself.clear()
	x.silent = make(set, len(x.active))
	for i := x.active.next(0, len(x.d.nodes)); i >= 0; i = x.active.next(i+1, len(x.d.nodes)) {
		n := x.d.nodes[i]
		var lacking []*Node
		switch {
		case n.Kind == Parallel:
			for _, c := range n.regions {
				if !x.active.has(c) {
					lacking = append(lacking, c)
				}
			}
		case n.Kind == Compound && !x.active.inside(n):
			lacking = n.Initial.Targets
		}
		for _, c := range lacking {
			way := added[c.ID]
			if way != Silently && way != WithEntry {
				return &Error{Code: CodeIllegal, At: c.At, Text: "nothing leads to the state " + quote("#"+c.ID) + ", and the plan does not say how it is added"}
			}
			x.toEnter.add(c)
			x.byItself.add(c)
			x.descend(c)
			for _, inside := range x.d.nodes[c.Order:c.last] {
				if way == Silently {
					x.silent.add(inside)
				}
			}
		}
	}
	return nil
}
