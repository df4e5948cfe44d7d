package statechart

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// loader reads one chart. It goes on after a fault, so that all are found.
type loader struct {
	def    *Definition
	o      Options
	places *places
	faults []Fault

	raw       []*tree // of def.nodes
	language  string  // @exprLang
	expressed bool    // an expression was met
	invokes   map[string]bool
	unnamed   map[string]bool
	compiled  map[expressionUse]compiled
	used      functions
	depth     int // of the value that is read
}

// expressionUse and compiled keep what a text became: charts repeat themselves.
type expressionUse struct {
	text string
	use  Use
}

type compiled struct {
	expression Expression
	err        error
}

// functions are the names in use, for the hash.
type functions struct {
	guards  map[string]bool
	actions map[string]bool
}

// Load checks the text of a chart and makes a definition of it. What is wrong
// with the text is a *[Faults] with every fault, line and column; what is wrong
// with the options is a plain error.
func Load(text []byte, o *Options) (*Definition, error) {
	l := &loader{def: &Definition{byID: map[string]*Node{}}, invokes: map[string]bool{}, unnamed: map[string]bool{}, compiled: map[expressionUse]compiled{}}
	l.used = functions{map[string]bool{}, map[string]bool{}}
	if o != nil {
		l.o = *o
	}
	if err := l.options(); err != nil {
		return nil, err
	}
	if len(text) > l.o.MaxBytes {
		return nil, &Faults{List: []Fault{{
			At:   Position{Line: 1, Column: 1},
			Text: fmt.Sprintf("the chart has %d bytes, more than %d (Options.MaxBytes)", len(text), l.o.MaxBytes),
		}}}
	}
	l.places = newPlaces(text)
	p := &parser{text: text, twice: func(_ *tree, m *member) { l.memberFault(m, "member %s stands twice", quote(m.key)) }}
	root, err := p.document()
	if bad, ok := errors.AsType[*jsonError](err); ok {
		line, column := l.places.at(bad.offset)
		l.faults = append(l.faults, Fault{Position{Line: line, Column: column, Offset: bad.offset}, bad.text})
		return nil, l.err()
	}
	if root.kind != '{' {
		l.fault(root, "a chart is an object, not %s", root.what())
		return nil, l.err()
	}
	if exported(root) {
		l.fault(root, "this is what a machine of XState became (machine.definition, machine.toJSON() or JSON.stringify(machine)), not its configuration: export machine.config, which scripts/print-machine.mjs prints")
		return nil, l.err()
	}
	l.machine(root)
	if err := l.err(); err != nil {
		return nil, err
	}
	l.finish()
	return l.def, nil
}

// exported tells a machine's definition from its configuration, by members that no
// configuration has.
func exported(root *tree) bool {
	for _, key := range []string{"key", "order", "transitions"} {
		if root.member(key) == nil {
			return false
		}
	}
	return true
}

func (l *loader) options() error {
	for _, limit := range []struct {
		name  string
		value *int
		whole int
	}{{"MaxBytes", &l.o.MaxBytes, 1 << 20}, {"MaxStates", &l.o.MaxStates, 1000}, {"MaxRounds", &l.o.MaxRounds, 100}} {
		if *limit.value < 0 {
			return fmt.Errorf("statechart: Options.%s is negative", limit.name)
		}
		if *limit.value == 0 {
			*limit.value = limit.whole
		}
	}
	var wrong []error
	for name, f := range l.o.Guards {
		if reserved(name, guardWords()) {
			wrong = append(wrong, fmt.Errorf("Options.Guards: %q is a built-in name", name))
		} else if f.Test == nil {
			wrong = append(wrong, fmt.Errorf("Options.Guards: %q has no Test", name))
		}
	}
	for name, f := range l.o.Actions {
		switch {
		case reserved(name, actionWords()):
			wrong = append(wrong, fmt.Errorf("Options.Actions: %q is a built-in name", name))
		case f.Kind < Pure || f.Kind > Effect:
			wrong = append(wrong, fmt.Errorf("Options.Actions: %q has no Kind: Pure, Join or Effect", name))
		case f.Kind == Effect && f.Patch != nil:
			wrong = append(wrong, fmt.Errorf("Options.Actions: %q is an Effect with a Patch; a step runs no effect", name))
		case f.Kind != Effect && f.Patch == nil:
			wrong = append(wrong, fmt.Errorf("Options.Actions: %q has no Patch", name))
		case f.Kind != Effect && f.Keyed:
			wrong = append(wrong, fmt.Errorf("Options.Actions: %q is Keyed, which only an Effect can be", name))
		}
	}
	for name, delay := range l.o.Delays {
		if _, err := strconv.ParseFloat(name, 64); err == nil || name == "" {
			wrong = append(wrong, fmt.Errorf("Options.Delays: %q is not a name", name))
		} else if delay < 0 {
			wrong = append(wrong, fmt.Errorf("Options.Delays: %q is negative", name))
		}
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("statechart: %w", err)
	}
	return nil
}

