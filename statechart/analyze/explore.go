package analyze

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// unnamedType stands for every type that the chart does not name. A wildcard
// "a.*" gets "a." and this.
const unnamedType = "§"

// eventKind says where an event comes from.
type eventKind int

const (
	external eventKind = iota
	wildcard           // a type that only a wildcard matches
	unnamed            // a type that nothing names
	timer
	invokeDone
	invokeError
)

// letter of the alphabet: one event type as the exploration delivers it.
type letter struct {
	kind  eventKind
	name  string           // as shown
	owner *statechart.Node // of a timer or an invoke
	delay string           // of a timer
	id    string           // of an invoke
}

// alphabet lists every type that can make a difference. Three are easy to miss:
// the fresh type of each wildcard, the type that nobody names (a guard of always
// may read it), and the timers, which a wildcard may take.
func alphabet(d *statechart.Definition) []letter {
	var all []letter
	seen := map[string]bool{}
	add := func(l letter) {
		if key := fmt.Sprint(l.kind, l.name); !seen[key] {
			seen[key] = true
			all = append(all, l)
		}
	}
	var wild, inner []letter
	loose := false
	for _, n := range d.Nodes() {
		loose = loose || len(n.Always) > 0
		for _, t := range n.Transitions {
			if t.Origin != statechart.FromOn {
				continue
			}
			switch {
			case t.Event == "*":
				loose = true
			case strings.HasSuffix(t.Event, ".*"):
				wild = append(wild, letter{kind: wildcard, name: strings.TrimSuffix(t.Event, "*") + unnamedType})
			case !strings.HasPrefix(t.Event, "xstate."): // those never come from outside
				add(letter{kind: external, name: t.Event})
			}
		}
		for _, x := range n.Timers {
			inner = append(inner, letter{kind: timer, name: "after " + x.Delay + " in " + n.ID, owner: n, delay: x.Delay})
		}
		for _, x := range n.Invokes {
			inner = append(
				inner,
				letter{kind: invokeDone, name: "done " + x.ID, owner: n, id: x.ID},
				letter{kind: invokeError, name: "error " + x.ID, owner: n, id: x.ID},
			)
		}
	}
	for _, l := range append(wild, inner...) {
		add(l)
	}
	if loose {
		add(letter{kind: unnamed, name: unnamedType})
	}
	return all
}

// event is what the interpreter is given in this snapshot; false if it can do
// nothing there, since a firing for a visit that is over is dropped.
func (l letter) event(s *statechart.Snapshot) (statechart.Event, bool) {
	switch l.kind {
	case timer:
		for _, t := range s.Timers() {
			if t.State == l.owner.ID && t.Delay == l.delay {
				return statechart.TimerEvent(t), true
			}
		}
		return statechart.Event{}, false
	case invokeDone, invokeError:
		for _, i := range s.Invokes() {
			if i.ID != l.id {
				continue
			}
			if l.kind == invokeDone {
				return statechart.DoneEvent(i, nil), true
			}
			return statechart.ErrorEvent(i, nil), true
		}
		return statechart.Event{}, false
	default:
		return statechart.Event{Type: l.name}, true
	}
}

// state is a configuration with its recorded history: where a process can stand,
// as far as the structure of the chart knows.
type state struct {
	place    int // in the order of discovery
	snapshot *statechart.Snapshot
	done     bool
	// rest are answers that every process in this state has in common: guards that
	// read only the context, which no event has changed since.
	rest map[string]bool
	out  [][]*step // by letter
	open []bool    // by letter: there were more answers than the budget
	// expanded is false for a state that the budget left unexplored.
	expanded bool
	queued   bool
}

// step is one way an event can go in a state.
type step struct {
	from, to *state
	letter   int
	answers  []answer
	ran      []statechart.Ran
	taken    []*statechart.Transition
	effects  []effect
	kind     statechart.Kind
	// changes tells that it can change anything at all.
	changes bool
	// restarts tells that it starts or stops timers or invokes, or moves.
	restarts bool
	// leaves are the nodes with timers or invokes whose visit it ends.
	leaves []*statechart.Node
	// settles are tokens that hold for ever once the step was made; absorbed those
	// that make a second run of its actions harmless, if complete; bars those that
	// make the step impossible.
	settles  []string
	absorbed []string
	bars     []string
	complete bool
	sure     bool // needs no guard's answer
}

