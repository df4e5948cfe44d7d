package difference

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/evidence"
)

// Lists are random lists of actions A, as a model M permits them.
type Lists[A fmt.Stringer, M any] struct {
	// Name of the run that evidence has of many lists.
	Name string
	// Stream tells the seeds of these lists from those of others.
	Stream uint64
	// Length of a list that a store is compared by.
	Length int
	// New makes a model in which nothing has happened.
	New func() M
	// Draw makes the nth action, one that the model permits.
	Draw func(r *rand.Rand, n int, m M) A
	// Permits reports whether the model has what an action stands on.
	Permits func(m M, a A) bool
	// Do does an action in the model and tells the answer.
	Do func(m M, a A) string
}

// Executor does an action and tells the answer.
type Executor[A any] func(a A) string

// Model is an executor by a new model.
func (l *Lists[A, M]) Model() Executor[A] {
	m := l.New()
	return func(a A) string { return l.Do(m, a) }
}

// Plan makes the list of a seed, and the model's transcript of it.
func (l *Lists[A, M]) Plan(seed uint64, length int) ([]A, []string) {
	r, m := rand.New(rand.NewPCG(seed, l.Stream)), l.New()
	var list []A
	for n := range length {
		a := l.Draw(r, n, m)
		list = append(list, a)
		l.Do(m, a)
	}
	return list, Transcript(list, l.Model())
}

// Transcript runs a list, and gives a line for each action: what was asked and
// what was answered. What the model does not permit the caller has left out.
func Transcript[A fmt.Stringer](list []A, do Executor[A]) []string {
	var lines []string
	for _, a := range list {
		lines = append(lines, a.String()+" → "+do(a))
	}
	return lines
}

// Permitted leaves out the actions that have lost what they stand on.
func (l *Lists[A, M]) Permitted(list []A) []A {
	m := l.New()
	var kept []A
	for _, a := range list {
		if l.Permits(m, a) {
			l.Do(m, a)
			kept = append(kept, a)
		}
	}
	return kept
}

// Test compares stores with the model, a fresh one for each seed, of which the
// ordinary form has the first, and one for a seed of its own; and by further lists
// where they are asked for. The test's folder, and what stands in its name between
// its front and this, name the store.
func (l *Lists[A, M]) Test(t *testing.T, open func(t *testing.T) Executor[A], seeds ...uint64) {
	if !evidence.Long() {
		seeds = seeds[:min(1, len(seeds))]
	}
	for _, seed := range append(slices.Clone(seeds), rand.Uint64()) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			l.compare(t, open, seed)
		})
	}
	if evidence.Lists() > 0 {
		t.Run("many lists", func(t *testing.T) {
			t.Parallel()
			l.many(t, open)
		})
	}
}

// many compares by further lists, one after the other.
func (l *Lists[A, M]) many(t *testing.T, open func(t *testing.T) Executor[A]) {
	t.Helper()
	n := evidence.Lists()
	run := evidence.Run{Name: l.Name + "-" + storeOf(t), Long: evidence.Long(), Seed: evidence.Seed()}
	t.Logf("seeds %d and the %d behind it", run.Seed, n-1)
	all := sha256.New()
	for i := range n {
		seed := run.Seed + uint64(i)
		same := t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			for _, line := range l.compare(t, open, seed) {
				fmt.Fprintln(all, line) // a hash does not fail
			}
		})
		if !same {
			run.Violations++
		}
		run.Schedules++
		run.Operations += l.Length
	}
	run.Transcript = hex.EncodeToString(all.Sum(nil)[:8])
	if err := run.Write(); err != nil {
		t.Error(err)
	}
}

// storeOf names the store of a test: its folder, and what its test is divided by.
func storeOf(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(t.Name(), "/")
	name := filepath.Base(dir)
	for _, part := range parts[1 : len(parts)-2] {
		name += "-" + part
	}
	return name
}

// compare runs the list of a seed over a fresh store and returns its transcript,
// which is the model's; a list that tells them apart is cut down to what matters.
func (l *Lists[A, M]) compare(t *testing.T, open func(t *testing.T) Executor[A], seed uint64) []string {
	t.Helper()
	list, want := l.Plan(seed, l.Length)
	got := Transcript(list, open(t))
	at := At(got, want)
	if at < 0 {
		return got
	}
	differs := func(list []A) bool {
		return At(Transcript(list, open(t)), Transcript(list, l.Model())) >= 0
	}
	list = Shrink(list[:at+1], l.Permitted, differs)
	got, want = Transcript(list, open(t)), Transcript(list, l.Model())
	at = At(got, want)
	if at < 0 {
		t.Fatalf("seed %d: the store's answers change from run to run", seed)
	}
	t.Fatalf("seed %d: the store differs from the model:\n%s\nmodel: %s", seed, strings.Join(got[:at+1], "\n"), want[at])
	return nil
}
