package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// ActionClass says what a second run of an action does.
type ActionClass string

// The classes of an action.
const (
	// Constant: it writes what does not depend on anything.
	Constant ActionClass = "constant"
	// Absorbing: run again for the same event, at once or later, it changes nothing.
	Absorbing ActionClass = "absorbing"
	// Overwrite: run again at once it changes nothing; later it can put back an old
	// value.
	Overwrite ActionClass = "overwrite"
	// Accumulating: every run changes something.
	Accumulating ActionClass = "accumulating"
	// Unknown: nobody said. It is taken for accumulating.
	Unknown ActionClass = "unknown"
)

// ActionClasses lists the classes, from harmless to harmful.
func ActionClasses() []ActionClass {
	return []ActionClass{Absorbing, Constant, Overwrite, Accumulating, Unknown}
}

func (c ActionClass) worse(d ActionClass) bool {
	return slices.Index(ActionClasses(), c) > slices.Index(ActionClasses(), d)
}

// writing is one place of the chart that writes a member of the context.
type writing struct {
	node   *statechart.Node
	action *statechart.Action
	at     statechart.Position
	key    string
	term   statechart.Term
}

// effect is what an action that ran did, in the terms of the analysis.
type effect struct {
	action *statechart.Action
	node   *statechart.Node
	key    string // member of the context, "" if it is no assign
	text   string // for people
	class  ActionClass
	// constant is the value that an assignment writes whatever comes; "" if there is
	// no such one.
	constant string
	tokens   []string // what a step that did it has settled for ever, if anything
}

// writers knows who writes what, over the whole chart.
type writers struct {
	options *Options
	all     []writing
	byKey   map[string][]writing
	// anything tells that some action may write any member: a name without code, or
	// a function, of which nothing was declared.
	anything bool
	names    map[string]*statechart.Action // the first use of each named action
	order    []string
	uses     map[string]int
}

func newWriters(d *statechart.Definition, o *Options) *writers {
	w := &writers{options: o, byKey: map[string][]writing{}, names: map[string]*statechart.Action{}, uses: map[string]int{}}
	for _, n := range d.Nodes() {
		eachAction(n, func(a *statechart.Action) {
			switch a.Op {
			case statechart.ActionAssign:
				for _, s := range a.Assigns {
					x := writing{n, a, s.At, s.Key, valueTerm(s.Value)}
					w.all = append(w.all, x)
					w.byKey[s.Key] = append(w.byKey[s.Key], x)
				}
			case statechart.ActionRaise:
			default:
				if w.names[a.Name] == nil {
					w.names[a.Name] = a
					w.order = append(w.order, a.Name)
				}
				w.uses[a.Name]++
				if class, _ := w.named(a); a.Op != statechart.ActionEffect && class == Unknown {
					w.anything = true
				}
			}
		})
	}
	return w
}

// eachAction visits the actions of a node and its transitions.
func eachAction(n *statechart.Node, visit func(*statechart.Action)) {
	lists := [][]*statechart.Action{n.Entry, n.Exit}
	for _, t := range n.Transitions {
		lists = append(lists, t.Actions)
	}
	for _, t := range n.Always {
		lists = append(lists, t.Actions)
	}
	for _, t := range []*statechart.Transition{n.Initial, n.Default} {
		if t != nil {
			lists = append(lists, t.Actions)
		}
	}
	for _, list := range lists {
		for _, a := range list {
			visit(a)
		}
	}
}

// named gives the class of an action by name, and who says so.
func (w *writers) named(a *statechart.Action) (class ActionClass, why string) {
	if c, ok := w.options.Actions[a.Name]; ok {
		return c, "declared"
	}
	switch {
	case a.Op == statechart.ActionFunction && a.Join:
		return Absorbing, "the function is declared a join"
	case a.Op == statechart.ActionFunction:
		return Unknown, "a function: what it writes cannot be seen"
	case a.Op == statechart.ActionEffect && a.Keyed:
		return Absorbing, "the effect is declared to be keyed"
	case a.Op == statechart.ActionEffect:
		return Accumulating, "an effect without a key: it is carried out again"
	default:
		return Unknown, "a name without code"
	}
}

// stable tells that a term gives the same value for both deliveries of an
// event: it reads the event, constants and members that nobody writes.
func (w *writers) stable(t statechart.Term) bool {
	r := reads(t)
	if r.other {
		return false
	}
	for key := range r.context {
		if key == "" || w.anything || len(w.byKey[key]) > 0 {
			return false
		}
	}
	return true
}

// only tells that every writer of a member is a join of this kind.
func (w *writers) only(key, kind string) bool {
	if w.anything {
		return false
	}
	for _, x := range w.byKey[key] {
		if j, ok := joinOf(key, x.term); !ok || j.kind != kind {
			return false
		}
	}
	return true
}

// always tells that every writer of a member writes this constant.
func (w *writers) always(key string, constant statechart.Term) bool {
	if w.anything {
		return false
	}
	for _, x := range w.byKey[key] {
		if shape(x.term) != shape(constant) {
			return false
		}
	}
	return true
}