// answer is one decision of a guard.
type answer struct {
	guard *statechart.Guard
	key   string
	value bool
	rest  string // key of an answer about the context at rest, "" if none
	at    int    // assigns before it
	outer bool   // it saw the event that came
}

// exploration is the graph of all that can happen.
type exploration struct {
	definition *statechart.Definition
	writers    *writers
	letters    []letter
	states     []*state
	byKey      map[string]*state
	initials   []*step // from nil
	steps      int     // runs of the interpreter
	branches   int     // budget of one cell
	maxSteps   int
	maxStates  int
	truncated  string // which budget ended it, "" if none
	failures   map[string]failure
	guards     map[*statechart.Guard]guardTraits
	interned   map[string][]effect
}

// failure is an error of the interpreter that some answers lead to.
type failure struct {
	state  *state
	letter int
	err    error
}

func explore(ctx context.Context, d *statechart.Definition, o *Options) (*exploration, error) {
	x := &exploration{
		definition: d, writers: newWriters(d, o), letters: alphabet(d),
		byKey: map[string]*state{}, failures: map[string]failure{},
		guards: map[*statechart.Guard]guardTraits{}, interned: map[string][]effect{},
		branches: o.MaxAnswers, maxSteps: o.MaxSteps, maxStates: o.MaxConfigurations,
	}
	var queue []*state
	push := func(s *state) {
		if !s.queued {
			s.queued = true
			queue = append(queue, s)
		}
	}
	starts, open := x.run(nil, -1, statechart.Event{}, push)
	if open {
		x.truncated = "answers"
	}
	x.initials = starts
	if len(starts) == 0 && x.truncated == "" {
		for _, f := range x.failures {
			return nil, fmt.Errorf("analyze: the chart cannot start: %w", f.err)
		}
	}
	for len(queue) > 0 && x.truncated == "" {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s := queue[0]
		queue = queue[1:]
		s.queued = false
		if s.done {
			s.expanded = true
			continue
		}
		s.out, s.open = make([][]*step, len(x.letters)), make([]bool, len(x.letters))
		for i, l := range x.letters {
			event, ok := l.event(s.snapshot)
			if !ok {
				continue
			}
			s.out[i], s.open[i] = x.run(s, i, event, push)
			if x.truncated != "" {
				break
			}
		}
		s.expanded = x.truncated == ""
	}
	return x, nil
}

// run takes one event in one state under every list of answers: depth first,
// flipping the last yes.
func (x *exploration) run(from *state, l int, event statechart.Event, push func(*state)) (found []*step, open bool) {
	var snapshot *statechart.Snapshot
	var rest map[string]bool
	if from != nil {
		snapshot, rest = from.snapshot, maps.Clone(from.rest)
	}
	seen := map[string]*step{}
	var prefix []bool
	for branch := 0; ; branch++ {
		if branch >= x.branches {
			open = true
			break
		}
		if x.steps >= x.maxSteps {
			x.truncated = "steps"
			return found, true
		}
		x.steps++
		var asked []answer
		var decided []bool // those that were free, in order
		known := map[string]bool{}
		reaction, err := statechart.Explore(x.definition, snapshot, event, func(q statechart.Question) bool {
			t := x.traits(q.Guard)
			key := t.key
			if !t.contextOnly {
				key += fmt.Sprintf(" m%d", q.Moment)
			}
			if !t.eventOnly {
				key += fmt.Sprintf(" c%d", q.Context)
			}
			value, ok := known[key]
			if !ok && t.contextOnly && q.Context == 0 {
				value, ok = rest[t.key]
			}
			if !ok {
				value = true
				if len(decided) < len(prefix) {
					value = prefix[len(decided)]
				}
				decided = append(decided, value)
				known[key] = value
			}
			a := answer{guard: q.Guard, key: t.key, value: value, at: q.Context, outer: q.Moment == 0}
			if t.contextOnly {
				a.rest = t.key
			}
			if !slices.ContainsFunc(asked, func(b answer) bool { return b.key == a.key && b.at == a.at && b.outer == a.outer }) {
				a.value = value
				asked = append(asked, a)
			}
			return value != t.negated
		})
		if err != nil {
			x.fail(from, l, err)
		} else {
			s := x.step(from, l, reaction, asked, len(decided) == 0)
			to, fresh := x.state(reaction.Snapshot)
			if to == nil {
				x.truncated = "configurations"
				return found, true
			}
			s.to = to
			x.judge(s, event.Type)
			x.arrive(s, fresh, rest, push)
			key := s.key()
			if other, ok := seen[key]; !ok {
				seen[key] = s
				found = append(found, s)
			} else if len(s.answers) < len(other.answers) {
				*other = *s
			}
		}
		for len(decided) > 0 && !decided[len(decided)-1] {
			decided = decided[:len(decided)-1]
		}
		if len(decided) == 0 {
			break
		}
		decided[len(decided)-1] = false
		prefix = decided
	}
	if len(found) == 1 && !open {
		found[0].sure = true // whatever the guards say
	}
	return found, open
}

