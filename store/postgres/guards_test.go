package postgres_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/internal/teeth"
)

// flawVariable holds statements that put a flaw into every database a test
// makes: the suites must then fail.
const flawVariable = "UNAVEZ_POSTGRES_FLAW"

// guardVariable, a pattern of their names, chooses guards.
const guardVariable = "UNAVEZ_GUARD"

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
	queue    bool   // it is a function of the queue
	slot     int    // which of several that differ in numbers only
	count    int    // which of several that read the same, from 1
	flawed   string // the function's definition without it
}

func (g guard) String() string {
	if g.count > 1 {
		return fmt.Sprintf("%s: %s (%d)", g.function, g.term, g.count)
	}
	return g.function + ": " + g.term
}

// Every condition that a function of the schema checks beside others is needed:
// without it a test fails, fails again by itself, and passes by itself with it. A
// survivor is a condition that no test holds. The tests run once for each, so only
// with UNAVEZ_LONG=1.
func TestEveryGuardOfTheSchemaIsHeldByATest(t *testing.T) {
	if os.Getenv(flawVariable) != "" {
		return // this is a run with a flaw
	}
	d := fresh(t, nil)
	guards := guardsOf(t, d)
	if len(guards) < 100 {
		t.Fatalf("only %d guards found", len(guards))
	}
	for name := range spared {
		if !slices.ContainsFunc(guards, func(g guard) bool { return g.String() == name }) {
			t.Errorf("spared, and not there: %s", name)
		}
	}
	if !evidence.Long() { // each takes the time of the suites
		return
	}
	run := evidence.Run{Name: "guards-postgres", Long: true, Seeded: len(guards), Equivalent: len(spared)}
	if err := run.Resume(); err != nil {
		t.Fatal(err)
	}
	only, err := regexp.Compile(os.Getenv(guardVariable))
	if err != nil {
		t.Fatal(err)
	}
	suite := teeth.Suite{Program: os.Args[0], Dir: ".", Run: slices.Concat(storeTests, queueTests), Limit: 10 * time.Minute}
	if err := suite.Pace(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, g := range guards {
		if spared[g.String()] != "" || run.Found[g.String()] != "" || !only.MatchString(g.String()) {
			continue
		}
		suite.Run = slices.Concat(storeTests, queueTests, []string{"."})
		if g.queue {
			suite.Run = slices.Concat(queueTests, storeTests, []string{"."})
		}
		t.Run(g.String(), func(t *testing.T) {
			run.Finds(g.String(), heldBy(t, &suite, g))
			run.Caught = 0
			for _, g := range guards {
				if run.Found[g.String()] != "" {
					run.Caught++
				}
			}
			run.Violations = len(run.Survivors())
			if err := run.Write(); err != nil {
				t.Error(err)
			}
		})
	}
}

// spared are guards whose loss nobody can see, with the reason.
var spared = map[string]string{}

// What has to hold the guards of the schema's functions. What is quick and
// holds most comes first.
var (
	storeTests = []string{
		"^TestStoreHoldsWhatEveryStorePromises$/^ring$/random/^seed_1$",
		"^TestStoreHoldsWhatEveryStorePromises$/^ring$|^TestFunctions|^TestRing|^TestIsolation|^TestFinish|^TestLease|^TestLate|^TestTransaction",
	}
	queueTests = []string{
		"^TestQueueHoldsWhatEveryQueuePromises$/random/^seed_1$",
		"^TestQueueHoldsWhatEveryQueuePromises$|^TestQueue|^TestAppend|^TestSlot|^TestReading|^TestTakeover|^TestJoined|^TestRound|^TestBatch|^TestLanes|^TestEntries|^TestEnqueue|^TestNoEntry",
	}
)

// heldBy names the test that fails where the guard is missing.
func heldBy(t *testing.T, suite *teeth.Suite, g guard) string {
	t.Helper()
	caught, err := suite.Catches(t.Context(), []string{flawVariable + "=" + g.flawed}, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	for _, doubt := range caught.Doubts {
		t.Log(doubt)
	}
	if caught.Test == "" {
		t.Error("no test holds it")
		return ""
	}
	t.Logf("held by %s", caught.Test)
	return caught.Test
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
	migration, err := os.ReadFile("migrations/0005_queue.sql")
	if err != nil {
		t.Fatal(err)
	}
	seen, alike := map[string]int{}, map[string]int{}
	digits := regexp.MustCompile(`\d`)
	for _, f := range functions {
		for _, c := range teeth.Conjuncts(f.Source) {
			flawed := f.Source[:c.From] + "true" + f.Source[c.To:]
			g := guard{
				function: f.Name, queue: strings.Contains(string(migration), "CREATE FUNCTION unavez."+f.Name+"("), term: strings.Join(strings.Fields(f.Source[c.From:c.To]), " "),
				flawed: strings.Replace(f.Definition, f.Source, flawed, 1),
			}
			seen[g.String()]++
			g.count = seen[g.String()]
			alike[digits.ReplaceAllString(g.String(), "")]++
			g.slot = alike[digits.ReplaceAllString(g.String(), "")]
			guards = append(guards, g)
		}
	}
	// What reads the same for another slot comes later.
	slices.SortStableFunc(guards, func(a, b guard) int { return a.slot - b.slot })
	return guards
}
