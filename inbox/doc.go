// Package inbox receives webhooks and messages, keeps them until their effects
// have happened, and makes each effect happen once.
//
//	delivery → authenticate → authorise the type → validate → identify → append (durable) → acknowledge
//	        → lane → handler → outcome
//
// A [Source] is one configured sender, an [Effect] what an event is to bring
// about. An event that several effects want makes an entry for each of them, in
// the queue of the engine's own store.
//
// # What it promises
//
//   - A delivery is acknowledged after the commit that holds its entries, never
//     before; where the store cannot take it the answer is 503 with Retry-After.
//   - However often an event arrives, an effect wants it once: the second
//     delivery is acknowledged and changes nothing. Another payload under the same
//     identity is a conflict, which is kept for people to see, and no second effect.
//   - Of the entries of one ordering key one runs at a time, in the order of
//     arrival; an entry that fails keeps the later ones of its key waiting and
//     nobody else's.
//   - What fails is tried again with limits, then it is dead and waits for a
//     person. What cannot be an event at all is in quarantine. Nothing is dropped.
//
// # Receiving
//
// A [Receiver] answers the requests of a sender ([Receiver.Handler]), takes
// messages of a broker ([Receiver.Receive]) and items of a list
// ([Receiver.Admit], [Poll]). A delivery goes through these steps; a worker that
// dies at any of them has kept nothing or everything, and the sender, who has no
// answer, comes again.
//
//	limits        on the bytes that arrive, not on what they say of themselves
//	verify        the raw bytes, with every secret; a forged delivery leaves no trace
//	unpack        gzip, within a limit and a ratio
//	read          the contract takes the events out; each stands for itself from here
//	type, schema  of each; one that does not fit is in quarantine
//	effects       When, Key, OrderBy and Version see the event as it came
//	fingerprint   of what every repetition has alike ([source.Contract.Stable])
//	mask          of what is kept
//	commit        in one with other deliveries; a lane is in one commit at a time
//	answer        by the contract; 503 for whatever is our own trouble
//
// What can never succeed is acknowledged and kept in quarantine: sent again it
// would fail again. Its row has the sender's identity, or a hash of the item, so
// that a repetition makes no second one.
//
// # Delivering by HTTP
//
// [Deliver] makes the Run of an effect whose handler is an application in any
// language. One attempt is at most one request on the wire: the body cannot be
// had a second time, so that net/http never sends it again, and redirects are not
// followed. An attempt of which no byte was written never started; what ended
// without an answer after that is unknown, and Effect.Unknown decides.
package inbox
