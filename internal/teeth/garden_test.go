package teeth

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/evidence"
)

// gardenVariable, a part of their names, chooses gardens.
const gardenVariable = "UNAVEZ_GARDEN"

// plot is code whose mutants are tried, and the tests that have to notice them.
type plot struct {
	name  string
	pkg   string
	files []string
	sql   bool
	run   []string
	flags []string
	limit time.Duration
}

// plots is the code that decides and does nothing else, and the statements of the
// stores that stand in Go.
func plots() []plot {
	all := []string{"."}
	return []plot{
		{name: "identity", pkg: "store", files: []string{"identity.go", "outcome.go"}, run: all, limit: 5 * time.Second},
		{name: "exact", pkg: "internal/exact", files: []string{"canonical.go", "exact.go", "path.go"}, run: all, limit: 5 * time.Second},
		{name: "fingerprint", pkg: "httpkey", files: []string{"fingerprint.go", "key.go"}, run: []string{"Fingerprint|Key", "."}},
		{name: "signatures", pkg: "source", files: []string{"standard.go", "hmac.go", "header.go", "jwt.go", "secret.go"}, run: all, limit: 5 * time.Second},
		{name: "retry", pkg: "inbox", files: []string{"retry.go"}, run: []string{"Retry|Delay|Fails|PromisesHoldOnMemory|GivenUp|Limits", "."}},
		{name: "board", pkg: "inbox", files: []string{"board.go"}, run: []string{"Board|Once|Order|PromisesHoldOnMemory|Storm", "."}},
		{name: "statechart", pkg: "statechart", files: []string{"step.go", "select.go", "round.go", "complete.go"}, run: []string{"Corpus", "."}},
		{name: "sqlite", pkg: lite, sql: true, run: []string{
			stores + "/^modernc$/random", queues + "/^modernc$/random", stores + "/^modernc$", queues + "/^modernc$",
			"Lane|Purge|Version|Room|Count|Entr|Payload|Repet|Forgotten|Append|Migrat|Group|Outcome|Together|Damaged|Transaction|Wait",
		}, limit: 3 * time.Minute},
	}
}

// equivalent are mutants that change nothing anybody can see, with the reason.
func equivalent() map[string]string {
	const (
		shortcut = "sound only spares the words: whatever it refuses is looked at once more"
		unit     = "the row was read in the same unit, and nobody else writes meanwhile"
		fails    = "what follows fails as well"
	)
	return map[string]string{
		"store/identity.go: 8 → 9":                                   "Uint64 reads 8 bytes of what it gets",
		"store/identity.go: 16 → 17":                                 "what becomes a Key is its first 16 bytes",
		"store/identity.go: return nil → nothing":                    shortcut,
		"store/identity.go: len(id.Parts) == 0 → len(id.Parts) != 0": shortcut,
		"store/identity.go: !fits(id.Tenant) || id.Effect == \"\" || !fits(id.Effect) || len(id.Parts) == 0 → !fits(id.Tenant) || id.Effect == \"\" || !fits(id.Effect)": shortcut,
		"store/identity.go: empty = empty && p == \"\" → nothing": shortcut,
		"store/identity.go: empty && p == \"\" → empty":           shortcut,
		"store/identity.go: empty && p == \"\" → p == \"\"":       shortcut,

		"internal/exact/canonical.go: '0' <= b && b <= '9' → b <= '9'":                                   fails,
		"internal/exact/canonical.go: err == nil && cur.skips(c.out[start:]) → cur.skips(c.out[start:])": "after an error nobody looks at what was written",
		"internal/exact/canonical.go: return raw, nil → nothing":                                         "unescaping what has no escapes gives it back",
		"internal/exact/canonical.go: i+2 >= len(raw) → i+2 > len(raw)":                                  "behind a backslash there is a byte: the string did not end in one",
		"internal/exact/canonical.go: !ok || r == utf8.RuneError → r == utf8.RuneError":                  "what is no number is 0, which is no low half",
		"internal/exact/canonical.go: 16 → 17":                                                           "four digits have 16 bits",

		"internal/exact/exact.go: err == nil && s == \"\" → s == \"\"":                                               "where there is an error there is no text, and either is refused",
		"internal/exact/exact.go: '0' <= value[0] && value[0] <= '9' → value[0] <= '9'":                              "what begins with less is not JSON",
		"internal/exact/exact.go: return nil, err → nothing":                                                         "of a text that has passed Check there is no such error",
		"internal/exact/exact.go: return \"\", err → nothing":                                                        "of nothing there is no part, for the same reason",
		"internal/exact/exact.go: return \"\", fmt.Errorf(\"a number of more than %d digits\", maxDigits) → nothing": "Atoi has given its largest number, which the next look refuses",

		"store/sqlite/attempts.go: fence = ?2 → true": unit,
		"store/sqlite/attempts.go: state = ?3 → true": unit,
	}
}

