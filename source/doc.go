// Package source holds the contracts of the senders that unavez receives from:
// how each signs, what it calls one event, what it wants as an answer, and how
// long it goes on repeating.
//
// A [Contract] is data and pure functions. Nothing here opens a connection,
// reads a clock or stores anything: the request comes with the instant of its
// arrival, public keys come from a function, and the same bytes give the same
// verdict on every worker.
//
//	request → Handshake? → Verify → Read → items: event | fault
//
// # What it promises
//
//   - The bytes that arrived are what is verified, never a parsed and written
//     copy. Digests are compared in constant time, all secrets are tried, and
//     which one matched is told ([Proof.Secret]).
//   - The scheme is fixed by the contract. A sender cannot choose a weaker one:
//     an unknown version, algorithm or encoding is malformed, and an absent
//     signature is a refusal of its own, never a pass.
//   - A timestamp that is part of the signature is held to a tolerance on both
//     sides, at arrival only: a verified event does not expire while it waits.
//   - No secret and no empty secret ever verifies: that is [EmptySecret].
//   - A missing identity never merges two events. [Event.ID] is empty then, and
//     the reader gives the event one of its own.
//   - Numbers in an identity keep every digit.
//
// # What it cannot promise
//
// Some senders sign nothing, or less than the body ([Proof.Body] is false then).
// Whoever knows the URL secret of Event Grid can send any event: keep it out of
// logs, and prefer Entra tokens.
//
// How a delivery fails is a [Fault] with a [Reason]; the reason is the label of
// the metric and of the log line, and the texts never quote secrets, signatures
// or bodies.
package source
