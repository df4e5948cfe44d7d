package store

import (
	"errors"
	"fmt"
)

// The errors a store returns. Each may be wrapped around the driver's own
// error; the engine decides by errors.Is and never by text.
var (
	// ErrDuplicate: the outcome exists already; the transaction is rolled back.
	ErrDuplicate = errors.New("operation has an outcome already")
	// ErrLeaseLost: the attempt's fence is no longer ours; nothing was written.
	ErrLeaseLost = errors.New("lease lost: another attempt has taken the operation over")
	// ErrWrote: the outcome was to be frozen only if the handler wrote
	// nothing, and it wrote; the transaction is rolled back.
	ErrWrote = errors.New("transaction has written")
	// ErrAborted: the database had given the transaction up before the
	// commit, so nothing of it was committed.
	ErrAborted = errors.New("transaction was aborted by the database")
	// ErrForeignCommit: the handler ended the engine's transaction itself;
	// nothing was committed.
	ErrForeignCommit = errors.New("handler ended the engine's transaction: leave Commit and Rollback to the engine")
	// ErrRefused: the operation may not run; a handler's statement gets this
	// where the gate goes with it, and the engine answers what was found.
	ErrRefused = errors.New("operation has ended, runs elsewhere or waits: nothing was done, return this error")
	// ErrLimit: the work was over its time limit; rolled back.
	ErrLimit = errors.New("over the time limit of the transaction")
	// ErrCommitUnknown: the commit was sent and its answer was lost. Ask Settle.
	ErrCommitUnknown = errors.New("the answer of the commit was lost")
	// ErrUnavailable: the database cannot be reached, is full, read-only or
	// busy; nothing was committed and trying again later is safe.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrLost: the transaction shared its commit with others, and one of those
	// took it along. It is an ErrUnavailable of which nothing remains; run again
	// with Gate.Alone, only its own doing can end it.
	ErrLost = fmt.Errorf("%w: the commit that the transaction shared with others was rolled back", ErrUnavailable)
	// ErrLaneLost: the lane has another holder now, or is being taken over;
	// nothing was written.
	ErrLaneLost = errors.New("lane lost: another worker holds it")
	// ErrFull: the queue takes nothing more before some of it is done.
	ErrFull = fmt.Errorf("%w: the queue is full", ErrUnavailable)
	// ErrDamaged: a stored result does not match its checksum.
	ErrDamaged = errors.New("stored result does not match its checksum")
	// ErrNotFound: no operation of that key is remembered.
	ErrNotFound = errors.New("operation not found")
	// ErrConflict: the operation is not in a state that allows the action,
	// or has changed since it was looked at.
	ErrConflict = errors.New("operation is not in a state that allows this")
)