// kind is what the mutants of a plot are called.
func (p plot) kind() string {
	if p.sql {
		return "guards"
	}
	return "mutants"
}

// list is the Go files of a plot.
func (p plot) list(t *testing.T) []string {
	t.Helper()
	if !p.sql {
		return p.files
	}
	names, err := filepath.Glob(filepath.Join(root(t), p.pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range names {
		base := filepath.Base(name)
		// An audit and a doctor only look.
		if !strings.HasSuffix(base, "_test.go") && !strings.HasPrefix(base, "audit") && !strings.HasPrefix(base, "doctor") {
			files = append(files, base)
		}
	}
	return files
}

func (p plot) plant(t *testing.T) *Garden {
	t.Helper()
	kind := Decisions
	if p.sql {
		kind = Statements
	}
	g, err := kind(root(t), p.pkg, p.list(t)...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What is named as equivalent has to be there.
func TestEveryEquivalentMutantIsThere(t *testing.T) {
	t.Parallel()
	missing := equivalent()
	for _, p := range plots() {
		for _, m := range p.plant(t).Mutants() {
			delete(missing, m.String())
		}
	}
	for name := range missing {
		t.Errorf("not there: %s", name)
	}
}

// A mutant that survives is a missing test, or changes nothing; then it is named
// in equivalent. Only with UNAVEZ_LONG=1: the tests run once for each.
func TestEveryMutantIsCaught(t *testing.T) {
	if !evidence.Long() {
		return
	}
	only := os.Getenv(gardenVariable)
	known := equivalent()
	for _, p := range plots() {
		if !strings.Contains(p.name, only) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			g := p.plant(t)
			program, err := g.Build(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			run := evidence.Run{Name: p.kind() + "-" + p.name, Long: true, Seeded: len(g.Mutants())}
			by, met := map[string]int{}, map[string]bool{}
			limit := p.limit
			if limit == 0 {
				limit = time.Minute
			}
			_, err = g.Try(t.Context(), program, Suite{Run: p.run, Flags: p.flags, Limit: limit}, func(f Fate) {
				switch {
				case !f.Survived():
					run.Caught++
					test, _, _ := strings.Cut(f.Caught.Test, "/")
					by[test]++
				case known[f.String()] != "":
					run.Equivalent++
					met[f.String()] = true
				default:
					run.Violations++
					t.Errorf("survives (reached: %v): line %d: %s %v", f.Reached, f.Line, f, f.Caught.Doubts)
				}
				if err := run.Write(); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range g.Mutants() {
				if known[m.String()] != "" && !met[m.String()] {
					t.Errorf("named as equivalent, and caught: %s", m)
					met[m.String()] = true
				}
			}
			t.Logf("%d mutants, %d caught, %d equivalent", run.Seeded, run.Caught, run.Equivalent)
			for _, test := range slices.Sorted(maps.Keys(by)) {
				t.Logf("%5d by %s", by[test], test)
			}
		})
	}
}