// state finds or adds the state of a snapshot; nil if the budget is spent.
func (x *exploration) state(s *statechart.Snapshot) (found *state, fresh bool) {
	key := s.Key()
	if s.Status() == statechart.Done {
		key = "done"
	}
	if found, ok := x.byKey[key]; ok {
		return found, false
	}
	if len(x.states) >= x.maxStates {
		return nil, false
	}
	found = &state{place: len(x.states), snapshot: s, done: s.Status() == statechart.Done}
	x.states = append(x.states, found)
	x.byKey[key] = found
	return found, true
}

// step makes a step of what the interpreter did.
func (x *exploration) step(from *state, l int, r statechart.Reaction, asked []answer, sure bool) *step {
	s := &step{from: from, letter: l, answers: asked, ran: r.Ran, taken: r.Taken, kind: r.Kind, sure: sure}
	if from == nil {
		return s
	}
	s.restarts = len(r.Arm)+len(r.Cancel)+len(r.Invoke)+len(r.Stop) > 0
	after := map[string]uint64{}
	for _, t := range r.Snapshot.Timers() {
		after["timer "+t.State] = t.Generation
	}
	for _, i := range r.Snapshot.Invokes() {
		after["invoke "+i.State] = i.Generation
	}
	left := func(kind, id string, generation uint64) {
		if after[kind+id] != generation {
			if n, ok := x.definition.Node(id); ok && !slices.Contains(s.leaves, n) {
				s.leaves = append(s.leaves, n)
			}
		}
	}
	for _, t := range from.snapshot.Timers() {
		left("timer ", t.State, t.Generation)
	}
	for _, i := range from.snapshot.Invokes() {
		left("invoke ", i.State, i.Generation)
	}
	return s
}

// judge works out what a step does and what it settles.
func (x *exploration) judge(s *step, event string) {
	if s.from == nil {
		return
	}
	s.effects = x.effects(s.ran, event)
	s.restarts = s.restarts || s.to != s.from
	s.changes = s.restarts || len(s.effects) > 0
	s.complete = true
	for _, e := range s.effects {
		s.complete = s.complete && len(e.tokens) > 0
		s.absorbed = append(s.absorbed, e.tokens...)
		s.settles = append(s.settles, e.tokens...)
	}
	for _, a := range s.answers {
		if a.guard.Op != statechart.GuardExpression || !a.outer {
			continue
		}
		t := x.traits(a.guard)
		for _, l := range required(t.term, a.value) {
			r := reads(l.term)
			if !r.other && len(r.context) == 0 {
				s.settles = append(s.settles, fmt.Sprint("event ", l.want, " ", shape(l.term)))
				s.bars = append(s.bars, fmt.Sprint("event ", !l.want, " ", shape(l.term)))
			}
			// Once x was inserted into v, which only grows, "x in v" is true for ever.
			if l.term.Op == statechart.TermCall && isIn(l.term.Name) && len(l.term.Args) == 2 && !l.want {
				if v := l.term.Args[1]; v.Op == statechart.TermContext && len(v.Path) == 1 {
					s.bars = append(s.bars, "join insert "+v.Path[0]+" "+shape(l.term.Args[0]))
				}
			}
		}
	}
	sort.Strings(s.settles)
	sort.Strings(s.bars)
}

