package analyze_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/unavez/unavez/statechart"
)

// toy is a small language: its texts are the keys of a fixed table, each with
// its shape and its meaning. So the soundness test needs no real language, and
// the shapes are those that a real one gives.
type toy struct{}

type toyExpression struct {
	term statechart.Term
	eval func(c, e map[string]any) any
}

func (toy) Language() string { return "toy" }

func (toy) Compile(text string, _ statechart.Use) (statechart.Expression, error) {
	x, ok := toyTable()[text]
	if !ok {
		return nil, errors.New("no such text")
	}
	return x, nil
}

func (x toyExpression) Term() statechart.Term { return x.term }

func (x toyExpression) Eval(s statechart.Scope) (any, error) { return x.eval(s.Context, s.Event), nil }

func number(v any) int64 {
	switch n := v.(type) {
	case json.Number:
		i, err := n.Int64()
		if err != nil {
			panic(err) // the test's own numbers
		}
		return i
	case int64:
		return n
	case int:
		return int64(n)
	}
	return 0
}

func toyTable() map[string]toyExpression {
	c := func(p string) statechart.Term {
		return statechart.Term{Op: statechart.TermContext, Path: []string{p}}
	}
	e := func(p string) statechart.Term {
		return statechart.Term{Op: statechart.TermEvent, Path: []string{p}}
	}
	k := func(v any) statechart.Term { return statechart.Term{Op: statechart.TermConst, Const: v} }
	call := func(name string, args ...statechart.Term) statechart.Term {
		return statechart.Term{Op: statechart.TermCall, Name: name, Args: args}
	}
	list := func(x statechart.Term) statechart.Term {
		return statechart.Term{Op: statechart.TermList, Args: []statechart.Term{x}}
	}
	in := func(x any, l any) bool {
		ids, _ := l.([]any)
		return slices.Contains(ids, x)
	}
	and := func(l any, x any) []any {
		ids, _ := l.([]any)
		return append(slices.Clone(ids), x)
	}
	num := func(i int64) json.Number { return json.Number(fmt.Sprint(i)) }
	type m = map[string]any
	known := call("_in_", e("id"), c("ids"))
	return map[string]toyExpression{
		// values
		"n + 1":    {call("_+_", c("n"), k(json.Number("1"))), func(c, _ m) any { return num(number(c["n"]) + 1) }},
		"m - 1":    {call("_-_", c("m"), k(json.Number("1"))), func(c, _ m) any { return num(number(c["m"]) - 1) }},
		"n":        {c("n"), func(c, _ m) any { return c["n"] }},
		"event.v":  {e("v"), func(_, e m) any { return e["v"] }},
		"event.id": {e("id"), func(_, e m) any { return e["id"] }},
		"true":     {k(true), func(_, _ m) any { return true }},
		"0":        {k(json.Number("0")), func(_, _ m) any { return num(0) }},
		"append":   {call("_+_", c("ids"), list(e("id"))), func(c, e m) any { return and(c["ids"], e["id"]) }},
		"insert": {call("_?_:_", known, c("ids"), call("_+_", c("ids"), list(e("id")))), func(c, e m) any {
			if in(e["id"], c["ids"]) {
				return c["ids"]
			}
			return and(c["ids"], e["id"])
		}},
		"best": {call("_?_:_", call("_>_", e("v"), c("best")), e("v"), c("best")), func(c, e m) any {
			if number(e["v"]) > number(c["best"]) {
				return num(number(e["v"]))
			}
			return c["best"]
		}},
		"once": {call("_?_:_", call("_==_", c("first"), k(nil)), e("id"), c("first")), func(c, e m) any {
			if c["first"] == nil {
				return e["id"]
			}
			return c["first"]
		}},
		// guards
		"event.ok":   {e("ok"), func(_, e m) any { return e["ok"] == true }},
		"!event.ok":  {call("!_", e("ok")), func(_, e m) any { return e["ok"] != true }},
		"event.v>2":  {call("_>_", e("v"), k(json.Number("2"))), func(_, e m) any { return number(e["v"]) > 2 }},
		"known":      {known, func(c, e m) any { return in(e["id"], c["ids"]) }},
		"!known":     {call("!_", known), func(c, e m) any { return !in(e["id"], c["ids"]) }},
		"!known&&ok": {call("_&&_", call("!_", known), e("ok")), func(c, e m) any { return !in(e["id"], c["ids"]) && e["ok"] == true }},
		"n>=2":       {call("_>=_", c("n"), k(json.Number("2"))), func(c, _ m) any { return number(c["n"]) >= 2 }},
		"!(n>=2)":    {call("!_", call("_>=_", c("n"), k(json.Number("2")))), func(c, _ m) any { return number(c["n"]) < 2 }},
		"flag":       {c("flag"), func(c, _ m) any { return c["flag"] == true }},
		"!flag":      {call("!_", c("flag")), func(c, _ m) any { return c["flag"] != true }},
		"v>best":     {call("_>_", e("v"), c("best")), func(c, e m) any { return number(e["v"]) > number(c["best"]) }},
	}
}

