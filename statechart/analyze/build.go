package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

func newReport(g *graph, o *Options) *Report {
	d := g.definition
	r := &Report{
		Format: Format, Profile: statechart.Profile,
		Chart: Chart{ID: d.ID(), Version: d.Version(), Hash: d.Hash(), File: o.File, NamesOnly: len(d.Unnamed()) > 0},
		Budget: Budget{
			Configurations: len(g.states), Steps: g.steps, Exceeded: g.truncated,
		},
		Complete: g.truncated == "",
		Events:   []Event{}, Cells: []Cell{}, Transitions: []Transition{}, Actions: g.writers.report(), Findings: []Finding{},
	}
	for _, n := range d.Root().Children {
		if n.Kind == statechart.Final {
			r.Chart.Final = append(r.Chart.Final, n.ID)
		}
	}
	for _, s := range g.states {
		r.Configurations = append(r.Configurations, configuration(s))
		if slices.Contains(s.open, true) {
			r.Complete = false
			if r.Budget.Exceeded == "" {
				r.Budget.Exceeded = "answers"
			}
		}
	}
	tellApart(r.Configurations)
	b := &builder{graph: g, report: r, firsts: map[int][]verdict{}}
	for i := range g.letters {
		b.event(i)
	}
	b.findings()
	return r
}

func configuration(s *state) Configuration {
	c := Configuration{Index: s.place, Done: s.done, Explored: s.expanded, States: []string{}}
	active := s.snapshot.Active()
	for _, n := range active {
		if !slices.ContainsFunc(active, func(m *statechart.Node) bool { return m.Parent == n }) {
			c.States = append(c.States, n.ID)
		}
	}
	if h := s.snapshot.History(); len(h) > 0 {
		c.History = h
	}
	c.Label = label(s.snapshot.Definition().Root(), active)
	if s.done {
		c.Label = "done"
	}
	return c
}

// label writes a configuration as a path: paid.capturing, or paid{pay: due, ship: new}.
func label(n *statechart.Node, active []*statechart.Node) string {
	var inner []string
	for _, c := range n.Children {
		if !slices.Contains(active, c) {
			continue
		}
		text := c.Key
		if n.Kind == statechart.Parallel {
			if rest := label(c, active); rest != "" {
				text += ": " + rest
			}
		} else if rest := label(c, active); strings.HasPrefix(rest, "{") {
			text += rest
		} else if rest != "" {
			text += "." + rest
		}
		inner = append(inner, text)
	}
	if n.Kind == statechart.Parallel {
		return "{" + strings.Join(inner, ", ") + "}"
	}
	if len(inner) == 0 && n.Parent == nil {
		return n.Key
	}
	return strings.Join(inner, "")
}

