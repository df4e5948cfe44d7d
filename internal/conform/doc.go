// Package conform is the black-box Idempotency-Key suite: it talks HTTP to one
// or two workers of a service and tells, case by case, whether the service
// keeps the promises of the header.
//
// A case has the number it has in the specification of the suite, and a level:
// a service must keep what is marked [Must]; [Default] is what this project has
// chosen where the draft leaves the choice.
//
// A case needs what it needs. Any service can be asked about missing, malformed
// and reused keys, about the replay and about a race. To see that a handler ran
// once, that a killed worker leaves nothing behind, that a stopped one is
// refused, the service must be the conformance app of the folder app, which
// takes a [Plan] for each path and counts what happened, and the caller must
// give a [Control] over its workers. A case whose needs are not met is left out
// and says why.
//
// Besides what a case is about, each answer of it is held to the same rules:
//
//   - no 5xx that the case does not expect,
//   - no text of the database's own ("database is locked"),
//   - an error that no plan ordered is valid application/problem+json,
//   - Content-Length agrees with the body,
//   - with CORS on, Idempotent-Replayed and Retry-After are exposed,
//   - the service's counters agree with the answers that the case has seen.
//
// Each case works under a principal of its own, so that cases can run side by
// side; those that disturb a worker or measure times run alone.
package conform