// machine reads the whole chart below its root.
func (l *loader) machine(root *tree) {
	d := l.def
	d.id = "(machine)"
	d.limit = l.o.MaxRounds
	if t := root.member("id"); t != nil {
		if d.id = l.word(t, "an id"); d.id == "" {
			d.id = "(machine)"
		}
	}
	if t := root.member("version"); t != nil {
		d.version = l.word(t, "a version")
	}
	if t := root.member("@exprLang"); t != nil {
		l.language = l.word(t, "a language")
		l.speaks(t, l.language)
	}
	l.node(root, nil, d.id, true)
	if len(d.nodes) > l.o.MaxStates {
		l.fault(root, "the chart has more than %d states (Options.MaxStates)", l.o.MaxStates)
		return
	}
	for i, n := range d.nodes {
		l.parts(n, l.raw[i])
	}
	if t := root.member("context"); t != nil {
		if t.kind != '{' {
			l.fault(t, "context must be an object, not %s", t.what())
		} else {
			d.context = l.template(t, UseInput)
		}
	}
	d.duplicates = l.declared(root, "duplicates", nil)
	d.early = l.declared(root, "early", []string{"defer", "reject", "ignore"})
	if t := root.member("options"); t != nil {
		l.limits(t)
	}
}

func (l *loader) limits(t *tree) {
	if t.kind != '{' {
		l.fault(t, "options must be an object, not %s", t.what())
		return
	}
	for i := range t.members {
		m := &t.members[i]
		if m.key != "maxIterations" {
			l.memberFault(m, "options has no member %s; it may have maxIterations", quote(m.key))
			continue
		}
		n, err := strconv.Atoi(m.value.text)
		if m.value.kind != '0' || err != nil || n < 1 || n > 10_000 {
			l.fault(m.value, "maxIterations must be a whole number from 1 to 10000")
			continue
		}
		l.def.limit, l.def.stated = n, true
	}
}

// word reads a string that is not empty.
func (l *loader) word(t *tree, what string) string {
	if t.kind != '"' {
		l.fault(t, "%s must be a string, not %s", what, t.what())
		return ""
	}
	if t.text == "" {
		l.fault(t, "%s must not be empty", what)
	}
	return t.text
}

func (l *loader) declared(root *tree, key string, words []string) []Declared {
	t := root.member(key)
	if t == nil {
		return nil
	}
	if t.kind != '{' {
		l.fault(t, "%s must be an object of event types, not %s", key, t.what())
		return nil
	}
	var all []Declared
	for i := range t.members {
		m := &t.members[i]
		word := l.word(m.value, key+" of "+quote(m.key))
		if words != nil && word != "" && !slices.Contains(words, word) {
			l.fault(m.value, "%s is not one of %s", quote(word), strings.Join(words, ", "))
		}
		all = append(all, Declared{m.key, word, l.position(m.value)})
	}
	return all
}

func nodeMembers() []string {
	return []string{
		"id", "type", "initial", "states", "on", "always", "after", "onDone", "entry", "exit", "invoke", "tags",
		"meta", "description", "history", "target", "output",
	}
}

