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
package inbox
