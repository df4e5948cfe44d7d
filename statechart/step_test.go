package statechart_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/cel"
)

const orderChart = `{
  "id": "order", "version": "1", "@exprLang": "cel",
  "context": {"paid": 0, "seen": [], "price": 9.90},
  "initial": "pending",
  "states": {
    "pending": {
      "after": {"1000": "cancelled", "patience": {"actions": "mail"}},
      "on": {
        "PAY": [
          {"guard": {"@expr": "event.amount >= 10"}, "target": "paid", "actions": [
            {"type": "assign", "params": {"paid": {"@expr": "decimal(context.paid) + event.amount"}, "seen": {"@expr": "context.seen + [event.id]"}}},
            {"type": "mail", "params": {"to": "owner", "sum": {"@expr": "context.paid"}}}
          ]}
        ],
        "NOTHING": {}, "SAME": {"target": "pending"}, "SET": {"actions": {"type": "assign", "params": {"paid": {"@expr": "event.amount"}}}},
        "AGAIN": {"target": "pending", "reenter": true}, "RAISE": {"actions": {"type": "raise", "params": {"event": {"type": "NOBODY"}}}}
      }
    },
    "paid": {
      "invoke": {"id": "charge", "src": "charge", "input": {"sum": {"@expr": "context.paid"}},
        "onDone": {"target": "shipped", "actions": {"type": "assign", "params": {"receipt": {"@expr": "event.output"}}}}, "onError": "pending"},
      "on": {"CANCEL": "cancelled"}
    },
    "shipped": {"type": "final"}, "cancelled": {"type": "final"}
  },
  "output": {"paid": {"@expr": "context.paid"}}
}`

