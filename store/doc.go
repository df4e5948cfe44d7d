// Package store is the seam between the engine and a database: the types that
// cross it and the interfaces a database implements.
//
// A store remembers two things about an operation. The ledger holds its
// outcome: how it ended for good, with the frozen result, at most one per
// operation. The attempt table holds it while it is unfinished and needs
// memory: an attempt that runs outside a transaction, or one that rests
// (retryable, parked, unknown, dead). Everything else follows:
//
//	            Begin                     Claim
//	free ─────────────────┐    free ───────────────► processing ──┐
//	                      ▼                             │  │      │ Finish, Commit
//	              (open transaction)      lease expired │  │ Rest ▼
//	                      │ Commit                      ▼  ▼   completed
//	                      ▼                          unknown, retryable,
//	                  completed                      parked, dead
//
// # What every store keeps
//
//   - Begin, Join, Claim, Finish and Settle take the operation's lock before
//     they read, as separate statements, so that the read sees what the last
//     holder of the lock committed. The lock vanishes with a killed worker.
//   - At most one outcome per operation is ever committed. A second insert
//     fails with [ErrDuplicate] and takes the caller's rows with it.
//   - A write made under a fence either finds that fence or raises
//     [ErrLeaseLost]; whatever must stop a commit raises.
//   - All instants are the database's. Durations go in, instants come back.
//   - A stored result whose checksum does not match is [ErrDamaged]: it is
//     never served, and its operation never runs again. Only a person replaces
//     it, with [Operations].Complete or Discard.
//   - A commit whose answer is lost is [ErrCommitUnknown], never "failed".
//
// The suite in storetest holds each of these sentences; a store is finished
// when it passes.
//
// # The queue
//
// An entry is one operation waiting to be done. What becomes of it is written
// where it happens, never in the entry:
//
//	     Append, Enqueue                Begin … Commit of its key
//	new ─────────────────► waiting ───────────────────────────────► done ──► purged
//	                        │    ▲
//	         Block: it, and │    │ Unblock, when what it waits
//	         its followers  ▼    │ for is over
//	                       blocked
//
// A waiting entry is in the queue and its key has no outcome. A blocked one
// waits too, with a row that says for what: its own attempt at rest, an attempt
// that runs elsewhere, or an earlier version. Its followers, the later entries of
// its ordering key, are passed by and have no rows. A done one has an outcome
// under its own key and is kept until [Upkeep].Purge; after that the ledger
// alone remembers it.
//
// A [Hold] is the right to run the entries of a lane. It is a number, not a time:
// its lease only says when others may take the lane, and until one of them has
// done so everything under the hold goes on.
//
// A cursor stands for a set of entries, those that were visible at one moment.
// It is no number: entries become visible in another order than their sequence,
// and a reader that remembers the last sequence loses what commits late. What was
// read between two cursors is everything that became visible between them, and of
// one ordering key an entry that was durable before another arrived is never read
// after it. The cursor that is stored with a lane makes a promise to the next
// holder: whatever is visible in it is done, or has an unfinished attempt and a
// blocked row, or stands behind the blocked row of its ordering key. So the next
// holder reads on from there and looks at the blocked rows, and has everything.
// It is stored after the fact and may be old: then entries are read again that
// are done, and their gate says so.
//
// What a crash, a pause, a race and a lost answer do at each step:
//
//   - Append. A crash before the commit keeps nothing, and the sender was told
//     nothing. A lost answer may have kept it: appending again finds Duplicate.
//     Two at once make one entry. A pause between the drawing of the sequence and
//     the commit makes a late entry, which the reading after its commit shows.
//   - Enqueue. It shares the fate of the caller's transaction, whatever that is.
//     Others that append to one of its ordering keys in a transaction, or append
//     one of its keys, wait for its end; a limit on the transaction bounds that.
//   - Read. It writes nothing; whoever crashes reads again from the stored cursor.
//     After a change of the incarnation a cursor means nothing any more, and the
//     reading begins at what has no outcome.
//   - Keep. A lost answer may have taken lanes: the next round finds them under the
//     worker's name, not among its marks, and takes them anew. A worker that pauses
//     for longer than its lease loses its lanes to the next one that asks, which
//     waits for the transactions that are open under the old hold; while it waits
//     none begins. A takeover that gives up leaves the hold as it was.
//   - Begin, Claim, Finish and BeginBatch under a hold. They fail with
//     [ErrLaneLost] once another worker has the lane, whatever the caller believes;
//     nothing of them is committed. What committed before is an outcome that the
//     new holder finds.
//   - Block. Row and attempt are one commit: after a crash there is both or
//     neither, and with neither the entry is read again. A lost answer is cleared
//     up by blocking again, which may find the attempt written ([ErrConflict]).
//   - Unblock. It comes after the entry is done. A crash between the two leaves a
//     row that says Done, which the next holder removes.
//   - HandBack. After a crash before it the lanes are taken over when their lease
//     is over, and are not clean. After a lost answer it is repeated, and leaves
//     alone what is no longer the worker's own.
//   - Purge. It removes entries that are done and nothing else, beside everything
//     that goes on. What is unfinished may get another place, with its sequence and
//     its identity, and may then be read a second time.
//
// The suite in queuetest holds these.
package store