// class of one assignment. The others are members that the same list assigns.
func (w *writers) class(key string, t statechart.Term, others []string) (class ActionClass, token, why string) {
	r := reads(t)
	if j, ok := joinOf(key, t); ok && w.stable(j.what) {
		if !w.only(key, j.kind) {
			return Overwrite, "", fmt.Sprintf("a join (%s), but %s is also written otherwise", j.kind, key)
		}
		return Absorbing, "join " + j.kind + " " + key + " " + shape(j.what), "a join (" + j.kind + ")"
	}
	switch {
	case r.reads(key):
		return Accumulating, "", "reads " + key + ", which it writes"
	case slices.ContainsFunc(others, func(o string) bool { return o != key && r.reads(o) }):
		return Accumulating, "", "reads what the same list writes"
	case r.other:
		return Unknown, "", "reads what cannot be seen"
	case !r.event && len(r.context) == 0:
		if !w.always(key, t) {
			return Overwrite, "", "a constant, but " + key + " is also written otherwise: late, it puts back an old value"
		}
		return Constant, "const " + key + " " + shape(t), "the only value that is ever written to " + key
	default:
		return Overwrite, "", "writes a value that does not depend on the one before"
	}
}

// written is what a step did to one member of the context.
type written struct {
	place int               // in the list of effects
	terms []statechart.Term // joins, one after the other; or one term
}

// effects gives what the actions of a step do together: assigns are composed in
// order, since a later one reads what an earlier one wrote.
func (w *writers) effects(ran []statechart.Ran, event string) []effect {
	var list []effect
	values := map[string]*written{}
	place := 0
	// An inner event of the same type cannot be told from the one that came.
	sure := !slices.ContainsFunc(ran, func(r statechart.Ran) bool {
		return r.Action.Op == statechart.ActionRaise && r.Action.Raise == event
	})
	for _, r := range ran {
		outer := sure && r.Event == event
		switch r.Action.Op {
		case statechart.ActionRaise:
		case statechart.ActionAssign:
			before := map[string]statechart.Term{}
			for key, v := range values {
				before[key] = v.term(key)
			}
			for _, s := range r.Action.Assigns {
				t := valueTerm(s.Value)
				if !outer {
					t = withoutEvent(t)
				}
				e := effect{action: r.Action, node: r.Node, key: s.Key, text: s.Key + " := " + valueText(s.Value)}
				v := values[s.Key]
				if v == nil {
					values[s.Key] = &written{len(list), []statechart.Term{replaced(t, before)}}
					list = append(list, e)
					continue
				}
				e.text = cutText(list[v.place].text + ", then " + e.text)
				list[v.place] = e
				v.add(s.Key, t, before)
			}
		default:
			e := effect{action: r.Action, node: r.Node, text: r.Action.Name}
			e.class, _ = w.named(r.Action)
			if outer && e.class == Absorbing {
				switch params := valueTerm(r.Action.Params); {
				case r.Action.Op == statechart.ActionEffect:
					e.tokens = []string{fmt.Sprintf("effect %s %d", r.Action.Name, place)} // its key: the event and its place
				case w.stable(params):
					e.tokens = []string{"action " + r.Action.Name + " " + shape(params)}
				}
			}
			if r.Action.Op == statechart.ActionEffect {
				place++
			}
			list = append(list, e)
		}
	}
	keys := sortedKeys(values)
	for _, key := range keys {
		v := values[key]
		e := &list[v.place]
		e.class = Absorbing
		for _, t := range v.terms {
			class, token, _ := w.class(key, t, keys)
			if class.worse(e.class) {
				e.class = class
			}
			if token != "" {
				e.tokens = append(e.tokens, token)
			}
		}
		if r := reads(v.terms[0]); len(v.terms) == 1 && !r.other && !r.event && len(r.context) == 0 {
			e.constant = shape(v.terms[0])
		}
		if len(e.tokens) < len(v.terms) {
			e.tokens = nil
		}
	}
	return list
}

// term is what a member holds now, in terms of the context before the step.
func (v *written) term(key string) statechart.Term {
	if len(v.terms) == 1 {
		return v.terms[0]
	}
	own := statechart.Term{Op: statechart.TermContext, Path: []string{key}}
	return statechart.Term{Op: statechart.TermOpaque, Name: "joins", Args: append([]statechart.Term{own}, v.terms...)}
}

// add composes another write of the member with those before it.
func (v *written) add(key string, t statechart.Term, before map[string]statechart.Term) {
	others := map[string]statechart.Term{}
	for k, b := range before {
		if k != key {
			others[k] = b
		}
	}
	if j, ok := joinOf(key, t); ok {
		same := func(o statechart.Term) bool { k, ok := joinOf(key, o); return ok && k.kind == j.kind }
		if t := replaced(t, others); !slices.ContainsFunc(v.terms, func(o statechart.Term) bool { return !same(o) }) && same(t) {
			if !slices.ContainsFunc(v.terms, func(o statechart.Term) bool { return shape(o) == shape(t) }) {
				v.terms = append(v.terms, t)
			}
			return
		}
	}
	v.terms = []statechart.Term{replaced(t, before)}
}

// cutText keeps a text of many parts readable.
func cutText(s string) string {
	if r := []rune(s); len(r) > 120 {
		return string(r[:119]) + "…"
	}
	return s
}

// valueText shows a value as its author wrote it, as far as that can be said in
// a line.
func valueText(v *statechart.Value) string {
	if v != nil && v.Expression != nil {
		return strings.Join(strings.Fields(v.Text), " ")
	}
	return valueShape(v)
}

func valueShape(v *statechart.Value) string {
	t := valueTerm(v)
	if t.Op == statechart.TermConst {
		return shape(t)
	}
	switch {
	case v.Members != nil:
		var parts []string
		for _, m := range v.Members {
			parts = append(parts, m.Key+": "+valueText(m.Value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		var parts []string
		for _, e := range v.Elements {
			parts = append(parts, valueText(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
}
