package analyze

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// shape gives a term as text: two terms of one shape compute the same.
func shape(t statechart.Term) string {
	var b strings.Builder
	writeShape(&b, t)
	return b.String()
}

func writeShape(b *strings.Builder, t statechart.Term) {
	list := func(name string) {
		b.WriteString(name)
		b.WriteByte('(')
		for i, a := range t.Args {
			if i > 0 {
				b.WriteByte(',')
			}
			writeShape(b, a)
		}
		b.WriteByte(')')
	}
	path := func(name string) {
		b.WriteString(name)
		for _, p := range t.Path {
			b.WriteByte('.')
			writeQuoted(b, p)
		}
	}
	switch t.Op {
	case statechart.TermConst:
		text, err := json.Marshal(t.Const)
		if err != nil { // not JSON: then it equals nothing but itself
			text = []byte("?" + t.Name)
		}
		b.Write(text)
	case statechart.TermContext:
		path("context")
	case statechart.TermEvent:
		path("event")
	case statechart.TermInput:
		path("input")
	case statechart.TermCall:
		list("call " + t.Name)
	case statechart.TermList:
		list("list")
	case statechart.TermMap:
		list("map")
	default:
		list("opaque " + t.Name)
	}
}

func writeQuoted(b *strings.Builder, s string) {
	text, err := json.Marshal(s)
	if err != nil {
		text = []byte(`""`) // a string always marshals
	}
	b.Write(text)
}

// reading is what a term depends on.
type reading struct {
	context map[string]bool // top members of the context; "" is all of it
	event   bool
	other   bool // input, an opaque part, or a function that is not known to be pure
}

func reads(t statechart.Term) reading {
	r := reading{context: map[string]bool{}}
	r.add(t)
	return r
}

func (r *reading) add(t statechart.Term) {
	switch t.Op {
	case statechart.TermContext:
		if len(t.Path) == 0 {
			r.context[""] = true
		} else {
			r.context[t.Path[0]] = true
		}
	case statechart.TermEvent:
		r.event = true
	case statechart.TermInput, statechart.TermOpaque:
		r.other = true
	case statechart.TermCall:
		if !pure(t.Name) {
			r.other = true
		}
	}
	for _, a := range t.Args {
		r.add(a)
	}
}

func (r reading) reads(key string) bool { return r.context[key] || r.context[""] }

// pure tells the operators and functions whose value depends on their arguments
// alone. Anything else may be a clock or a random number.
func pure(name string) bool {
	if strings.ContainsAny(name, "_!-@") && !strings.Contains(name, "(") && isOperator(name) {
		return true
	}
	return slices.Contains([]string{
		"has", "size", "contains", "startsWith", "endsWith", "matches", "in",
		"int", "uint", "double", "string", "bool", "bytes", "type", "duration", "timestamp", "dyn",
		"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear",
		"getHours", "getMinutes", "getSeconds", "getMilliseconds",
		"max", "min", "math.greatest", "math.least", "math.@max", "math.@min", "math.abs", "math.ceil", "math.floor", "math.round",
		"lowerAscii", "upperAscii", "trim", "replace", "split", "join", "substring", "indexOf", "lastIndexOf", "charAt",
		"select",
	}, name)
}

func isOperator(name string) bool {
	return slices.Contains([]string{
		"_+_", "_-_", "_*_", "_/_", "_%_", "-_", "!_", "_&&_", "_||_", "_?_:_",
		"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_in_", "@in", "_[_]", "_._",
	}, name)
}

// valueTerm is the term of JSON that may hold expressions.
func valueTerm(v *statechart.Value) statechart.Term {
	switch {
	case v == nil:
		return statechart.Term{Op: statechart.TermConst}
	case v.Expression != nil:
		return v.Expression.Term()
	case v.Members != nil:
		t := statechart.Term{Op: statechart.TermMap}
		for _, m := range v.Members {
			t.Args = append(t.Args, statechart.Term{Op: statechart.TermConst, Const: m.Key}, valueTerm(m.Value))
		}
		return t
	case v.Elements != nil:
		t := statechart.Term{Op: statechart.TermList}
		for _, e := range v.Elements {
			t.Args = append(t.Args, valueTerm(e))
		}
		return t
	default:
		return statechart.Term{Op: statechart.TermConst, Const: v.Const}
	}
}

// largest term that is composed; beyond it only what a term reads is kept.
const largest = 400

func size(t statechart.Term) int {
	n := 1
	for _, a := range t.Args {
		n += size(a)
	}
	return n
}

// replaced puts values in the place of members of the context: what an assign
// computes once the assigns before it have run.
func replaced(t statechart.Term, values map[string]statechart.Term) statechart.Term {
	t = substituted(t, values)
	if size(t) <= largest {
		return t
	}
	r := reads(t)
	short := statechart.Term{Op: statechart.TermOpaque, Name: "long"}
	for _, key := range sortedKeys(r.context) {
		var path []string
		if key != "" {
			path = []string{key}
		}
		short.Args = append(short.Args, statechart.Term{Op: statechart.TermContext, Path: path})
	}
	if r.event {
		short.Args = append(short.Args, statechart.Term{Op: statechart.TermEvent})
	}
	return short
}

