// Package torture tries to break the product from outside, on a database that it
// may fill: it breaks connections at every message of every protocol, and looks
// for what must not be there.
//
// What it believes is never the product's own word. The effects are rows of a
// table without any key, so that two show; calls outside are counted by the
// other system; and what clients were answered is written down by the clients. A
// client without the product runs beside it, so that a run shows that it would
// have seen a second effect.
//
// The product's own tests run all of it, and unavez torture runs it against the
// database and the Redis of its user.
package torture
