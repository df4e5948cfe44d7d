// Package chartcorpus reads cases of what XState does with a machine: the
// machine, the events, and state, context and actions after each. The tests of
// the statechart packages run them.
//
// A case has its own words for what JSON cannot say: the expressions of an
// assign are {"inc": 1}, {"ctx": key} and so on, and a guard is the name of a
// bool in the event's or the context's member g. [Case.Chart] turns the machine
// into a chart with expressions in a language of the caller's.
package chartcorpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// Case is one machine and what it did.
type Case struct {
	// ID and Features say which case it is; Machine and Events are what ran.
	ID       string
	Features []string
	Machine  json.RawMessage
	Events   []json.RawMessage
	// Steps hold one entry for the start and one for each event. DocOrder is there
	// if asking regions in document order gives another run.
	Steps, DocOrder []Step
	// Invalid is why XState refused the machine, "" if it did not.
	Invalid string
}

// Want is what an engine with document order has to do.
func (c *Case) Want() []Step {
	if c.DocOrder != nil {
		return c.DocOrder
	}
	return c.Steps
}

// Step is the machine after its start or an event.
type Step struct {
	// What the engine showed; Error is the first line of its message.
	Value, Context, Output json.RawMessage
	Status, Error          string
	Actions                []Action
	History                map[string][]string
	Tags                   []string
	// Illegal tells that XState left the legal configurations.
	Illegal bool
}

// Action is one action that ran: name, type of the event that it saw, params, and
// the context at that moment if the name is probe.
type Action struct {
	// See above.
	Name    string          `json:"a"`
	Event   string          `json:"e"`
	Params  json.RawMessage `json:"p"`
	Context json.RawMessage `json:"c"`
}

// Each reads the cases of a file, one a line, in gzip if the name ends in .gz.
func Each(path string, do func(*Case) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var c Case
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		if err := do(&c); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Expr is an expression of an assign: exactly one member is set. Of is the key
// that Inc, Append and Add work on.
type Expr struct {
	// A constant, a key of the context, a member of the event, a step, an element.
	Const  json.RawMessage `json:"const"`
	Ctx    string          `json:"ctx"`
	Event  string          `json:"event"`
	Inc    json.RawMessage `json:"inc"`
	Append *Expr           `json:"append"`
	Add    *Expr           `json:"add"`
	Of     string          `json:"of"`
}

// Names are the names that a machine uses.
type Names struct {
	// Actions and Guards without those that are built in.
	Actions, Guards map[string]bool
}

// Chart gives the machine as a chart whose assigns are {"@expr": say(expr)} in
// the language, and the names that it uses.
func (c *Case) Chart(language string, say func(Expr) string) ([]byte, Names, error) {
	t := &translation{say: say, names: Names{map[string]bool{}, map[string]bool{}}}
	decoder := json.NewDecoder(bytes.NewReader(c.Machine))
	decoder.UseNumber()
	root, err := read(decoder)
	if err != nil {
		return nil, t.names, err
	}
	t.node(&root)
	root.members = append(root.members, pair{"@exprLang", value{scalar: language}})
	if t.err != nil {
		return nil, t.names, t.err
	}
	return root.append(nil), t.names, nil
}

// value is JSON with its members in order.
type value struct {
	object  bool
	list    bool
	members []pair
	items   []value
	scalar  any
}

type pair struct {
	key   string
	value value
}

func read(d *json.Decoder) (value, error) {
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	switch token {
	case json.Delim('{'):
		v := value{object: true}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return v, err
			}
			member, err := read(d)
			if err != nil {
				return v, err
			}
			v.members = append(v.members, pair{key.(string), member})
		}
		_, err = d.Token()
		return v, err
	case json.Delim('['):
		v := value{list: true}
		for d.More() {
			item, err := read(d)
			if err != nil {
				return v, err
			}
			v.items = append(v.items, item)
		}
		_, err = d.Token()
		return v, err
	}
	return value{scalar: token}, nil
}

