package analyze_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
)

// said gives what was found without its places.
func said(r *analyze.Report) []string {
	var list []string
	for _, f := range r.Findings {
		text := fmt.Sprint(f.Rule, " ", f.Level, " ", f.State, " ", f.Message, " ", f.Fingerprint)
		if f.Witness != nil {
			for _, s := range f.Witness.Steps {
				text += fmt.Sprint(" ", s.Event, s.From, s.To)
			}
			text += fmt.Sprint(" ", f.Witness.Again)
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

func found(r *analyze.Report, rule, part string) bool {
	return slices.ContainsFunc(r.Findings, func(f analyze.Finding) bool {
		return f.Rule == rule && strings.Contains(f.Message, part)
	})
}

const halves = `{"guard": {"@expr": "event.amount == context.due"}, "actions": {"type": "assign", "params": {"due": 0}}},
	{"guard": {"@expr": "event.amount < context.due"}, "actions": {"type": "assign", "params": {"due": {"@expr": "context.due - event.amount"}}}}`

func swapped(pair string) string {
	first, second, _ := strings.Cut(pair, ",\n\t")
	return second + ",\n\t" + first
}

// A cell has as many first deliveries and as many second ones as it has candidates;
// each pair is looked at, in whatever order the candidates stand.
func TestTheOrderOfCandidatesChangesNoFinding(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/process/order.json")
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Index(string(text), `"pay": [`) + len(`"pay": [`)
	to := from + strings.Index(string(text)[from:], "\n        ],")
	list := strings.TrimSpace(string(text)[from:to])
	i := strings.Index(list, "},\n          {") + 1
	process := func(a, b string) string { return string(text)[:from] + a + ",\n" + b + string(text)[to:] }
	loop := func(on string) string {
		return `{"id":"m","@exprLang":"cel","context":{"due":1},"initial":"a","states":{"a":{"on":{"PAY":[` + on + `],"BACK":"b"}},
			"b":{"on":{"PAY":"a"}}}}`
	}
	for name, pair := range map[string][2]string{
		"process": {process(list[:i], list[i+1:]), process(list[i+1:], list[:i])},
		"loop":    {loop(halves), loop(swapped(halves))},
	} {
		one, other := analyzed(t, load(t, []byte(pair[0])), nil), analyzed(t, load(t, []byte(pair[1])), nil)
		if diff := cmp.Diff(said(one), said(other)); diff != "" {
			t.Errorf("%s: the order matters:\n%s", name, diff)
		}
		for _, r := range []*analyze.Report{one, other} {
			if !found(r, "DUP003", "due := context.due - event.amount") || !found(r, "DUP005", "puts 0 back into due, over what") {
				t.Errorf("%s: DUP003 or DUP005 is missing: %q", name, said(r))
			}
			for _, f := range r.Findings {
				if f.Rule == "DUP001" && f.Witness.Again[0].Class != analyze.Accumulating {
					t.Errorf("%s: the worst is not shown: %v", name, f.Witness.Again)
				}
			}
		}
	}
}

// An action that runs again and became more harmful is reported, although the class
// of its event stays.
func TestAChangeThatMakesAnActionWorseIsReported(t *testing.T) {
	t.Parallel()
	chart := func(params string) string {
		return `{"id":"m","@exprLang":"cel","context":{"due":1,"n":0,"k":0},"initial":"a","states":{"a":{"on":{
			"PAY":{"actions":{"type":"assign","params":{` + params + `, "k": {"@expr": "context.k + 1"}}}},"GO":"b"}},"b":{"type":"final"}}}`
	}
	const constant, overwrite, adds = `"due": 0`, `"due": {"@expr": "event.amount"}`, `"due": {"@expr": "context.due - event.amount"}`
	for _, c := range []struct{ before, after, want string }{
		{constant, adds, "due := context.due - event.amount, which was constant and is accumulating"},
		{constant, overwrite, "which was constant and is overwrite"},
		{overwrite, adds, "which was overwrite and is accumulating"},
		{constant, constant + `, "n": {"@expr": "context.n + 1"}`, "which is accumulating and was not run before"},
		{adds, constant, ""},
		{adds, adds, ""},
		{constant, constant + `, "n": 1`, ""},
	} {
		r := analyzed(t, load(t, []byte(chart(c.after))), nil)
		r.Against(analyzed(t, load(t, []byte(chart(c.before))), nil))
		if c.want == "" {
			if found(r, "DUP010", "") {
				t.Errorf("%s to %s: %q", c.before, c.after, said(r))
			}
			continue
		}
		if !found(r, "DUP010", c.want) {
			t.Errorf("%s to %s: want %q in %q", c.before, c.after, c.want, said(r))
		}
		for _, f := range r.Findings {
			if f.Rule == "DUP010" && (f.Level != analyze.LevelError || f.Line != 2) {
				t.Errorf("%s at line %d: %s", f.Level, f.Line, f.Message)
			}
		}
	}
}

// What an export loses leaves a transition that forbids: it must not pass for safe
// without a word.
func TestATransitionThatDoesNothingIsReported(t *testing.T) {
	t.Parallel()
	r := analyzed(t, load(t, []byte(`{"id":"m","initial":"a","states":{"a":{"on":{"ADD":{},"GO":"b","NO":{"description":"not while open"}}},"b":{"type":"final"}}}`)), nil)
	var events []string
	for _, f := range r.Findings {
		if f.Rule == "SC009" {
			events = append(events, fmt.Sprint(f.Event, " ", f.Level, " ", f.Pointer))
		}
	}
	if want := "ADD warning /states/a/on/ADD"; strings.Join(events, ", ") != want {
		t.Errorf("got %v, want %s", events, want)
	}
}

// A text that is no chart is a report for programs too, with each fault at its
// place; it is never read back as one to compare with.
func TestWhatIsNoChartIsReported(t *testing.T) {
	t.Parallel()
	published, err := os.ReadFile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	_, err = statechart.Load([]byte(`{"initial":"c","states":{"a":{"on":{"GO":"b"}}}}`), nil)
	if err == nil {
		t.Fatal("loaded")
	}
	for cause, places := range map[error][]string{
		err:                           {"1:12 /initial", "1:42 /states/a/on/GO"},
		errors.New("it cannot start"): {"1:1 "},
	} {
		r := analyze.Broken("/charts/a b.json", cause)
		var got []string
		for _, f := range r.Findings {
			got = append(got, fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Pointer))
		}
		if diff := cmp.Diff(places, got); diff != "" {
			t.Error(diff)
		}
		var text, log bytes.Buffer
		if err := errors.Join(r.WriteJSON(&text), r.WriteSARIF(&log, "v1")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(valid(t, compiled(t, analyze.Schema()), text.Bytes()), valid(t, compiled(t, published), log.Bytes())); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), `"uri": "file:///charts/a%20b.json"`) {
			t.Errorf("an absolute path without its scheme:\n%s", log.String())
		}
		if _, err := analyze.ReadReport(text.Bytes()); err == nil {
			t.Error("the report on no chart was read back")
		}
	}
}
