//go:build !race

package httpkey_test

const raceDetector = false
