package store

import "context"

// Late is a [Txn] whose gate may not have been asked yet when Begin returned it:
// a store may let the gate go with the handler's first statement, unless
// [Gate.Eager] forbids it. The verdict Free of Begin is then only assumed.
//
// When the gate says no, nothing of the handler runs from that statement on:
// the statement and all that come after it fail with [ErrRefused], and so does
// Commit. What the handler makes of that error does not matter.
type Late interface {
	// Refused reports whether the gate has said no. It is called by the
	// transaction's goroutine.
	Refused() bool
	// Verdict ends a refused transaction and reads what is stored. It may find
	// Free, where what the gate found is over: then begin again, with Gate.Eager.
	Verdict(ctx context.Context) (Verdict, error)
}
