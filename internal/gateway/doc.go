// Package gateway is a sandbox payment API with the faults of real ones: lost
// answers, slow calls, refusals, errors before and after the effect, reads that
// lag behind, and a mode without idempotency keys in which every call charges.
// It stands outside the code that it tries: its log of calls is the witness of
// what was really charged.
//
//	POST /charges                  {"amount":3000,"currency":"BRL","reference":"order-1"} → 201 and the charge
//	GET  /charges?reference=…      the charges of a reference, for probing
//	GET  /charges/{key}            the charge made with an idempotency key, for probing
//	GET  /log                      what happened, in order
//	PUT  /plan                     [{"kind":"lost-answer"},{"kind":"slow","delay":"2s"}]: how the next calls behave
//
// Amounts are in minor units. The header Idempotency-Key names a call: the same
// key with the same payload gets the first answer again, with
// Idempotent-Replayed: true, and with another payload 422. Two calls with one
// key that overlap charge once, whichever comes to its effect first.
//
// The header Sandbox-Behaviour (with Sandbox-Delay, a duration) sets the
// behaviour of the one call that carries it and leaves the plan alone.
//
// One charge asked for may be two calls here although its caller made one:
// net/http sends a request that carries an Idempotency-Key again when a reused
// connection dies under it. A caller that counts its calls uses a new connection
// for each.
//
// Everything is kept in memory and is gone when the process ends.
package gateway
