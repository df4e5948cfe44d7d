package statechart

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parts reads what may refer to other nodes.
func (l *loader) parts(n *Node, t *tree) {
	for i := range t.members {
		v := t.members[i].value
		switch t.members[i].key {
		case "entry":
			n.Entry = l.actions(v)
		case "exit":
			n.Exit = l.actions(v)
		case "tags":
			n.Tags = l.tags(v)
		case "description":
			n.Description = v.text
		case "meta":
			n.Meta = v.plain()
		case "always":
			if n.Kind != History {
				n.Always = l.transitions(n, v, FromAlways, "")
			}
		case "output":
			n.Output = l.template(v, UseValue)
		}
	}
	switch n.Kind {
	case History:
		l.historyState(n, t)
		return
	case Compound:
		l.initial(n, t)
	}
	l.onMember(n, t.member("on"))
	if v := t.member("onDone"); v != nil && n.Parent != nil {
		l.handle(n, v, FromOnDone, "xstate.done.state."+n.ID)
	}
	if v := t.member("invoke"); v != nil {
		for _, one := range list(v) {
			l.invoke(n, one)
		}
	}
	l.afterMember(n, t.member("after"))
	slices.SortStableFunc(n.wild, func(a, b wildcard) int { return cmp.Compare(len(b.descriptor), len(a.descriptor)) })
	if len(n.Timers)+len(n.Invokes) > 0 {
		n.slot = len(l.def.generations)
		l.def.generations = append(l.def.generations, n)
	}
}

// list gives the elements of a list, or the value alone.
func list(t *tree) []*tree {
	if t.kind == '[' {
		return t.elements
	}
	return []*tree{t}
}

