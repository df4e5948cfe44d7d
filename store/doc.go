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
package store
