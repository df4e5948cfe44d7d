package storetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/difference"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/store"
)

// The random lists. Every duration ends in five minutes and every advance in
// ten, so that a clock that runs a little while the list does decides nothing.
const (
	randomKeys      = 4
	randomLength    = 500
	randomLease     = 65 * time.Minute
	randomDue       = 35 * time.Minute
	randomRetention = 185 * time.Minute
	randomTombstone = 6 * time.Hour
)

// kind is what one line of a list does.
type kind string

const (
	kindBegin    kind = "begin"    // and leave the transaction open, if there is one
	kindCommit   kind = "commit"   // the one that is open
	kindRollback kind = "rollback" // the one that is open
	kindJoin     kind = "join"     // in a transaction that ends with the line
	kindLook     kind = "look"
	kindSettle   kind = "settle"
	kindPeek     kind = "peek"
	kindClaim    kind = "claim"
	kindRenew    kind = "renew"
	kindRest     kind = "rest"
	kindStep     kind = "step"
	kindSteps    kind = "steps"
	kindFinish   kind = "finish" // in a transaction that ends with the line
	kindAct      kind = "act"
	kindShow     kind = "show"
	kindList     kind = "list"
	kindCounts   kind = "counts"
	kindPurge    kind = "purge"
	kindExpire   kind = "expire"
	kindAdvance  kind = "advance"
	kindRows     kind = "rows"
)

// action is one line of a random list. Every value that a line needs is in it,
// so a list without some of its lines is a list again.
type action struct {
	n       int // number in the list, for rows and results
	kind    kind
	key     int
	fence   int64 // From, or the fence that the caller says it has
	payload int   // variant of the fingerprint
	state   store.State
	write   bool // writes a business row before the end
	ends    bool // commits, or finishes and commits
	strict  bool // Unwritten; Done of a step
	name    string
	d       time.Duration
	states  []store.State
}

// String is the line in a transcript.
func (a action) String() string {
	s := fmt.Sprintf("%d %s", a.n, a.kind)
	switch a.kind {
	case kindPeek, kindList, kindCounts, kindPurge, kindExpire, kindRows:
		if a.states != nil {
			s += fmt.Sprint(" ", a.states)
		}
		return s
	case kindAdvance:
		return s + " " + a.d.String()
	}
	s += fmt.Sprintf(" k%d fence=%d payload=%d", a.key, a.fence, a.payload)
	if a.state != store.Free {
		s += " " + a.state.String()
	}
	if a.name != "" {
		s += " " + a.name
	}
	if a.write {
		s += " writes"
	}
	if a.strict {
		s += " strict"
	}
	if a.ends {
		s += " ends"
	}
	return s
}

// executor runs the lines of a list: the model, or a store.
type executor interface {
	do(a action) string
}

// draw makes a line that the model permits, biased towards lines that do something.
func draw(r *rand.Rand, n int, m *model) action {
	kinds := []kind{
		kindBegin, kindBegin, kindBegin, kindCommit, kindCommit, kindRollback, kindJoin, kindJoin, kindLook, kindSettle, kindPeek,
		kindClaim, kindClaim, kindClaim, kindRenew, kindRest, kindRest, kindRest, kindStep, kindSteps, kindFinish, kindFinish,
		kindAct, kindAct, kindAct, kindShow, kindList, kindCounts, kindPurge, kindExpire, kindAdvance, kindAdvance, kindRows,
	}
	for {
		a := action{n: n, kind: kinds[r.IntN(len(kinds))], key: r.IntN(randomKeys), payload: r.IntN(2)}
		write, strict, ends := r.IntN(2) == 0, r.IntN(4) == 0, r.IntN(3) > 0
		if attempt := m.ops[a.key].attempt; attempt != nil && r.IntN(4) > 0 {
			a.fence = attempt.fence
		} else {
			a.fence = int64(r.IntN(4))
		}
		switch a.kind {
		case kindCommit, kindJoin, kindFinish:
			a.write, a.ends = write, ends || a.kind == kindCommit
			a.strict = strict && a.kind == kindCommit
			a.state = []store.State{store.Completed, store.Completed, store.Discarded}[r.IntN(3)]
		case kindRest:
			a.state = []store.State{store.Free, store.Retryable, store.Retryable, store.Parked, store.Unknown, store.Dead}[r.IntN(6)]
			if r.IntN(2) == 0 {
				a.d = randomDue
			}
		case kindRollback:
			a.write = write
		case kindStep:
			a.strict = strict || write
			a.name = []string{"charge", "ship"}[r.IntN(2)]
		case kindAct:
			a.name = []string{actRelease, actRedrive, actComplete, actDiscard}[r.IntN(4)]
			if r.IntN(2) == 0 {
				a.fence = 0
			}
		case kindList:
			a.states = [][]store.State{
				nil,
				{store.Completed},
				{store.Dead, store.Discarded},
				{store.Retryable},
				{store.Processing, store.Retryable, store.Parked, store.Unknown, store.Dead, store.Completed, store.Discarded},
			}[r.IntN(5)]
		case kindAdvance:
			a.d = []time.Duration{10, 10, 40, 40, 70, 190, 360}[r.IntN(7)] * time.Minute
		}
		if m.permits(a) {
			return a
		}
	}
}

