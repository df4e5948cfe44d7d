// Package chaos is the headline claim as a program: clients without patience
// send every operation several times, by HTTP, to workers that are processes of
// their own, while workers, database and Redis are killed, stopped past every
// lease and cut off. Afterwards the effects are counted, and there is one for
// each operation.
//
//	found, err := chaos.Run(ctx, chaos.Options{Database: "postgres://…", Command: worker, Operations: 1000})
//
// What it believes is never the product's own word. Effects are rows of a table
// without any key, so that two show; calls outside are counted by the other
// system; what was answered is written down by the clients. A route without the
// product runs beside the others, so that a run shows that it would have seen a
// second effect, and every fault must have met somebody.
//
// # Two kinds of workers
//
// A library worker is an application that uses the packages: a middleware route
// whose effect is rows (orders), one that calls outside under a lease (charges),
// and an inbox (events). A serve worker is the binary with a configuration: it
// stands in front of an application, which is the other system here, and sends
// it the events that it receives.
//
// # What is counted
//
//   - order: one row.
//   - charge: one row, and one key at the other system, however many calls.
//   - event: one row and one key at the other system for each that was
//     acknowledged, in the order in which its customer's were.
//   - payment (serve): one key at the other system.
//
// All answers of one operation that are final are the same: status, type and
// body.
package chaos
