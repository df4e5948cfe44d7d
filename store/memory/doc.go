// Package memory is a store that lives in the memory of one process: the model
// of a store, for tests, examples and experiments. Nothing survives the
// process, so its promises hold only as long as that does.
//
//	ledger := memory.New(nil)
//	engine, err := unavez.New(ledger, nil) // *unavez.Engine[*memory.Tx]
//
// Business rows are strings under string keys. A handler reads and writes them
// on its [Tx]; tests read what is committed by [Store.Get] and [Store.All].
//
// # Transactions
//
// A transaction reads the rows that were committed when it began, and its own.
// Of two transactions that write the same row the first to commit wins; the
// other one's commit fails with [store.ErrAborted], and its operation may be
// tried again. Rows that a transaction only reads are not watched. No lock but
// the operation's own is held while a handler runs, so operations run side by
// side and never wait for each other.
//
// Outcomes, attempts and locks are read and written as they are at the moment,
// as at READ COMMITTED.
//
// A transaction over its limit is rolled back and its operation is free at
// once, although its handler may still run: whatever that one does on the Tx
// from then on fails with [store.ErrLimit].
//
// # The queue
//
// A cursor is the number of a commit, so that an entry that a transaction has
// appended early and committed late is in the reading after its commit. An open
// transaction holds the ordering keys to which it has appended, and the keys of
// those entries; others that want them wait. Two transactions that append to each
// other's ordering keys in several calls wait for each other until a limit or a
// context ends one.
//
// Entries that are done stay for Options.Payloads and are then purged whole.
// Signals reach the listeners of the same Store, which several workers of one
// process may share.
//
// # Time
//
// Instants come from Options.Now. The store never lets them go back: a clock
// that does stands still until it has caught up. Limits of transactions bound
// running code and are measured by the machine's own timers.
package memory
