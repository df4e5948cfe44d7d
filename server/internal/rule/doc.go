// Package rule compiles the expressions of a configuration that look at an
// event: which events an effect wants, what names its operation, what it is
// ordered by, whose event and whose data it is. They are CEL
// (https://cel.dev), and see these variables:
//
//	source      string           the name of the source
//	type        string           the sender's word for what happened
//	id          list of strings  the event's identity within the source
//	subject     list of strings  its resource
//	version     string           the sender's own order of the changes
//	tenant      string           whom it belongs to; in tenant_from, whom the message names
//	time        timestamp        when it happened; an error where the sender does not say
//	attributes  map of strings   further facts of the envelope
//	data        JSON             its content; an error where that is no JSON
//
// A number in data that is a whole number of 64 bits, however it is written, is
// an int. Every other number is its exact text: without exponent, plus or
// superfluous zeros, so that 9.90 is "9.9". decimal(…) makes either of them a
// number that compares and computes exactly.
//
// An expression cannot ask for the time or anything outside the event: the same
// event always gives the same value. Each run may cost Cost units as CEL counts
// them; over that, and where a member that it reads is not there, it fails.
package rule