func rootMembers() []string {
	return []string{"version", "context", "options", "@exprLang", "$schema", "duplicates", "early"}
}

func historyMembers() []string {
	return []string{"id", "type", "history", "target", "meta", "description", "tags"}
}

// formerMember says what XState 5 has in the place of a member of version 4.
func formerMember(key string) string {
	switch key {
	case "cond":
		return "guard"
	case "internal":
		return "reenter, the other way round"
	case "onEntry":
		return "entry"
	case "onExit":
		return "exit"
	case "activities":
		return "invoke"
	case "data":
		return "output"
	case "in":
		return "a stateIn guard"
	case "strict":
		return "nothing: an unknown event is no error"
	}
	return ""
}

// members checks the names of an object's members.
func (l *loader) members(t *tree, of string, allowed ...[]string) {
next:
	for i := range t.members {
		m := &t.members[i]
		for _, names := range allowed {
			if slices.Contains(names, m.key) {
				continue next
			}
		}
		if now := formerMember(m.key); now != "" {
			l.memberFault(m, "%s has no member %s; in XState 5 it is %s", of, quote(m.key), now)
		} else if near := nearest(m.key, allowed); near != "" {
			l.memberFault(m, "%s has no member %s; is %s meant?", of, quote(m.key), quote(near))
		} else {
			l.memberFault(m, "%s has no member %s", of, quote(m.key))
		}
	}
}

// nearest finds a name that differs in case or in one or two letters.
func nearest(word string, allowed [][]string) string {
	best, distance := "", 3
	for _, names := range allowed {
		for _, name := range names {
			if d := edits(word, name); d < distance && d*2 <= len(name) {
				best, distance = name, d
			}
		}
	}
	return best
}

func edits(a, b string) int {
	if len(a) > 24 || len(b) > 24 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i]|0x20 == b[j]|0x20 {
				cost = 0
			}
			left, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, left+cost)
		}
	}
	return row[len(b)]
}

// node makes a node and those below it. What refers to other nodes is read by
// parts, when all are known.
func (l *loader) node(t *tree, parent *Node, key string, root bool) *Node {
	n := &Node{Key: key, Parent: parent, Order: len(l.def.nodes), At: l.position(t), slot: -1}
	l.def.nodes = append(l.def.nodes, n)
	l.raw = append(l.raw, t)
	if len(l.def.nodes) > l.o.MaxStates {
		return n
	}
	n.Kind = l.kind(t, root)
	switch {
	case root:
		l.members(t, "a chart", nodeMembers(), rootMembers())
	case n.Kind == History:
		l.members(t, "a history state", historyMembers())
	default:
		l.members(t, "a state", nodeMembers())
	}
	n.ID = l.def.id
	if !root {
		n.ID = pathID(n, l.def.id)
		if own := t.member("id"); own != nil {
			if id := l.word(own, "an id"); id != "" {
				n.ID = id
			}
		}
	}
	if other, taken := l.def.byID[n.ID]; taken {
		at := t
		if own := t.member("id"); own != nil {
			at = own
		}
		l.fault(at, "the id %s belongs to the state at %s already", quote(n.ID), other.At)
	} else {
		l.def.byID[n.ID] = n
	}
	if states := t.member("states"); states != nil {
		l.children(n, states)
	}
	n.last = len(l.def.nodes)
	l.shape(n, t)
	return n
}

// pathID joins the machine's id and the keys down to the node.
func pathID(n *Node, machine string) string {
	if n.Parent == nil {
		return machine
	}
	return pathID(n.Parent, machine) + "." + n.Key
}

