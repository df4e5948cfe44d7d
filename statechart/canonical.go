package statechart

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"unicode/utf16"
)

// finish makes what is computed from a chart without faults.
func (l *loader) finish() {
	d := l.def
	d.unnamed = slices.Sorted(maps.Keys(l.unnamed))
	for _, n := range d.nodes {
		n.done = "xstate.done.state." + n.ID
		d.always = d.always || len(n.Always) > 0
		for _, t := range n.Transitions {
			t.Guard.settle()
		}
		for _, t := range n.Always {
			t.Guard.settle()
		}
	}
	d.canonical = l.canonical()
	sum := sha256.Sum256(d.canonical)
	d.hash = "sha256:" + hex.EncodeToString(sum[:])
}

// settle finds out what a guard reads and gives it its key.
func (g *Guard) settle() {
	if g == nil {
		return
	}
	for _, a := range g.Args {
		a.settle()
	}
	if g.Op == GuardExpression {
		g.ContextOnly = !g.Expression.Term().Reads(TermEvent)
	}
	if g.Params.Term().Reads(TermEvent) {
		g.ContextOnly = false
	}
	w := &writer{}
	w.guard(g)
	g.key = w.out.String()
}

// canonical writes the chart as it was understood: each member once, in the
// order of RFC 8785; states in a list, since their order counts; targets as
// ids; numbers by value.
func (l *loader) canonical() []byte {
	d := l.def
	w := &writer{}
	w.open('{')
	w.key("context")
	w.value(d.context)
	w.key("functions")
	l.writeFunctions(w)
	w.key("id")
	w.str(d.id)
	w.key("language")
	if l.expressed && l.o.Expressions != nil {
		w.str(l.o.Expressions.Language())
	} else {
		w.raw("null")
	}
	w.key("limit")
	if d.stated {
		w.raw(strconv.Itoa(d.limit))
	} else {
		w.raw("null")
	}
	w.key("profile")
	w.str(Profile)
	w.key("root")
	w.node(d.nodes[0])
	w.key("version")
	w.str(d.version)
	w.close('}')
	return w.out.Bytes()
}

func (l *loader) writeFunctions(w *writer) {
	w.open('{')
	w.key("actions")
	w.open('{')
	for _, name := range slices.SortedFunc(maps.Keys(l.used.actions), utf16Order) {
		f := l.o.Actions[name]
		w.key(name)
		w.open('{')
		w.key("keyed")
		w.raw(strconv.FormatBool(f.Keyed))
		w.key("kind")
		w.raw(strconv.Itoa(int(f.Kind)))
		w.key("version")
		w.str(f.Version)
		w.close('}')
	}
	w.close('}')
	w.key("guards")
	w.open('{')
	for _, name := range slices.SortedFunc(maps.Keys(l.used.guards), utf16Order) {
		f := l.o.Guards[name]
		w.key(name)
		w.open('{')
		w.key("contextOnly")
		w.raw(strconv.FormatBool(f.ContextOnly))
		w.key("version")
		w.str(f.Version)
		w.close('}')
	}
	w.close('}')
	w.key("unnamed")
	w.open('[')
	for _, name := range l.def.unnamed {
		w.comma()
		w.str(name)
	}
	w.close(']')
	w.close('}')
}

// utf16Order is the order of members in RFC 8785.
func utf16Order(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// writer writes compact JSON.
type writer struct {
	out   bytes.Buffer
	after bool // a value stands before in the same object or list
	exact bool // numbers as they are written, not by value
}

func (w *writer) comma() {
	if w.after {
		w.out.WriteByte(',')
	}
	w.after = true
}

func (w *writer) open(b byte) {
	w.out.WriteByte(b)
	w.after = false
}

func (w *writer) close(b byte) {
	w.out.WriteByte(b)
	w.after = true
}

func (w *writer) raw(s string) {
	w.out.WriteString(s)
	w.after = true
}

func (w *writer) key(k string) {
	w.comma()
	w.str(k)
	w.out.WriteByte(':')
	w.after = false
}

// str escapes what RFC 8785 escapes.
func (w *writer) str(s string) {
	const digits = "0123456789abcdef"
	w.out.WriteByte('"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			w.out.WriteByte('\\')
			w.out.WriteByte(b)
		case b < 0x20:
			if j := bytes.IndexByte([]byte("\b\t\n\f\r"), b); j >= 0 {
				w.out.WriteByte('\\')
				w.out.WriteByte("btnfr"[j])
				continue
			}
			w.out.WriteString(`\u00`)
			w.out.WriteByte(digits[b>>4])
			w.out.WriteByte(digits[b&15])
		default:
			w.out.WriteByte(b)
		}
	}
	w.out.WriteByte('"')
	w.after = true
}

// json writes plain JSON, numbers by value.
func (w *writer) json(v any) {
	switch v := v.(type) {
	case bool:
		w.raw(strconv.FormatBool(v))
	case string:
		w.str(v)
	case json.Number:
		w.number(string(v))
	case []any:
		w.open('[')
		for _, e := range v {
			w.comma()
			w.json(e)
		}
		w.close(']')
	case map[string]any:
		w.open('{')
		for _, k := range slices.SortedFunc(maps.Keys(v), utf16Order) {
			w.key(k)
			w.json(v[k])
		}
		w.close('}')
	default:
		w.raw("null")
	}
}