// tellApart adds the history to labels that would be the same.
func tellApart(all []Configuration) {
	count := map[string]int{}
	for _, c := range all {
		count[c.Label]++
	}
	seen := map[string]int{}
	for i := range all {
		c := &all[i]
		if count[c.Label] < 2 {
			continue
		}
		text := c.Label
		for _, id := range sortedKeys(c.History) {
			var keys []string
			for _, s := range c.History[id] {
				keys = append(keys, s[strings.LastIndexByte(s, '.')+1:])
			}
			text += " [" + id[strings.LastIndexByte(id, '.')+1:] + "=" + strings.Join(keys, "+") + "]"
		}
		seen[text]++
		if n := seen[text]; n > 1 {
			text += fmt.Sprintf(" #%d", n)
		}
		c.Label = text
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (k eventKind) String() string {
	return [...]string{"external", "wildcard", "unnamed", "timer", "invoke-done", "invoke-error"}[k]
}

// report lists the actions: assignments by place, the others by name.
func (w *writers) report() []Action {
	list := []Action{}
	for _, x := range w.all {
		var others []string
		for _, s := range x.action.Assigns {
			others = append(others, s.Key)
		}
		class, _, why := w.class(x.key, x.term, others)
		list = append(list, Action{
			Name: x.key, Kind: "assign", Text: x.key + " := " + w.textAt(x), Class: class, Why: why,
			State: x.node.ID, Line: x.at.Line, Column: x.at.Column, Uses: 1,
		})
	}
	for _, name := range w.order {
		a := w.names[name]
		class, why := w.named(a)
		kind := "name"
		switch a.Op {
		case statechart.ActionFunction:
			kind = "function"
		case statechart.ActionEffect:
			kind = "effect"
		}
		list = append(list, Action{
			Name: name, Kind: kind, Text: name, Class: class, Why: why,
			Line: a.At.Line, Column: a.At.Column, Uses: w.uses[name],
		})
	}
	return list
}

func (w *writers) textAt(x writing) string {
	for _, s := range x.action.Assigns {
		if s.Key == x.key {
			return valueText(s.Value)
		}
	}
	return ""
}

// builder fills a report.
type builder struct {
	*graph
	report *Report
	groups []*group
	firsts map[int][]verdict // by letter: the first deliveries after which a second one can act
}

// event makes the cells of one letter and its class.
func (b *builder) event(letter int) {
	l := b.letters[letter]
	e := Event{Type: l.name, Kind: l.kind.String(), Class: NoEffect, Worst: -1, Again: []Repeat{}}
	e.Declared, e.Early = b.declared(l)
	var worst verdict
	var cells []Cell
	for _, s := range b.states {
		if s.done || s.out == nil {
			continue
		}
		if l.owner != nil {
			if _, ok := l.event(s.snapshot); !ok {
				continue
			}
		}
		c := Cell{Configuration: s.place, Event: l.name}
		var cell verdict
		for _, st := range s.out[letter] {
			if !st.changes {
				continue
			}
			if !slices.Contains(c.To, st.to.place) {
				c.To = append(c.To, st.to.place)
			}
			if len(st.taken) > 0 && e.Line == 0 {
				at := st.taken[0].At
				e.Pointer, e.Line, e.Column = at.Pointer, at.Line, at.Column
			}
			v := b.verdict(st)
			b.group(v)
			b.mark(v)
			if cell.first == nil || v.worse(cell) {
				cell = v
			}
		}
		if s.open[letter] && (cell.first == nil || cell.class.rank() < Undecided.rank()) {
			cell = verdict{class: Undecided, first: cell.first}
		}
		if cell.first == nil && cell.class == "" {
			c.Class = b.quiet(s, letter)
			cells = append(cells, c)
			continue
		}
		cell = cell.witnessedIf()
		c.Class = cell.class
		if cell.first != nil {
			c.Certainty = cell.certainty()
			c.Witness = b.witness(cell)
			if cell.class == ProtectedByData {
				c.By = b.by(cell)
			}
		}
		cells = append(cells, c)
		if worst.first == nil && worst.class == "" || cell.worseClass(worst) {
			worst = cell
			e.Class, e.Certainty, e.Worst = cell.class, c.Certainty, s.place
		}
	}
	if !b.report.Complete && e.Class != Exposed {
		// What the budget left out may be worse.
		e.Class, e.Certainty = Undecided, ""
	}
	if e.Class == NoEffect && l.kind != external {
		return // nothing to say about a type that nobody sends
	}
	b.report.Events = append(b.report.Events, e)
	b.report.Cells = append(b.report.Cells, cells...)
}

// by tells what makes a second delivery harmless.
func (b *builder) by(v verdict) []string {
	need := b.needed(v.first.letter)
	var list []string
	for _, token := range v.first.settles {
		if !need[token] {
			continue
		}
		parts := strings.SplitN(token, " ", 4)
		text := token
		switch parts[0] {
		case "join":
			what := strings.ReplaceAll(parts[3], "\"", "")
			if parts[1] == "insert" {
				text = "set " + parts[2] + " has " + what
			} else {
				text = parts[2] + " is joined (" + parts[1] + ") with " + what
			}
		case "const":
			text = parts[1] + " is only ever set to this"
		case "event":
			text = "a guard reads the event only, and answers a duplicate as it did the first"
		case "effect", "action":
			text = parts[1] + " is absorbing"
		}
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// mark keeps the worst class of each transition.
func (b *builder) mark(v verdict) {
	if len(v.first.taken) == 0 {
		return
	}
	at := v.first.taken[0].At
	for i := range b.report.Transitions {
		t := &b.report.Transitions[i]
		if t.Pointer == at.Pointer {
			if v.class.rank() > t.Class.rank() {
				t.Class = v.class
			}
			return
		}
	}
	b.report.Transitions = append(b.report.Transitions, Transition{at.Pointer, at.Line, at.Column, v.class})
}

func (v verdict) witnessedIf() verdict {
	if v.first == nil || v.class == Undecided {
		return v
	}
	return v.witnessed()
}

func (v verdict) worseClass(w verdict) bool {
	if v.first == nil || w.first == nil {
		return v.class.rank() > w.class.rank()
	}
	return v.worse(w)
}

func (v verdict) certainty() Certainty {
	if v.class == Undecided {
		return ""
	}
	if v.must() {
		return Must
	}
	return May
}

// witness tells the way of a verdict that has a second effect.
func (b *builder) witness(v verdict) *Witness {
	if v.again == nil {
		return nil
	}
	w := &Witness{Again: []Again{}}
	for _, s := range append(append([]*step{v.first}, v.way...), v.again) {
		w.Steps = append(w.Steps, b.stepOf(s))
	}
	for _, e := range v.again.effects {
		w.Again = append(w.Again, Again{Action: e.text, Class: e.class, State: e.node.ID, Role: role(e)})
	}
	return w
}

func (b *builder) stepOf(s *step) Step {
	out := Step{Event: b.letters[s.letter].name, From: s.from.place, To: s.to.place}
	if !s.sure {
		for _, a := range s.answers {
			x := Answer{Guard: guardText(a.guard), Is: a.value != b.traits(a.guard).negated}
			if !slices.Contains(out.Answers, x) {
				out.Answers = append(out.Answers, x)
			}
		}
	}
	if len(s.taken) > 0 {
		at := s.taken[0].At
		out.Pointer, out.Line, out.Column = at.Pointer, at.Line, at.Column
	}
	return out
}

func guardText(g *statechart.Guard) string {
	text := strings.Join(strings.Fields(g.Name), " ")
	if g.Params != nil {
		text += "(" + valueText(g.Params) + ")"
	}
	return text
}

func role(e effect) string {
	switch {
	case slices.Contains(e.node.Entry, e.action):
		return "entry"
	case slices.Contains(e.node.Exit, e.action):
		return "exit"
	default:
		return "transition"
	}
}

// declared finds what the chart says about an event type. A wildcard's type is
// written as the wildcard.
func (b *builder) declared(l letter) (duplicates, early string) {
	find := func(list []statechart.Declared) string {
		for _, d := range list {
			if d.Event == l.name || strings.TrimSuffix(l.name, unnamedType)+"*" == d.Event && l.kind != external {
				return d.Word
			}
		}
		return ""
	}
	return find(b.definition.Duplicates()), find(b.definition.Early())
}
