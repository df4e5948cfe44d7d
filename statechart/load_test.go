package statechart_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/cel"
)

func language(t testing.TB) *cel.Language {
	t.Helper()
	l, err := cel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// options know the names that the charts of the tests use.
func options(t testing.TB) *statechart.Options {
	return &statechart.Options{
		Expressions: language(t),
		Guards: map[string]statechart.GuardFunc{
			"open": {Test: func(s statechart.Scope) (bool, error) { return s.Context["open"] == true, nil }, ContextOnly: true},
		},
		Actions: map[string]statechart.ActionFunc{
			"mail":   {Kind: statechart.Effect, Keyed: true},
			"log":    {Kind: statechart.Effect},
			"broken": {Kind: statechart.Pure, Patch: func(statechart.Scope) (map[string]any, error) { return map[string]any{"x": make(chan int)}, nil }},
			"fails":  {Kind: statechart.Join, Patch: func(statechart.Scope) (map[string]any, error) { return nil, errors.New("no luck") }},
		},
		Delays:  map[string]time.Duration{"patience": time.Hour},
		Invokes: []string{"charge"},
	}
}

func load(t testing.TB, text string) *statechart.Definition {
	t.Helper()
	d, err := statechart.Load([]byte(text), options(t))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func faults(t testing.TB, text string) []statechart.Fault {
	t.Helper()
	_, err := statechart.Load([]byte(text), options(t))
	if err == nil {
		return nil
	}
	all, ok := errors.AsType[*statechart.Faults](err)
	if !ok {
		t.Fatalf("%.200s: %v", text, err)
	}
	return all.List
}

func TestWhatMayNotStandInAChartIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	state := func(members string) string { return `{"id":"m","initial":"a","states":{"a":{` + members + `},"b":{}}}` }
	for _, c := range []struct{ name, text, at, want string }{
		{"not JSON", `{"id":"m",}`, "line 1, column 11", "a member's name"},
		{"not UTF-8", "{\"id\":\"m\xff\"}", "line 1, column 9", "not valid UTF-8"},
		{"a list", `[]`, "line 1, column 1", "a chart is an object"},
		{"two values", `{} {}`, "line 1, column 4", "text after the end"},
		{"lone surrogate", `{"id":"\ud800"}`, "line 1", "bad \\u escape"},
		{"member twice", `{"initial":"a","states":{"a":{},"b":{},"a":{}}}`, "line 1, column 40 (/states/a)", `member "a" stands twice`},
		{"id twice", `{"initial":"a","states":{"a":{"id":"x"},"b":{"id":"x"}}}`, "(/states/b/id)", `"x" belongs to the state at line 1, column 30 (/states/a)`},
		{"id of another path", `{"id":"m","initial":"a","states":{"a":{"id":"m.b"},"b":{}}}`, "(/states/b)", "belongs to the state"},
		{"number as key", `{"initial":"b","states":{"b":{},"10":{}}}`, "(/states/10)", "JavaScript would move it"},
		{"empty key", `{"initial":"b","states":{"b":{},"":{}}}`, "(/states/)", "a state needs a name"},
		{"unknown target", state(`"on":{"E":"c"}`), "(/states/a/on/E)", `target "c": "#m" has no state "c"`},
		{"misspelt target", `{"id":"m","initial":"a","states":{"a":{"on":{"E":"canceled"}},"cancelled":{}}}`, "(/states/a/on/E)", `is "cancelled" meant?`},
		{"misspelt initial", `{"id":"m","initial":"opne","states":{"open":{}}}`, "(/initial)", `is "open" meant?`},
		{"misspelt id", `{"id":"m","initial":"a","states":{"a":{"on":{"E":"#lasst"}},"b":{"id":"last"}}}`, "(/states/a/on/E)", `is "last" meant?`},
		{"misspelt path", `{"id":"m","initial":"a","states":{"a":{"on":{"E":"#m.bacl"}},"back":{"id":"m.back"}}}`, "(/states/a/on/E)", `is "back" meant?`},
		{"lost action", state(`"entry":[null]`), "(/states/a/entry/0)", "JSON.stringify writes for a function: name it"},
		{"unknown id", state(`"on":{"E":{"target":"#x"}}`), "(/states/a/on/E/target)", `no state has the id "x"`},
		{"unknown below id", state(`"on":{"E":"#m.a.c"}`), "(/states/a/on/E)", `"#m.a" has no state "c"`},
		{"root without dot", `{"id":"m","on":{"E":"a"},"initial":"a","states":{"a":{}}}`, "(/on/E)", `the root has no siblings; write ".a"`},
		{"two targets in one region", `{"id":"m","initial":"a","states":{"a":{"on":{"E":{"target":["b","c"]}}},"b":{},"c":{}}}`, "(/states/a/on/E/target/1)", "not in another region"},
		{"target inside the other", `{"id":"m","initial":"a","states":{"a":{"on":{"E":{"target":["b","b.x"]}}},"b":{"initial":"x","states":{"x":{}}}}}`, "", "lies inside the other"},
		{"no initial", `{"id":"m","states":{"a":{}}}`, "line 1, column 1", `needs initial, such as "a"`},
		{"unknown initial", `{"id":"m","initial":"z","states":{"a":{}}}`, "(/initial)", `has no state "z"`},
		{"initial history", `{"id":"m","initial":"h","states":{"a":{},"h":{"type":"history"}}}`, "(/initial)", "cannot be a history state"},
		{"null transition", state(`"on":{"E":null}`), "(/states/a/on/E)", "not null"},
		{"event without type", state(`"on":{"":"b"}`), "", "written under always"},
		{"strange wildcard", state(`"on":{"a*":"b"}`), "", "matches nothing"},
		{"unknown guard", state(`"on":{"E":{"guard":"opne","target":"b"}}`), "(/states/a/on/E/guard)", `no guard is named "opne" (Options.Guards); is "open" meant?`},
		{"unknown action", state(`"entry":"send"`), "(/states/a/entry)", `no action is named "send"`},
		{"unknown delay", state(`"after":{"soon":"b"}`), "(/states/a/after/soon)", `no delay is named "soon"`},
		{"odd delay", state(`"after":{"1e3":"b"}`), "", "whole number of milliseconds"},
		{"long delay", state(`"after":{"99999999999999999":"b"}`), "", "over a hundred years"},
		{"lost string", state(`"after":{"10":["b"]}`), "(/states/a/after/10/0)", "loses a plain string"},
		{"unknown invoke", state(`"invoke":{"src":"pay"}`), "(/states/a/invoke/src)", `nothing is named "pay"`},
		{"invoke twice", `{"id":"m","initial":"a","states":{"a":{"invoke":[{"id":"i","src":"charge"},{"id":"i","src":"charge"}]}}}`, "(/states/a/invoke/1)", "stands twice"},
		{"misspelt member", state(`"alwyas":"b"`), "(/states/a/alwyas)", `is "always" meant?`},
		{"member of version 4", state(`"on":{"E":{"cond":"open"}}`), "(/states/a/on/E/cond)", "in XState 5 it is guard"},
		{"strict", `{"strict":true}`, "(/strict)", "an unknown event is no error"},
		{"reserved guard", state(`"on":{"E":{"guard":"not"}}`), "", "is built in"},
		{"library action", state(`"entry":{"type":"xstate.assign"}`), "", "action of the XState library"},
		{"raise of the library's events", state(`"entry":{"type":"raise","params":{"event":{"type":"xstate.done.state.m"}}}`), "", "cannot be raised"},
		{"raise without type", state(`"entry":{"type":"raise","params":{"event":{"type":{"@expr":"event.x"}}}}`), "", "a plain string"},
		{"onDone of the root", `{"id":"m","onDone":{},"initial":"a","states":{"a":{}}}`, "(/onDone)", "never runs"},
		{"onDone of a leaf", state(`"onDone":"b"`), "", "never runs"},
		{"final with states", `{"id":"m","initial":"a","states":{"a":{"type":"final","states":{"x":{}}}}}`, "(/states/a/states)", "cannot have states"},
		{"parallel without states", state(`"type":"parallel"`), "(/states/a)", "needs states"},
		{"unknown type", state(`"type":"choice"`), "(/states/a/type)", "must be atomic"},
		{"history outside", `{"id":"m","initial":"a","states":{"a":{"initial":"x","states":{"x":{},"h":{"type":"history","target":"#m.b"}}},"b":{}}}`, "", "inside its parent"},
		{"stateIn nowhere", state(`"always":{"guard":{"type":"stateIn","params":{"state":"#m.z"}},"target":"b"}`), "", `has no state "z"`},
		{"handled twice", `{"id":"m","initial":"p","states":{"p":{"initial":"x","on":{"xstate.done.state.m.p":".x"},"onDone":"p","states":{"x":{}}}}}`, "", "handles"},
		{"expression without language", state(`"always":{"guard":{"@expr":"true"},"target":"b"}`), "", "@exprLang"},
		{"other language", `{"@exprLang":"jsonata","initial":"a","states":{"a":{}}}`, "(/@exprLang)", `expressions are in "cel"`},
		{"guard that gives a number", `{"@exprLang":"cel","initial":"a","states":{"a":{"always":{"guard":{"@expr":"1 + 1"},"target":"a"}}}}`, "(/states/a/always/guard/@expr)", "must give a bool, and this gives int"},
		{"expression that does not parse", `{"@exprLang":"cel","initial":"a","states":{"a":{"always":{"guard":{"@expr":"1 +"},"target":"a"}}}}`, "", "expression, line 1, column"},
		{"iterations", `{"options":{"maxIterations":0}}`, "(/options/maxIterations)", "from 1 to 10000"},
		{"early", `{"early":{"E":"later"}}`, "(/early/E)", "defer, reject, ignore"},
		{"empty stateIn", state(`"always":{"guard":{"type":"stateIn","params":{"state":{}}},"target":"b"}`), "", "names no state"},
	} {
		all := faults(t, c.text)
		found := false
		for _, f := range all {
			if strings.Contains(f.Text, c.want) && strings.Contains(f.At.String(), c.at) && f.At.Line > 0 {
				found = true
			}
		}
		if !found {
			t.Errorf("%s: want %q at %q, got %v", c.name, c.want, c.at, all)
		}
	}
}

// What a machine becomes is one fault, not one for each member.
func TestTheDefinitionOfAMachineIsNotItsConfiguration(t *testing.T) {
	t.Parallel()
	all := faults(t, `{"id":"m","key":"m","type":"compound","initial":{"target":["#m.a"],"source":"#m","actions":[],"eventType":null},
		"history":false,"states":{"a":{"id":"m.a","key":"a","type":"atomic","initial":{"target":[]},"history":false,"states":{},"on":{},
		"transitions":[],"entry":[],"exit":[],"order":1,"invoke":[],"tags":[]}},"on":{},"transitions":[],"entry":[],"exit":[],"order":-1}`)
	if len(all) != 1 || !strings.Contains(all[0].Text, "export machine.config") {
		t.Errorf("got %v", all)
	}
}

func TestAllFaultsAreNamedAtOnceInTheOrderOfTheText(t *testing.T) {
	t.Parallel()
	all := faults(t, `{
  "id": "m",
  "initial": "a",
  "states": {
    "a": {"on": {"E": "nowhere", "F": {"guard": "g", "actions": ["x", "mail"]}}},
    "é": {"entry": "y", "onn": {}}
  }
}`)
	var got []string
	for _, f := range all {
		got = append(got, fmt.Sprintf("%d:%d", f.At.Line, f.At.Column))
	}
	if want := "5:23 5:49 5:66 6:20 6:25"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s: %v", got, want, all)
	}
}

