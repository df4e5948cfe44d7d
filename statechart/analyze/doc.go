// Package analyze tells what a duplicate of an event can do to a process of a
// chart.
//
// Suppose the memory of an event is gone: its mark was pruned, lost, or never
// kept. The same event arrives again, at any later time. Does the chart's
// structure alone make sure that it has no effect? [Analyze] answers for every
// configuration and every event type:
//
//	TERMINAL               the process ends with it; nothing can follow
//	PROTECTED              no way leads to where it could act again
//	PROTECTED_BY_DATA      the structure would let it act again, the data do not
//	PROTECTED_UNTIL_CYCLE  harmless until some path leads back; with the shortest
//	EXPOSED                the very next delivery acts again
//	UNKNOWN                a budget ended the search: never read it as protected
//	LATE, EARLY            no effect here: for ever, or not yet
//
// # How
//
// It runs the interpreter itself ([statechart.Explore]) from the start over every
// configuration that can be reached, and lets each guard answer both ways; so
// that analysis and engine cannot differ. The context is not looked at, except
// where it can be proved that two answers agree: the same guard with the same
// context and event; a guard that reads only the event, for both deliveries; a
// guard that reads only the context, while nothing writes to it; and "x is in the
// set", once x was put into a set that only grows.
//
// What it finds can happen in the chart, but perhaps not in the world: a guard
// may never say yes. Those are marked "may"; "must" needs no guard. What it calls
// protected cannot happen, provided the host functions are what they are declared
// to be and nothing but the chart writes the context.
package analyze
