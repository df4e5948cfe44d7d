package httpkey_test

import "testing"

// stores are the stores that every case runs on.
func stores() map[string]func(*testing.T) *shop {
	return map[string]func(*testing.T) *shop{"memory": onMemory}
}
