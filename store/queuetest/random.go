package queuetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/difference"
	"github.com/unavez/unavez/store"
)

// The random lists. Every lease and delay ends in five minutes and every advance
// in ten, so that a clock that runs a little while the list does decides nothing.
// Nothing is forgotten within a list, so that it does not matter when a store
// purges.
const (
	randomKeys   = 20 // events; the last two name one operation
	randomOrders = 3
	randomLength = 400
	randomLease  = 65 * time.Minute
	randomDue    = 35 * time.Minute
	// randomTakeover is when the lease of a lane's holder is over for certain.
	randomTakeover = lease + 10*time.Minute
)

// kind is what one line of a list does.
type kind string

const (
	kindAppend    kind = "append"
	kindEnqueue   kind = "enqueue" // in a transaction that ends with the line
	kindDone      kind = "done"    // an operation, in a transaction that ends with the line
	kindBatch     kind = "batch"
	kindClaim     kind = "claim"
	kindAct       kind = "act"
	kindTakeover  kind = "takeover" // of all lanes, when the holder's lease is over
	kindBlock     kind = "block"
	kindUnblock   kind = "unblock"
	kindWaiting   kind = "waiting"
	kindRead      kind = "read" // on, by one of two readers
	kindBeginning kind = "read from the beginning"
	kindFollowers kind = "followers"
	kindLoad      kind = "load"
	kindSeen      kind = "deliveries"
	kindItem      kind = "quarantine"
	kindReadmit   kind = "readmit"
	kindItems     kind = "quarantined"
	kindErase     kind = "erase"
	kindVersion   kind = "version" // read, and set where the line says so
	kindPosition  kind = "position"
	kindSave      kind = "save position"
	kindCounts    kind = "counts"
	kindPurge     kind = "purge"
	kindAdvance   kind = "advance"
)

// action is one line of a random list. Every value that a line needs is in it,
// so a list without some of its lines is a list again.
type action struct {
	n       int // number in the list
	kind    kind
	key     int   // of an event, a reader, an item, an ordering key
	more    []int // further events
	payload int   // variant
	fence   int64 // From, or Found
	next    bool  // one more than Found
	rest    bool  // with an attempt at rest
	state   store.State
	stale   bool // under a hold that was lost
	own     bool // the event's own operation; else the one that it names
	ends    bool // commits; sets
	gap     bool
	name    string
	d       time.Duration
}

// String is the line in a transcript.
func (a action) String() string {
	s := fmt.Sprintf("%d %s k%d", a.n, a.kind, a.key)
	if a.more != nil {
		s += fmt.Sprint(" ", a.more)
	}
	s += fmt.Sprintf(" payload=%d", a.payload)
	if a.kind == kindBlock || a.kind == kindDone {
		s += fmt.Sprintf(" fence=%d", a.fence)
	}
	if a.rest || a.kind == kindDone || a.kind == kindAct {
		s += " " + a.state.String()
	}
	for _, flag := range []struct {
		text string
		is   bool
	}{
		{"next", a.next}, {"stale", a.stale}, {"own", a.own}, {"ends", a.ends}, {"gap", a.gap}, {a.name, a.name != ""}, {a.d.String(), a.d != 0},
	} {
		if flag.is {
			s += " " + flag.text
		}
	}
	return s
}

// What a person does.
const (
	actRelease  = "release"
	actRedrive  = "redrive"
	actComplete = "complete"
	actDiscard  = "discard"
)