// effects of what ran, worked out once for each list of actions.
func (x *exploration) effects(ran []statechart.Ran, event string) []effect {
	if len(ran) == 0 {
		return nil
	}
	var b strings.Builder
	for _, r := range ran {
		fmt.Fprintf(&b, "%p %t ", r.Action, r.Event == event)
	}
	b.WriteString(event)
	if found, ok := x.interned[b.String()]; ok {
		return found
	}
	found := x.writers.effects(ran, event)
	x.interned[b.String()] = found
	return found
}

// arrive notes what is known of the context in the state a step leads to: what
// every way there agrees on. A state about which less is known than before is
// explored again.
func (x *exploration) arrive(s *step, fresh bool, rest map[string]bool, push func(*state)) {
	writes := 0
	for _, r := range s.ran {
		if r.Action.Op == statechart.ActionAssign || r.Action.Op == statechart.ActionFunction || r.Action.Op == statechart.ActionUnknown {
			writes++
		}
	}
	known := map[string]bool{}
	if writes == 0 {
		for k, v := range rest {
			known[k] = v
		}
	}
	for _, a := range s.answers {
		if a.rest != "" && a.at == writes {
			known[a.rest] = a.value
		}
	}
	if fresh {
		s.to.rest = known
		push(s.to)
		return
	}
	for k, v := range s.to.rest {
		if w, ok := known[k]; !ok || w != v {
			delete(s.to.rest, k)
			push(s.to)
		}
	}
}

// key tells steps apart that differ in what they do or in what they settle.
func (s *step) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %t", s.to.place, s.restarts)
	for _, r := range s.ran {
		fmt.Fprintf(&b, " %p", r.Action)
	}
	for _, t := range s.taken {
		fmt.Fprintf(&b, " %p", t)
	}
	fmt.Fprint(&b, s.settles, s.bars)
	return b.String()
}

func (x *exploration) fail(from *state, l int, err error) {
	name := "start"
	if l >= 0 {
		name = x.letters[l].name
	}
	if _, ok := x.failures[name]; !ok {
		x.failures[name] = failure{from, l, err}
	}
}

// guardTraits are what a guard's text shows.
type guardTraits struct {
	key         string
	negated     bool // the key is of what stands behind a "!"
	contextOnly bool
	eventOnly   bool
	term        statechart.Term // without the "!"
}

func (x *exploration) traits(g *statechart.Guard) guardTraits {
	if t, ok := x.guards[g]; ok {
		return t
	}
	var t guardTraits
	switch g.Op {
	case statechart.GuardExpression:
		t.term = g.Expression.Term()
		for t.term.Op == statechart.TermCall && t.term.Name == "!_" && len(t.term.Args) == 1 {
			t.term, t.negated = t.term.Args[0], !t.negated
		}
		if t.term.Op == statechart.TermCall && t.term.Name == "_!=_" {
			t.term.Name, t.negated = "_==_", !t.negated
		}
		r := reads(t.term)
		t.key = "expression " + shape(t.term)
		t.contextOnly, t.eventOnly = !r.event && !r.other, len(r.context) == 0 && !r.other
		if r.other { // it may read a clock: nothing makes two answers agree
			t.key = fmt.Sprintf("expression %s %p", g.Name, g)
		}
	default:
		t.key = fmt.Sprintf("name %s %s", g.Name, shape(valueTerm(g.Params)))
		t.contextOnly = g.ContextOnly
	}
	x.guards[g] = t
	return t
}
