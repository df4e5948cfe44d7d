// Package redis is a fast lease in Redis: standalone, behind Sentinel, or a
// Redis Cluster. It stands in front of the durable claim, spares the database
// the duplicates of what is in flight on other workers, and decides nothing.
// Whatever Redis does (killed, flushed, evicting, failed over, paused, lying),
// the database gives the same outcomes; only time is lost. For operations that
// are declared repeatable it may also take the claim's place
// (unavez.Operation.ClaimByLease): then what is lost with it is run again.
//
//	fast, err := redis.Open("redis://127.0.0.1:6379", nil)
//	engine, err := unavez.New(store, &unavez.Options{Leaser: fast})
//
// # What is in Redis
//
// A lease is one string at the key
//
//	prefix "{" name "}"
//
// where the name is the lease's key if that is 32 lower-case hexadecimal digits,
// as an operation's key is, and else "sha256:" and the 64 hexadecimal digits of
// the key's SHA-256. The braces are Redis Cluster's hash tag: whatever a later
// version keeps beside a lease has the same tag, and so the same slot.
//
// The value, integers big-endian:
//
//	offset  bytes  what
//	0       4      "uvl1", the form
//	4       1      "L", somebody holds the lease; "C", the mark that the operation has completed
//	5       1      t, the length of the holder's token
//	6       t      the token
//	6+t     4      version of the fingerprint
//	10+t    0–64   the fingerprint, to the end of the value; none is no bytes
//
// It holds no time: a lease ends when Redis lets the key go, by Redis' clock
// alone, and lives are passed as lengths. Anything else at the key (another
// type, another form, a value without an end) is an error and is left alone.
//
// # What a call does
//
// Each call is one script on one key and safe to send twice, which a client may
// do behind our back:
//
//   - Acquire sets the key if it is not there; if it is, it looks, and takes its
//     own token for granted. So the second of two is granted too.
//   - Renew, Release and Complete do something only where the key holds the
//     token's lease, compared from byte 0 to the end of the token. A holder that
//     outlived its lease does not touch its successor's.
//
// A call ends within Options.Timeout, and by its context's deadline if that is
// earlier. (The client cannot break off a call in flight when a context is
// cancelled before its deadline; that call ends within Options.Timeout.) After a
// call without an answer Redis is left alone for Options.Pause: calls fail at
// once with [ErrPaused], so that a Redis that hangs costs each worker one
// timeout a pause and not one an operation. In a Cluster that holds for the
// neighbourhood of the slot, since other masters may be well.
//
// # Sharing a Redis
//
// Installations with databases of their own need prefixes of their own: the
// same operation of two of them has the same key. Give Redis a maxmemory and any
// policy; an evicted lease costs one claim in the database.
package redis
