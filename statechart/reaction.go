package statechart

import "time"

// Event is what a process reacts to.
type Event struct {
	// Type of the event.
	Type string
	// Data are its members, JSON as in [Scope]; Go integers, and floats that are
	// numbers, are taken as well. The step keeps parts of it: do not change it
	// afterwards.
	Data map[string]any

	source     eventSource
	owner      string // node id of a timer, id of an invoke
	generation uint64
}

type eventSource uint8

const (
	fromOutside eventSource = iota
	fromTimer
	fromInvoke
	fromInside // raised and done events; never accepted from a caller
)

// Kind is what became of an event.
type Kind uint8

// The kinds of a reaction, from none to most.
const (
	// Ended: the process had ended; nothing can happen any more.
	Ended Kind = iota
	// Stale: a timer or an invoke of an earlier visit; dropped.
	Stale
	// NotHandled: no active state has a candidate for it.
	NotHandled
	// GuardFalse: there were candidates, but no guard let it pass.
	GuardFalse
	// Forbidden: a transition without target and actions took it.
	Forbidden
	// NoEffect: a transition took it, and nothing changed and nothing is to be
	// done.
	NoEffect
	// Changed: the snapshot changed or there is something to do. Reaction.Snapshot
	// must be stored.
	Changed
)

// String gives the word for logs and metrics.
func (k Kind) String() string {
	return [...]string{"ended", "stale", "not-handled", "guard-false", "forbidden", "no-effect", "changed"}[k]
}

// Reaction is the result of one step.
type Reaction struct {
	// Snapshot after the step; the one before it unless Kind is Changed.
	Snapshot *Snapshot
	// Kind is what became of the event.
	Kind Kind
	// Effects to carry out, in order.
	Effects []EffectCall
	// Arm are the timers to arm, in an order that decides between equal due times,
	// and Cancel those to cancel. A timer of Cancel was armed by an earlier step.
	Arm, Cancel []Timer
	// Invoke are the invokes to start and Stop those to stop, which an earlier step
	// started.
	Invoke, Stop []Invoke
	// Ran are all actions that ran, in order, assigns and raises included. Filled
	// by Explore only.
	Ran []Ran
	// Taken are the transitions taken, in order. Filled by Explore only.
	Taken []*Transition

	// rejoins tells that a transition led to the history of a parent that was
	// active, where XState leaves the legal configurations now and then. For tests.
	rejoins bool
}

// EffectCall is an effect that the caller has to carry out.
type EffectCall struct {
	// Name of the effect, and its declaration.
	Name  string
	Keyed bool
	// Place counts the effects of the step from 0: with the event's identity it
	// makes a key.
	Place int
	// Params as computed at its place in the order; nil if there are none.
	Params any
	// Context at that place, and the event that it saw with "type" among its
	// members: for reading only.
	Context, Event map[string]any
	// State is the id of the node that it belongs to.
	State string
}

// Ran is one action that ran.
type Ran struct {
	// Action that ran.
	Action *Action
	// Node that it belongs to: the entered or exited node, or the source.
	Node *Node
	// Event is the type that it saw.
	Event string
}

// Timer is one running timer.
type Timer struct {
	// State is the id of the node, Delay the delay as written.
	State, Delay string
	// After is how long after the step it is due.
	After time.Duration
	// Generation counts the entries of the node.
	Generation uint64
}

// Invoke is one running invoke.
type Invoke struct {
	// ID of the invoke, Source what is invoked, State the id of its node.
	ID, Source, State string
	// Input as computed at its start; nil for a running one.
	Input any
	// Generation counts the entries of the node.
	Generation uint64
}

// Question is one guard that a step asks for, for [Explore]. Guards of and, or
// and not are asked one by one; stateIn is answered by the step itself, and so
// is an expression that is constant.
type Question struct {
	// Guard is a function, an expression or a bare name.
	Guard      *Guard
	Transition *Transition
	// Event is the type that the guard sees. Moment counts events taken in this
	// step and Context counts assigns: two questions with the same guard, moment
	// and context have the same answer.
	Event           string
	Moment, Context int
}
