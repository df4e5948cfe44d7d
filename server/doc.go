// Package server is the unavez binary without its flags: it reads the
// configuration, opens the store, wires engine, proxy, authentication, probes
// and upkeep together and runs them behind two listeners. It is the only place
// that knows every part.
//
//	requests ─► framing ─► correlation ─► routes ─► httpkey ─► engine ─► store
//	admin    ─► framing ─► token, origin ─► operations, metrics, health
//	upkeep   ─► expired leases, retention, probes of what is unknown
//
// # What stays while it runs, and what changes
//
// Store, listeners and engine live as long as the process. Everything else is
// a site: one configuration made into a handler. A new configuration is read
// and checked whole, becomes a new site, and takes the old one's place in one
// step; requests that are under way end on the site they began on. A
// configuration with a fault, or one that changes what cannot change, is
// refused and the old site goes on.
//
// # Stopping
//
// The context of Serve asks for a graceful stop: /readyz says 503, the
// listeners accept nothing more, requests that are under way end within the
// drain limit, the engine records what has happened, and the store is closed. A
// process that is killed instead loses nothing either: what it had not
// committed never happened, and what it had is found again.
package server
