// Package model says what deliveries of one operation may be answered, whatever
// runs at the same time, and holds histories of real workers to it.
//
// The specification is a register that is written once: an operation is free, or
// it is done with one payload and one answer.
//
//	ran        free before, done with this payload and answer after
//	replayed   done with this payload and this answer
//	mismatch   done with another payload, or another delivery at the same time has one
//	in flight  another delivery of it at the same time, which works or is only looked up
//	failed     free, before and after
//	lost       no answer: nothing, or ran, at any time since
//
// A history is held to it by porcupine: there must be an order in which every
// delivery takes effect at one instant between its call and its return.
package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// What a delivery came to.
const (
	Ran      = "ran"
	Replayed = "replayed"
	Mismatch = "mismatch"
	InFlight = "in flight"
	Failed   = "failed"
	Lost     = "lost"
)

// Delivery is one delivery of an operation, with what came of it.
type Delivery struct {
	// Operation is its identity.
	Operation string
	// Payload is the variant that it brought.
	Payload int
	// Worker and Call and Return say where and when; by one clock.
	Worker       int
	Call, Return time.Duration
	// End is one of the constants above.
	End string
	// Answer of one that ran or was replayed.
	Answer string
	// Runs are the answers that handlers made for it, for one that was lost.
	Runs []string
}

// String is the delivery in a report.
func (d Delivery) String() string {
	s := fmt.Sprintf("worker %d, %v to %v: %s payload %d: %s", d.Worker, d.Call, d.Return, d.Operation, d.Payload, d.End)
	if d.Answer != "" {
		s += " " + d.Answer
	}
	if d.End == Lost {
		s += fmt.Sprintf(" %q", d.Runs)
	}
	return s
}

// state of an operation.
type state struct {
	done    bool
	payload int
	answer  string
}

// delivered is a delivery with what the others at the same time decide.
type delivered struct {
	Delivery
	accompanied bool // there is another at the same time
	opposed     bool // another, with another payload
}

// specification is that of one operation.
func specification() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(at, input, _ any) []any {
			s, _ := at.(state)
			d, _ := input.(delivered)
			ran := func(answer string) state { return state{true, d.Payload, answer} }
			var ok bool
			switch d.End {
			case Ran:
				if !s.done {
					return []any{ran(d.Answer)}
				}
			case Replayed:
				ok = s == ran(d.Answer)
			case Mismatch:
				ok = s.done && s.payload != d.Payload || d.opposed
			case InFlight:
				ok = d.accompanied
			case Failed:
				ok = !s.done
			case Lost:
				next := []any{s}
				for _, answer := range d.Runs {
					if !s.done {
						next = append(next, ran(answer))
					}
				}
				return next
			}
			if ok {
				return []any{s}
			}
			return nil
		},
	}
	return m.ToModel()
}

// Check holds a history to the specification, operation by operation. It returns
// the histories of those that violate it, one text each, cut down to the
// deliveries that contradict each other; and an error for one that it could not
// decide within the limit.
func Check(history []Delivery, limit time.Duration) (violations []string, err error) {
	for _, own := range partitioned(history) {
		switch porcupine.CheckOperationsTimeout(specification(), operations(own), limit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			err = fmt.Errorf("%s: not decided within %v: %d deliveries", own[0].Operation, limit, len(own))
		case porcupine.Illegal:
			violations = append(violations, describe(shrunk(own, limit)))
		}
	}
	return violations, err
}

// partitioned are the histories of the operations, in the order of their names.
func partitioned(history []Delivery) [][]Delivery {
	sorted := slices.Clone(history)
	slices.SortStableFunc(sorted, func(a, b Delivery) int {
		return cmp.Or(strings.Compare(a.Operation, b.Operation), cmp.Compare(a.Call, b.Call))
	})
	var all [][]Delivery
	for i, d := range sorted {
		if i == 0 || d.Operation != sorted[i-1].Operation {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], d)
	}
	return all
}

// operations are the deliveries as porcupine wants them. One that was lost may
// take effect at any time after its call.
func operations(own []Delivery) (all []porcupine.Operation) {
	end := func(d Delivery) int64 {
		if d.End == Lost {
			return math.MaxInt64
		}
		return int64(d.Return)
	}
	for i, d := range own {
		in := delivered{Delivery: d}
		for j, other := range own {
			if i == j || int64(d.Call) > end(other) || int64(other.Call) > int64(d.Return) {
				continue
			}
			in.accompanied = true
			in.opposed = in.opposed || other.Payload != d.Payload
		}
		all = append(all, porcupine.Operation{ClientId: d.Worker, Input: in, Call: int64(d.Call), Return: end(d)})
	}
	return all
}

// shrunk leaves out the deliveries without which the history is still illegal. A
// delivery that changes the operation stays: without it others would be illegal
// that were not.
func shrunk(own []Delivery, limit time.Duration) []Delivery {
	for i := 0; i < len(own); {
		shorter := slices.Delete(slices.Clone(own), i, i+1)
		if own[i].End != Ran && own[i].End != Lost && porcupine.CheckOperationsTimeout(specification(), operations(shorter), limit) == porcupine.Illegal {
			own = shorter
		} else {
			i++
		}
	}
	return own
}

func describe(own []Delivery) string {
	lines := []string{"no order of these deliveries is one of a register that is written once:"}
	for _, d := range own {
		lines = append(lines, d.String())
	}
	return strings.Join(lines, "\n\t")
}
