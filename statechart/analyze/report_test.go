package analyze_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
)

func compiled(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func valid(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

func charts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); !strings.HasPrefix(name, "sarif-") {
			names = append(names, name)
		}
	}
	if len(names) < 9 {
		t.Fatalf("charts: %q", names)
	}
	return names
}

// Every report in JSON is as its schema says, and reads back as it was.
func TestReportsFollowTheirSchema(t *testing.T) {
	t.Parallel()
	s := compiled(t, analyze.Schema())
	for _, name := range charts(t) {
		for _, o := range []*analyze.Options{nil, {MaxConfigurations: 1}, {MaxAnswers: 1}, {File: "a b.json"}} {
			r := analyzed(t, read(t, name), o)
			var b bytes.Buffer
			if err := r.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			if err := valid(t, s, b.Bytes()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			again, err := analyze.ReadReport(b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			var c bytes.Buffer
			if err := again.WriteJSON(&c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(b.String(), c.String()); diff != "" {
				t.Errorf("%s reads back otherwise:\n%s", name, diff)
			}
		}
	}
	if err := valid(t, s, []byte(`{"format":1}`)); err == nil {
		t.Error("the schema takes anything")
	}
	for _, text := range []string{`[]`, `{"format":2}`, `{"format":1,"cells":[{"configuration":3,"event":"A","class":"LATE"}]}`} {
		if _, err := analyze.ReadReport([]byte(text)); err == nil {
			t.Errorf("%s was read as a report", text)
		}
	}
}

// What is written for code scanning is SARIF 2.1.0, by the schema of its authors:
// testdata/sarif-schema-2.1.0.json is the published OASIS schema (errata 01), unchanged.
func TestFindingsAreSARIF(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	s := compiled(t, text)
	flows := 0
	for _, name := range charts(t) {
		var b bytes.Buffer
		if err := analyzed(t, read(t, name), &analyze.Options{File: "charts/a b/" + name + ".json"}).WriteSARIF(&b, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
		if err := valid(t, s, b.Bytes()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		flows += strings.Count(b.String(), `"codeFlows"`)
		if name == "refunds" {
			golden(t, "refunds.sarif", b.Bytes())
		}
	}
	if flows < 5 {
		t.Errorf("%d findings have a code flow", flows)
	}
	if err := valid(t, s, []byte(`{"version":"2.1.0"}`)); err == nil {
		t.Error("the schema takes anything")
	}
}

// Fingerprints name one finding each, and stay when lines move.
func TestFingerprintsSurviveMovedLines(t *testing.T) {
	t.Parallel()
	for _, name := range charts(t) {
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		prints := func(text []byte) []string {
			var list []string
			for _, f := range analyzed(t, load(t, text), nil).Findings {
				list = append(list, f.Fingerprint)
			}
			return list
		}
		before := prints(text)
		moved := bytes.ReplaceAll(text, []byte("{"), []byte("{\n\n "))
		if diff := cmp.Diff(before, prints(moved)); diff != "" {
			t.Errorf("%s: moved lines change fingerprints:\n%s", name, diff)
		}
		slices.Sort(before)
		if n := len(slices.Compact(slices.Clone(before))); n != len(before) {
			t.Errorf("%s: %d findings have %d fingerprints", name, len(before), n)
		}
	}
}

// The page has a section for every rule, with its name, and for no other.
func TestEveryRuleIsDescribed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/statecharts.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, r := range analyze.Rules() {
		want = append(want, r.ID+": "+r.Name)
		if r.Short == "" || len(r.Ways) == 0 || !r.Level.AtLeast(analyze.LevelNote) {
			t.Errorf("%s is not complete", r.ID)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^<a id="((?:dup|sc)\d{3})"></a>\n#+ ((?:DUP|SC)\d{3}: [a-z-]+)$`).FindAllStringSubmatch(string(page), -1) {
		got = append(got, m[2])
		if !strings.EqualFold(m[1], m[2][:len(m[1])]) {
			t.Errorf("the anchor of %s is %s", m[2], m[1])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules and sections (-code +page):\n%s", diff)
	}
}

// The example on the page is what the program writes.
func TestTheExampleOfThePageIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/statecharts.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("testdata/refunds.table")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(table), "\n")
	for _, want := range append(lines[:6:6], strings.TrimSuffix(lines[9], "  (declared until-cycle)")) {
		if want != "" && !strings.Contains(string(page), "\n"+want+"\n") {
			t.Errorf("the page does not have the line %q", want)
		}
	}
}

func findings(r *analyze.Report, rule string) []string {
	var list []string
	for _, f := range r.Findings {
		if f.Rule == rule {
			list = append(list, string(f.Level)+": "+f.Message)
		}
	}
	return list
}

// A declaration is a test of the chart: it fails when it does not hold, and
// accepts what it names.
func TestDeclarationsAreHeld(t *testing.T) {
	t.Parallel()
	chart := func(declared string) *analyze.Report {
		return analyzed(t, load(t, []byte(`{"id":"m","initial":"a",`+declared+`"states":{
			"a":{"on":{"ADD":{"actions":"add"},"GO":"b"}},
			"b":{"on":{"BACK":"a","END":"c"}},
			"c":{"type":"final"}}}`)), nil)
	}
	r := chart(``)
	if r.Worst() != analyze.LevelError || len(findings(r, "DUP008")) != 0 {
		t.Errorf("undeclared: %v", r.Findings)
	}
	r = chart(`"duplicates":{"ADD":"exposed","GO":"until-cycle","BACK":"until-cycle","END":"terminal"},`)
	if r.Worst() != analyze.LevelNote || len(findings(r, "DUP008")) != 0 {
		t.Errorf("declared as it is: %v", r.Findings)
	}
	for _, f := range r.Findings {
		if (f.Rule == "DUP001" || f.Rule == "DUP002") && !f.Accepted {
			t.Errorf("not accepted: %v", f)
		}
	}
	for declared, want := range map[string]string{
		`{"ADD":"until-cycle"}`: "error: ADD is declared until-cycle but is exposed in a",
		`{"END":"protected"}`:   "note: END is declared protected but is better: terminal",
		`{"NEVER":"exposed"}`:   "error: duplicates: the chart has no event NEVER",
	} {
		if got := findings(chart(`"duplicates":`+declared+`,`), "DUP008"); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", declared, got, want)
		}
	}
	if got := findings(chart(`"early":{"NEVER":"defer"},`), "DUP008"); !slices.Equal(got, []string{"error: early: the chart has no event NEVER"}) {
		t.Errorf("early: %q", got)
	}
	if got, all := findings(chart(`"early":{"END":"defer","BACK":"reject"},`), "SC005"), findings(chart(``), "SC005"); len(got) != len(all)-2 {
		t.Errorf("early events with a policy are still reported: %q of %q", got, all)
	}
}

// A class for a name counts, and only what is absorbing makes a duplicate
// harmless.
func TestDeclaredActionsCount(t *testing.T) {
	t.Parallel()
	d := load(t, []byte(`{"id":"m","initial":"a","states":{"a":{"on":{"ADD":{"actions":["add","add"]}}}}}`))
	for class, want := range map[analyze.ActionClass]analyze.Class{
		"": analyze.Exposed, analyze.Unknown: analyze.Exposed, analyze.Accumulating: analyze.Exposed, analyze.Overwrite: analyze.Exposed,
		analyze.Constant: analyze.Exposed, analyze.Absorbing: analyze.ProtectedByData,
	} {
		o := &analyze.Options{}
		if class != "" {
			o.Actions = map[string]analyze.ActionClass{"add": class}
		}
		r := analyzed(t, d, o)
		if got := classes(r)["ADD"]; got != want {
			t.Errorf("%q: %s, want %s", class, got, want)
		}
		unknown := findings(r, "DUP009")
		if wantUnknown := class == "" || class == analyze.Unknown; (len(unknown) == 1) != wantUnknown {
			t.Errorf("%q: reported %q", class, unknown)
		}
	}
	for _, o := range []*analyze.Options{{Actions: map[string]analyze.ActionClass{"add": "good"}}, {MaxSteps: -1}} {
		if _, err := analyze.Analyze(t.Context(), d, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// What a change makes worse is an error; what it makes better is not.
func TestAgainstShowsWhatIsWorse(t *testing.T) {
	t.Parallel()
	before := analyzed(t, read(t, "pay-once"), nil)
	worse := load(t, []byte(`{"id":"once","initial":"pending","states":{
		"pending":{"on":{"PAY":{"target":"paid","actions":"capture"}}},
		"paid":{"on":{"SHIP":"shipped","REFUND":"pending"}},
		"shipped":{"type":"final"}}}`))
	after := analyzed(t, worse, nil)
	after.Against(before)
	want := []string{
		"error: PAY was protected and is until-cycle",
		"error: PAY could be dropped for ever in paid and can act again: early",
	}
	if diff := cmp.Diff(want, findings(after, "DUP010")); diff != "" {
		t.Error(diff)
	}
	better := analyzed(t, read(t, "pay-once"), nil)
	better.Against(analyzed(t, worse, nil))
	if got := findings(better, "DUP010"); len(got) != 0 {
		t.Errorf("the way back: %q", got)
	}
	// With the states moved by a plan: what stood in pending goes on in paid.
	moved := func(c analyze.Configuration) (analyze.Configuration, bool) {
		if c.Label == "pending" {
			return analyze.Configuration{States: []string{"once.paid"}}, true
		}
		return c, c.Label != "paid"
	}
	for _, c := range analyze.Compare(before, after, moved) {
		if c.Configuration != "" {
			t.Errorf("no configuration of the old chart in which PAY was late is left: %v", c)
		}
	}
}

// A budget ends in UNKNOWN, and never in protected.
func TestNoBudgetIsReadAsProtected(t *testing.T) {
	t.Parallel()
	for _, name := range charts(t) {
		full := analyzed(t, read(t, name), nil)
		for _, o := range []*analyze.Options{{MaxConfigurations: 1}, {MaxConfigurations: 2}, {MaxSteps: 2}, {MaxSteps: 7}, {MaxAnswers: 1}} {
			r := analyzed(t, read(t, name), o)
			if r.Complete {
				continue
			}
			if len(findings(r, "DUP007")) != 1 {
				t.Errorf("%s %+v: nothing says that the budget is spent", name, o)
			}
			truth := map[string]analyze.Class{}
			for _, c := range full.Cells {
				truth[full.Configurations[c.Configuration].Label+" "+c.Event] = c.Class
			}
			for _, c := range r.Cells {
				switch c.Class {
				case analyze.Undecided, analyze.Exposed, analyze.Early:
					continue
				}
				if want := truth[r.Configurations[c.Configuration].Label+" "+c.Event]; want != c.Class {
					t.Errorf("%s %+v: %s in %s is %s; it is %s", name, o, c.Event, r.Configurations[c.Configuration].Label, c.Class, want)
				}
			}
			for _, e := range r.Events {
				if e.Class != analyze.Undecided && e.Class != analyze.Exposed {
					t.Errorf("%s %+v: %s is called %s", name, o, e.Type, e.Class)
				}
			}
		}
	}
}

// regions makes a chart of n parallel regions of three states.
func regions(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"id":"wide","type":"parallel","states":{`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"r%[1]c":{"initial":"x","states":{"x":{"on":{"A%[1]c":"y"}},"y":{"on":{"B%[1]c":{"guard":"g%[1]c","target":"z"}}},"z":{"on":{"C%[1]c":"x"}}}}`, 'a'+i)
	}
	b.WriteString(`}}`)
	return []byte(b.String())
}

// A chart that is too large ends in UNKNOWN within the budget.
func TestTwelveRegionsEndInUnknown(t *testing.T) {
	t.Parallel()
	r := analyzed(t, load(t, regions(12)), nil)
	if r.Complete || r.Budget.Exceeded != "configurations" || r.Budget.Configurations != 5_000 {
		t.Errorf("budget: %+v", r.Budget)
	}
	if r.Budget.Steps > 500_000 {
		t.Errorf("%d steps", r.Budget.Steps)
	}
	for _, e := range r.Events {
		if e.Class != analyze.Undecided {
			t.Errorf("%s is %s", e.Type, e.Class)
		}
	}
}

// The same chart gives the same report, byte for byte.
func TestReportsDoNotVary(t *testing.T) {
	t.Parallel()
	for _, name := range charts(t) {
		var first []byte
		for range 4 {
			var b bytes.Buffer
			if err := analyzed(t, read(t, name), nil).WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b.Bytes()
			} else if !bytes.Equal(first, b.Bytes()) {
				t.Fatalf("%s gives two reports", name)
			}
		}
	}
}

// Every configuration of a report can be made into a snapshot: so a plan of
// migration can be tried on all of them.
func TestConfigurationsCanBeAssembled(t *testing.T) {
	t.Parallel()
	for _, name := range charts(t) {
		d := read(t, name)
		seen := map[string]bool{}
		for _, c := range analyzed(t, d, nil).Configurations {
			s, err := statechart.Assemble(d, c.Parts())
			if err != nil {
				t.Errorf("%s: %s: %v", name, c.Label, err)
				continue
			}
			if seen[s.Key()] {
				t.Errorf("%s: two configurations are %s", name, s.Key())
			}
			seen[s.Key()] = true
		}
	}
}