// object keeps the order of its members, as charts do.
type object []member

type member struct {
	key   string
	value any
}

func (o *object) put(key string, value any) { *o = append(*o, member{key, value}) }

func (o object) has(key string) bool {
	return slices.ContainsFunc(o, func(m member) bool { return m.key == key })
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// dice makes random charts.
type dice struct {
	*rand.Rand
	states []*plant
	// forward charts move on as orders do; the others go anywhere.
	forward bool
	// writes are the assignments that this chart may use; few kinds of writers let
	// proofs by data succeed.
	writes []object
	guards []string
	always bool
	timers bool
	types  []string
}

// plant is one state of a chart in the making.
type plant struct {
	path   []string
	kind   string
	parent *plant
	inner  []*plant
}

func (p *plant) id() string { return strings.Join(append([]string{"m"}, p.path...), ".") }

func (p *plant) below(o *plant) bool {
	for q := p.parent; q != nil; q = q.parent {
		if q == o {
			return true
		}
	}
	return false
}

func (d *dice) chance(p float64) bool { return d.Float64() < p }

func pick[T any](d *dice, list []T) T { return list[d.IntN(len(list))] }

func expression(text string) object { return object{{"@expr", text}} }

// chart makes the JSON of a random chart.
func (d *dice) chart() []byte {
	d.states = nil
	d.forward = d.chance(0.6)
	d.always, d.timers = d.chance(0.35), d.chance(0.3)
	d.types = []string{"A", "B", "C", "D", "E", "F"}
	if d.forward {
		d.types = append(d.types, "G", "H", "I", "J", "K")
	}
	all := []object{
		{{"n", expression("n + 1")}},
		{{"m", expression("m - 1")}},
		{{"m", expression("n")}, {"n", expression("event.v")}},
		{{"last", expression("event.id")}},
		{{"flag", true}},
		{{"n", 0}},
		{{"ids", expression("append")}},
		{{"ids", expression("insert")}},
		{{"best", expression("best")}},
		{{"first", expression("once")}},
		{{"best", expression("event.v")}},
	}
	d.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	d.writes = all[:1+d.IntN(4)]
	if d.chance(0.4) {
		d.writes = []object{{{"ids", expression("insert")}}, {{"flag", true}}}
	}
	if d.chance(0.3) { // two writers of one member, at odds
		d.writes = pick(d, [][]object{
			{{{"best", expression("best")}}, {{"best", expression("event.v")}}},
			{{{"n", 0}}, {{"n", expression("n + 1")}}},
			{{{"ids", expression("insert")}}, {{"ids", []any{}}}},
			{{{"flag", true}}, {{"flag", false}}},
		})
	}
	d.guards = []string{"event.ok", "!event.ok", "event.v>2", "known", "!known", "!known&&ok", "n>=2", "!(n>=2)", "flag", "!flag", "v>best"}
	if d.chance(0.5) { // few guards, so that one is asked again and again
		d.Shuffle(len(d.guards), func(i, j int) { d.guards[i], d.guards[j] = d.guards[j], d.guards[i] })
		d.guards = d.guards[:2]
		if d.chance(0.5) {
			d.guards = []string{"n>=2", "flag"}
		}
	}
	root := d.grow(nil, nil, 0)
	chart := object{{"id", "m"}, {"@exprLang", "toy"}, {"options", object{{"maxIterations", 25}}}}
	chart.put("context", object{{"n", 0}, {"m", 0}, {"ids", []any{}}, {"best", 0}, {"first", nil}, {"flag", false}, {"last", nil}})
	chart = append(chart, d.node(root)...)
	text, err := json.Marshal(chart)
	if err != nil {
		panic(err) // strings, numbers and objects always marshal
	}
	return text
}

func (d *dice) grow(parent *plant, path []string, depth int) *plant {
	p := &plant{path: path, parent: parent, kind: "atomic"}
	d.states = append(d.states, p)
	roll := d.Float64()
	switch {
	case depth == 0 && roll < 0.85, depth > 0 && depth < 3 && roll < 0.22:
		p.kind = "compound"
	case depth < 3 && roll < 0.34 || depth == 0:
		p.kind = "parallel"
	}
	if depth > 0 && parent.kind == "parallel" && p.kind == "atomic" && depth < 3 {
		p.kind = "compound"
	}
	add := func(key, kind string) *plant {
		c := d.grow(p, append(slices.Clone(path), key), depth+1)
		if kind != "" {
			c.kind, c.inner = kind, nil
			d.states = d.states[:slices.Index(d.states, c)+1]
		}
		p.inner = append(p.inner, c)
		return c
	}
	switch p.kind {
	case "compound":
		n := 2 + d.IntN(3)
		for i := range n {
			kind := ""
			if i > 0 && d.chance(0.18) || i == n-1 && d.forward && d.chance(0.6) {
				kind = "final"
			}
			add(string(rune('a'+i)), kind)
		}
		if d.chance(0.2) {
			add("h", "history")
		}
	case "parallel":
		for i := range 2 + d.IntN(2) {
			add(string(rune('p'+i)), "")
		}
	}
	return p
}

func (d *dice) actions(most int) []any {
	var list []any
	for range d.IntN(most + 1) {
		switch r := d.Float64(); {
		case r < 0.45:
			list = append(list, object{{"type", "assign"}, {"params", pick(d, d.writes)}})
		case r < 0.53:
			list = append(list, object{{"type", "raise"}, {"params", object{{"event", object{{"type", pick(d, []string{"R1", "R2"})}}}}}})
		default:
			list = append(list, "note")
		}
	}
	return list
}

func (d *dice) guard(depth int) any {
	r := d.Float64()
	switch {
	case r < 0.75 || depth > 1:
		return expression(pick(d, d.guards))
	case r < 0.82:
		return object{{"type", "not"}, {"params", object{{"guard", d.guard(depth + 1)}}}}
	case r < 0.92:
		return object{{"type", pick(d, []string{"and", "or"})}, {"params", object{{"guards", []any{d.guard(depth + 1), d.guard(depth + 1)}}}}}
	default:
		return object{{"type", "stateIn"}, {"params", object{{"state", "#" + pick(d, d.states).real().id()}}}}
	}
}

// real is the state itself, or for a history the state that it belongs to.
func (p *plant) real() *plant {
	if p.kind == "history" {
		return p.parent
	}
	return p
}

func (d *dice) target(p *plant) string {
	var later, beside, inside []*plant
	for _, q := range d.states {
		switch {
		case q.parent == nil:
		case q.parent == p.parent && q != p:
			beside = append(beside, q)
			if slices.Index(p.parent.inner, q) > slices.Index(p.parent.inner, p) && q.kind != "history" {
				later = append(later, q)
			}
		case q.below(p):
			inside = append(inside, q)
		}
	}
	switch r := d.Float64(); {
	case d.forward && len(later) > 0 && r < 0.93:
		return "#" + pick(d, later).id()
	case d.forward && r < 0.93:
		return ""
	case len(beside) > 0 && r < 0.6:
		return "#" + pick(d, beside).id()
	case len(inside) > 0 && r < 0.75:
		return "#" + pick(d, inside).id()
	case r < 0.85:
		return "#" + p.id()
	default:
		return "#" + pick(d, d.states[1:]).id()
	}
}

func (d *dice) transition(p *plant, eventless bool) object {
	var t object
	if d.chance(0.35) || eventless {
		t.put("guard", d.guard(0))
	}
	if target := d.target(p); target != "" && d.chance(0.85) {
		t.put("target", target)
		if !d.forward && d.chance(0.12) {
			t.put("reenter", true)
		}
	}
	if list := d.actions(2); len(list) > 0 {
		t.put("actions", list)
	}
	return t
}

func (d *dice) node(p *plant) object {
	var o object
	switch p.kind {
	case "history":
		return object{{"type", "history"}, {"history", pick(d, []string{"shallow", "deep"})}}
	case "final", "parallel":
		o.put("type", p.kind)
	case "compound":
		o.put("initial", p.inner[0].path[len(p.path)])
	}
	if list := d.actions(1); len(list) > 0 && d.chance(0.5) {
		o.put("entry", list)
	}
	if list := d.actions(1); len(list) > 0 && d.chance(0.4) {
		o.put("exit", list)
	}
	if p.kind == "final" {
		return o
	}
	var on object
	for range d.IntN(4) {
		name := pick(d, d.types)
		switch r := d.Float64(); {
		case r < 0.05:
			name = "*"
		case r < 0.1:
			name = "x.*"
		case r < 0.14:
			name = "x.y"
		case r < 0.2:
			name = pick(d, []string{"R1", "R2"})
		}
		if on.has(name) {
			continue
		}
		list := []any{d.transition(p, false)}
		if d.chance(0.3) {
			list = append(list, d.transition(p, false))
		}
		on.put(name, list)
	}
	if len(on) > 0 {
		o.put("on", on)
	}
	if d.always && d.chance(0.25) {
		o.put("always", []any{d.transition(p, true)})
	}
	if d.timers && d.chance(0.4) {
		o.put("after", object{{pick(d, []string{"10", "20"}), d.transition(p, false)}})
	}
	if d.timers && d.chance(0.2) {
		o.put("invoke", object{{"id", "job-" + p.id()}, {"src", "job"}, {"onDone", d.transition(p, false)}, {"onError", d.transition(p, false)}})
	}
	if p.parent != nil && len(p.inner) > 0 && d.chance(0.4) {
		o.put("onDone", d.transition(p, false))
	}
	if len(p.inner) > 0 {
		var states object
		for _, c := range p.inner {
			states.put(c.path[len(p.path)], d.node(c))
		}
		o.put("states", states)
	}
	return o
}
