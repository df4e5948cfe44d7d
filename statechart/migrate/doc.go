// Package migrate takes processes from one definition of a chart to another by a
// declared plan.
//
//	plan, err := migrate.ParsePlan(text)
//	migration, err := migrate.New(old, new, plan, language)
//	report := migration.Check(reachable)  // every configuration that the old chart can be in
//	result, err := migration.Apply(snapshot)
//
// A [Plan] says where each state, history state, timer and invoke goes. What it
// does not name goes to what has the same id; what has no such home is a fault,
// never a guess. [Migration.Check] applies the plan to every snapshot that it is
// given, without context and actions, and reports what is not covered. The
// reachable snapshots come from the caller: package analyze explores them, or they
// are read from a table of running processes.
//
// [Migration.Apply] is pure. The caller stores the new snapshot, the effects and
// the timers in one transaction, compares the revision, and keeps the old
// snapshot. The revision goes up by one.
package migrate
