package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// Plan is what a person declares. In every map "" as the new side drops the old.
type Plan struct {
	// From and To are the hashes of the two definitions. Empty ones are not
	// compared, which is for drafts.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// States by id: old to new. A state that is not named goes to the one with its
	// id. Only what can be active alone needs a home: leaves, and what shallow
	// history records.
	States map[string]string `json:"states,omitempty"`
	// History by the id of the history state.
	History map[string]string `json:"history,omitempty"`
	// Added says how a state of the new chart is entered that no old one leads to, a
	// new region for instance: "silently" or "with-entry".
	Added map[string]string `json:"added,omitempty"`
	// Context sets members of the context: JSON in which {"@expr": …} may stand,
	// which reads the old context. All read it as it was.
	Context map[string]json.RawMessage `json:"context,omitempty"`
	// Remove drops members of the context.
	Remove []string `json:"remove,omitempty"`
	// Timers for those whose delay changes or that are dropped. A timer that is not
	// named goes to the one with its delay in the state that its own went to.
	Timers []TimerMove `json:"timers,omitempty"`
	// Due says what is kept of a timer that goes on: "keep" its due time (the
	// default) or "restart" it with the new delay.
	Due string `json:"due,omitempty"`
	// Invokes by their id.
	Invokes map[string]string `json:"invokes,omitempty"`
}

// TimerMove is one timer's way. Delays are written as in the chart.
type TimerMove struct {
	// State and Delay are the old timer, ToDelay the one in the state that the old
	// one's state goes to; "" drops it.
	State   string `json:"state"`
	Delay   string `json:"delay"`
	ToDelay string `json:"to_delay,omitempty"`
	// Due is that of the plan if it is empty.
	Due string `json:"due,omitempty"`
}

// ParsePlan reads a plan from JSON. An unknown member is an error.
func ParsePlan(text []byte) (Plan, error) {
	var p Plan
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("migrate: plan: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return p, errors.New("migrate: plan: text after the end of the object")
	}
	return p, nil
}

// Migration is a plan whose names were checked. It may be used concurrently.
type Migration struct {
	old, new *statechart.Definition
	plan     Plan
	added    map[string]statechart.Added
	patch    map[string]value
	timers   map[[2]string]TimerMove
}

