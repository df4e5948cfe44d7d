package statechart

import (
	"maps"
	"slices"
	"strings"
)

// step is one macrostep under way. It is scratch of its definition and keeps
// nothing that a Reaction or a Snapshot shares.
type step struct {
	d      *Definition
	before *Snapshot // nil for the first step

	active      set
	history     map[int][]int
	context     map[string]any
	generations []uint64
	status      Status
	output      any
	hasOutput   bool

	ownContext, ownHistory, ownGenerations bool // made in this step and not shown yet
	changed                                bool // something else than active differs from before
	touched                                bool // this round made a new snapshot in XState's sense

	event   Event
	members map[string]any // of event, with its type; nil until asked for
	queue   []Event

	selected []*Transition
	chosen   []choice
	toEnter  set
	byItself set // nodes whose initial actions run
	exits    set
	was      set // active before the round
	finished set // parallel nodes whose done event was queued
	scratch  set
	silent   set // nodes that are entered without their actions; nil for none
	targets  []*Node
	values   []any
	inputs   map[*InvokeDefinition]any
	entered  []*Node // of Definition.generations, in order, repeated if entered again

	effects []EffectCall
	tried   bool // a candidate was refused by its guard
	rejoins bool // a transition led to the history of an active parent

	answer   func(Question) bool // Explore only
	answers  map[asked]bool
	moment   int
	assigned int
	ran      []Ran
	taken    []*Transition
}

// choice is a selected transition with what is computed once for its round.
type choice struct {
	t      *Transition
	domain *Node // nil: everything exits, the root as well
}

type asked struct {
	key             string
	moment, context int
}

// begin prepares a step from a snapshot, or the first one.
func begin(d *Definition, s *Snapshot) *step {
	x, _ := d.scratch.Get().(*step)
	if x == nil {
		words := (len(d.nodes) + 63) / 64
		room := make([]uint64, 7*words)
		cut := func() set {
			s := room[:words:words]
			room = room[words:]
			return s
		}
		x = &step{d: d, active: cut(), toEnter: cut(), byItself: cut(), exits: cut(), was: cut(), finished: cut(), scratch: cut()}
	}
	x.before, x.status = s, Active
	if s == nil {
		x.active.clear()
		return x
	}
	copy(x.active, s.active)
	x.history, x.context, x.generations, x.status = s.history, s.context, s.generations, s.status
	return x
}

// end gives the scratch back without what it points to.
func (x *step) end() {
	clear(x.selected)
	clear(x.chosen)
	clear(x.targets)
	clear(x.values[:cap(x.values)])
	clear(x.queue[:cap(x.queue)])
	clear(x.entered)
	*x = step{
		d: x.d, active: x.active, toEnter: x.toEnter, byItself: x.byItself, exits: x.exits, was: x.was, finished: x.finished, scratch: x.scratch,
		selected: x.selected[:0], chosen: x.chosen[:0], targets: x.targets[:0], values: x.values[:0], queue: x.queue[:0], entered: x.entered[:0],
	}
	x.d.scratch.Put(x)
}

// Start makes the first snapshot of a process. Input is what the initial context
// may read: JSON as in [Scope].
func Start(d *Definition, input any) (Reaction, error) {
	if len(d.unnamed) > 0 {
		return Reaction{}, noCode(d)
	}
	input, err := clean(input)
	if err != nil {
		return Reaction{}, &Error{Code: CodeRefused, Text: "the input is not JSON", Err: err}
	}
	x := begin(d, nil)
	defer x.end()
	x.event = Event{Type: "xstate.init", source: fromInside}
	if input != nil {
		x.event.Data = map[string]any{"type": x.event.Type, "input": input}
	}
	context, err := d.context.eval(Scope{Input: input})
	if err != nil {
		return Reaction{}, err
	}
	x.context, _ = context.(map[string]any)
	return x.start()
}

// Next takes an event. It is pure: the snapshot stays as it is, and the result
// depends on nothing but the arguments. The error is an *[Error]; then nothing
// has happened.
func Next(d *Definition, s *Snapshot, e Event) (Reaction, error) {
	if len(d.unnamed) > 0 {
		return Reaction{}, noCode(d)
	}
	return next(d, s, e, nil)
}