func substituted(t statechart.Term, values map[string]statechart.Term) statechart.Term {
	if len(values) == 0 {
		return t
	}
	if t.Op == statechart.TermContext {
		if len(t.Path) == 0 {
			return statechart.Term{Op: statechart.TermOpaque, Name: "context", Args: []statechart.Term{t}}
		}
		v, ok := values[t.Path[0]]
		if !ok {
			return t
		}
		for _, p := range t.Path[1:] {
			v = statechart.Term{Op: statechart.TermCall, Name: "select", Args: []statechart.Term{v, {Op: statechart.TermConst, Const: p}}}
		}
		return v
	}
	if len(t.Args) == 0 {
		return t
	}
	c := t
	c.Args = make([]statechart.Term, len(t.Args))
	for i, a := range t.Args {
		c.Args[i] = substituted(a, values)
	}
	return c
}

// withoutEvent hides the event of a term that sees another event than the one
// that came from outside: a raised one, or a done event.
func withoutEvent(t statechart.Term) statechart.Term {
	if t.Op == statechart.TermEvent {
		return statechart.Term{Op: statechart.TermOpaque, Name: "inner event", Args: []statechart.Term{t}}
	}
	if len(t.Args) == 0 {
		return t
	}
	c := t
	c.Args = make([]statechart.Term, len(t.Args))
	for i, a := range t.Args {
		c.Args[i] = withoutEvent(a)
	}
	return c
}

// join is an assignment that only ever adds: applied again, at any later time,
// it changes nothing, provided every writer of the member is of its kind.
type join struct {
	kind string          // insert, max, min, or, and, once
	what statechart.Term // that is joined
}

// joinOf recognises v := join(v, what). The forms are listed in docs/statecharts.md.
func joinOf(key string, t statechart.Term) (join, bool) {
	self := func(x statechart.Term) bool {
		return x.Op == statechart.TermContext && len(x.Path) == 1 && x.Path[0] == key
	}
	if t.Op != statechart.TermCall {
		return join{}, false
	}
	if len(t.Args) == 2 {
		a, b := t.Args[0], t.Args[1]
		if self(b) {
			a, b = b, a
		}
		if self(a) {
			switch t.Name {
			case "_||_":
				return join{"or", b}, true
			case "_&&_":
				return join{"and", b}, true
			case "max", "math.greatest", "math.@max":
				return join{"max", b}, true
			case "min", "math.least", "math.@min":
				return join{"min", b}, true
			}
		}
	}
	if t.Name != "_?_:_" || len(t.Args) != 3 {
		return join{}, false
	}
	test, yes, no := t.Args[0], t.Args[1], t.Args[2]
	for test.Op == statechart.TermCall && test.Name == "!_" && len(test.Args) == 1 {
		test, yes, no = test.Args[0], no, yes
	}
	if test.Op != statechart.TermCall {
		return join{}, false
	}
	switch {
	case isIn(test.Name) && len(test.Args) == 2 && self(test.Args[1]) && self(yes):
		if x, ok := appended(no, self); ok && shape(x) == shape(test.Args[0]) {
			return join{"insert", x}, true
		}
	case test.Name == "has" && len(test.Args) == 1 && self(test.Args[0]) && self(yes):
		return join{"once", no}, true
	case len(test.Args) == 2 && (test.Name == "_==_" || test.Name == "_!=_"):
		a, b := test.Args[0], test.Args[1]
		if self(b) {
			a, b = b, a
		}
		if test.Name == "_==_" {
			yes, no = no, yes
		}
		if self(a) && b.Op == statechart.TermConst && b.Const == nil && self(yes) {
			return join{"once", no}, true
		}
	case len(test.Args) == 2:
		return extreme(test, yes, no, self)
	}
	return join{}, false
}

func isIn(name string) bool { return name == "_in_" || name == "@in" || name == "in" }

// appended recognises v + [x].
func appended(t statechart.Term, self func(statechart.Term) bool) (statechart.Term, bool) {
	if t.Op == statechart.TermCall && t.Name == "_+_" && len(t.Args) == 2 && self(t.Args[0]) &&
		t.Args[1].Op == statechart.TermList && len(t.Args[1].Args) == 1 {
		return t.Args[1].Args[0], true
	}
	return statechart.Term{}, false
}

// extreme recognises v > x ? v : x and its kin.
func extreme(test, yes, no statechart.Term, self func(statechart.Term) bool) (join, bool) {
	a, b := test.Args[0], test.Args[1]
	greater := false
	switch test.Name {
	case "_>_", "_>=_":
		greater = true
	case "_<_", "_<=_":
	default:
		return join{}, false
	}
	if self(b) { // x < v is v > x
		a, b, greater = b, a, !greater
	}
	if !self(a) {
		return join{}, false
	}
	kind := map[bool]string{true: "max", false: "min"}
	switch {
	case self(yes) && shape(no) == shape(b):
		return join{kind[greater], b}, true
	case self(no) && shape(yes) == shape(b):
		return join{kind[!greater], b}, true
	}
	return join{}, false
}

// literal is one thing that a guard requires: a term that is true or false.
type literal struct {
	term statechart.Term
	want bool
}

// required gives what must hold for a guard to have answered so.
func required(t statechart.Term, answer bool) []literal {
	if t.Op == statechart.TermCall {
		switch {
		case t.Name == "!_" && len(t.Args) == 1:
			return required(t.Args[0], !answer)
		case t.Name == "_&&_" && answer, t.Name == "_||_" && !answer:
			var all []literal
			for _, a := range t.Args {
				all = append(all, required(a, answer)...)
			}
			return all
		case t.Name == "_!=_" && len(t.Args) == 2:
			c := t
			c.Name = "_==_"
			return []literal{{c, !answer}}
		}
	}
	return []literal{{t, answer}}
}
