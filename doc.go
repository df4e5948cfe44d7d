// Package unavez makes an operation take effect once, however often it arrives
// and whatever fails in between.
//
// # What it does
//
// An operation is one piece of work with an identity: tenant, effect name and
// key parts. The engine opens a transaction of the caller's own database, looks
// whether the operation has ended or is running, runs the handler on that
// transaction, writes the outcome beside the handler's rows and commits both
// together. A duplicate runs nothing: it gets the first outcome again, status,
// headers and body byte for byte.
//
//	engine, err := unavez.New(store, nil) // *Engine[Tx], Tx inferred from the store
//	outcome, err := engine.Do(ctx, operation, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
//		// write on tx and nowhere else
//	})
//
// # Which call to use
//
//   - Do opens and commits the transaction.
//   - Join works inside a transaction that the caller has open. The caller
//     commits, rolls back when Join returns an error, and settles a lost answer
//     to its COMMIT with Look.
//   - Lease is for an effect outside the database, such as a call to a payment
//     API. A claim with a fence is committed first, no transaction is open while
//     the call runs, and the finish commits only if the fence is still its own.
//     Step divides such work into calls whose results are kept.
//   - Look reads what is known of an operation and runs nothing.
//
// # What it promises
//
//   - One effect: at most one committed effect per operation, provided that the
//     effect and the ledger are in one database and the handler writes on the
//     transaction it was given. Racing workers, crashes, pauses beyond any limit
//     and lost commit answers do not change that. The condition is that the
//     database keeps what it acknowledged.
//   - One answer: every duplicate within the retention gets the first outcome.
//     After it, the tombstone says that the key is spent; after the tombstone
//     the same identity is a new operation.
//   - Outside effects: every attempt carries the same derived key to the other
//     system. When an attempt ends without telling whether its effect happened,
//     the operation is unknown, and a probe or a declared policy decides. It is
//     not run again blindly. A worker paused just before its call can still send
//     late; that is refused at the finish and shown, but it cannot be recalled.
//
// # States
//
//	          ┌───────────► completed
//	processing ┤            discarded
//	  ▲        └─► retryable │ parked │ unknown │ dead
//	  └──────────────── a new attempt, or redrive and release
//
// completed and discarded are final and each is one row of the ledger. The
// states of the lower line are unfinished and live in the table of attempts. A
// state moves forward only; the one way back is a new attempt of the same
// identity.
//
// # Errors
//
// A caller decides by the code of an error, never by its text. A duplicate that
// finds the operation still running, unknown, waiting for a person, expired or
// used with another payload gets an error whose code says so.
//
// The package and everything it imports are the standard library only. The
// stores, the leases and the HTTP layer are packages beside it.
package unavez
