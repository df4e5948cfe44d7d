// Package archtest holds the shape of the source tree by tests: who may import
// whom, how packages are named, how long a file may be, what must be documented
// and what may not appear at all.
//
// The package has no code of its own. Its tests read every file of the
// repository, and a new package is covered from the moment its folder exists.
// Each rule carries fixtures that break it, so a rule that finds nothing any
// more fails as well.
//
// A rule that stands in the way is changed here, in the same commit as the code
// that needs the change, with the reason beside it.
package archtest