// Explore takes a step as Next does (as Start, if s is nil), but lets answer
// decide the guards and evaluates no expression and no function: assigns leave
// the context as it is, and parameters are nil. It works with definitions loaded
// with Options.NamesOnly. A guard is asked once for each context and event.
// Reaction.Kind is Changed if the active states, the history or the status
// changed or an action ran that is not a raise.
func Explore(d *Definition, s *Snapshot, e Event, answer func(Question) bool) (Reaction, error) {
	if s != nil {
		return next(d, s, e, answer)
	}
	x := begin(d, nil)
	defer x.end()
	x.explore(answer)
	x.event = Event{Type: "xstate.init", source: fromInside}
	return x.start()
}

func (x *step) explore(answer func(Question) bool) {
	x.answer, x.answers = answer, map[asked]bool{}
}

func noCode(d *Definition) error {
	return &Error{Code: CodeNoCode, Text: "the chart was loaded with names only and cannot run; no code for " + strings.Join(d.unnamed, ", ")}
}

func (x *step) start() (Reaction, error) {
	if x.context == nil {
		x.context = map[string]any{}
	}
	x.ownContext = true
	x.generations, x.ownGenerations = make([]uint64, len(x.d.generations)), true
	root := x.d.nodes[0]
	x.was.clear()
	x.toEnter.clear()
	x.byItself.clear()
	x.toEnter.add(root)
	x.byItself.add(root)
	x.descend(root)
	if err := x.enter(); err != nil {
		return Reaction{}, err
	}
	if err := x.settle(); err != nil {
		return Reaction{}, err
	}
	return x.react(Changed), nil
}

func next(d *Definition, s *Snapshot, e Event, answer func(Question) bool) (Reaction, error) {
	if s == nil || s.def != d {
		return Reaction{}, &Error{Code: CodeForeign, Text: "the snapshot was made with another definition"}
	}
	kind, err := admit(d, s, e)
	if err != nil {
		return Reaction{}, err
	}
	if kind != Changed {
		return Reaction{Snapshot: s, Kind: kind}, nil
	}
	data, err := clean(e.Data)
	if err != nil {
		return Reaction{}, &Error{Code: CodeRefused, Text: "the event is not JSON", Err: err}
	}
	e.Data = data.(map[string]any)
	x := begin(d, s)
	defer x.end()
	if answer != nil {
		x.explore(answer)
	}
	x.event = e
	if err := x.choose(x.d.nodes[0]); err != nil {
		return Reaction{}, err
	}
	if e.source == fromInvoke && len(x.selected) == 0 && strings.HasPrefix(e.Type, "xstate.error.") {
		return Reaction{}, &Error{Code: CodeInvokeFailed, Text: "the invoke " + quote(e.owner) + " failed and no transition takes it (onError)"}
	}
	kind = NotHandled
	switch {
	case len(x.selected) == 0 && x.tried:
		kind = GuardFalse
	case len(x.selected) > 0:
		kind = Forbidden
		for _, t := range x.selected {
			if !t.Forbidden {
				kind = NoEffect
			}
		}
	}
	if err := x.round(); err != nil {
		return Reaction{rejoins: x.rejoins}, err
	}
	if err := x.settle(); err != nil {
		return Reaction{rejoins: x.rejoins}, err
	}
	return x.react(kind), nil
}

// admit decides by itself about events that reach no transition: Changed means
// that the event goes on.
func admit(d *Definition, s *Snapshot, e Event) (Kind, error) {
	switch {
	case e.Type == "":
		return 0, &Error{Code: CodeRefused, Text: "the event has no type"}
	case e.source == fromOutside && strings.HasPrefix(e.Type, "xstate."):
		return 0, &Error{Code: CodeRefused, Text: "the event type " + quote(e.Type) + " may not come from outside: xstate. is for timers, invokes and done states"}
	}
	if kind, ok := e.Data["type"]; ok && kind != e.Type {
		return 0, &Error{Code: CodeRefused, Text: "the event's data has another type than the event"}
	}
	if s.status != Active {
		return Ended, nil
	}
	switch e.source {
	case fromTimer:
		n, ok := d.byID[e.owner]
		if !ok || !s.active.has(n) || n.slot < 0 || s.generations[n.slot] != e.generation ||
			!slices.ContainsFunc(n.Timers, func(t *TimerDefinition) bool { return t.Event == e.Type }) {
			return Stale, nil
		}
	case fromInvoke:
		for _, n := range d.generations {
			for _, inv := range n.Invokes {
				if inv.ID == e.owner && s.active.has(n) && s.generations[n.slot] == e.generation {
					return Changed, nil
				}
			}
		}
		return Stale, nil
	}
	return Changed, nil
}

