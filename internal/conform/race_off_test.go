//go:build !race

package conform_test

// raceEnabled says that the test was built with the race detector.
const raceEnabled = false
