//go:build unix && !linux

package sqlite_test

import "testing"

// smallDisk has no way to make a small file system here.
func smallDisk(*testing.T) (dir string, grow func()) { return "", nil }
