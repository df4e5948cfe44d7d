package teeth

import (
	"fmt"
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
		{name: "engine", pkg: ".", files: []string{"engine.go", "operation.go", "refusals.go", "expect.go"}, run: all, limit: 20 * time.Second},
		{name: "fingerprint", pkg: "httpkey", files: []string{"fingerprint.go", "key.go"}, run: []string{"Fingerprint|Key", "."}},
		{name: "signatures", pkg: "source", files: []string{"standard.go", "hmac.go", "header.go", "jwt.go", "secret.go"}, run: all, limit: 5 * time.Second},
		{name: "retry", pkg: "inbox", files: []string{"retry.go"}, run: []string{"Retry|Delay|Fails|PromisesHoldOnMemory|GivenUp|Limits", "."}},
		{name: "board", pkg: "inbox", files: []string{"board.go"}, run: []string{"^TestBoard", "Board|Once|Order|PromisesHoldOnMemory|Storm", "."}},
		{name: "statechart", pkg: "statechart", files: []string{"step.go", "select.go", "round.go", "complete.go"}, run: []string{"Corpus", "."}},
		{name: "sqlite", pkg: lite, sql: true, run: []string{
			stores + "/^modernc$/random", queues + "/^modernc$/random", stores + "/^modernc$", queues + "/^modernc$",
			"SchemaIs|ComesAgain|Lane|Purge|Version|Room|Count|Entr|Payload|Repet|Forgotten|Append|Migrat|Group|Outcome|Together|Damaged|Transaction|Wait",
		}, limit: 3 * time.Minute},
	}
}

