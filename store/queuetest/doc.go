// Package queuetest is the conformance suite of the queue of package store: a
// store's queue is finished when it passes.
//
// A store's test calls [Run] with a function that opens a fresh database and
// describes it in a [Harness]: the harness of storetest, and what a queue must
// withstand besides. Every test opens a database of its own and the tests run
// in parallel.
//
// # What the suite expects of a queue, beyond the comments of package store
//
//   - A key is Duplicate or Conflict by what the store knows of it, in this
//     order: an entry before it in the same arrival; an entry in the queue, done
//     or not; the outcome; the tombstone, by the front of its fingerprint; the
//     unfinished attempt.
//   - What a transaction has appended is seen by nobody before its commit, and by
//     the first reading after it.
//   - Entries are purged as a whole and only when they are done; after that the
//     ledger remembers their keys, and forgets them as it forgets any other.
//   - A lane's own transactions are those whose gate names its hold. When another
//     worker has the lane, none of the old holder's commits any more; whether the
//     takeover waits for one that is open, or the open one fails, is the store's.
//   - Slices that go in or come out are the caller's: the store keeps copies.
//
// # How the suite treats a store
//
// As storetest does: from a transaction's first write to its end it calls, in
// the same goroutine, only methods that read, so that a database with one writer
// passes; the tests that do otherwise ask for Harness.Exclusive. It waits on signals and deadlines and never for time to pass, apart
// from giving a call that must wait the time to be wrong.
package queuetest