func (v *value) append(out []byte) []byte {
	switch {
	case v.object:
		out = append(out, '{')
		for i := range v.members {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(append(out, quoted(v.members[i].key)...), ':')
			out = v.members[i].value.append(out)
		}
		return append(out, '}')
	case v.list:
		out = append(out, '[')
		for i := range v.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = v.items[i].append(out)
		}
		return append(out, ']')
	}
	return append(out, quoted(v.scalar)...)
}

func quoted(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return []byte("null") // not met: scalars only
	}
	return text
}

func (v *value) member(key string) *value {
	for i := range v.members {
		if v.members[i].key == key {
			return &v.members[i].value
		}
	}
	return nil
}

type translation struct {
	say   func(Expr) string
	names Names
	err   error
}

func (t *translation) node(v *value) {
	for i := range v.members {
		m := &v.members[i].value
		switch v.members[i].key {
		case "entry", "exit":
			t.actions(m)
		case "on", "after":
			for j := range m.members {
				t.transitions(&m.members[j].value)
				if v.members[i].key == "after" {
					lostTargets(m.members[j].value.items)
				}
			}
		case "always", "onDone", "initial":
			t.transitions(m)
		case "states":
			for j := range m.members {
				t.node(&m.members[j].value)
			}
		}
	}
}

// lostTargets writes out what XState 5.33 does with a plain string in a list of
// delayed transitions: it loses the target, and the transition does nothing.
func lostTargets(list []value) {
	for i := range list {
		if _, ok := list[i].scalar.(string); ok {
			list[i] = value{object: true}
		}
	}
}

func (t *translation) transitions(v *value) {
	for i := range v.items {
		t.transitions(&v.items[i])
	}
	if actions := v.member("actions"); actions != nil {
		t.actions(actions)
	}
	if guard := v.member("guard"); guard != nil {
		t.guard(guard)
	}
}

func (t *translation) guard(v *value) {
	name, _ := v.scalar.(string)
	if kind := v.member("type"); kind != nil {
		name, _ = kind.scalar.(string)
	}
	switch name {
	case "and", "or":
		guards := v.member("params").member("guards")
		for i := range guards.items {
			t.guard(&guards.items[i])
		}
	case "not":
		t.guard(v.member("params").member("guard"))
	case "stateIn":
	default:
		t.names.Guards[name] = true
	}
}

func (t *translation) actions(v *value) {
	for i := range v.items {
		t.actions(&v.items[i])
	}
	name, _ := v.scalar.(string)
	if kind := v.member("type"); kind != nil {
		name, _ = kind.scalar.(string)
	}
	switch name {
	case "":
	case "raise":
	case "assign":
		params := v.member("params")
		for i := range params.members {
			var expr Expr
			if err := json.Unmarshal(params.members[i].value.append(nil), &expr); err != nil {
				t.err = err
				return
			}
			expr.own(params.members[i].key)
			params.members[i].value = value{object: true, members: []pair{{"@expr", value{scalar: t.say(expr)}}}}
		}
	default:
		t.names.Actions[name] = true
	}
}

// own sets the key that the expression works on, if it names none.
func (e *Expr) own(key string) {
	if e.Of == "" {
		e.Of = key
	}
	for _, part := range []*Expr{e.Append, e.Add} {
		if part != nil {
			part.own(key)
		}
	}
}

// Holds answers a guard by name: the bool of that name in member g of the event,
// else of the context, else false. ctxGte compares a number of the context.
func Holds(name string, context, event map[string]any, params any) bool {
	if name == "ctxGte" {
		p, _ := params.(map[string]any)
		key, _ := p["key"].(string)
		have, _ := context[key].(json.Number)
		want, _ := p["value"].(json.Number)
		a, _ := have.Int64()
		b, _ := want.Int64()
		return a >= b
	}
	for _, from := range []map[string]any{event, context} {
		if g, ok := from["g"].(map[string]any); ok {
			if answer, ok := g[name]; ok {
				return answer == true
			}
		}
	}
	return false
}