func TestHostileChartsAreRefusedQuickly(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"states":{"a":`, 10_000) + `{}` + strings.Repeat(`}}`, 10_000)
	wide := `{"initial":"s0","states":{` + strings.TrimSuffix(strings.Repeat(`"s":{},`, 140_000), ",") + `}}`
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, `"s%d":{},`, i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"10 MB", `{"id":"` + strings.Repeat("a", 10<<20) + `"}`, "more than 1048576"},
		{"10,000 levels", deep, "nested deeper than 200 levels"},
		{"10,000 lists", `{"meta":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, "nested deeper"},
		{"140,000 members of one name", wide, "more faults, which are not listed"},
		{"3,000 states", `{"initial":"s0","states":{` + strings.TrimSuffix(many.String(), ",") + `}}`, "more than 1000 states"},
	} {
		_, err := statechart.Load([]byte(c.text), options(t))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.300v, want %q", c.name, err, c.want)
		}
	}
}

func TestOptionsThatCannotBeRightAreRefused(t *testing.T) {
	t.Parallel()
	patch := func(statechart.Scope) (map[string]any, error) { return nil, nil }
	_, err := statechart.Load([]byte(`{}`), &statechart.Options{
		Guards: map[string]statechart.GuardFunc{"and": {}, "g": {}},
		Actions: map[string]statechart.ActionFunc{
			"assign": {Kind: statechart.Effect}, "a": {}, "b": {Kind: statechart.Effect, Patch: patch},
			"c": {Kind: statechart.Pure}, "d": {Kind: statechart.Join, Patch: patch, Keyed: true},
		},
		Delays: map[string]time.Duration{"10": 1, "x": -1},
	})
	for _, want := range []string{`Guards: "and"`, `Guards: "g"`, `Actions: "assign"`, `Actions: "a"`, `Actions: "b"`, `Actions: "c"`, `Actions: "d"`, `Delays: "10"`, `Delays: "x"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s is missing", err, want)
		}
	}
}

func TestTheHashCoversWhatAChartDoesAndNothingElse(t *testing.T) {
	t.Parallel()
	base := `{"id":"m","version":"1","context":{"n":1},"initial":"a","states":{"a":{"on":{"E":"b","F":"a"}},"b":{}}}`
	hash := func(text string) string { return load(t, text).Hash() }
	for _, same := range []string{
		` {"states" : {"a":{"on":{"F":{"target":"a"},"E":[{"target":"b"}]}},"b":{}}, "initial":"a","context":{"n":1.0},"version":"1","id":"m"}`,
		`{"id":"m","version":"1","description":"x","meta":{"y":1},"duplicates":{"E":"exposed"},"context":{"n":1e0},"initial":"a","states":{"a":{"description":"z","on":{"E":"#m.b","F":"#m.a"}},"b":{"type":"atomic"}}}`,
	} {
		if hash(same) != hash(base) {
			t.Errorf("the same chart has another hash: %s\n%s\n%s", same, load(t, base).Canonical(), load(t, same).Canonical())
		}
	}
	for _, other := range []string{
		strings.Replace(base, `"n":1`, `"n":2`, 1),
		strings.Replace(base, `"version":"1"`, `"version":"2"`, 1),
		strings.Replace(base, `"E":"b"`, `"E":{"target":"b","reenter":true}`, 1),
		strings.Replace(base, `"b":{}`, `"b":{"entry":"mail"}`, 1),
		// The order of states counts, which a store that sorts keys loses.
		`{"id":"m","version":"1","context":{"n":1},"initial":"a","states":{"b":{},"a":{"on":{"E":"b","F":"a"}}}}`,
	} {
		if hash(other) == hash(base) {
			t.Errorf("another chart has the same hash: %s", other)
		}
	}
	o := options(t)
	o.Guards["open"] = statechart.GuardFunc{Test: o.Guards["open"].Test, ContextOnly: true, Version: "2"}
	guarded := strings.Replace(base, `"E":"b"`, `"E":{"target":"b","guard":"open"}`, 1)
	d, err := statechart.Load([]byte(guarded), o)
	if err != nil || d.Hash() == hash(guarded) {
		t.Errorf("a guard's version does not count: %v", err)
	}
	if unused, err := statechart.Load([]byte(base), o); err != nil || unused.Hash() != hash(base) {
		t.Errorf("a function that the chart does not use counts: %v", err)
	}
}

func TestAChartOfBareNamesCanBeExploredAndNotRun(t *testing.T) {
	t.Parallel()
	text := `{"id":"m","initial":"a","states":{
		"a":{"after":{"soon":"b"},"on":{"GO":[{"guard":{"type":"and","params":{"guards":["g",{"type":"not","params":{"guard":"g"}}]}},"target":"a"},{"guard":"g","target":"b","actions":"do"}]}},
		"b":{"invoke":{"src":"pay","onDone":"c"},"always":{"guard":{"@expr":"context.x"},"target":"c"}},"c":{"type":"final"}}}`
	d, err := statechart.Load([]byte(text), &statechart.Options{NamesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(d.Unnamed(), ", "), "action do, delay soon, expression context.x, guard g, invoke pay"; got != want {
		t.Errorf("unnamed: got %s, want %s", got, want)
	}
	if _, err := statechart.Start(d, nil); statechart.CodeOf(err) != statechart.CodeNoCode {
		t.Errorf("start: %v", err)
	}
	asked := 0
	answer := func(yes bool) func(statechart.Question) bool {
		return func(statechart.Question) bool { asked++; return yes }
	}
	first, err := statechart.Explore(d, nil, statechart.Event{}, answer(true))
	if err != nil || !first.Snapshot.In("m.a") {
		t.Fatal(first, err)
	}
	r, err := statechart.Explore(d, first.Snapshot, statechart.Event{Type: "GO"}, answer(true))
	if err != nil || r.Snapshot.Status() != statechart.Done || len(r.Ran) != 1 || len(r.Taken) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if asked != 2 { // g once for GO, though three guards name it; the expression once
		t.Errorf("asked %d times", asked)
	}
	if r, err = statechart.Explore(d, first.Snapshot, statechart.Event{Type: "GO"}, answer(false)); err != nil || r.Kind != statechart.GuardFalse {
		t.Errorf("%+v, %v", r, err)
	}
}
