package evidence

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	from = flag.String("from", "", "folder of runs to write the counts of docs/evidence.md from")
	show = flag.String("show", "", "folder of runs whose counts are printed, with -v")
)

// page is where all of it is shown.
const page = "../../docs/evidence.md"

// Every test that a fault is held by is there, so that no line of the page is
// history only.
func TestEveryFaultIsHeldByATestThatIsThere(t *testing.T) {
	t.Parallel()
	for _, f := range append(Faults(), Missing()...) {
		files, err := filepath.Glob(filepath.Join("../..", f.Package, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "\nfunc "+f.Test+"(t *testing.T)")
		}
		if !found {
			t.Errorf("%s: %s has no %s", f.What, f.Package, f.Test)
		}
		if f.What == "" || f.Finder == "" {
			t.Errorf("%+v: incomplete", f)
		}
	}
}

// runsOf reads a folder of runs, in which the same lists must have one transcript.
func runsOf(t *testing.T, dir string) []Run {
	t.Helper()
	runs, err := Read(dir)
	if err != nil || len(runs) == 0 {
		t.Fatalf("%d runs in %s: %v", len(runs), dir, err)
	}
	if torn := Torn(runs); len(torn) > 0 {
		t.Errorf("the same lists have other transcripts: %s", strings.Join(torn, ", "))
	}
	return runs
}

// The page shows what is written down here; with -from also the counts of the
// runs of a folder are written.
func TestThePageShowsTheFaults(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	put := func(name, text string) {
		t.Helper()
		if want, err = Replace(want, name, text); err != nil {
			t.Fatal(err)
		}
	}
	put("faults", Table(Faults()))
	put("missing", Table(Missing()))
	if *from != "" {
		runs := runsOf(t, *from)
		put("counts", Counts(runs))
		put("mistakes", Mistakes(runs))
		for _, r := range runs {
			if r.Name == "zoo" {
				put("zoo", Catches(r))
			}
		}
	}
	switch {
	case want == string(text):
	case *from != "":
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("docs/evidence.md is not that of internal/evidence: go test ./internal/evidence -from DIR, or an empty table between its marks")
	}
}

// With -show the counts of a folder are printed, which is what CI does with its own.
func TestRunsOfAFolderAreShown(t *testing.T) {
	t.Parallel()
	dir := *show
	if dir == "" {
		dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a-run.json"), []byte(`{"name":"a-run","cuts":3,"violations":0}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := runsOf(t, dir)
	t.Logf("\n%s\n%s", Counts(runs), Mistakes(runs))
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "none.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if runs, err := Read(bad); err == nil {
		t.Errorf("a run without a text is %+v", runs)
	}
}

func TestTablesSayWhatRunsSay(t *testing.T) {
	t.Parallel()
	runs := []Run{
		{Name: "cuts", Cuts: 3, Long: true},
		{Name: "zoo", Seeded: 4, Caught: 1, Equivalent: 1, Violations: 1, Found: map[string]string{"a|b": "a test", "c": ""}},
		{Name: "mutants", Seeded: 3, Caught: 2, Violations: 1},
	}
	for got, want := range map[string]string{
		Counts(runs):       `(?s)\| cuts \|  \|  \|  \|  \| 3 \|  \|  \|  \| 0 \| long \|.*\| \*\*all\*\* \|  \|  \|  \|  \| 3 \|`,
		Mistakes(runs):     `(?s)\| zoo \| 4 \| 1 \| 1 \| 1 \| 1 \|.*\| mutants \| 3 \| 2 \|  \| 1 \| 0 \|`,
		Catches(runs[1]):   `(?s)\| a\\\|b \| a test \|.*\| c \| \*\*nothing\*\* \|`,
		Table(Missing()):   "`store`",
		Table([]Fault{{}}): "held by",
	} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
	if _, err := Replace("<!-- a -->\n", "a", "x"); err == nil {
		t.Error("a page without an end was changed")
	}
	if _, err := Replace("", "a", "x"); err == nil {
		t.Error("a page without marks was changed")
	}
	if got, err := Replace("1<!-- a -->\nold<!-- /a -->2", "a", "new\n"); err != nil || got != "1<!-- a -->\nnew\n<!-- /a -->2" {
		t.Errorf("%q, %v", got, err)
	}
}

// Stores that answer the same lists otherwise are told apart, and lists that are not
// the same are not compared.
func TestOneTranscriptForTheSameLists(t *testing.T) {
	t.Parallel()
	runs := []Run{
		{Name: "lists-ledger-memory", Seed: 1, Schedules: 2, Transcript: "a"},
		{Name: "lists-ledger-postgres", Seed: 1, Schedules: 2, Transcript: "b"},
		{Name: "lists-ledger-sqlite-modernc", Seed: 1, Schedules: 2, Transcript: "a"},
		{Name: "lists-queue-memory", Seed: 1, Schedules: 2, Transcript: "c"},
		{Name: "lists-queue-postgres", Seed: 2, Schedules: 2, Transcript: "d"},
		{Name: "wire-cuts", Seed: 1, Schedules: 2},
	}
	if got := strings.Join(Torn(runs), ", "); got != "lists-ledger-postgres and lists-ledger-memory" {
		t.Errorf("torn: %q", got)
	}
}