func start(t testing.TB, d *statechart.Definition) *statechart.Snapshot {
	t.Helper()
	r, err := statechart.Start(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Snapshot
}

func event(t testing.TB, text string) statechart.Event {
	t.Helper()
	e, err := statechart.ParseEvent([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func next(t testing.TB, s *statechart.Snapshot, e statechart.Event) statechart.Reaction {
	t.Helper()
	r, err := statechart.Next(s.Definition(), s, e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(t testing.TB, s *statechart.Snapshot) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAStepSaysWhatBecameOfTheEvent(t *testing.T) {
	t.Parallel()
	s := start(t, load(t, orderChart))
	for _, c := range []struct {
		event string
		want  statechart.Kind
	}{
		{`{"type":"UNKNOWN"}`, statechart.NotHandled},
		{`{"type":"PAY","amount":9}`, statechart.GuardFalse},
		{`{"type":"NOTHING"}`, statechart.Forbidden},
		{`{"type":"SAME"}`, statechart.NoEffect},
		{`{"type":"RAISE"}`, statechart.NoEffect},
		{`{"type":"SET","amount":0.0}`, statechart.NoEffect},
		{`{"type":"SET","amount":0.1}`, statechart.Changed},
		{`{"type":"AGAIN"}`, statechart.Changed},
		{`{"type":"PAY","amount":10,"id":"e1"}`, statechart.Changed},
	} {
		before := text(t, s)
		r := next(t, s, event(t, c.event))
		if r.Kind != c.want {
			t.Errorf("%s: got %s, want %s", c.event, r.Kind, c.want)
		}
		if (r.Snapshot == s) != (c.want != statechart.Changed) {
			t.Errorf("%s: %s, and the snapshot is another: %v", c.event, r.Kind, r.Snapshot != s)
		}
		if text(t, s) != before {
			t.Errorf("%s: the old snapshot changed", c.event)
		}
	}
}

func TestAReactionCarriesWhatIsToBeDone(t *testing.T) {
	t.Parallel()
	d := load(t, orderChart)
	first, err := statechart.Start(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	pending := []statechart.Timer{
		{State: "order.pending", Delay: "1000", After: time.Second, Generation: 1},
		{State: "order.pending", Delay: "patience", After: time.Hour, Generation: 1},
	}
	if diff := cmp.Diff(pending, first.Arm); diff != "" || len(first.Cancel) > 0 {
		t.Error(diff, first.Cancel)
	}
	pay := event(t, `{"type":"PAY","amount":12.50,"id":"e1"}`)
	r := next(t, first.Snapshot, pay)
	context := map[string]any{"paid": json.Number("12.5"), "seen": []any{"e1"}, "price": json.Number("9.90")}
	want := statechart.Reaction{
		Kind: statechart.Changed,
		Effects: []statechart.EffectCall{{
			Name: "mail", Keyed: true, Params: map[string]any{"to": "owner", "sum": json.Number("12.5")},
			Context: context, Event: pay.Data, State: "order.pending",
		}},
		Cancel: pending,
		Invoke: []statechart.Invoke{{ID: "charge", Source: "charge", State: "order.paid", Input: map[string]any{"sum": json.Number("12.5")}, Generation: 1}},
	}
	got := r
	got.Snapshot = nil
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(statechart.Reaction{})); diff != "" {
		t.Error(diff)
	}
	if want := `{"layout":1,"profile":"xstate-5.33","machine":"order","version":"1","definition":"` + d.Hash() + `","revision":2,"status":"active","value":"paid","context":{"paid":12.5,"price":9.90,"seen":["e1"]},"generations":{"order.pending":1,"order.paid":1}}`; text(t, r.Snapshot) != want {
		t.Errorf("got  %s\nwant %s", text(t, r.Snapshot), want)
	}

	done := next(t, r.Snapshot, statechart.DoneEvent(r.Invoke[0], map[string]any{"no": 7}))
	output, ok := done.Snapshot.Output()
	if diff := cmp.Diff(map[string]any{"paid": json.Number("12.5")}, output); diff != "" || !ok || done.Snapshot.Status() != statechart.Done || len(done.Stop) != 1 {
		t.Error(diff, done)
	}
	if got := done.Snapshot.Context()["receipt"]; !cmp.Equal(got, map[string]any{"no": json.Number("7")}) {
		t.Errorf("receipt: %v", got)
	}
	if r := next(t, done.Snapshot, pay); r.Kind != statechart.Ended {
		t.Errorf("after the end: %v", r.Kind)
	}
}

func TestAFiringOfAnEarlierVisitIsDropped(t *testing.T) {
	t.Parallel()
	d := load(t, orderChart)
	first, err := statechart.Start(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := next(t, first.Snapshot, event(t, `{"type":"AGAIN"}`))
	if len(again.Cancel) != 2 || len(again.Arm) != 2 || again.Arm[0].Generation != 2 {
		t.Fatalf("%+v", again)
	}
	if r := next(t, again.Snapshot, statechart.TimerEvent(first.Arm[0])); r.Kind != statechart.Stale || r.Snapshot != again.Snapshot {
		t.Errorf("the earlier visit's timer: %v", r.Kind)
	}
	if r := next(t, again.Snapshot, statechart.TimerEvent(again.Arm[0])); r.Snapshot.Status() != statechart.Done {
		t.Errorf("this visit's timer: %v", r.Kind)
	}
	paid := next(t, again.Snapshot, event(t, `{"type":"PAY","amount":10,"id":"e1"}`))
	back := next(t, paid.Snapshot, statechart.ErrorEvent(paid.Invoke[0], "no funds"))
	paidAgain := next(t, back.Snapshot, event(t, `{"type":"PAY","amount":10,"id":"e2"}`))
	if r := next(t, paidAgain.Snapshot, statechart.DoneEvent(paid.Invoke[0], nil)); r.Kind != statechart.Stale {
		t.Errorf("the earlier visit's answer: %v", r.Kind)
	}
	if diff := cmp.Diff(paidAgain.Snapshot.Invokes(), []statechart.Invoke{{ID: "charge", Source: "charge", State: "order.paid", Generation: 2}}); diff != "" {
		t.Error(diff)
	}
}

func TestNothingFromOutsideEntersTheNamespaceOfTheLibrary(t *testing.T) {
	t.Parallel()
	s := start(t, load(t, orderChart))
	for _, kind := range []string{"xstate.done.state.order.paid", "xstate.stop", "xstate.after.1000.order.pending", "xstate.init", "xstate.done.actor.charge", "xstate.route"} {
		if _, err := statechart.ParseEvent(fmt.Appendf(nil, `{"type":%q}`, kind)); statechart.CodeOf(err) != statechart.CodeRefused {
			t.Errorf("parse %s: %v", kind, err)
		}
		if _, err := statechart.Next(s.Definition(), s, statechart.Event{Type: kind}); statechart.CodeOf(err) != statechart.CodeRefused {
			t.Errorf("next %s: %v", kind, err)
		}
	}
	for _, e := range []statechart.Event{{}, {Type: "PAY", Data: map[string]any{"type": "SET"}}, {Type: "PAY", Data: map[string]any{"x": make(chan int)}}} {
		if _, err := statechart.Next(s.Definition(), s, e); statechart.CodeOf(err) != statechart.CodeRefused {
			t.Errorf("%v: %v", e, err)
		}
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"type":1}`, `{"type":""}`, `{"type":"A","type":"B"}`, `{"type":"A","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, strings.Repeat(" ", 17<<20)} {
		if _, err := statechart.ParseEvent([]byte(bad)); statechart.CodeOf(err) != statechart.CodeRefused {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
}

func TestAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	d := load(t, `{"id":"m","@exprLang":"cel","options":{"maxIterations":20},"context":{"n":0,"list":[1,2,3]},"initial":"a","states":{"a":{
		"exit":"log","on":{
		"ZERO":{"guard":{"@expr":"1 / context.n > 0"},"target":"b"},
		"WRONG":{"target":"b","actions":{"type":"assign","params":{"n":{"@expr":"context.list.map(x, duration(string(x) + 's'))"}}}},
		"CHANNEL":{"target":"b","actions":["log","broken"]},
		"FAILS":{"target":"b","actions":["log","fails"]},
		"PARAMS":{"target":"b","actions":{"type":"mail","params":{"x":[{"@expr":"context.missing"}]}}},
		"LOOP":"c",
		"RAISE":{"actions":{"type":"raise","params":{"event":{"type":"RAISE"}}}},
		"COST":{"guard":{"@expr":"[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a + b + c + d + context.n > 0))))"},"target":"b"}
	}},"b":{},"c":{"always":"d"},"d":{"always":"c"}}}`)
	s := start(t, d)
	before := text(t, s)
	for _, c := range []struct {
		event string
		code  statechart.Code
		want  string
	}{
		{"ZERO", statechart.CodeExpression, "division by zero"},
		{"WRONG", statechart.CodeExpression, "not JSON"},
		{"CHANNEL", statechart.CodeExpression, "chan int is not JSON"},
		{"FAILS", statechart.CodeExpression, "no luck"},
		{"PARAMS", statechart.CodeExpression, "no such key: missing"},
		{"LOOP", statechart.CodeLimit, "more than 20 rounds"},
		{"RAISE", statechart.CodeLimit, "more than 20 rounds"},
		{"COST", statechart.CodeExpression, "costs more than the limit"},
	} {
		r, err := statechart.Next(d, s, statechart.Event{Type: c.event})
		if statechart.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) || r.Snapshot != nil || r.Effects != nil {
			t.Errorf("%s: got %v, %v, want %s %q", c.event, r, err, c.code, c.want)
		}
		if c.code == statechart.CodeExpression && !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: no place in %v", c.event, err)
		}
		if text(t, s) != before {
			t.Fatalf("%s changed the snapshot", c.event)
		}
	}
	if r := next(t, s, statechart.Event{Type: "UNKNOWN"}); r.Kind != statechart.NotHandled {
		t.Errorf("the process does not go on: %v", r.Kind)
	}
}

func TestAnInvokeThatFailsUnhandledFailsTheEventNotTheProcess(t *testing.T) {
	t.Parallel()
	d := load(t, `{"id":"m","initial":"a","states":{"a":{"invoke":{"id":"i","src":"charge"},"on":{"E":"b"}},"b":{}}}`)
	first, err := statechart.Start(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := statechart.Next(d, first.Snapshot, statechart.ErrorEvent(first.Invoke[0], "down")); statechart.CodeOf(err) != statechart.CodeInvokeFailed {
		t.Error(err)
	}
	if r := next(t, first.Snapshot, statechart.Event{Type: "E"}); !r.Snapshot.In("m.b") || len(r.Stop) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestRestoreTakesNothingButWhatWasStored(t *testing.T) {
	t.Parallel()
	chart := `{"id":"m","version":"1","initial":"p","context":{"x":1.10},"states":{
		"p":{"type":"parallel","states":{"r":{"initial":"a","after":{"10":"r"},"states":{"a":{"on":{"N":"b"}},"b":{"initial":"c","states":{"c":{},"d":{}}},"h":{"type":"history"},"deep":{"type":"history","history":"deep"}}},"s":{}},"on":{"OUT":"o"}},
		"o":{"on":{"BACK":"p.r.h"}},"f":{"type":"final"}},"on":{"END":".f"}}`
	d := load(t, chart)
	s := next(t, next(t, start(t, d), statechart.Event{Type: "N"}).Snapshot, statechart.Event{Type: "OUT"}).Snapshot
	stored := text(t, s)
	if want := `{"layout":1,"profile":"xstate-5.33","machine":"m","version":"1","definition":"` + d.Hash() + `","revision":3,"status":"active","value":"o","context":{"x":1.10},"history":{"m.p.r.h":["m.p.r.b"],"m.p.r.deep":["m.p.r.b.c"]},"generations":{"m.p.r":1}}`; stored != want {
		t.Fatalf("got  %s\nwant %s", stored, want)
	}
	back, err := statechart.Restore(d, []byte(stored))
	if err != nil || text(t, back) != stored {
		t.Fatal(err)
	}
	inside := text(t, next(t, back, statechart.Event{Type: "BACK"}).Snapshot)
	var loose map[string]any // as a store does that sorts members
	decoder := json.NewDecoder(strings.NewReader(inside))
	decoder.UseNumber()
	if err := decoder.Decode(&loose); err != nil {
		t.Fatal(err)
	}
	sorted, err := json.MarshalIndent(loose, " ", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if back, err := statechart.Restore(d, sorted); err != nil || text(t, back) != inside {
		t.Fatalf("key order counts: %v", err)
	}
	h, err := statechart.ReadHeader([]byte(stored))
	if err != nil || h != (statechart.Header{Layout: 1, Profile: statechart.Profile, Machine: "m", Version: "1", Definition: d.Hash(), Revision: 3}) {
		t.Error(h, err)
	}
	for _, c := range []struct {
		from, to string
		code     statechart.Code
		want     string
	}{
		{`"layout":1`, `"layout":2`, statechart.CodeForeign, "written by another version"},
		{`"layout":1,`, ``, statechart.CodeDamaged, "layout must be a number"},
		{`xstate-5.33`, `xstate-6`, statechart.CodeForeign, "its profile is"},
		{`"machine":"m"`, `"machine":"n"`, statechart.CodeForeign, `belongs to the chart "n"`},
		{`"version":"1"`, `"version":"2"`, statechart.CodeForeign, "migrate it"},
		{d.Hash(), "sha256:00", statechart.CodeForeign, "the chart or a function's version changed"},
		{`"revision":4`, `"revision":0`, statechart.CodeDamaged, "from 1"},
		{`"revision":4`, `"revision":-4`, statechart.CodeDamaged, "from 1"},
		{`"status":"active"`, `"status":"done"`, statechart.CodeDamaged, "the states say otherwise"},
		{`"status":"active"`, `"status":"error"`, statechart.CodeDamaged, "active or done"},
		{`"value":{"p":{"r":{"b":"c"},"s":{}}}`, `"value":"f"`, statechart.CodeDamaged, "the states say otherwise"},
		{`"value":{"p":{"r":{"b":"c"},"s":{}}}`, `"value":"z"`, statechart.CodeDamaged, `no state "z"`},
		{`"value":{"p":{"r":{"b":"c"},"s":{}}}`, `"value":"p"`, statechart.CodeDamaged, "does not say where"},
		{`"value":{"p":{"r":{"b":"c"},"s":{}}}`, `"value":[]`, statechart.CodeDamaged, "a string or an object"},
		{`,"s":{}`, ``, statechart.CodeDamaged, "not a legal configuration"},
		{`{"r":{"b":"c"},"s":{}}`, `{"r":{"b":"c","a":{}},"s":{}}`, statechart.CodeDamaged, "not a legal configuration"},
		{`{"r":{"b":"c"},"s":{}}`, `{"r":{"b":{}},"s":{}}`, statechart.CodeDamaged, "not a legal configuration"},
		{`{"r":{"b":"c"},"s":{}}`, `{"r":{"h":{}},"s":{}}`, statechart.CodeDamaged, `no state "h"`},
		{`["m.p.r.b"]`, `["m.p.r.a","m.p.r.b"]`, statechart.CodeDamaged, "not what it can record"},
		{`["m.p.r.b"]`, `[]`, statechart.CodeDamaged, "not what it can record"},
		{`["m.p.r.b.c"]`, `["m.p.r.b.c","m.p.r.b.d"]`, statechart.CodeDamaged, "not a legal configuration"},
		{`["m.p.r.b.c"]`, `["m.p.s"]`, statechart.CodeDamaged, "not a state that it can record"},
		{`"m.p.r.h":`, `"m.p.r.a":`, statechart.CodeDamaged, "no history state"},
		{`"generations":{"m.p.r":2}`, `"generations":{}`, statechart.CodeDamaged, "active and has none"},
		{`"generations":{"m.p.r":2}`, `"generations":{"m.p.r":2,"m.o":1}`, statechart.CodeDamaged, "no timers and no invokes"},
		{`"context":{"x":1.10}`, `"context":[]`, statechart.CodeDamaged, "must be an object"},
		{`"context":{"x":1.10},`, ``, statechart.CodeDamaged, "context is missing"},
		{`"context":{"x":1.10}`, `"context":{"x":1.10,"x":2}`, statechart.CodeDamaged, "stands twice"},
		{`"status"`, `"output":1,"status"`, statechart.CodeDamaged, "has no output"},
		{`"status"`, `"children":{},"status"`, statechart.CodeDamaged, "there is no member"},
		{`{"layout"`, `[{"layout"`, statechart.CodeDamaged, ""},
		{`"x":1.10`, `"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), statechart.CodeDamaged, "nested deeper"},
	} {
		edited := strings.Replace(inside, c.from, c.to, 1)
		if edited == inside {
			t.Fatalf("%s is not in %s", c.from, inside)
		}
		s, err := statechart.Restore(d, []byte(edited))
		if s != nil || statechart.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: got %v, want %s %q", c.to, err, c.code, c.want)
		}
	}
	if _, err := statechart.Restore(d, make([]byte, 17<<20)); statechart.CodeOf(err) != statechart.CodeDamaged {
		t.Error(err)
	}
	other := load(t, strings.Replace(chart, `"N":"b"`, `"N":"h"`, 1))
	if _, err := statechart.Restore(other, []byte(stored)); statechart.CodeOf(err) != statechart.CodeForeign {
		t.Errorf("a snapshot of another definition: %v", err)
	}
	if _, err := statechart.Next(other, s, statechart.Event{Type: "N"}); statechart.CodeOf(err) != statechart.CodeForeign {
		t.Errorf("a step with another definition: %v", err)
	}
}

func TestPartsTakenApartAndPutTogetherAreTheSameSnapshot(t *testing.T) {
	t.Parallel()
	d := load(t, orderChart)
	s := next(t, start(t, d), event(t, `{"type":"AGAIN"}`)).Snapshot
	back, err := statechart.Assemble(d, s.Parts())
	if err != nil || text(t, back) != text(t, s) || back.Key() != s.Key() {
		t.Fatal(err)
	}
	p := s.Parts()
	p.States = append(p.States, "order.paid")
	if _, err := statechart.Assemble(d, p); statechart.CodeOf(err) != statechart.CodeDamaged {
		t.Error(err)
	}
}

// An event that wraps the context in itself grows it by a level each time, and one
// that doubles a text by its length: the step or the storing fails before a snapshot
// is written that could not be read.
func TestASnapshotThatIsWrittenCanBeRead(t *testing.T) {
	t.Parallel()
	d := load(t, `{"id":"m","@exprLang":"cel","context":{"x":1,"text":"0123456789abcdef"},"initial":"a","states":{"a":{"on":{
		"WRAP":{"actions":{"type":"assign","params":{"x":{"in":[[[{"@expr":"context.x"}]]]}}}},
		"DOUBLE":{"actions":{"type":"assign","params":{"text":{"@expr":"context.text + context.text"}}}}}}}}`)
	for kind, want := range map[string]statechart.Code{"WRAP": statechart.CodeExpression, "DOUBLE": statechart.CodeLimit} {
		s := start(t, d)
		for n := 0; ; n++ {
			r, err := statechart.Next(d, s, statechart.Event{Type: kind})
			var stored []byte
			if err == nil {
				stored, err = json.Marshal(r.Snapshot)
			}
			if err != nil {
				if statechart.CodeOf(err) != want && (kind != "DOUBLE" || statechart.CodeOf(err) != statechart.CodeExpression) || n < 5 {
					t.Errorf("%s after %d: %v", kind, n, err)
				}
				break
			}
			if s, err = statechart.Restore(d, stored); err != nil {
				t.Fatalf("%s after %d: %v", kind, n, err)
			}
		}
	}
}

// Many goroutines share one definition and one snapshot.
func TestOneDefinitionServesManyGoroutines(t *testing.T) {
	t.Parallel()
	d := load(t, orderChart)
	s := start(t, d)
	want := text(t, next(t, s, event(t, `{"type":"PAY","amount":10,"id":"e1"}`)).Snapshot)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				r, err := statechart.Next(d, s, statechart.Event{Type: "PAY", Data: map[string]any{"amount": 10, "id": "e1"}})
				if err != nil {
					t.Error(err)
					return
				}
				if got := text(t, r.Snapshot); got != want {
					t.Errorf("got %s, want %s", got, want)
					return
				}
			}
		})
	}
	all.Wait()
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(orderChart))
	f.Add([]byte(`{"id":"m","type":"parallel","states":{"a":{"type":"history"},"b":{"on":{"*":[{}],"x.*":"#m"}}}}`))
	f.Add([]byte(`{"initial":"a","states":{"a":{"always":{"guard":{"type":"stateIn","params":{"state":{"a":"b"}}},"target":["a","a"]}}}}`))
	l, err := cel.New(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, chart []byte) {
		d, err := statechart.Load(chart, &statechart.Options{NamesOnly: true, Expressions: l, MaxStates: 50})
		if err != nil {
			return
		}
		// What was loaded can be explored without leaving the legal configurations.
		s, queue := (*statechart.Snapshot)(nil), []string{"A", "x", "x.y"}
		for _, n := range d.Nodes() {
			for _, tr := range n.Transitions {
				queue = append(queue, tr.Event)
			}
		}
		r, err := statechart.Explore(d, s, statechart.Event{}, func(q statechart.Question) bool { return q.Moment%2 == 0 })
		for _, kind := range queue {
			if err != nil {
				if c := statechart.CodeOf(err); c != statechart.CodeLimit && c != statechart.CodeRefused && c != statechart.CodeIllegal {
					t.Fatal(err)
				}
				if s == nil {
					return
				}
			} else {
				s = r.Snapshot
			}
			if _, err := statechart.Assemble(d, s.Parts()); err != nil {
				t.Fatal(err)
			}
			r, err = statechart.Explore(d, s, statechart.Event{Type: kind}, func(q statechart.Question) bool { return q.Context%2 == 0 })
		}
	})
}

func FuzzNext(f *testing.F) {
	f.Add([]byte(`{"type":"PAY","amount":10,"id":"e1"}`), []byte(`{"type":"SET","amount":{"a":[1e400,"\u00e9"]}}`))
	f.Add([]byte(`{"type":"AGAIN"}`), []byte(`{"type":"PAY","amount":99999999999999999999.5}`))
	d := load(f, orderChart)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := start(t, d)
		for _, raw := range [][]byte{first, second} {
			e, err := statechart.ParseEvent(raw)
			if err != nil {
				continue
			}
			before := text(t, s)
			r, err := statechart.Next(d, s, e)
			if text(t, s) != before {
				t.Fatal("the snapshot changed")
			}
			if err != nil {
				continue
			}
			again, err := statechart.Next(d, s, e)
			if err != nil || text(t, again.Snapshot) != text(t, r.Snapshot) {
				t.Fatal("two runs differ", err)
			}
			s = r.Snapshot
			back, err := statechart.Restore(d, []byte(text(t, s)))
			if err != nil || text(t, back) != text(t, s) {
				t.Fatal("not restored", err)
			}
		}
	})
}

func FuzzRestore(f *testing.F) {
	d := load(f, orderChart)
	s := start(f, d)
	f.Add([]byte(text(f, s)))
	f.Add([]byte(text(f, next(f, s, event(f, `{"type":"PAY","amount":12.50,"id":"e1"}`)).Snapshot)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := statechart.Restore(d, raw)
		if err != nil {
			if c := statechart.CodeOf(err); c != statechart.CodeDamaged && c != statechart.CodeForeign {
				t.Fatal(err)
			}
			return
		}
		stored := text(t, s)
		back, err := statechart.Restore(d, []byte(stored))
		if err != nil || text(t, back) != stored {
			t.Fatal("not stable", err)
		}
		if _, err := statechart.Next(d, s, statechart.Event{Type: "CANCEL"}); err != nil {
			t.Fatal(err)
		}
	})
}
