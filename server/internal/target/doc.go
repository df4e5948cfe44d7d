// Package target calls what an effect or an alert is sent to: one HTTP request,
// on the wire once, signed by Standard Webhooks, and its answer read as done,
// not done, refused, gone or unknown.
//
// A connection is used again only within a second, so that a request is hardly
// ever written on one that the other side is about to close: its answer would be
// lost, and nobody could say whether it had arrived. Redirects are never
// followed. Addresses are checked by the policy of the connection
// (server/internal/outbound), when connecting.
package target
