package analyze_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
	"github.com/unavez/unavez/statechart/cel"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func load(t *testing.T, text []byte) *statechart.Definition {
	t.Helper()
	language, err := cel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := statechart.Load(text, &statechart.Options{Expressions: language, NamesOnly: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return d
}

func read(t *testing.T, name string) *statechart.Definition {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return load(t, text)
}

func analyzed(t *testing.T, d *statechart.Definition, o *analyze.Options) *analyze.Report {
	t.Helper()
	r, err := analyze.Analyze(t.Context(), d, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-rewrite writes it anew):\n%s", name, diff)
	}
}

func classes(r *analyze.Report) map[string]analyze.Class {
	all := map[string]analyze.Class{}
	for _, e := range r.Events {
		all[e.Type] = e.Class
	}
	return all
}

// The classes that people would give these charts.
func TestGoldenChartsHaveTheirClasses(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[string]analyze.Class{
		"payments-counter": {"PAY": analyze.Exposed, "SHIP": analyze.Terminal},
		"payments-set":     {"PAY": analyze.ProtectedByData, "SHIP": analyze.Terminal},
		"refunds": {
			"PAY": analyze.ProtectedUntilCycle, "REFUND": analyze.ProtectedUntilCycle, "REFUND_OK": analyze.ProtectedUntilCycle,
			"CANCEL": analyze.Terminal, "SHIP": analyze.Terminal,
		},
		"pay-once": {"PAY": analyze.Protected, "SHIP": analyze.Terminal},
		"self": {
			"AGAIN": analyze.Exposed, "STAY": analyze.NoEffect, "NOTE": analyze.Exposed, "CLEAR": analyze.Exposed, "CLOSE": analyze.Terminal,
		},
		"joins": {
			"MAX": analyze.ProtectedByData, "ADD": analyze.ProtectedByData, "FIRST": analyze.ProtectedByData, "SEEN": analyze.ProtectedByData,
			"COUNT": analyze.Exposed, "SWAP": analyze.Exposed,
		},
		// Any event moves a on, and the counter's guard is asked when it changes only.
		"always": {"UP": analyze.Exposed, "§": analyze.Protected},
	} {
		if diff := cmp.Diff(want, classes(analyzed(t, read(t, name), nil))); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestTablesOfGoldenCharts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"payments-counter", "payments-set", "refunds", "pay-once", "self", "joins", "always", "structure", "loop"} {
		var b bytes.Buffer
		if err := analyzed(t, read(t, name), &analyze.Options{File: name + ".json"}).WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".table", b.Bytes())
	}
}

func TestMermaidAndPictureOfAGoldenChart(t *testing.T) {
	t.Parallel()
	d := read(t, "refunds")
	r := analyzed(t, d, nil)
	var m, s bytes.Buffer
	if err := r.WriteMermaid(&m, d); err != nil {
		t.Fatal(err)
	}
	golden(t, "refunds.mmd", m.Bytes())
	if err := r.WriteSVG(&s, d, []string{"refunds.paid"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "refunds.svg", s.Bytes())
	for _, want := range []string{"until-cycle", "Active: refunds.paid."} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
}

// An answer about the context holds until something is written, and only where
// every way agrees on it.
func TestWhatIsKnownOfTheContextEndsWithAWrite(t *testing.T) {
	t.Parallel()
	chart := func(a, b string) map[string]analyze.Class {
		return classes(analyzed(t, load(t, []byte(`{"id":"m","@exprLang":"cel","context":{"n":0},"initial":"a","states":{
			"a":{"on":{"X":{"guard":{"@expr":"context.n >= 2"},"target":"b"}`+a+`}},
			"b":{"on":{"Z":{"guard":{"@expr":"!(context.n >= 2)"},"target":"c"}`+b+`}},
			"c":{"type":"final"}}}`)), nil))
	}
	for _, c := range []struct {
		a, b string
		want analyze.Class
	}{
		{"", "", analyze.NoEffect},
		{"", `,"Y":{"actions":{"type":"assign","params":{"n":0}}}`, analyze.Terminal},
		{"", `,"Y":{"actions":"anything"}`, analyze.Terminal},
		{`,"W":"b"`, "", analyze.Terminal},
		{`,"W":{"target":"b","guard":{"@expr":"context.n >= 2"}}`, "", analyze.NoEffect},
	} {
		if got := chart(c.a, c.b)["Z"]; got != c.want {
			t.Errorf("with %s%s: Z is %s, want %s", c.a, c.b, got, c.want)
		}
	}
}
