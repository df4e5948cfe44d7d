package sqlite_test

import (
	"syscall"
	"testing"
)

// smallDisk makes a file system of 2 MiB, and what makes it grow. The folder is
// empty where this user, or this container, may not do that.
func smallDisk(t *testing.T) (dir string, grow func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Logf("no file system to fill: %v", err)
		return "", nil
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
			t.Fatal(err)
		}
	}
}