// settle takes rounds until nothing is left to do: eventless transitions first,
// then what was raised, in order.
func (x *step) settle() error {
	eventless := true
	for count := 1; x.status == Active; count++ {
		if count > x.d.limit {
			return &Error{Code: CodeLimit, Text: "the step took more than " + itoa(x.d.limit) + " rounds: eventless transitions or raised events go round in circles"}
		}
		x.selected = x.selected[:0]
		if eventless && x.d.always {
			if err := x.chooseEventless(); err != nil {
				return err
			}
		}
		regular := len(x.selected) == 0
		if regular {
			if len(x.queue) == 0 {
				return nil
			}
			x.event, x.members = x.queue[0], nil
			x.moment++
			x.queue = append(x.queue[:0], x.queue[1:]...)
			if err := x.choose(x.d.nodes[0]); err != nil {
				return err
			}
		}
		if err := x.round(); err != nil {
			return err
		}
		eventless = regular || x.touched
	}
	return nil
}

// scope is what an expression may read now.
func (x *step) scope() Scope {
	if x.members == nil {
		if _, ok := x.event.Data["type"]; ok {
			x.members = x.event.Data
		} else {
			x.members = make(map[string]any, len(x.event.Data)+1)
			maps.Copy(x.members, x.event.Data)
			x.members["type"] = x.event.Type
		}
	}
	return Scope{Context: x.context, Event: x.members}
}

// react makes the result. Kind is what the selection says; what happened since
// counts for more.
func (x *step) react(kind Kind) Reaction {
	r := Reaction{Effects: x.effects, Ran: x.ran, Taken: x.taken, rejoins: x.rejoins}
	s := x.before
	if s == nil || x.changed || !slices.Equal(x.active, s.active) {
		s = &Snapshot{
			def: x.d, active: slices.Clone(x.active), history: x.history, context: x.context, generations: x.generations,
			status: x.status, output: x.output, hasOutput: x.hasOutput, revision: 1,
		}
		if x.before != nil {
			s.revision = x.before.revision + 1
		}
		x.compare(s, &r)
		kind = Changed
	} else if len(x.effects) > 0 {
		next := *s
		next.revision++
		s, kind = &next, Changed
	}
	if x.answer != nil && slices.ContainsFunc(x.ran, func(r Ran) bool { return r.Action.Op != ActionRaise }) {
		kind = Changed
	}
	r.Snapshot, r.Kind = s, kind
	return r
}

// compare finds the timers and invokes that end between two snapshots, in document
// order, and those that begin, in the order in which their nodes were entered.
func (x *step) compare(s *Snapshot, r *Reaction) {
	if x.before != nil {
		for _, n := range x.d.generations {
			old := x.before.generations[n.slot]
			if !x.before.active.has(n) || s.status == Active && s.active.has(n) && s.generations[n.slot] == old {
				continue
			}
			for _, t := range n.Timers {
				r.Cancel = append(r.Cancel, Timer{n.ID, t.Delay, t.After, old})
			}
			for _, inv := range n.Invokes {
				r.Stop = append(r.Stop, Invoke{ID: inv.ID, Source: inv.Source, State: n.ID, Generation: old})
			}
		}
	}
	for i, n := range x.entered {
		if s.status != Active || !s.active.has(n) || slices.Contains(x.entered[i+1:], n) {
			continue
		}
		now := s.generations[n.slot]
		for _, t := range n.Timers {
			r.Arm = append(r.Arm, Timer{n.ID, t.Delay, t.After, now})
		}
		for _, inv := range n.Invokes {
			r.Invoke = append(r.Invoke, Invoke{ID: inv.ID, Source: inv.Source, State: n.ID, Input: x.inputs[inv], Generation: now})
		}
	}
}