// plan makes a list and the model's transcript of it.
func plan(seed uint64, length int) ([]action, []string) {
	r, m := rand.New(rand.NewPCG(seed, 0x756e6176657a)), newModel()
	var list []action
	for n := range length {
		a := draw(r, n, m)
		list = append(list, a)
		m.do(a)
	}
	return list, transcript(list, newModel())
}

// transcript runs a list. Lines that the model does not permit have been left
// out by the caller.
func transcript(list []action, e executor) []string {
	var lines []string
	for _, a := range list {
		lines = append(lines, a.String()+" → "+e.do(a))
	}
	return lines
}

// permitted leaves out the lines that have lost what they stand on.
func permitted(list []action) []action {
	m := newModel()
	var kept []action
	for _, a := range list {
		if m.permits(a) {
			m.do(a)
			kept = append(kept, a)
		}
	}
	return kept
}

// Transcript runs the random list of operations that seed names over a fresh
// store, and returns one line for each: what was asked and what was answered.
// Every store gives the same transcript for the same seed and length. The store
// must have all four interfaces.
func Transcript[Tx any](t *testing.T, h Harness[Tx], seed uint64, length int) []string {
	t.Helper()
	list, _ := plan(seed, length)
	return transcript(list, newRunner(newBed(t, h)))
}

// random compares a store with the model, by a list of its own each time, and
// cuts a list that tells them apart down to what matters.
func random[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	seeds := []uint64{1, 4134893935531576749, 14513360790070855948, rand.Uint64()}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			compare(t, open, seed)
		})
	}
	many(t, open)
}

// many compares by further lists, one after the other, where they are asked for.
func many[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	t.Helper()
	n := evidence.Lists()
	if n == 0 {
		return
	}
	t.Run("many lists", func(t *testing.T) {
		t.Parallel()
		run := evidence.Run{Name: "lists-ledger-" + of(t), Long: evidence.Long(), Seed: rand.Uint64()}
		t.Logf("seeds %d and the %d behind it", run.Seed, n-1)
		for i := range n {
			seed := run.Seed + uint64(i)
			if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { compare(t, open, seed) }) {
				run.Violations++
			}
			run.Schedules++
			run.Operations += randomLength
		}
		if err := run.Write(); err != nil {
			t.Error(err)
		}
	})
}

// of names the store of a test: its folder, and what its test is divided by.
func of(t *testing.T) string {
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

// compare runs the list of a seed over a fresh store.
func compare[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx], seed uint64) {
	t.Helper()
	list, want := plan(seed, randomLength)
	got := Transcript(t, open(t), seed, randomLength)
	at := difference.At(got, want)
	if at < 0 {
		return
	}
	differs := func(list []action) bool {
		return difference.At(transcript(list, newRunner(newBed(t, open(t)))), transcript(list, newModel())) >= 0
	}
	list = difference.Shrink(list[:at+1], permitted, differs)
	got, want = transcript(list, newRunner(newBed(t, open(t)))), transcript(list, newModel())
	at = difference.At(got, want)
	if at < 0 {
		t.Fatalf("seed %d: the store's answers change from run to run", seed)
	}
	t.Fatalf("seed %d: the store differs from the model:\n%s\nmodel: %s", seed, strings.Join(got[:at+1], "\n"), want[at])
}
