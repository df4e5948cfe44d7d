package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exposedChart = `{"id":"m","initial":"a","states":{
	"a":{"on":{"ADD":{"actions":"add"},"GO":"b"}},
	"b":{"type":"final"}}}`

// folder writes files and gives their folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The exit code and the output are what a pipeline reads.
func TestAnalyzeTellsAPipelineWhatItFound(t *testing.T) {
	t.Parallel()
	declared := strings.Replace(exposedChart, `"initial"`, `"duplicates":{"ADD":"exposed"},"initial"`, 1)
	dir := folder(t, map[string]string{
		"exposed.json":       exposedChart,
		"declared.json":      declared,
		"better.json":        strings.Replace(declared, `"ADD":{"actions":"add"},`, `"ADD":{"target":"b","actions":"add"},`, 1),
		"loop.json":          `{"id":"m","initial":"a","states":{"a":{"always":"b"},"b":{"always":"a"}}}`,
		"broken.json":        "{\"id\":\"m\",\n  \"initial\":\"c\",\n \"states\":{\"a\":{\"on\":{\"GO\":\"nowhere\"}}}}",
		"cut.json":           `{"id":"m",`,
		"actions.yaml":       "actions:\n  add: absorbing\n",
		"typo.yaml":          "actions:\n  addd: absorbing\n",
		"class.yaml":         "actions:\n  add: harmless\n",
		"both.yaml":          "actions:\n  add: harmless\n  addd: absorbing\n",
		"broken.report.json": `{"format":1,"cells":[],"findings":[{"rule":"SC000","message":"nothing"}]}`,
		"key.yaml":           "action:\n  add: absorbing\n",
	})
	for _, c := range []struct {
		args string
		code int
		out  string // in the output
		err  string // in the errors
	}{
		{"exposed.json", 1, "DUP001 error: ADD in a", "exposed.json does not pass: errors 1"},
		{"exposed.json --fail-on never", 0, "DUP001 error", ""},
		{"declared.json", 0, "DUP001 note", ""},
		{"declared.json --fail-on note", 1, "DUP001 note", "does not pass"},
		{"exposed.json --declare actions.yaml", 0, "PROTECTED_BY_DATA", ""},
		{"exposed.json --declare typo.yaml", 2, "", "typo.yaml: actions.addd: the chart has no such action"},
		{"exposed.json --declare class.yaml", 2, "", `actions.add: "harmless" is no class`},
		{"exposed.json --declare key.yaml", 2, "", "unknown field"},
		{"declared.json --against better.json", 0, "DUP010 note: ADD was terminal and is exposed", ""},
		{"exposed.json --fail-on error --against better.json", 1, "DUP010 error: ADD was terminal and is exposed", "does not pass"},
		{"better.json --against exposed.json", 0, "ADD  TERMINAL", ""},
		{"declared.json --max-configurations 1", 1, "DUP007 error", ""},
		{"loop.json", 1, "", "loop.json: analyze: the chart cannot start"},
		{"broken.json", 1, "", "broken.json:2:"},
		{"broken.json", 1, "", "broken.json:3:28: "},
		{"cut.json", 1, "", "cut.json:1:"},
		{"exposed.json --declare both.yaml", 2, "", `both.yaml: actions.addd: the chart has no such action`},
		{"exposed.json --declare both.yaml", 2, "", `both.yaml: actions.add: "harmless" is no class`},
		{"exposed.json --declare missing.yaml", 2, "", "missing.yaml"},
		{"exposed.json --against missing.json", 2, "", "missing.json"},
		{"exposed.json --against cut.json", 2, "", "cut.json:1:"},
		{"exposed.json --against broken.report.json", 2, "", "no chart"},
		{"exposed.json --format svg --active nowhere", 2, "", "no state and no configuration is named \"nowhere\"; the states are m, m.a, m.b"},
		{"exposed.json --format svg --active a", 1, "Active: m.a.", ""},
		{"exposed.json --format svg --active m.a,m", 1, "Active: m", ""},
		{"broken.json --format sarif", 1, `"ruleId": "SC000"`, "broken.json:3:28"},
		{"broken.json --format json", 1, `"rule": "SC000"`, "broken.json:3:28"},
		{"loop.json --format sarif", 1, `"ruleId": "SC000"`, "cannot start"},
		{"missing.json", 2, "", "missing.json"},
		{"exposed.json --format png", 2, "", "--format"},
		{"exposed.json --fail-on often", 2, "", "--fail-on"},
		{"exposed.json --max-steps -1", 2, "", "--max-steps"},
		{"", 2, "", "CHART is missing"},
		{"--schema", 0, `"title": "Report of unavez analyze"`, ""},
	} {
		r := invoke(t, dir, nil, append([]string{"analyze"}, strings.Fields(c.args)...)...)
		if r.code != c.code || !strings.Contains(r.out, c.out) || !strings.Contains(r.err, c.err) {
			t.Errorf("analyze %s: exit %d, want %d; output\n%s\nwants %q; errors\n%s\nwant %q", c.args, r.code, c.code, r.out, c.out, r.err, c.err)
		}
	}
}

// A report in JSON can stand in the place of the chart it was made of.
func TestAnalyzeComparesWithAReport(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"old.json": strings.Replace(exposedChart, `"ADD":{"actions":"add"},`, `"ADD":{"target":"b","actions":"add"},`, 1),
		"new.json": exposedChart,
	})
	r := invoke(t, dir, nil, "analyze", "old.json", "--format", "json")
	if err := os.WriteFile(filepath.Join(dir, "report.json"), []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	if r = invoke(t, dir, nil, "analyze", "new.json", "--against", "report.json"); r.code != 1 || !strings.Contains(r.out, "ADD was terminal and is exposed") {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
}

// Each format is what it says it is.
func TestAnalyzeWritesEachFormat(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"exposed.json": exposedChart})
	for format, check := range map[string]func(string) bool{
		"table":   func(s string) bool { return strings.HasPrefix(s, "m: 2 configurations") },
		"mermaid": func(s string) bool { return strings.HasPrefix(s, "stateDiagram-v2\n") },
		"json":    func(s string) bool { return json.Valid([]byte(s)) && strings.Contains(s, `"cells"`) },
		"sarif":   func(s string) bool { return json.Valid([]byte(s)) && strings.Contains(s, `"2.1.0"`) },
		"svg": func(s string) bool {
			return xml.Unmarshal([]byte(s), new(struct{ XMLName xml.Name })) == nil && strings.Contains(s, "Active: m.a.")
		},
	} {
		if r := invoke(t, dir, nil, "analyze", "exposed.json", "--format", format, "--active", "m.a"); r.code != 1 || !check(r.out) {
			t.Errorf("%s: exit %d, %s\n%s", format, r.code, r.err, r.out)
		}
	}
}