// New checks a plan against both definitions: every fault at once. Language is
// for Plan.Context; nil if no expression stands in it.
func New(old, new *statechart.Definition, plan Plan, language statechart.Expressions) (*Migration, error) {
	m := &Migration{
		old: old, new: new, plan: plan, added: map[string]statechart.Added{},
		patch: map[string]value{}, timers: map[[2]string]TimerMove{},
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if plan.From != "" && plan.From != old.Hash() {
		fault("from: the plan is for %s, and the old definition is %s", plan.From, old.Hash())
	}
	if plan.To != "" && plan.To != new.Hash() {
		fault("to: the plan is for %s, and the new definition is %s", plan.To, new.Hash())
	}
	if old.ID() != new.ID() {
		fault("the charts are %q and %q: a plan is for two versions of one chart", old.ID(), new.ID())
	}
	names := func(what string, pairs map[string]string, history bool) {
		for _, from := range slices.Sorted(maps.Keys(pairs)) {
			if n, ok := old.Node(from); !ok || (n.Kind == statechart.History) != history {
				fault("%s: the old chart has no such state %q", what, from)
			}
			if to := pairs[from]; to != "" {
				if n, ok := new.Node(to); !ok || (n.Kind == statechart.History) != history {
					fault("%s: the new chart has no such state %q", what, to)
				}
			}
		}
	}
	names("states", plan.States, false)
	names("history", plan.History, true)
	for _, id := range slices.Sorted(maps.Keys(plan.Added)) {
		if n, ok := new.Node(id); !ok || n.Kind == statechart.History {
			fault("added: the new chart has no state %q", id)
		}
		switch plan.Added[id] {
		case "silently":
			m.added[id] = statechart.Silently
		case "with-entry":
			m.added[id] = statechart.WithEntry
		default:
			fault("added: %q is %q, not silently or with-entry", id, plan.Added[id])
		}
	}
	if err := m.readTimers(); err != nil {
		faults = append(faults, err)
	}
	invokes := func(d *statechart.Definition, id string) bool {
		return slices.ContainsFunc(d.Nodes(), func(n *statechart.Node) bool { return invoke(n, id) != nil })
	}
	for _, from := range slices.Sorted(maps.Keys(plan.Invokes)) {
		if !invokes(old, from) {
			fault("invokes: the old chart has no invoke %q", from)
		}
		if to := plan.Invokes[from]; to != "" && !invokes(new, to) {
			fault("invokes: the new chart has no invoke %q", to)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(plan.Context)) {
		v, err := compile(plan.Context[key], language)
		if err != nil {
			fault("context: %q: %w", key, err)
		}
		m.patch[key] = v
		if slices.Contains(plan.Remove, key) {
			fault("remove: %q is set under context as well", key)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("migrate: plan: %w", err)
	}
	return m, nil
}

func (m *Migration) readTimers() error {
	var faults []error
	due := func(word string) {
		if word != "" && word != "keep" && word != "restart" {
			faults = append(faults, fmt.Errorf("due: %q is not keep or restart", word))
		}
	}
	due(m.plan.Due)
	for _, t := range m.plan.Timers {
		due(t.Due)
		n, ok := m.old.Node(t.State)
		if !ok || timer(n, t.Delay) == nil {
			faults = append(faults, fmt.Errorf("timers: the old state %q has no timer %q", t.State, t.Delay))
			continue
		}
		key := [2]string{t.State, t.Delay}
		if _, twice := m.timers[key]; twice {
			faults = append(faults, fmt.Errorf("timers: the timer %q of %q stands twice", t.Delay, t.State))
		}
		m.timers[key] = t
		home := m.home(t.State)
		if to, ok := m.new.Node(home); t.ToDelay != "" && (!ok || timer(to, t.ToDelay) == nil) {
			faults = append(faults, fmt.Errorf("timers: %q goes to %q, which has no timer %q", t.State, home, t.ToDelay))
		}
	}
	return errors.Join(faults...)
}

// home is the id of the new state that an old one goes to, "" for none.
func (m *Migration) home(old string) string {
	if to, named := m.plan.States[old]; named {
		return to
	}
	if n, ok := m.new.Node(old); ok && n.Kind != statechart.History {
		return old
	}
	return ""
}

func timer(n *statechart.Node, delay string) *statechart.TimerDefinition {
	for _, t := range n.Timers {
		if t.Delay == delay {
			return t
		}
	}
	return nil
}

func invoke(n *statechart.Node, id string) *statechart.InvokeDefinition {
	for _, i := range n.Invokes {
		if i.ID == id {
			return i
		}
	}
	return nil
}

// value is JSON in which expressions stand.
type value struct {
	expression statechart.Expression
	text       string
	members    map[string]value
	elements   []value
	constant   any
}

func compile(text json.RawMessage, language statechart.Expressions) (value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return value{}, err
	}
	return build(v, language)
}

func build(v any, language statechart.Expressions) (out value, err error) {
	switch v := v.(type) {
	case map[string]any:
		if text, is := v["@expr"]; is {
			s, ok := text.(string)
			switch {
			case !ok || len(v) > 1:
				return out, errors.New("an expression is {\"@expr\": text} and nothing else")
			case language == nil:
				return out, errors.New("there is no language for expressions")
			}
			out.text = s
			out.expression, err = language.Compile(s, statechart.UseMigration)
			return out, err
		}
		out.members = make(map[string]value, len(v))
		for key, sub := range v {
			if out.members[key], err = build(sub, language); err != nil {
				return out, fmt.Errorf("%s: %w", key, err)
			}
		}
	case []any:
		out.elements = make([]value, len(v))
		for i, sub := range v {
			if out.elements[i], err = build(sub, language); err != nil {
				return out, fmt.Errorf("[%d]: %w", i, err)
			}
		}
	default:
		out.constant = v
	}
	return out, nil
}

func (v *value) eval(scope statechart.Scope) (any, error) {
	switch {
	case v.expression != nil:
		x, err := v.expression.Eval(scope)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(v.text), err)
		}
		return x, nil
	case v.members != nil:
		m := make(map[string]any, len(v.members))
		for key, sub := range v.members {
			x, err := sub.eval(scope)
			if err != nil {
				return nil, err
			}
			m[key] = x
		}
		return m, nil
	case v.elements != nil:
		l := make([]any, len(v.elements))
		for i := range v.elements {
			x, err := v.elements[i].eval(scope)
			if err != nil {
				return nil, err
			}
			l[i] = x
		}
		return l, nil
	}
	return v.constant, nil
}
