// Package difference compares what two executors answered to one random list of
// actions, and cuts a list that tells them apart down to what matters. Lists are
// those of a model, which each store is compared with.
package difference

import "slices"

// At is the first line in which got differs from want, or -1. got has at
// least as many lines as want.
func At(got, want []string) int {
	for i := range want {
		if got[i] != want[i] {
			return i
		}
	}
	return -1
}

// Shrink leaves out what is not needed for differs, in ever smaller pieces; the
// last action, which shows the difference, always stays.
// permitted drops the actions of a shorter list that have lost what they stand on.
func Shrink[A any](list []A, permitted func([]A) []A, differs func([]A) bool) []A {
	for size := len(list) / 2; size > 0; size /= 2 {
		for from := 0; from+size < len(list); {
			shorter := permitted(slices.Concat(list[:from], list[from+size:]))
			if len(shorter) < len(list) && differs(shorter) {
				list = shorter
			} else {
				from += size
			}
		}
	}
	return list
}
