// Package cel is the Common Expression Language for statecharts: it implements
// [statechart.Expressions] on cel.dev/cel-go.
//
//	language, err := cel.New(nil)
//	definition, err := statechart.Load(text, &statechart.Options{Expressions: language})
//
// An expression reads context and event (the initial context reads input, a
// migration reads context), and has the operators, functions and macros of CEL
// and the functions math.greatest, math.least and decimal. It cannot ask for the
// time or a random number, so the same scope always gives the same value.
//
// # Values
//
// JSON becomes null, bool, string, list and map. A number that is a whole number
// of 64 bits, however it is written, is an int. Every other number, such as 9.90
// or one of more than 19 digits, is a decimal: it adds, subtracts, multiplies and
// compares exactly, also with an int on its right side, not on its left: an operator takes
// decimal(context.sum) + event.amount whatever the two numbers are. decimal(5) turns
// an int, and decimal("9.90") a text, into a decimal. string(d) is its text without exponent and
// without superfluous zeros, double(d) the nearest float. There is no division of
// decimals: it has no exact result.
//
// A result must be JSON: a timestamp, a duration, bytes or a type is refused,
// when the chart is loaded if that can be seen, else when the expression runs. A
// decimal that is only passed on keeps the digits that it came with.
//
// # Limits
//
// An expression has at most 10,000 characters, and each run of it may cost
// [Options.CostLimit] units as CEL counts them, about one for each step. Over it
// the step fails and nothing has happened. Division by zero, an int out of range, a
// member that is not there (ask with has) fail in the same way.
package cel
