// Package model_test runs the Promela models of the protocol through Spin: each
// must hold as it is, break with each flaw, and reach each situation.
package model_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var long = flag.Bool("long", false, "verify the large variants too")

// verdict is what the verifier says of one model.
type verdict struct {
	errors, states int
	assertion      string // what was violated; empty if nothing
	output         string
}

// verify compiles a model with the definitions and searches all its states.
func verify(t *testing.T, model string, definitions ...string) verdict {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing: apt-get install spin gcc", tool)
		}
	}
	source, err := filepath.Abs(model)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	args := []string{"-a"}
	for _, d := range definitions {
		args = append(args, "-D"+d)
	}
	run("spin", append(args, source)...)
	optimised := "-O1"
	if slices.ContainsFunc(definitions, func(d string) bool { return strings.HasPrefix(d, "FLAW_") || strings.HasPrefix(d, "REACH=") }) {
		optimised = "-O0" // the search ends at the first find, long before the compiler's work pays
	}
	run("gcc", optimised, "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
	v := verdict{output: run(filepath.Join(dir, "pan"), "-m20000")}
	number := func(pattern string) int {
		m := regexp.MustCompile(pattern).FindStringSubmatch(v.output)
		if m == nil {
			t.Fatalf("no %q in\n%s", pattern, v.output)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	v.errors, v.states = number(`errors: (\d+)`), number(`(\d+) states, stored`)
	if m := regexp.MustCompile(`pan:1: (.*) \(at depth`).FindStringSubmatch(v.output); m != nil {
		v.assertion = m[1]
	}
	if strings.Contains(v.output, "search depth too small") || strings.Contains(v.output, "out of memory") {
		t.Fatalf("the search was not complete:\n%s", v.output)
	}
	return v
}

// models are the variants, each with the flaws that must break it and the
// situations that must occur.
func models() []struct {
	name, file string
	with       []string
	flaws      []string
	reach      []string
} {
	return []struct {
		name, file string
		with       []string
		flaws      []string
		reach      []string
	}{
		{
			name: "gate", file: "gate.pml",
			flaws: []string{
				"NO_LOCK", "ONE_STATEMENT", "UNLOCK_EARLY", "REMEMBERED_SLOT", "MEASURE_UNLOCKED", "TOMBSTONE_FIRST", "RETIRE_FIRST",
			},
			reach: []string{"frozen", "expired", "inflight", "emptied"},
		},
		{
			name: "lease, hold", file: "lease.pml", with: []string{"POLICY_HOLD"},
			flaws: []string{"NO_LOCK_IN_CLAIM", "RUN_EXPIRED"},
			reach: []string{"held", "frozen"},
		},
		{
			name: "lease, retry", file: "lease.pml", with: []string{"POLICY_RETRY"},
			flaws: []string{"NO_LOCK_IN_CLAIM", "FENCE_BY_SELECT", "ZERO_ROWS"},
			reach: []string{"takenOver", "refused", "frozen", "late"},
		},
		{
			name: "lease, probe", file: "lease.pml", with: []string{"POLICY_PROBE"},
			flaws: []string{"NO_LOCK_IN_CLAIM", "RUN_EXPIRED", "FENCE_BY_SELECT", "ZERO_ROWS"},
			reach: []string{"probed", "takenOver", "refused", "late"},
		},
		{
			name: "lease in the claim's place", file: "lease.pml", with: []string{"POLICY_LEASE"},
			flaws: []string{"NO_READ_AT_FINISH", "FINISH_UNLOCKED"},
			reach: []string{"refused", "outcomes"},
		},
		{
			name: "lane", file: "lane.pml",
			flaws: []string{
				"SEQUENCE_CURSOR", "DRAW_BEFORE_LOCK", "NO_EPOCH", "EPOCH_UNLOCKED", "NOT_BLOCKED", "MOVE_EARLY", "TAKE_SHARED",
			},
			reach: []string{"refused", "retried", "late", "passed", "whole"},
		},
	}
}

func TestProtocolHoldsInEveryOrderOfItsSteps(t *testing.T) {
	t.Parallel()
	for _, m := range models() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			v := verify(t, m.file, m.with...)
			if v.errors != 0 {
				t.Errorf("%s\n%s", v.assertion, v.output)
			}
			t.Logf("%d states", v.states)
		})
	}
}

func TestEachFlawBreaksThePromise(t *testing.T) {
	t.Parallel()
	for _, m := range models() {
		for _, flaw := range m.flaws {
			t.Run(m.name+"/"+flaw, func(t *testing.T) {
				t.Parallel()
				v := verify(t, m.file, append([]string{"FLAW_" + flaw}, m.with...)...)
				if v.errors == 0 || !strings.HasPrefix(v.assertion, "assertion violated") {
					t.Errorf("the flaw was not found:\n%s", v.output)
				}
			})
		}
	}
}

func TestEachSituationOccurs(t *testing.T) {
	t.Parallel()
	for _, m := range models() {
		for _, situation := range m.reach {
			t.Run(m.name+"/"+situation, func(t *testing.T) {
				t.Parallel()
				v := verify(t, m.file, append([]string{"REACH=" + situation}, m.with...)...)
				if !strings.Contains(v.assertion, "assertion violated 0") {
					t.Errorf("it never occurs: %q\n%s", v.assertion, v.output)
				}
			})
		}
	}
}

// TestEveryFlawIsTried holds the list above to the files.
func TestEveryFlawIsTried(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{}
	for _, m := range models() {
		for _, flaw := range m.flaws {
			tried[m.file+" "+flaw] = true
		}
	}
	for _, file := range []string{"gate.pml", "lease.pml", "lane.pml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`FLAW_([A-Z_]+)`).FindAllStringSubmatch(string(text), -1) {
			if !tried[file+" "+m[1]] {
				t.Errorf("%s: FLAW_%s is tried by no test", file, m[1])
			}
		}
	}
}

func TestLargeVariantsHold(t *testing.T) {
	t.Parallel()
	if !*long {
		t.Log("only with -long")
		return
	}
	for _, m := range []struct {
		file string
		with []string
	}{
		{"gate.pml", []string{"WORKERS=3", "DELIVERIES=1"}},
		{"lease.pml", []string{"POLICY_PROBE", "WORKERS=3", "DELIVERIES=1"}},
		{"lane.pml", []string{"ROUNDS=2", "TAKES=3"}},
	} {
		t.Run(m.file, func(t *testing.T) {
			if v := verify(t, m.file, m.with...); v.errors != 0 {
				t.Errorf("%s\n%s", v.assertion, v.output)
			} else {
				t.Logf("%d states", v.states)
			}
		})
	}
}
