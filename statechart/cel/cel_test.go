package cel

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/internal/chartcorpus"
	"github.com/unavez/unavez/statechart"
)

func language(t testing.TB) *Language {
	t.Helper()
	l, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// plainJSON reads JSON as the engine does.
func plainJSON(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestValuesOfExpressions(t *testing.T) {
	t.Parallel()
	l := language(t)
	scope := statechart.Scope{
		Context: plainJSON(t, `{"n":1,"list":["a",1.50],"price":9.90,"big":12345678901234567890123,"whole":1e3,"max":9223372036854775807,"huge":1e999999}`),
		Event:   plainJSON(t, `{"type":"PAY","id":"e1","amount":2.0,"nested":{"x":[1,{"y":null}]},"rate":0.1}`),
	}
	for _, c := range []struct{ text, want string }{
		{`context.n + 1`, `2`},
		{`event.amount + 1`, `3`},
		{`context.whole`, `1e3`},
		{`context.whole + 0`, `1000`},
		{`context.price`, `9.90`},
		{`context.price + event.rate`, `10`},
		{`context.price * 3`, `29.7`},
		{`context.price - decimal("0.05")`, `9.85`},
		{`-context.price`, `-9.9`},
		{`decimal(5) - context.price`, `-4.9`},
		{`decimal(context.n) + event.amount`, `3`},
		{`context.price > 9`, `true`},
		{`context.price > decimal("9.9")`, `false`},
		{`context.price == decimal("9.9")`, `true`},
		{`context.big`, `12345678901234567890123`},
		{`context.big + 1`, `12345678901234567890124`},
		{`context.huge`, `1e999999`},
		{`string(context.price)`, `"9.9"`},
		{`double(event.rate) * 3.0 > 0.3`, `true`},
		{`int(decimal("7"))`, `7`},
		{`context.list`, `["a",1.50]`},
		{`context.list + [event.id]`, `["a",1.50,"e1"]`},
		{`event.id in context.list ? context.list : context.list + [event.id]`, `["a",1.50,"e1"]`},
		{`"a" in context.list ? context.list : context.list + ["a"]`, `["a",1.50]`},
		{`event.nested`, `{"x":[1,{"y":null}]}`},
		{`{"a": context.n, "b": [null, true, event.rate]}`, `{"a":1,"b":[null,true,0.1]}`},
		{`has(event.missing) ? event.missing : 0`, `0`},
		{`has(event.nested.x) && event.nested.x.exists(e, e == 1)`, `true`},
		{`math.greatest(context.n, 7)`, `7`},
		{`event.type.startsWith("PA")`, `true`},
		{`10u`, `10`},
		{`1.5`, `1.5`},
	} {
		e, err := l.Compile(c.text, statechart.UseValue)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		v, err := e.Eval(scope)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got, err := json.Marshal(v); err != nil || string(got) != c.want {
			t.Errorf("%s: got %s (%v), want %s", c.text, got, err, c.want)
		}
	}
}

func TestExpressionsThatFailSayWhy(t *testing.T) {
	t.Parallel()
	l := language(t)
	scope := statechart.Scope{
		Context: plainJSON(t, `{"n":0,"max":9223372036854775807,"price":9.9,"huge":1e999999,"list":[1]}`),
		Event:   plainJSON(t, `{"type":"E"}`),
	}
	for _, c := range []struct{ text, want string }{
		{`1 / context.n`, "division by zero"},
		{`context.max + 1`, "overflow"},
		{`context.missing`, "no such key: missing"},
		{`context.n + "a"`, "no such overload"},
		{`5 > context.price`, "write decimal(…) around an int"},
		{`context.price / 2`, "no such overload"},
		{`context.huge + 1`, "more than 1000 digits"},
		{`decimal("abc")`, "not a decimal number"},
		{`timestamp(event.type)`, "write string"},
		{`{1: context.n}`, "JSON has strings only"},
		{`type(context.n)`, "gives a type"},
		{`b"abc"`, "gives bytes"},
		{`undeclared + 1`, "line 1, column 1: undeclared reference"},
		{`context.n +`, "column"},
		{`input`, "undeclared reference"},
		{`[1,2,3].map(a, [1,2,3].map(b, [1,2,3].map(c, [1,2,3].map(d, [1,2,3].map(e, [1,2,3].map(f, [1,2,3].map(g, [1,2,3].map(h, a+context.n))))))))`, "costs more than the limit of 10000"},
		{strings.Repeat("(", 200) + "1" + strings.Repeat(")", 200), "recursion"},
		{strings.Repeat("1+", 6000) + "1", "size"},
	} {
		e, err := l.Compile(c.text, statechart.UseValue)
		if err == nil {
			_, err = e.Eval(scope)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: got %v, want %q", c.text, err, c.want)
		}
	}
	for _, text := range []string{`1`, `"true"`, `[context.n]`} {
		if _, err := l.Compile(text, statechart.UseGuard); err == nil || !strings.Contains(err.Error(), "a guard must give a bool") {
			t.Errorf("guard %s: %v", text, err)
		}
	}
	e, err := l.Compile(`context.n`, statechart.UseGuard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Eval(scope); err == nil || !strings.Contains(err.Error(), "this gave int") {
		t.Errorf("a guard that gives an int: %v", err)
	}
}

func TestTheShapeOfAnExpressionNamesWhatItReads(t *testing.T) {
	t.Parallel()
	l := language(t)
	for _, c := range []struct{ text, want string }{
		{`true`, `true`},
		{`context.n + 1`, `_+_(context.n, 1)`},
		{`event["id"] in context.seen.ids`, `_in_(event.id, context.seen.ids)`},
		{`has(context.a.b)`, `has(context.a.b)`},
		{`context`, `context`},
		{`context.n > 1 ? event.a : {"k": [event.b]}`, `_?_:_(_>_(context.n, 1), event.a, {"k", [event.b]})`},
		{`event.list.exists(x, x == context.n)`, `?(event.list, false, ?(context.n))`},
		{`context.m[event.key]`, `_[_](context.m, event.key)`},
		{`event.type.startsWith("a")`, `startsWith(event.type, "a")`},
	} {
		e, err := l.Compile(c.text, statechart.UseValue)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		got := show(e.Term())
		if c.want[0] == '?' { // the inside of a macro is the library's business, not what it reads
			if !e.Term().Reads(statechart.TermContext) || !e.Term().Reads(statechart.TermEvent) || got[0] != '?' {
				t.Errorf("%s: %s", c.text, got)
			}
			continue
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.text, got, c.want)
		}
	}
}

func show(t statechart.Term) string {
	args := make([]string, len(t.Args))
	for i, a := range t.Args {
		args[i] = show(a)
	}
	list := strings.Join(args, ", ")
	switch t.Op {
	case statechart.TermConst:
		text, _ := json.Marshal(t.Const)
		return string(text)
	case statechart.TermContext:
		return strings.Join(append([]string{"context"}, t.Path...), ".")
	case statechart.TermEvent:
		return strings.Join(append([]string{"event"}, t.Path...), ".")
	case statechart.TermCall:
		return t.Name + "(" + list + ")"
	case statechart.TermList:
		return "[" + list + "]"
	case statechart.TermMap:
		return "{" + list + "}"
	}
	return "?(" + list + ")"
}

// sayCEL writes an expression of the corpus in CEL.
func sayCEL(e chartcorpus.Expr) string {
	own, _ := json.Marshal(e.Of)
	read := func(variable, key string) string {
		k, _ := json.Marshal(key)
		return fmt.Sprintf("%s in %s ? %s[%s] : null", k, variable, variable, k)
	}
	list := fmt.Sprintf("(%s in context ? context[%s] : [])", own, own)
	switch {
	case e.Ctx != "":
		return read("context", e.Ctx)
	case e.Event != "":
		return read("event", e.Event)
	case e.Append != nil:
		return fmt.Sprintf("%s + [%s]", list, sayCEL(*e.Append))
	case e.Add != nil:
		v := sayCEL(*e.Add)
		return fmt.Sprintf("(%s) in %s ? %s : %s + [%s]", v, list, list, list, v)
	case e.Inc != nil && string(e.Inc) != "null":
		return fmt.Sprintf("(%s in context ? context[%s] : 0) + %s", own, own, e.Inc)
	}
	return string(e.Const)
}

func TestTheCorpusRunsWithItsAssignsInCEL(t *testing.T) {
	t.Parallel()
	l := language(t)
	cases := 0
	err := chartcorpus.Each("../testdata/corpus.jsonl.gz", func(c *chartcorpus.Case) error {
		for _, e := range c.Events {
			if strings.Contains(string(e), "xstate.after") || strings.Contains(string(e), "$advance") {
				return nil // timers are the business of the engine's own test
			}
		}
		switch c.ID {
		case "s54", "s1750", "s1764": // difference D2
			return nil
		}
		cases++
		if diff := runInCEL(c, l); diff != "" {
			t.Errorf("%s: %s", c.ID, diff)
		}
		return nil
	})
	if err != nil || cases < 700 {
		t.Fatal(cases, err)
	}
}

func runInCEL(c *chartcorpus.Case, l *Language) string {
	text, names, err := c.Chart("cel", sayCEL)
	if err != nil {
		return err.Error()
	}
	o := &statechart.Options{Guards: map[string]statechart.GuardFunc{}, Actions: map[string]statechart.ActionFunc{}, Expressions: l}
	for name := range names.Actions {
		o.Actions[name] = statechart.ActionFunc{Kind: statechart.Effect}
	}
	for name := range names.Guards {
		o.Guards[name] = statechart.GuardFunc{Test: func(s statechart.Scope) (bool, error) {
			return chartcorpus.Holds(name, s.Context, s.Event, s.Params), nil
		}}
	}
	def, err := statechart.Load(text, o)
	if err != nil {
		return err.Error()
	}
	var snap *statechart.Snapshot
	for i, want := range c.Want() {
		var r statechart.Reaction
		if i == 0 {
			r, err = statechart.Start(def, nil)
		} else {
			event, bad := statechart.ParseEvent(c.Events[i-1])
			if bad != nil {
				return bad.Error()
			}
			r, err = statechart.Next(def, snap, event)
		}
		if want.Status == "error" {
			if statechart.CodeOf(err) != statechart.CodeLimit {
				return fmt.Sprintf("step %d: %v", i, err)
			}
			return ""
		}
		if err != nil {
			return fmt.Sprintf("step %d: %v", i, err)
		}
		snap = r.Snapshot
		var value, context any
		if json.Unmarshal(want.Value, &value) != nil || json.Unmarshal(want.Context, &context) != nil {
			return "bad case"
		}
		got, gotContext := roundTrip(snap.Value()), roundTrip(snap.Context())
		if !reflect.DeepEqual(got, value) || !reflect.DeepEqual(gotContext, context) || len(r.Effects) != len(want.Actions) {
			return fmt.Sprintf("step %d: %s%s, %d actions, want %d", i, cmp.Diff(value, got), cmp.Diff(context, gotContext), len(r.Effects), len(want.Actions))
		}
	}
	return ""
}

func roundTrip(v any) (out any) {
	text, err := json.Marshal(v)
	if err != nil || json.Unmarshal(text, &out) != nil {
		return err
	}
	return out
}