func (l *loader) tags(t *tree) (tags []string) {
	for _, one := range list(t) {
		if tag := l.word(one, "a tag"); tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	return tags
}

func (l *loader) onMember(n *Node, t *tree) {
	if t == nil {
		return
	}
	if t.kind != '{' {
		l.fault(t, "on must be an object of event types, not %s", t.what())
		return
	}
	for i := range t.members {
		m := &t.members[i]
		star := strings.IndexByte(m.key, '*')
		switch {
		case m.key == "":
			l.memberFault(m, "an event needs a type; a transition without an event is written under always")
			continue
		case star >= 0 && m.key != "*" && (star != len(m.key)-1 || !strings.HasSuffix(m.key, ".*") || star == 1):
			l.memberFault(m, "%s matches nothing: an asterisk stands alone or at the end after a dot, as in order.*", quote(m.key))
			continue
		}
		l.handle(n, m.value, FromOn, m.key)
	}
}

func (l *loader) afterMember(n *Node, t *tree) {
	if t == nil || n.Kind == Final {
		return
	}
	if t.kind != '{' {
		l.fault(t, "after must be an object of delays, not %s", t.what())
		return
	}
	for i := range t.members {
		m := &t.members[i]
		delay, ok := l.delay(m)
		if !ok {
			continue
		}
		timer := &TimerDefinition{Delay: m.key, After: delay, Event: "xstate.after." + m.key + "." + n.ID, At: l.position(m.value)}
		n.Timers = append(n.Timers, timer)
		l.handle(n, m.value, FromAfter, timer.Event)
	}
	// JavaScript walks numbers first, in their order.
	named := func(t *TimerDefinition) bool { return t.Delay[0] < '0' || t.Delay[0] > '9' }
	slices.SortStableFunc(n.Timers, func(a, b *TimerDefinition) int {
		switch {
		case named(a) != named(b):
			if named(a) {
				return 1
			}
			return -1
		case named(a):
			return 0
		}
		return cmp.Compare(a.After, b.After)
	})
}

func (l *loader) invoke(n *Node, t *tree) {
	if n.Kind == Final {
		return
	}
	index := len(n.Invokes)
	if t.kind != '{' {
		l.fault(t, "an invoke must be an object, not %s", t.what())
		return
	}
	l.members(t, "an invoke", []string{"id", "src", "input", "onDone", "onError", "description", "meta"})
	inv := &InvokeDefinition{ID: fmt.Sprintf("%d.%s", index, n.ID), At: l.position(t)}
	n.Invokes = append(n.Invokes, inv)
	if v := t.member("id"); v != nil {
		if id := l.word(v, "an id"); id != "" {
			inv.ID = id
		}
	}
	if l.invokes[inv.ID] {
		l.fault(t, "the invoke id %s stands twice", quote(inv.ID))
	}
	l.invokes[inv.ID] = true
	if src := t.member("src"); src == nil {
		l.fault(t, "an invoke needs a src")
	} else if inv.Source = l.word(src, "src"); inv.Source != "" && !slices.Contains(l.o.Invokes, inv.Source) {
		if l.o.NamesOnly {
			l.unnamed["invoke "+inv.Source] = true
		} else {
			l.fault(src, "nothing is named %s that could be invoked (Options.Invokes)", quote(inv.Source))
		}
	}
	if v := t.member("input"); v != nil {
		inv.Input = l.template(v, UseValue)
	}
	if v := t.member("onDone"); v != nil {
		l.handle(n, v, FromInvokeDone, "xstate.done.actor."+inv.ID)
	}
	if v := t.member("onError"); v != nil {
		l.handle(n, v, FromInvokeError, "xstate.error.actor."+inv.ID)
	}
}

// handle adds the transitions of one descriptor to a node.
func (l *loader) handle(n *Node, t *tree, origin Origin, descriptor string) {
	if _, taken := n.handlers[descriptor]; taken {
		l.fault(t, "the state handles %s twice, under on and here", quote(descriptor))
		return
	}
	all := l.transitions(n, t, origin, descriptor)
	n.Transitions = append(n.Transitions, all...)
	if prefix, ok := strings.CutSuffix(descriptor, "*"); ok && origin == FromOn {
		n.wild = append(n.wild, wildcard{descriptor, strings.TrimSuffix(prefix, "."), all})
		return
	}
	if n.handlers == nil {
		n.handlers = map[string][]*Transition{}
	}
	n.handlers[descriptor] = all
}

func (l *loader) transitions(n *Node, t *tree, origin Origin, event string) []*Transition {
	var all []*Transition
	for _, one := range list(t) {
		if origin == FromAfter && one != t && one.kind == '"' {
			l.fault(one, "XState 5.33 loses a plain string in a list under after: write {\"target\": %s}", quote(one.text))
			continue
		}
		if tr := l.transition(n, one, origin, event); tr != nil {
			all = append(all, tr)
		}
	}
	return all
}

func (l *loader) transition(n *Node, t *tree, origin Origin, event string) *Transition {
	tr := &Transition{Source: n, Origin: origin, Event: event, At: l.position(t)}
	switch t.kind {
	case '"':
		tr.Targets = l.targets(n, t)
	case '{':
		l.members(t, "a transition", []string{"target", "guard", "actions", "reenter", "description", "meta"})
		if v := t.member("target"); v != nil && v.kind != 'n' {
			tr.Targets = l.targets(n, v)
		}
		if v := t.member("guard"); v != nil {
			tr.Guard = l.guard(v, 0)
		}
		if v := t.member("actions"); v != nil {
			tr.Actions = l.actions(v)
		}
		if v := t.member("reenter"); v != nil {
			if tr.Reenter = v.kind == 't'; v.kind != 't' && v.kind != 'f' {
				l.fault(v, "reenter must be true or false")
			}
		}
		if v := t.member("description"); v != nil {
			tr.Description = v.text
		}
	default:
		l.fault(t, "a transition is a target, an object or a list of them, not %s", t.what())
		return nil
	}
	tr.Forbidden = len(tr.Targets) == 0 && len(tr.Actions) == 0
	return tr
}

// targets resolves one target or a list of them.
func (l *loader) targets(n *Node, t *tree) []*Node {
	var found []*Node
	for _, one := range list(t) {
		if one.kind != '"' {
			l.fault(one, "a target must be a string, not %s", one.what())
			continue
		}
		target, why := l.resolve(n, one.text)
		if why != "" {
			l.fault(one, "target %s: %s", quote(one.text), why)
			continue
		}
		for _, other := range found {
			if clash := together(other, target); clash != "" {
				l.fault(one, "target %s: %s", quote(one.text), clash)
			}
		}
		found = append(found, target)
	}
	return found
}

// together says why two targets cannot both be active, or "".
func together(a, b *Node) string {
	if a == b {
		return "named twice"
	}
	if a.In(b) || b.In(a) {
		return "one target lies inside the other"
	}
	common := a
	for common = a.Parent; !b.In(common); {
		common = common.Parent
	}
	if common.Kind != Parallel || a.Parent == common && a.Kind == History || b.Parent == common && b.Kind == History {
		return "not in another region of a parallel state than " + quote("#"+a.ID)
	}
	return ""
}

// steps splits a path at its dots; \ takes the next character as it is.
func steps(path string) ([]string, string) {
	var all []string
	var step strings.Builder
	for i := 0; i < len(path); i++ {
		switch path[i] {
		case '\\':
			if i++; i == len(path) {
				return nil, "it ends in a backslash"
			}
			step.WriteByte(path[i])
		case '.':
			all = append(all, step.String())
			step.Reset()
		default:
			step.WriteByte(path[i])
		}
	}
	all = append(all, step.String())
	if slices.Contains(all, "") {
		return nil, "a name between dots is empty"
	}
	return all, ""
}

// resolve finds the target that a node means by a text.
func (l *loader) resolve(n *Node, text string) (target *Node, why string) {
	at := n.Parent
	path := text
	switch {
	case text == "":
		return nil, "it is empty"
	case text[0] == '#':
		way, why := steps(text[1:])
		if why != "" {
			return nil, why
		}
		at, ok := l.def.byID[way[0]]
		if !ok {
			return nil, "no state has the id " + quote(way[0]) + meant(way[0], slices.Sorted(maps.Keys(l.def.byID)))
		}
		return descend(at, way[1:])
	case text[0] == '.':
		at, path = n, text[1:]
		if path == "" {
			return nil, "it names nothing"
		}
	case at == nil:
		return nil, "the root has no siblings; write " + quote("."+text) + " or an id"
	}
	way, why := steps(path)
	if why != "" {
		return nil, why
	}
	return descend(at, way)
}

func descend(at *Node, way []string) (*Node, string) {
next:
	for _, step := range way {
		for _, child := range at.Children {
			if child.Key == step {
				at = child
				continue next
			}
		}
		return nil, lacks(at, step)
	}
	return at, ""
}

// lacks says that a node has no such child, and which one may be meant.
func lacks(n *Node, key string) string {
	var keys []string
	for _, child := range n.Children {
		keys = append(keys, child.Key)
	}
	return quote("#"+n.ID) + " has no state " + quote(key) + meant(key, keys)
}

// meant asks whether the nearest of some names is meant; "" if none is near.
func meant(word string, names []string) string {
	if near := nearest(word, [][]string{names}); near != "" {
		return "; is " + quote(near) + " meant?"
	}
	return ""
}

func (l *loader) initial(n *Node, t *tree) {
	v := t.member("initial")
	if v == nil {
		l.fault(t, "a compound state needs initial, such as %s", quote(n.Children[0].Key))
		return
	}
	n.Initial = &Transition{Source: n, Origin: FromInitial, At: l.position(v)}
	key := v
	if v.kind == '{' {
		l.members(v, "initial", []string{"target", "actions", "description", "meta"})
		if key = v.member("target"); key == nil {
			l.fault(v, "initial needs a target")
			return
		}
		if a := v.member("actions"); a != nil {
			n.Initial.Actions = l.actions(a)
		}
	}
	if key.kind != '"' {
		l.fault(key, "initial must name a state, not be %s", key.what())
		return
	}
	for _, child := range n.Children {
		if child.Key == key.text {
			if child.Kind == History {
				l.fault(key, "initial cannot be a history state: name the state that it falls back to")
			}
			n.Initial.Targets = []*Node{child}
			return
		}
	}
	l.fault(key, "initial: %s", lacks(n, key.text))
}

func (l *loader) historyState(n *Node, t *tree) {
	if h := t.member("history"); h != nil {
		n.Deep = h.kind == '"' && h.text == "deep"
		if h.kind != 't' && (h.kind != '"' || h.text != "deep" && h.text != "shallow") {
			l.fault(h, "history must be shallow, deep or true")
		}
	}
	v := t.member("target")
	if v == nil || v.kind == 'n' {
		return
	}
	n.Default = &Transition{Source: n, Origin: FromHistory, At: l.position(v), Targets: l.targets(n, v)}
	for _, target := range n.Default.Targets {
		switch {
		case target.Kind == History:
			l.fault(v, "a history state cannot fall back to another one")
		case !target.In(n.Parent) || target == n.Parent:
			l.fault(v, "a history state falls back to states inside its parent, and %s is not", quote("#"+target.ID))
		}
	}
	if len(n.Default.Targets) == 0 && v.kind == '[' {
		l.fault(v, "the list of targets is empty")
	}
}

func guardWords() []string { return []string{"and", "or", "not", "stateIn"} }

func actionWords() []string { return []string{"assign", "raise"} }

func reserved(name string, words []string) bool {
	return slices.Contains(words, name) || strings.HasPrefix(name, "xstate.") || strings.HasPrefix(name, "@xstate.") || name == ""
}

// speaks checks that there is a language of this name.
func (l *loader) speaks(t *tree, language string) bool {
	switch {
	case l.o.Expressions == nil && l.o.NamesOnly:
		return false
	case l.o.Expressions == nil:
		l.fault(t, "there is no language for expressions (Options.Expressions)")
	case language == "":
		l.fault(t, "say in which language expressions are: \"@exprLang\" of the chart")
	case language != l.o.Expressions.Language():
		l.fault(t, "expressions are in %s, not in %s", quote(l.o.Expressions.Language()), quote(language))
	default:
		return true
	}
	return false
}

// expression compiles {"@expr": …}; false if t has no such member.
func (l *loader) expression(t *tree, use Use) (e Expression, text string, is bool) {
	expr := t.member("@expr")
	if expr == nil {
		return nil, "", false
	}
	l.members(t, "an expression", []string{"@expr", "@lang"})
	text = l.word(expr, "an expression")
	language := l.language
	if v := t.member("@lang"); v != nil {
		language = l.word(v, "a language")
	}
	if text == "" {
		return nil, "", true
	}
	l.expressed = true
	if !l.speaks(t, language) {
		if l.o.NamesOnly {
			l.unnamed["expression "+text] = true
		}
		return nil, text, true
	}
	c, known := l.compiled[expressionUse{text, use}]
	if !known {
		c.expression, c.err = l.o.Expressions.Compile(text, use)
		l.compiled[expressionUse{text, use}] = c
	}
	if c.err != nil {
		l.fault(expr, "%v", c.err)
	}
	return c.expression, text, true
}

// template reads JSON in which expressions may stand.
func (l *loader) template(t *tree, use Use) *Value {
	v := &Value{At: l.position(t)}
	l.depth++
	defer func() { l.depth-- }()
	if l.depth > maxValue {
		l.fault(t, "a value is nested deeper than %d levels", maxValue)
		return v
	}
	if t.kind == '{' {
		if e, text, is := l.expression(t, use); is {
			v.Expression, v.Text = e, text
			return v
		}
		constant := true
		members := make([]Assign, len(t.members))
		for i := range t.members {
			m := &t.members[i]
			sub := l.template(m.value, use)
			members[i] = Assign{m.key, sub, sub.At}
			constant = constant && sub.constant()
		}
		if !constant {
			v.Members = members
			return v
		}
	}
	if t.kind == '[' {
		constant := true
		elements := make([]*Value, len(t.elements))
		for i, e := range t.elements {
			elements[i] = l.template(e, use)
			constant = constant && elements[i].constant()
		}
		if !constant {
			v.Elements = elements
			return v
		}
	}
	v.Const = t.plain()
	return v
}

func (v *Value) constant() bool {
	return v.Text == "" && v.Members == nil && v.Elements == nil
}

func (l *loader) guard(t *tree, depth int) *Guard {
	g := &Guard{At: l.position(t)}
	switch t.kind {
	case '"':
		l.namedGuard(g, t, t.text)
		return g
	case '{':
	default:
		l.fault(t, "a guard is a name, an object with a type or an expression, not %s", t.what())
		return g
	}
	if e, text, is := l.expression(t, UseGuard); is {
		g.Op, g.Name, g.Expression = GuardExpression, text, e
		if e == nil {
			g.Op = GuardUnknown
		}
		return g
	}
	l.members(t, "a guard", []string{"type", "params"})
	kind := t.member("type")
	if kind == nil {
		l.fault(t, "a guard needs a type or an @expr")
		return g
	}
	params := t.member("params")
	part := func(name string) *tree {
		if params == nil || params.kind != '{' || params.member(name) == nil {
			l.fault(t, "%s needs params with %s", kind.text, name)
			return nil
		}
		l.members(params, kind.text, []string{name})
		return params.member(name)
	}
	switch kind.text {
	case "and", "or":
		g.Op = GuardAnd
		if kind.text == "or" {
			g.Op = GuardOr
		}
		if all := part("guards"); all != nil {
			if all.kind != '[' {
				l.fault(all, "guards must be a list, not %s", all.what())
				break
			}
			for _, one := range all.elements {
				g.Args = append(g.Args, l.guard(one, depth+1))
			}
		}
	case "not":
		g.Op = GuardNot
		if one := part("guard"); one != nil {
			g.Args = []*Guard{l.guard(one, depth+1)}
		}
	case "stateIn":
		g.Op = GuardStateIn
		if state := part("state"); state != nil {
			l.stateIn(g, state, l.def.nodes[0])
		}
	default:
		if params != nil {
			g.Params = l.template(params, UseValue)
		}
		l.namedGuard(g, kind, kind.text)
	}
	return g
}

func (l *loader) namedGuard(g *Guard, t *tree, name string) {
	g.Name = name
	if name = l.word(t, "a guard's name"); name == "" {
		return
	}
	if reserved(name, guardWords()) {
		l.fault(t, "%s is built in: write {\"type\": …, \"params\": …}, with and, or, not or stateIn as the type", quote(name))
		return
	}
	f, ok := l.o.Guards[name]
	if !ok {
		g.Op = GuardUnknown
		if l.o.NamesOnly {
			l.unnamed["guard "+name] = true
		} else {
			l.fault(t, "no guard is named %s (Options.Guards)%s", quote(name), didYouMean(name, l.o.Guards))
		}
		return
	}
	l.used.guards[name] = true
	g.Op, g.test, g.ContextOnly = GuardFunction, f.Test, f.ContextOnly
}

func didYouMean[T any](name string, known map[string]T) string {
	if near := nearest(name, [][]string{slices.Sorted(maps.Keys(known))}); near != "" {
		return "; is " + quote(near) + " meant?"
	}
	return ""
}

// stateIn resolves "#id", a path from the root, or a partial state value.
func (l *loader) stateIn(g *Guard, t *tree, below *Node) {
	switch t.kind {
	case '"':
		var n *Node
		var why string
		if strings.HasPrefix(t.text, "#") {
			n, why = l.resolve(below, t.text)
		} else if way, bad := steps(t.text); bad != "" {
			why = bad
		} else {
			n, why = descend(below, way)
		}
		switch {
		case why != "":
			l.fault(t, "stateIn %s: %s", quote(t.text), why)
		case n.Kind == History:
			l.fault(t, "stateIn %s: a history state is never active", quote(t.text))
		default:
			g.States = append(g.States, n)
		}
	case '{':
		if len(t.members) == 0 {
			l.fault(t, "stateIn: an empty object names no state")
		}
		for i := range t.members {
			m := &t.members[i]
			n, why := descend(below, []string{m.key})
			if why != "" {
				l.memberFault(m, "stateIn: %s", why)
				continue
			}
			if m.value.kind == '"' && strings.HasPrefix(m.value.text, "#") {
				l.fault(m.value, "stateIn: an id stands alone, not inside a state value")
				continue
			}
			l.stateIn(g, m.value, n)
		}
	default:
		l.fault(t, "stateIn takes an id, a path or a state value, not %s", t.what())
	}
}

func (l *loader) actions(t *tree) []*Action {
	var all []*Action
	for _, one := range list(t) {
		if a := l.action(one); a != nil {
			all = append(all, a)
		}
	}
	return all
}

func (l *loader) action(t *tree) *Action {
	a := &Action{At: l.position(t)}
	name, params := t, (*tree)(nil)
	switch t.kind {
	case '"':
	case '{':
		l.members(t, "an action", []string{"type", "params"})
		params = t.member("params")
		if name = t.member("type"); name == nil {
			l.fault(t, "an action needs a type")
			return nil
		}
	case 'n':
		l.fault(t, "an action is a name or an object with a type, not null, which JSON.stringify writes for a function: name it")
		return nil
	default:
		l.fault(t, "an action is a name or an object with a type, not %s", t.what())
		return nil
	}
	if a.Name = l.word(name, "an action's name"); a.Name == "" {
		return nil
	}
	switch a.Name {
	case "assign":
		a.Op = ActionAssign
		if params == nil || params.kind != '{' {
			l.fault(t, "assign needs params: an object of the members to set")
			return nil
		}
		for i := range params.members {
			m := &params.members[i]
			v := l.template(m.value, UseValue)
			a.Assigns = append(a.Assigns, Assign{m.key, v, v.At})
		}
		return a
	case "raise":
		return l.raise(a, t, params)
	}
	if reserved(a.Name, actionWords()) {
		l.fault(name, "%s is an action of the XState library; here assign and raise are built in, and effects have names of their own", quote(a.Name))
		return nil
	}
	if params != nil {
		a.Params = l.template(params, UseValue)
	}
	f, ok := l.o.Actions[a.Name]
	switch {
	case ok:
		l.used.actions[a.Name] = true
		a.Op, a.patch, a.Join, a.Keyed = ActionFunction, f.Patch, f.Kind == Join, f.Keyed
		if f.Kind == Effect {
			a.Op = ActionEffect
		}
	case l.o.NamesOnly:
		a.Op = ActionUnknown
		l.unnamed["action "+a.Name] = true
	default:
		l.fault(name, "no action is named %s (Options.Actions)%s", quote(a.Name), didYouMean(a.Name, l.o.Actions))
	}
	return a
}

func (l *loader) raise(a *Action, t, params *tree) *Action {
	a.Op = ActionRaise
	if params == nil || params.kind != '{' || params.member("event") == nil || params.member("event").kind != '{' {
		l.fault(t, "raise needs params with an event: an object with a type")
		return nil
	}
	l.members(params, "raise", []string{"event"})
	event := params.member("event")
	kind := event.member("type")
	if kind == nil || kind.kind != '"' || kind.text == "" {
		l.fault(event, "a raised event needs a type that is a plain string")
		return nil
	}
	if a.Raise = kind.text; strings.HasPrefix(a.Raise, "xstate.") {
		l.fault(kind, "%s: types that begin with xstate. cannot be raised", quote(a.Raise))
	}
	a.Data = l.template(event, UseValue)
	return a
}
