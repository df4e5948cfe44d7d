// Package teeth tries the tests. It puts a mistake into the code, one at a time,
// and asks which test notices: a mistake that none notices is a missing test.
//
// There are three kinds of mistakes. The zoo is a list of those that designs like
// this one are known for (a claim without its lock, an acknowledgement before the
// commit, and so on). Guards are the conditions that SQL statements join by AND,
// each left out in turn. Mutants are small changes of Go code that decides and
// does nothing else.
//
// No mistake stands in production files. A changed file is laid over the original
// one with the -overlay flag of the go command, and the text that is changed must
// be found, so that a mistake breaks loudly when the code moves.
//
// That a test fails says little: it may have failed anyway. So a mistake counts as
// caught only when the test that has failed fails again by itself, and passes by
// itself without the mistake.
package teeth