// equivalent are mutants that change nothing anybody can see, by their keys (see
// keysOf), with the reason.
func equivalent() map[string]string {
	const (
		shortcut = "sound only spares the words: whatever it refuses is looked at once more"
		unit     = "the row was read in the same unit, and nobody else writes meanwhile"
		fails    = "what follows fails as well"
		slow     = "the general way behind it reads the same"
		bound    = "the bound spares counting: what is past it has too many digits, which are counted behind it"
		erased   = "what is erased is erased again, which changes and counts nothing; the term spares that"
		erases   = "what is erased was left out before, by the read that gives the list; the term keeps the count beside another erasure"
		part     = "the bounds of a part spare reading more; what is taken, and counted, is decided by the other terms"
		behind   = "of what the cursors have passed, whatever is not done waits behind a blocked row: the terms spare looking further"
		hashed   = "both ways hash the same bytes: one copies them first, the other hashes them in pieces"
		idle     = "a purge that finds nothing writes nothing: the term spares it the unit in which it looks"
	)
	return map[string]string{
		"engine.go: 0 → 1 #2": "a cache of one byte holds nothing",
		"expect.go: 0 → 1":    "an eighth of what is left above nothing is none, a little sooner or later",
		"expect.go: err != nil || verdict.Outcome == nil → verdict.Outcome == nil": "with an error there is no outcome",

		"httpkey/fingerprint.go: len(content) <= maxSmall → len(content) < maxSmall": hashed,
		"httpkey/fingerprint.go: len(content) <= maxSmall → len(content) > maxSmall": hashed,
		"httpkey/fingerprint.go: return append(out, sum[:]...) → nothing":            hashed,
		"httpkey/fingerprint.go: return lines[0], nil, nil → nothing":                slow,

		"inbox/board.go: return → nothing #8": "what has no room takes nothing: the term spares looking for it",

		"inbox/retry.go: d < r.Longest → d <= r.Longest": "what is as long as Longest is cut to it, doubled once more or not",

		"internal/exact/canonical.go: !ok || r == utf8.RuneError → r == utf8.RuneError":                  "what is no number is 0, which is no low half",
		"internal/exact/canonical.go: '0' <= b && b <= '9' → b <= '9'":                                   fails,
		"internal/exact/canonical.go: 16 → 17 #2":                                                        "four digits have 16 bits",
		"internal/exact/canonical.go: err == nil && cur.skips(c.out[start:]) → cur.skips(c.out[start:])": "after an error nobody looks at what was written",
		"internal/exact/canonical.go: i+2 >= len(raw) → i+2 > len(raw)":                                  "behind a backslash there is a byte: the string did not end in one",
		"internal/exact/canonical.go: return raw, nil → nothing":                                         "unescaping what has no escapes gives it back",

		"internal/exact/exact.go: '0' <= value[0] && value[0] <= '9' → value[0] <= '9'":                                                            "what begins with less is not JSON",
		"internal/exact/exact.go: 2 → 3":                                                                                                           bound,
		"internal/exact/exact.go: bytes.IndexByte(text, '\\\\') < 0 → bytes.IndexByte(text, '\\\\') <= 0":                                          slow,
		"internal/exact/exact.go: err == nil && s == \"\" → s == \"\"":                                                                             "where there is an error there is no text, and either is refused",
		"internal/exact/exact.go: exponent < -2*maxDigits-len(number) → exponent <= -2*maxDigits-len(number)":                                      bound,
		"internal/exact/exact.go: exponent > 2*maxDigits+len(number) || exponent < -2*maxDigits-len(number) → exponent < -2*maxDigits-len(number)": bound,
		"internal/exact/exact.go: exponent > 2*maxDigits+len(number) || exponent < -2*maxDigits-len(number) → exponent > 2*maxDigits+len(number)":  bound,
		"internal/exact/exact.go: exponent > 2*maxDigits+len(number) → exponent >= 2*maxDigits+len(number)":                                        bound,
		"internal/exact/exact.go: len(text) >= 2 → len(text) > 2":                                                                                  slow,
		"internal/exact/exact.go: return \"\", err → nothing":                                                                                      "of nothing there is no part, for the same reason",
		"internal/exact/exact.go: return \"\", fmt.Errorf(\"a number of more than %d digits\", maxDigits) → nothing #1":                            "Atoi has given its largest number, which the next look refuses",
		"internal/exact/exact.go: return \"\", fmt.Errorf(\"a number of more than %d digits\", maxDigits) → nothing #2":                            "Atoi has given its largest number, which the next look refuses",
		"internal/exact/exact.go: return err → nothing #1":                                                                                         "of JSON there is no name that cannot be read",
		"internal/exact/exact.go: return errors.New(\"not JSON\") → nothing":                                                                       "what is not JSON has a syntax error, which was told before",
		"internal/exact/exact.go: return nil, err → nothing #1":                                                                                    "of a text that has passed Check there is no such error",
		"internal/exact/exact.go: return nil, err → nothing #4":                                                                                    "of a text that has passed Check there is no such error",
		"internal/exact/exact.go: return nil, err → nothing #5":                                                                                    "of a text that has passed Check there is no such error",
		"internal/exact/exact.go: return s.text[from:s.at] → nothing #1":                                                                           "what follows a string ends the value",
		"internal/exact/exact.go: return string(text[1 : len(text)-1]), nil → nothing":                                                             slow,

		"internal/exact/path.go: return cursor{} → nothing #2": "where no path leads on there is none to follow, which gives the same",
		"internal/exact/path.go: return cursor{} → nothing #3": "where no path leads on there is none to follow, which gives the same",

		"store/identity.go: !fits(id.Tenant) || id.Effect == \"\" || !fits(id.Effect) || len(id.Parts) == 0 → !fits(id.Tenant) || id.Effect == \"\" || !fits(id.Effect)": shortcut,
		"store/identity.go: 16 → 17 #1":                                              "what becomes a Key is its first 16 bytes",
		"store/identity.go: 8 → 9":                                                   "Uint64 reads 8 bytes of what it gets",
		"store/identity.go: empty && p == \"\" → empty #2":                           shortcut,
		"store/identity.go: empty && p == \"\" → p == \"\" #2":                       shortcut,
		"store/identity.go: empty = empty && p == \"\" → nothing #2":                 shortcut,
		"store/identity.go: len(id.Parts) == 0 → len(id.Parts) != 0 #2":              shortcut,
		"store/identity.go: len(id.Parts) > MaxParts → len(id.Parts) >= MaxParts #2": shortcut,
		"store/identity.go: return nil → nothing":                                    shortcut,

		"store/outcome.go: return nil, errors.New(\"stored header: ends inside a name\") → nothing": fails,

		"store/sqlite/attempts.go: fence = ?2 → true #1": unit,
		"store/sqlite/attempts.go: fence = ?2 → true #2": unit,
		"store/sqlite/attempts.go: state = ?3 → true":    unit,

		"store/sqlite/blocked.go: ordering = ?1 → true #3": "a sequence is that of one entry, which has one ordering key",
		"store/sqlite/blocked.go: sequence < ?2 → true #1": "what is left beside earlier rows is the entry's own, which is written as it stands",
		"store/sqlite/blocked.go: sequence < ?2 → true #2": "what is left beside earlier rows is the entry's own, which is written as it stands",

		"store/sqlite/erase.go: erased = 0 → true #2": erases,
		"store/sqlite/erase.go: erased = 0 → true #3": erased,
		"store/sqlite/erase.go: erased = 0 → true #4": erases,
		"store/sqlite/erase.go: erased = 0 → true #5": erased,
		"store/sqlite/erase.go: erased = 0 → true #6": erased,
		"store/sqlite/erase.go: id <= ?2 → true #1":   part,
		"store/sqlite/erase.go: id <= ?2 → true #2":   part,
		"store/sqlite/erase.go: id > ?1 → true #1":    part,
		"store/sqlite/erase.go: id > ?1 → true #2":    part,
		"store/sqlite/erase.go: tenant = ?1 → true":   "HoldsItem asks for the tenant too; the term spares reading the items of others",

		"store/sqlite/find.go: NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1) → true": "where an earlier life is over, the attempt of this one has ended in the same unit, or comes behind it",
		"store/sqlite/find.go: fence = ?2 → true":                                               "the operation's lock is held from the read of its fence to the commit, and nobody changes one without it",
		"store/sqlite/find.go: key = ?1 → true #5":                                              "what a tombstone says that is over nobody reads",

		"store/sqlite/ledger.go: key IN (SELECT unhex(value) FROM json_each(?1)) → true": "what is found of others is not looked at; the term spares reading it",

		"store/sqlite/migrate.go: type = 'table' → true": "nothing but the table has that name",

		"store/sqlite/room.go: f.id > b.sequence → true":       behind,
		"store/sqlite/room.go: f.ordering = b.ordering → true": behind,

		"store/sqlite/sweep.go: id > ?1 → true":   "what was passed stays passed: by a clock that goes forward an entry comes later than those before it",
		"store/sqlite/sweep.go: q.id < ?2 → true": part,

		"store/sqlite/upkeep.go: NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1) → true #1": "an outcome and an attempt stand together only where someone has written past the lock",
		"store/sqlite/upkeep.go: NOT EXISTS (SELECT 1 FROM unavez_attempt WHERE key = ?1) → true #2": "an outcome and an attempt stand together only where someone has written past the lock",
		"store/sqlite/upkeep.go: o.at <= now - retention.kept → true":                                idle,
		"store/sqlite/upkeep.go: o.expires - o.at = retention.kept → true":                           idle,
		"store/sqlite/upkeep.go: state = 1 → true #2":                                                idle,
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
		for _, key := range keysOf(p.plant(t).Mutants()) {
			delete(missing, key)
		}
	}
	for name := range missing {
		t.Errorf("not there: %s", name)
	}
}

