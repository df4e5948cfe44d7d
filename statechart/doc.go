// Package statechart runs statecharts as data: a definition in JSON, a
// snapshot, and one pure function that takes an event from one snapshot to the
// next.
//
// # How the parts fit
//
//	Load(text, options)          → *Definition   the chart, checked; every fault at once, with its place
//	Start(definition, input)     → Reaction      the first snapshot
//	Next(definition, snapshot, event) → Reaction the snapshot after the event, and what is to be done
//	Restore(definition, text)    → *Snapshot     a stored snapshot, checked
//	Explore(definition, snapshot, event, answer) → Reaction  the same step with guards answered by the caller
//
// A [Definition] is the node tree in document order ([Definition.Nodes]), each
// [Node], [Transition], [Guard] and [Action] with its [Position] in the text. A
// [Snapshot] is where one process stands: the active states, the recorded
// history, the context and a revision. An [Event] comes from outside
// ([ParseEvent]), from a timer ([TimerEvent]) or from an invoke ([DoneEvent],
// [ErrorEvent]). A [Reaction] has the next snapshot, what became of the event
// ([Kind]), the effects to carry out in order, the timers to arm and to cancel
// and the invokes to start and to stop.
//
// Nothing in this package does I/O, knows the time or keeps state. A Definition
// and a Snapshot never change once made, and both may be used by any number of
// goroutines.
//
// # Semantics
//
// The profile is [Profile]: XState 5.33, with the differences that
// docs/statecharts.md lists. The chief ones: regions are asked in document order
// everywhere; a step that fails changes nothing; timers and invokes have
// generations, so that a firing for an earlier visit is dropped; event types
// that begin with "xstate." are refused from outside; numbers are kept as they
// are written; a name without code is a fault of the chart.
//
// # Code in a chart
//
// Guards, assigns and parameters are expressions, {"@expr": "…"}, in a language
// behind [Expressions] (package statechart/cel is CEL), or Go functions by name
// in [Options]. An action function is pure or join (it gives a patch of the
// context) or an effect: those are not run here but listed in the Reaction.
package statechart