// draw makes a line that the model permits, biased towards lines that do something.
func draw(r *rand.Rand, n int, m *model) action {
	kinds := []kind{
		kindAppend, kindAppend, kindAppend, kindEnqueue, kindEnqueue, kindDone, kindDone, kindDone, kindBatch, kindClaim, kindClaim, kindAct, kindAct,
		kindTakeover, kindBlock, kindBlock, kindBlock, kindBlock, kindUnblock, kindUnblock, kindWaiting, kindWaiting, kindRead, kindRead,
		kindBeginning, kindFollowers, kindLoad, kindSeen, kindItem, kindReadmit, kindItems, kindErase, kindVersion, kindVersion,
		kindPosition, kindPosition, kindSave, kindCounts, kindPurge, kindAdvance, kindAdvance,
	}
	for {
		a := action{n: n, kind: kinds[r.IntN(len(kinds))], key: r.IntN(randomKeys), ends: r.IntN(4) > 0}
		if r.IntN(5) == 0 {
			a.payload = 1
		}
		a.own = r.IntN(2) == 0
		if len(m.blocked) > 0 && r.IntN(2) == 0 { // of which more can become
			a.key = m.blocked[r.IntN(len(m.blocked))].entry.key
		}
		stale, gap, next, rest := r.IntN(8) == 0, r.IntN(3) == 0, r.IntN(2) == 0, r.IntN(4) > 0
		if at := m.operations[a.operation()].attempt; at != nil && r.IntN(4) > 0 {
			a.fence = at.fence
		} else if r.IntN(3) == 0 {
			a.fence = int64(r.IntN(3))
		}
		switch a.kind {
		case kindAppend, kindEnqueue, kindReadmit:
			a.more = []int{}
			for range r.IntN(3) {
				a.more = append(a.more, r.IntN(randomKeys))
			}
		case kindDone:
			a.stale = stale
			a.state = []store.State{store.Completed, store.Completed, store.Discarded}[r.IntN(3)]
		case kindBatch:
			a.own, a.stale, a.more = true, stale, []int{}
			for k := range randomKeys {
				if k != a.key && r.IntN(4) == 0 {
					a.more = append(a.more, k)
				}
			}
		case kindAct:
			a.name = []string{actRelease, actRedrive, actComplete, actDiscard}[r.IntN(4)]
		case kindBlock:
			a.stale, a.gap, a.next, a.own = stale, gap, next, false
			if a.rest = rest; rest {
				a.state = []store.State{store.Retryable, store.Retryable, store.Parked, store.Dead}[r.IntN(4)]
				a.fence = m.fence(a, a.fence)
			}
			if r.IntN(2) == 0 {
				a.d = randomDue
			}
		case kindUnblock:
			a.stale = stale
		case kindFollowers, kindVersion:
			a.key = r.IntN(randomOrders)
		case kindRead, kindPosition, kindSave, kindErase:
			a.key = r.IntN(2)
		case kindItem:
			a.key = r.IntN(3)
		case kindAdvance:
			a.d = []time.Duration{10, 10, 40, 40, 70, 190, 2880}[r.IntN(7)] * time.Minute
		}
		if a.kind == kindReadmit {
			a.fence = int64(r.IntN(3)) // the item
			if r.IntN(3) == 0 {
				a.key, a.more = -1, nil // discards it
			}
		}
		m.fit(&a)
		if m.permits(a) {
			return a
		}
	}
}

// lists are the random lists, as the model permits them.
func lists() *difference.Lists[action, *model] {
	return &difference.Lists[action, *model]{
		Name: "lists-queue", Stream: 0x7175657565, Length: randomLength,
		New: newModel, Draw: draw, Permits: (*model).permits, Do: (*model).do,
	}
}

// Transcript runs the random list of operations that seed names over a fresh
// store, and returns one line for each: what was asked and what was answered.
// Every store gives the same transcript for the same seed and length. The store
// may lack no interface but Signal.
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
	}, 1)
}

// The things of a list.

func identityOf(key int) store.Identity {
	parts := []string{"event", fmt.Sprint(key)}
	if key >= randomKeys {
		parts = []string{"order", fmt.Sprint(key)}
	}
	return store.Identity{Tenant: "random", Effect: "order.import.v1", Parts: parts}
}

// operationOf is the operation that an event names.
func operationOf(key int) int {
	if key >= randomKeys-2 {
		return randomKeys
	}
	return key
}

func payloadOf(key, variant int) string { return fmt.Sprintf("k%d-v%d", key, variant) }

func subjectOf(key int) store.Key { return store.SubjectKey("random", []string{fmt.Sprint(key % 2)}) }

func orderingOf(order int) []string { return []string{"order of arrival", fmt.Sprint(order)} }

func orderOf(order int) store.Key {
	note := store.Note{Identity: identityOf(0), Ordering: orderingOf(order)}
	return note.Order()
}

func eventOf(key, variant int) store.Entry {
	e := entryOf(identityOf(key), identityOf(operationOf(key)), payloadOf(key, variant), orderingOf(key%randomOrders)...)
	e.Subject = subjectOf(key)
	return e
}

func itemOf(number int) store.Quarantined { return item(fmt.Sprint(number), "shop") }

// operation is the one that a line means.
func (a action) operation() int {
	if a.own || a.key < 0 {
		return max(a.key, 0)
	}
	return operationOf(a.key)
}

// events are the key of a line and the further ones.
func (a action) events() []int {
	if a.key < 0 {
		return nil
	}
	return append([]int{a.key}, a.more...)
}

// The texts of a transcript. Times are rounded, since a clock may run while the
// list does.

func textTime(d time.Duration) string { return max(d.Round(5*time.Minute), 0).String() }

func textKeys(keys []int) string {
	var s []string
	for _, k := range keys {
		s = append(s, fmt.Sprint("k", k))
	}
	return "[" + strings.Join(s, " ") + "]"
}

func textWaiting(place, key int, gap bool, state store.State, done bool, fence int64, lease, due time.Duration) string {
	s := fmt.Sprintf("k%d in %d %v", key, place, state)
	if gap {
		s += " gap"
	}
	if done {
		s += " done"
	}
	if fence != 0 {
		s += fmt.Sprintf(" fence=%d", fence)
	}
	switch state {
	case store.Processing:
		s += " left=" + textTime(lease)
	case store.Retryable:
		s += " due=" + textTime(due)
	}
	return s
}

// places are the ordering keys in the order of their database keys.
func places() []int {
	orders := make([]int, randomOrders)
	for i := range orders {
		orders[i] = i
	}
	slices.SortFunc(orders, func(a, b int) int {
		x, y := orderOf(a), orderOf(b)
		return strings.Compare(x.String(), y.String())
	})
	return orders
}
