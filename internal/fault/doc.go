// Package fault makes everything go wrong that can go wrong, one step at a time.
//
// It wraps what a worker reaches the world by: the store, the fast lease, HTTP
// and the clock. Each call through a wrapper is a step with a name and a number,
// and a [Director] says what happens there. The names are those of the models in
// docs/model where these have them.
//
// # What a wrapper does
//
// A step reaches the store, or it does not, or it does later; and the worker gets
// the answer, or an error in its place that says what a driver could say and no
// more. A transaction whose connection is lost is rolled back by the server when
// that notices, which is a step of its own, of the wire: until then it keeps its
// locks.
//
// # Lives
//
// A worker that is killed makes no further step: the goroutine that comes to one
// ends there, and what it has deferred (a rollback, a release, a rest) comes to
// dead wrappers and ends too. What it had sent before still arrives. A worker
// that starts again is another [Life].
//
// The package decides nothing about when. Its tests hold the director that tries
// every step with every fault in every order, and the record that stands outside
// of what is tried.
package fault
