package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/difference"
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

// lists are the random lists, as the model permits them.
func lists() *difference.Lists[action, *model] {
	return &difference.Lists[action, *model]{
		Name: "lists-ledger", Stream: 0x756e6176657a, Length: randomLength,
		New: newModel, Draw: draw, Permits: (*model).permits, Do: (*model).do,
	}
}

// Transcript runs the random list of operations that seed names over a fresh
// store, and returns one line for each: what was asked and what was answered.
// Every store gives the same transcript for the same seed and length. The store
// must have all four interfaces.
func Transcript[Tx any](t *testing.T, h Harness[Tx], seed uint64, length int) []string {
	t.Helper()
	list, _ := lists().Plan(seed, length)
	return difference.Transcript(list, newRunner(newBed(t, h)).do)
}

// random compares a store with the model, by a list of its own each time, and
// cuts a list that tells them apart down to what matters.
func random[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	lists().Test(t, func(t *testing.T) difference.Executor[action] {
		return newRunner(newBed(t, open(t))).do
	}, 1, 4134893935531576749, 14513360790070855948)
}