// changesNothing is by what a mutant is noticed that nobody can.
const changesNothing = "nothing: equivalent"

// keysOf names the mutants apart, by their numbers: behind # is which of several it
// is that read the same, so that none stands for another.
func keysOf(all []Mutant) map[int]string {
	alike, seen, keys := map[string]int{}, map[string]int{}, map[int]string{}
	for _, m := range all {
		alike[m.String()]++
	}
	for _, m := range all {
		keys[m.ID] = m.String()
		if seen[m.String()]++; alike[m.String()] > 1 {
			keys[m.ID] = fmt.Sprintf("%s #%d", m, seen[m.String()])
		}
	}
	return keys
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
			keys := keysOf(g.Mutants())
			run := evidence.Run{Name: p.kind() + "-" + p.name, Long: true, Seeded: len(g.Mutants())}
			if err := run.Resume(); err != nil {
				t.Fatal(err)
			}
			there := slices.Collect(maps.Values(keys))
			maps.DeleteFunc(run.Found, func(key, by string) bool { // what has gone, or has to be looked at again
				return by == "" || !slices.Contains(there, key) || by == changesNothing && known[key] == ""
			})
			count := func() {
				run.Caught, run.Equivalent, run.Violations = 0, 0, 0
				for _, by := range run.Found {
					switch by {
					case "":
						run.Violations++
					case changesNothing:
						run.Equivalent++
					default:
						run.Caught++
					}
				}
			}
			limit := p.limit
			if limit == 0 {
				limit = time.Minute
			}
			done := func(m Mutant) bool { return run.Found[keys[m.ID]] != "" }
			_, err = g.Try(t.Context(), program, Suite{Run: p.run, Flags: p.flags, Limit: limit}, done, func(f Fate) {
				switch {
				case !f.Survived():
					run.Finds(keys[f.ID], f.Caught.Test)
				case known[keys[f.ID]] != "":
					run.Finds(keys[f.ID], changesNothing)
				default:
					run.Finds(keys[f.ID], "")
					t.Errorf("survives (reached: %v): line %d: %s %v", f.Reached, f.Line, f, f.Caught.Doubts)
				}
				count()
				if err := run.Write(); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			count()
			by := map[string]int{}
			for key, test := range run.Found {
				if test == changesNothing {
					continue
				}
				if known[key] != "" && test != "" {
					t.Errorf("named as equivalent, and caught: %s", key)
				}
				test, _, _ = strings.Cut(test, "/")
				by[test]++
			}
			t.Logf("%d mutants, %d caught, %d equivalent", run.Seeded, run.Caught, run.Equivalent)
			for _, test := range slices.Sorted(maps.Keys(by)) {
				t.Logf("%5d by %s", by[test], test)
			}
		})
	}
}
