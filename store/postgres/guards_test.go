package postgres_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// flawVariable holds statements that put a flaw into every database a test
// makes: the suites must then fail.
const flawVariable = "UNAVEZ_POSTGRES_FLAW"

// flaw puts the flaw in, if there is one.
func (d *database) flaw(t testing.TB) {
	t.Helper()
	if text := os.Getenv(flawVariable); text != "" {
		d.exec(t, text)
	}
}

// guard is one condition of several that a function of the schema joins by AND.
type guard struct {
	function string
	term     string
	flawed   string // the function's definition without it
}

func (g guard) String() string { return g.function + ": " + g.term }

// Every condition that a function of the schema checks beside others is needed:
// without it the suites that every store passes fail. A survivor is a condition
// that no test holds. The suites run once for each, so only with UNAVEZ_LONG.
func TestEveryGuardOfTheSchemaIsHeldByATest(t *testing.T) {
	if os.Getenv(flawVariable) != "" {
		return // this is a run with a flaw
	}
	d := fresh(t, nil)
	guards := slices.DeleteFunc(guardsOf(t, d), func(g guard) bool { return spared[g.function] != "" || spared[g.String()] != "" })
	if len(guards) < 20 {
		t.Fatalf("only %d guards found", len(guards))
	}
	if os.Getenv("UNAVEZ_LONG") == "" { // each takes the time of the suites
		return
	}
	for _, g := range guards {
		t.Run(g.String(), func(t *testing.T) { fails(t, g.flawed) })
	}
}

// spared are functions, or guards, whose loss no suite can see, with the reason.
var spared = map[string]string{}

// fails runs the suites with a flaw and wants them to fail.
func fails(t *testing.T, flaw string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	suites := exec.CommandContext(ctx, os.Args[0], "-test.failfast", "-test.short", "-test.timeout=4m",
		"-test.run", "TestStoreHoldsWhatEveryStorePromises|TestQueueHolds|TestSQLFunctions|TestGuardsHeldApart")
	suites.Env = append(os.Environ(), flawVariable+"="+flaw)
	suites.WaitDelay = 5 * time.Second
	output, err := suites.CombinedOutput()
	if err == nil {
		t.Error("every suite passes without it")
		return
	}
	if first := regexp.MustCompile(`--- FAIL: (\S*/\S*)`).FindSubmatch(output); first != nil {
		t.Logf("caught by %s", first[1])
	}
}

// guardsOf reads the functions of the schema and drops each of their joined
// conditions in turn.
func guardsOf(t *testing.T, d *database) (guards []guard) {
	t.Helper()
	type function struct{ Name, Source, Definition string }
	rows, err := d.admin.Query(t.Context(), `SELECT p.proname, p.prosrc, pg_get_functiondef(p.oid) FROM pg_proc p
		JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'unavez' AND p.prokind = 'f' ORDER BY p.proname, p.oid`)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[function])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range functions {
		for _, c := range conjuncts(f.Source) {
			flawed := f.Source[:c.from] + "true" + f.Source[c.to:]
			guards = append(guards, guard{
				function: f.Name, term: strings.Join(strings.Fields(f.Source[c.from:c.to]), " "),
				flawed: strings.Replace(f.Definition, f.Source, flawed, 1),
			})
		}
	}
	return guards
}

// span is a part of a text.
type span struct{ from, to int }

var (
	word = regexp.MustCompile(`(?i)[a-z_][a-z0-9_.]*|[();,]|'(?:[^']|'')*'|--[^\n]*|:=|[^\sa-z_();,']+`)
	// ends are the words behind which a condition does not go on.
	ends = regexp.MustCompile(`(?i)^(and|or|then|loop|returning|order|group|limit|for|on|where|when|else|end|if|elsif|union|into|set|as|perform|return|select|from|join|using|not|exists|[;,])$`)
)

// conjuncts finds the terms that AND joins, outside of BETWEEN.
func conjuncts(source string) (terms []span) {
	tokens := slices.DeleteFunc(word.FindAllStringIndex(source, -1), func(at []int) bool { return strings.HasPrefix(source[at[0]:at[1]], "--") })
	text := func(i int) string { return source[tokens[i][0]:tokens[i][1]] }
	// reach goes from i in a direction to the end of the term there.
	reach := func(i, step int) int {
		depth, open, shut := 0, "(", ")"
		if step < 0 {
			open, shut = shut, open
		}
		last := i
		for i += step; i >= 0 && i < len(tokens); i += step {
			switch w := text(i); {
			case w == open:
				depth++
			case w == shut:
				if depth == 0 {
					return last
				}
				depth--
			case depth == 0 && ends.MatchString(w) && !(step > 0 && strings.EqualFold(w, "not")) && !(step > 0 && strings.EqualFold(w, "exists")):
				if step < 0 && (strings.EqualFold(w, "not") || strings.EqualFold(w, "exists")) {
					last = i
					continue
				}
				return last
			}
			last = i
		}
		return last
	}
	seen := map[span]bool{}
	add := func(a, b int) {
		if a > b {
			return
		}
		s := span{tokens[a][0], tokens[b][1]}
		if !seen[s] {
			seen[s] = true
			terms = append(terms, s)
		}
	}
	for i := range tokens {
		if !strings.EqualFold(text(i), "and") || i == 0 || i == len(tokens)-1 {
			continue
		}
		before := reach(i, -1)
		if between(text, before, i) {
			continue
		}
		add(before, i-1)
		add(i+1, reach(i, 1))
	}
	slices.SortFunc(terms, func(a, b span) int { return a.from - b.from })
	return terms
}

// between reports whether a BETWEEN stands among the tokens.
func between(text func(int) string, from, to int) bool {
	for i := from; i < to; i++ {
		if strings.EqualFold(text(i), "between") {
			return true
		}
	}
	return false
}

func TestConjunctsAreFound(t *testing.T) {
	t.Parallel()
	const source = `IF a = 1 AND (b OR c) THEN
		UPDATE x SET y = 2 WHERE x.k = key AND x.f = fence AND NOT EXISTS (SELECT 1 FROM z WHERE z.k = x.k AND z.v > 0) RETURNING 1; -- this AND that
		SELECT count(*) FROM q WHERE q.v BETWEEN 1 AND 2;`
	var got []string
	for _, s := range conjuncts(source) {
		got = append(got, strings.Join(strings.Fields(source[s.from:s.to]), " "))
	}
	want := []string{"a = 1", "(b OR c)", "x.k = key", "x.f = fence", "NOT EXISTS (SELECT 1 FROM z WHERE z.k = x.k AND z.v > 0)", "z.k = x.k", "z.v > 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