// number writes digits and an exponent, so that 1, 1.0 and 1e0 are one text.
func (w *writer) number(text string) {
	negative, digits, exponent, ok := decimal(text)
	switch {
	case !ok || w.exact:
		w.raw(text)
	case digits == "":
		w.raw("0")
	default:
		if negative {
			w.out.WriteByte('-')
		}
		w.raw(digits)
		if exponent != 0 {
			w.raw("e" + strconv.FormatInt(exponent, 10))
		}
	}
}

// value writes a template: an expression as {"@expr": text}.
func (w *writer) value(v *Value) {
	switch {
	case v == nil:
		w.raw("null")
	case v.Text != "":
		w.open('{')
		w.key("@expr")
		w.str(v.Text)
		w.close('}')
	case v.Members != nil:
		w.open('{')
		members := slices.SortedFunc(slices.Values(v.Members), func(a, b Assign) int { return utf16Order(a.Key, b.Key) })
		for _, m := range members {
			w.key(m.Key)
			w.value(m.Value)
		}
		w.close('}')
	case v.Elements != nil:
		w.open('[')
		for _, e := range v.Elements {
			w.comma()
			w.value(e)
		}
		w.close(']')
	default:
		w.json(v.Const)
	}
}

func (w *writer) node(n *Node) {
	w.open('{')
	w.key("always")
	w.transitions(n.Always)
	w.key("entry")
	w.actions(n.Entry)
	w.key("exit")
	w.actions(n.Exit)
	if n.Kind == History {
		w.key("default")
		if n.Default == nil {
			w.raw("null")
		} else {
			w.nodes(n.Default.Targets)
		}
		w.key("history")
		w.str(map[bool]string{false: "shallow", true: "deep"}[n.Deep])
	}
	w.key("id")
	w.str(n.ID)
	if n.Initial != nil {
		w.key("initial")
		w.transition(n.Initial)
	}
	w.key("invoke")
	w.open('[')
	for _, inv := range n.Invokes {
		w.comma()
		w.open('{')
		w.key("id")
		w.str(inv.ID)
		w.key("input")
		w.value(inv.Input)
		w.key("src")
		w.str(inv.Source)
		w.close('}')
	}
	w.close(']')
	w.key("key")
	w.str(n.Key)
	w.key("kind")
	w.str(n.Kind.String())
	w.key("on")
	w.transitions(slices.SortedStableFunc(slices.Values(n.Transitions), func(a, b *Transition) int { return utf16Order(a.Event, b.Event) }))
	w.key("output")
	w.value(n.Output)
	w.key("states")
	w.open('[')
	for _, c := range n.Children {
		w.comma()
		w.node(c)
	}
	w.close(']')
	w.key("tags")
	w.open('[')
	for _, tag := range n.Tags {
		w.comma()
		w.str(tag)
	}
	w.close(']')
	w.key("timers")
	w.open('[')
	for _, t := range n.Timers {
		w.comma()
		w.open('{')
		w.key("after")
		w.raw(strconv.FormatInt(int64(t.After), 10))
		w.key("delay")
		w.str(t.Delay)
		w.close('}')
	}
	w.close(']')
	w.close('}')
}

func (w *writer) nodes(all []*Node) {
	w.open('[')
	for _, n := range all {
		w.comma()
		w.str(n.ID)
	}
	w.close(']')
}

func (w *writer) transitions(all []*Transition) {
	w.open('[')
	for _, t := range all {
		w.comma()
		w.transition(t)
	}
	w.close(']')
}

func (w *writer) transition(t *Transition) {
	w.open('{')
	w.key("actions")
	w.actions(t.Actions)
	w.key("event")
	w.str(t.Event)
	w.key("guard")
	w.guard(t.Guard)
	w.key("reenter")
	w.raw(strconv.FormatBool(t.Reenter))
	w.key("targets")
	w.nodes(t.Targets)
	w.close('}')
}

func (w *writer) guard(g *Guard) {
	if g == nil {
		w.raw("null")
		return
	}
	w.open('{')
	w.key("args")
	w.open('[')
	for _, a := range g.Args {
		w.comma()
		w.guard(a)
	}
	w.close(']')
	w.key("name")
	w.str(g.Name)
	w.key("op")
	w.raw(strconv.Itoa(int(g.Op)))
	w.key("params")
	w.value(g.Params)
	w.key("states")
	w.nodes(g.States)
	w.close('}')
}

func (w *writer) actions(all []*Action) {
	w.open('[')
	for _, a := range all {
		w.comma()
		w.open('{')
		w.key("assigns")
		w.open('{')
		assigns := slices.SortedFunc(slices.Values(a.Assigns), func(a, b Assign) int { return utf16Order(a.Key, b.Key) })
		for _, m := range assigns {
			w.key(m.Key)
			w.value(m.Value)
		}
		w.close('}')
		w.key("data")
		w.value(a.Data)
		w.key("name")
		w.str(a.Name)
		w.key("op")
		w.raw(strconv.Itoa(int(a.Op)))
		w.key("params")
		w.value(a.Params)
		w.close('}')
	}
	w.close(']')
}
