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
//	silent     it has an attempt of lease mode behind it that did not tell
//	lost       no answer: nothing, or ran, or silent, at any time since
//
// An attempt that did not tell has named the payload: until one has an answer, the
// operation is free for that payload, and done with another one for all others.
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
	Silent   = "silent"
	Lost     = "lost"
)

// Delivery is one delivery of an operation, with what came of it.
type Delivery struct {
	// Operation is its identity.
	Operation string
	// Leased says that it was made in lease mode.
	Leased bool
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
	if d.Leased {
		s += " (lease mode)"
	}
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
	silent  bool // an attempt did not tell
	payload int  // of the answer, or of that attempt
	answer  string
}

// takes reports whether the operation may run with the payload.
func (s state) takes(payload int) bool { return !s.done && (!s.silent || s.payload == payload) }

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
			ran := func(answer string) state { return state{done: true, payload: d.Payload, answer: answer} }
			silent := state{silent: true, payload: d.Payload}
			var ok bool
			switch d.End {
			case Ran:
				if s.takes(d.Payload) {
					return []any{ran(d.Answer)}
				}
			case Replayed:
				ok = s == ran(d.Answer)
			case Mismatch:
				ok = (s.done || s.silent) && s.payload != d.Payload || d.opposed
			case InFlight:
				ok = d.accompanied
			case Failed:
				if d.Leased && s.silent && s.payload == d.Payload { // the last attempt has told
					return []any{s, state{}}
				}
				ok = s.takes(d.Payload)
			case Silent:
				if s.takes(d.Payload) {
					return []any{silent}
				}
			case Lost:
				next := []any{s}
				if !s.takes(d.Payload) {
					return next
				}
				if d.Leased {
					next = append(next, silent)
				}
				for _, answer := range d.Runs {
					next = append(next, ran(answer))
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
		all := operations(own)
		switch porcupine.CheckOperationsTimeout(specification(), all, limit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			err = fmt.Errorf("%s: not decided within %v: %d deliveries", own[0].Operation, limit, len(own))
		case porcupine.Illegal:
			violations = append(violations, describe(shrunk(all, limit)))
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

// shrunk leaves out the deliveries without which the history is still illegal. What
// ran beside each of the others stays noted. A delivery that changes the operation
// stays: without it others would be illegal that were not.
func shrunk(all []porcupine.Operation, limit time.Duration) []porcupine.Operation {
	for i := 0; i < len(all); {
		shorter := slices.Delete(slices.Clone(all), i, i+1)
		if !changes(all[i]) && porcupine.CheckOperationsTimeout(specification(), shorter, limit) == porcupine.Illegal {
			all = shorter
		} else {
			i++
		}
	}
	return all
}

// changes reports whether the operation may be another one after the delivery.
func changes(o porcupine.Operation) bool {
	d, _ := o.Input.(delivered)
	return slices.Contains([]string{Ran, Silent, Lost}, d.End) || d.End == Failed && d.Leased
}

func describe(all []porcupine.Operation) string {
	lines := []string{"no order of these deliveries is one of a register that is written once:"}
	for _, o := range all {
		d, _ := o.Input.(delivered)
		lines = append(lines, d.String())
	}
	return strings.Join(lines, "\n\t")
}
