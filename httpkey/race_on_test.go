//go:build race

package httpkey_test

// raceDetector makes goroutines larger.
const raceDetector = true
