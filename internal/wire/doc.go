// Package wire stands between a client and its server, sees each message of
// their protocol, and ends the connection at one of them: between two messages,
// in the middle of one, in order, by a reset, or by silence of a process or of a
// whole host. Those are all the
// faults that a network can cause, so that who tries them at every message of an
// exchange has tried the network.
//
//	proxy, err := wire.Listen(wire.PostgreSQL, dial)
//	proxy.Watch(func(m *wire.Message) wire.Fate {
//		if m.From == wire.Server && m.Kind == "CommandComplete" && m.Text() == "COMMIT" {
//			return wire.Cut // the answer of the COMMIT is lost
//		}
//		return wire.Pass
//	})
//
// It knows the messages of PostgreSQL (version 3 of the protocol) and of Redis
// (RESP 2 and 3). It speaks no TLS to its client: a client that asks for it is
// told that there is none. To the server the connection is the caller's to make,
// with TLS where it is wanted.
package wire