func (l *loader) kind(t *tree, root bool) NodeKind {
	states := t.member("states")
	nested := states != nil && len(states.members) > 0
	kind := Atomic
	if nested {
		kind = Compound
	} else if h := t.member("history"); h != nil && h.kind != 'f' {
		kind = History
	}
	if given := t.member("type"); given != nil {
		i := slices.Index([]string{"atomic", "compound", "parallel", "final", "history"}, given.text)
		if given.kind != '"' || i < 0 {
			l.fault(given, "type must be atomic, compound, parallel, final or history")
		} else {
			kind = NodeKind(i)
		}
	}
	if root && (kind == Final || kind == History) {
		l.fault(t, "the root cannot be a %s state", kind)
		kind = Atomic
	}
	if nested && (kind == Atomic || kind == Final || kind == History) {
		l.fault(states, "a state of type %s cannot have states", kind)
		kind = Compound
	}
	if !nested && (kind == Compound || kind == Parallel) {
		l.fault(t, "a state of type %s needs states", kind)
		kind = Atomic
	}
	return kind
}

func (l *loader) children(n *Node, states *tree) {
	if states.kind != '{' {
		l.fault(states, "states must be an object, not %s", states.what())
		return
	}
	for i := range states.members {
		m := &states.members[i]
		switch {
		case m.key == "":
			l.memberFault(m, "a state needs a name")
		case strings.Trim(m.key, "0123456789") == "":
			l.memberFault(m, "the state's name %s is a number, and JavaScript would move it to the front: begin it with a letter", quote(m.key))
		case m.key[0] == '#' || m.key == "__proto__":
			l.memberFault(m, "%s cannot be a state's name", quote(m.key))
		}
		if m.value.kind != '{' {
			l.fault(m.value, "a state must be an object, not %s", m.value.what())
			continue
		}
		child := l.node(m.value, n, m.key, false)
		n.Children = append(n.Children, child)
		if child.Kind == History {
			n.history = append(n.history, child)
		} else {
			n.regions = append(n.regions, child)
		}
		if len(l.def.nodes) > l.o.MaxStates {
			return
		}
	}
}

// shape checks which members a node of its kind may have.
func (l *loader) shape(n *Node, t *tree) {
	refuse := func(key, format string, args ...any) {
		if m := t.member(key); m != nil {
			l.fault(m, format, args...)
		}
	}
	if n.Kind == Parallel && len(n.regions) == 0 && len(n.Children) > 0 {
		l.fault(t, "a parallel state needs a region that is not a history state")
	}
	if n.Kind != Compound {
		refuse("initial", "a state of type %s has no initial state", n.Kind)
	}
	if n.Kind != Final && n.Parent != nil {
		refuse("output", "only a final state and the root have an output")
	}
	switch {
	case n.Parent == nil:
		refuse("onDone", "onDone of the root never runs; a final state ends the process")
	case n.Kind != Compound && n.Kind != Parallel:
		refuse("onDone", "onDone of a state of type %s never runs", n.Kind)
	}
	if n.Kind == History {
		return
	}
	refuse("target", "target belongs to a transition or a history state")
	if h := t.member("history"); h != nil && h.kind != 'f' {
		l.fault(h, "history belongs to a state of type history")
	}
	if n.Kind == Final {
		refuse("invoke", "a final state cannot invoke")
		refuse("after", "a final state has no timers")
	}
}

// delay reads the key of an after.
func (l *loader) delay(m *member) (time.Duration, bool) {
	digits := strings.Trim(m.key, "0123456789") == "" && m.key != ""
	if digits && (m.key == "0" || m.key[0] != '0') {
		ms, err := strconv.ParseInt(m.key, 10, 64)
		if err != nil || ms > int64(100*365*24*time.Hour/time.Millisecond) {
			l.memberFault(m, "the delay %s is over a hundred years of milliseconds", quote(m.key))
			return 0, false
		}
		return time.Duration(ms) * time.Millisecond, true
	}
	if _, err := strconv.ParseFloat(strings.TrimSpace(m.key), 64); err == nil || digits || strings.TrimSpace(m.key) == "" {
		l.memberFault(m, "a delay is a whole number of milliseconds in digits or a name, not %s", quote(m.key))
		return 0, false
	}
	delay, ok := l.o.Delays[m.key]
	if !ok {
		if !l.o.NamesOnly {
			l.memberFault(m, "no delay is named %s (Options.Delays)", quote(m.key))
			return 0, false
		}
		l.unnamed["delay "+m.key] = true
	}
	return delay, true
}
