// Package storetest is the conformance suite of package store: a new store is
// finished when it passes.
//
// A store's test calls [Run] with a function that opens a fresh database and
// describes it in a [Harness]: the store itself, a clock that can be moved, a
// way to write business rows on the transaction, and ways to do what a store
// must withstand. Every test opens a database of its own and the tests run in
// parallel.
//
// # What the suite expects of a store, beyond the comments of package store
//
//   - Result and tombstone are kept while less than their time has passed; at
//     the edge they are over. An operation that is over counts as over although
//     its row has not been purged, and its next outcome replaces that row.
//   - An expired operation cannot be shown or listed any more.
//   - An attempt whose lease has expired is Unknown to Begin, Join, Look,
//     Settle, Claim and to people. Begin, Join, Look and Settle only say so;
//     Claim and Expire write it, with a transition.
//   - Gate.From takes over unknown, parked and due retryable attempts, by Begin
//     and by Claim; the outcome's attempt number is then From + 1. The verdict
//     beside it tells the attempt as it was found.
//   - Finish asks for the fence, not for the lease: a late answer of an attempt
//     that nobody has taken over is still accepted. Renew asks for both.
//   - Release, Redrive, Complete and Discard answer ErrNotFound where nothing
//     is known, ErrConflict where the state or the fence does not allow them or
//     the operation's lock is held, and any other error for an action without
//     actor or reason. A refused action writes nothing.
//   - Slices that go in or come out are the caller's: the store keeps copies.
//
// # How the suite treats a store
//
// From a transaction's first write to its end the suite calls, in the same
// goroutine, only methods that read or that try the same operation's lock: a
// database with one writer passes. It waits on signals and deadlines and never
// for time to pass, apart from a transaction's limit and from giving a call that
// must wait the time to be wrong.
package storetest
