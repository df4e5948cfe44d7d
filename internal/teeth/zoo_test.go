package teeth

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/evidence"
)

// onlyVariable, a pattern of their names, chooses bugs of the zoo.
const onlyVariable = "UNAVEZ_BUG"

// bug is one mistake of the zoo.
type bug struct {
	name    string
	changes []Change
	hunts   []hunt // each has to catch it
}

// hunt is where a bug is looked for.
type hunt struct {
	layer, pkg, run string
}

// zoo lists all bugs, by the part of the protocol that they break.
func zoo() []bug {
	all := slices.Concat(zooOfGates(), zooOfLeases(), zooOfLanes(), zooOfStorage(), zooOfEdges())
	// What needs no compilation is first.
	slices.SortStableFunc(all, func(a, b bug) int { return a.cost() - b.cost() })
	return all
}

// cost is what it takes to build the program of the first hunt.
func (b bug) cost() int {
	switch {
	case !slices.ContainsFunc(b.changes, func(c Change) bool { return !strings.HasPrefix(c.File, "store/postgres/migrations/") }):
		return 0
	case slices.Contains([]string{".", "source", "httpkey"}, b.hunts[0].pkg):
		return 1
	}
	return 2
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A bug whose text has moved would be one that nobody looks for any more.
func TestEveryBugOfTheZooFindsItsPlace(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, b := range zoo() {
		if seen[b.name] {
			t.Errorf("%s: twice", b.name)
		}
		seen[b.name] = true
		if _, err := Apply(root(t), b.changes); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		if len(b.changes) == 0 || len(b.hunts) == 0 {
			t.Errorf("%s: %d changes, %d hunts", b.name, len(b.changes), len(b.hunts))
		}
	}
	if len(seen) < 25 {
		t.Errorf("%d bugs, want 25 or more", len(seen))
	}
}

// cage keeps the programs without a bug.
type cage struct {
	root string
	dir  string
	made map[string]*Suite
}

// sound is the program of a package as it is. The tests of a hunt have to pass
// there, once.
func (c *cage) sound(t *testing.T, h hunt) *Suite {
	t.Helper()
	if c.made[h.pkg] == nil {
		program, err := Build(t.Context(), c.root, h.pkg, c.dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.made[h.pkg] = &Suite{Program: program, Dir: filepath.Join(c.root, h.pkg), Limit: 90 * time.Second}
	}
	key := h.pkg + " " + h.run
	if c.made[key] == nil {
		s := *c.made[h.pkg]
		s.Run = []string{h.run}
		if err := s.Pace(t.Context()); err != nil {
			t.Fatalf("%s: %v", h.pkg, err)
		}
		c.made[key] = &s
	}
	return c.made[key]
}

// Each bug of the zoo is caught in each layer that is named for it. With
// UNAVEZ_LONG=1 all of them are built and looked for; else a few, of the packages
// that need no server.
func TestEveryBugOfTheZooIsCaught(t *testing.T) {
	bugs := zoo()
	only, err := regexp.Compile(os.Getenv(onlyVariable))
	if err != nil {
		t.Fatal(err)
	}
	run := evidence.Run{Name: "zoo", Long: evidence.Long(), Seeded: len(bugs)}
	if evidence.Long() {
		if err := run.Resume(); err != nil {
			t.Fatal(err)
		}
	} else {
		if testing.Short() {
			t.Skip("compiling takes its time")
		}
		run.Seed = rand.Uint64()
		bugs = sample(bugs, run.Seed)
		t.Logf("seed %d", run.Seed)
	}
	c := &cage{root: root(t), dir: t.TempDir(), made: map[string]*Suite{}}
	// The first hunt of each bug, then the second.
	for round := range 3 {
		for _, b := range bugs {
			if !only.MatchString(b.name) || round >= len(b.hunts) || round < hunted(run.Found[b.name]) {
				continue
			}
			t.Run(b.name+"/"+b.hunts[round].layer, func(t *testing.T) {
				by := c.catch(t, b, b.hunts[round])
				if !evidence.Long() {
					return
				}
				if before := run.Found[b.name]; before != "" {
					by = before + "; " + by
				}
				run.Finds(b.name, by)
				run.Caught = 0
				for _, b := range zoo() {
					if by := run.Found[b.name]; by != "" && !strings.Contains(by, evidence.Escaped) {
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
}

// hunted is how many hunts are over, by what was found.
func hunted(found string) int {
	if found == "" {
		return 0
	}
	return strings.Count(found, "; ") + 1
}

// sample chooses two bugs of packages that are quick to build and need no server.
func sample(bugs []bug, seed uint64) []bug {
	bugs = slices.DeleteFunc(slices.Clone(bugs), func(b bug) bool {
		return slices.ContainsFunc(b.hunts, func(h hunt) bool { return !slices.Contains([]string{".", "source"}, h.pkg) })
	})
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(bugs), func(i, j int) { bugs[i], bugs[j] = bugs[j], bugs[i] })
	return bugs[:min(2, len(bugs))]
}

// flaw is what puts a bug into the databases that the tests of store/postgres make,
// where it is one of functions of the schema only: the program needs no change then.
func (c *cage) flaw(t *testing.T, files map[string]string) []string {
	t.Helper()
	var changed strings.Builder
	for file, text := range files {
		if !strings.HasPrefix(file, "store/postgres/migrations/") {
			return nil
		}
		was, err := os.ReadFile(filepath.Join(c.root, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range function.FindAllString(text, -1) {
			if !strings.Contains(string(was), f) {
				changed.WriteString(strings.Replace(f, "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1) + "\n")
			}
		}
	}
	if changed.Len() == 0 {
		t.Fatal("no function of the schema is another one")
	}
	return []string{"UNAVEZ_POSTGRES_FLAW=" + changed.String()}
}

// function is the definition of one.
var function = regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?FUNCTION unavez\..*?AS \$\$.*?\$\$;`)

// catch hunts one bug once, and names the layer and the test that have caught it.
func (c *cage) catch(t *testing.T, b bug, h hunt) string {
	t.Helper()
	files, err := Apply(c.root, b.changes)
	if err != nil {
		t.Error(err)
		return evidence.Escaped + h.layer
	}
	sound := c.sound(t, h)
	began := time.Now()
	suite, mistake := sound, c.flaw(t, files)
	if mistake == nil {
		program, err := Build(t.Context(), c.root, h.pkg, t.TempDir(), files)
		if err != nil {
			t.Error(err)
			return evidence.Escaped + h.layer
		}
		flawed := *sound
		flawed.Program = program
		suite = &flawed
	}
	caught, err := suite.Catches(t.Context(), mistake, sound)
	if err != nil {
		t.Error(err)
		return evidence.Escaped + h.layer
	}
	for _, doubt := range caught.Doubts {
		t.Log(doubt)
	}
	if caught.Test == "" {
		t.Errorf("%s does not catch it: %s -run %q", h.layer, h.pkg, h.run)
		return evidence.Escaped + h.layer
	}
	t.Logf("%s catches it: %s (%s)", h.layer, caught.Test, time.Since(began).Round(time.Second))
	return h.layer + " (" + caught.Test + ")"
}
