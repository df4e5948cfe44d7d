package sqlite

import (
	"errors"
	"syscall"

	"github.com/unavez/unavez/store"
)

// fileSystem tells what a folder stands on.
// https://man7.org/linux/man-pages/man2/statfs.2.html
func fileSystem(folder string) (v volume, known bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return v, false, err
	}
	v = volume{name: "local", free: s.Bavail * uint64(s.Bsize), size: s.Blocks * uint64(s.Bsize)}
	switch uint32(s.Type) {
	case 0x6969:
		v.name, v.level = "NFS, a network", store.Refused
	case 0x517b, 0xff534d42, 0xfe534d42:
		v.name, v.level = "SMB, a network", store.Refused
	case 0x5346414f, 0x6b414653:
		v.name, v.level = "AFS, a network", store.Refused
	case 0x73757245, 0x564c:
		v.name, v.level = "a network", store.Refused
	case 0x00c36400:
		v.name, v.level = "Ceph, a network", store.Refused
	case 0x47504653, 0x0bd00bd0, 0x01161970, 0x7461636f, 0xaad7aaea:
		v.name, v.level = "a cluster's", store.Refused
	case 0x01021997:
		v.name, v.level = "9p, which may be another kernel's", store.Warning
	case 0x65735546:
		v.name, v.level = "FUSE, which may be a network", store.Warning
	case 0x01021994, 0x858458f6:
		v.name, v.level = "in memory: gone with the host's next start", store.Warning
	}
	return v, true, nil
}

// lockExcludes tells whether a lock of one open file keeps another one out.
func lockExcludes(path string) error {
	first, err := openLockFile(path, ownMode)
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := openLockFile(path, ownMode)
	if err != nil {
		return err
	}
	defer second.Close()
	got, err := lockByte(first, 1)
	if err != nil || !got {
		return errors.Join(errors.New("a lock is not granted"), err)
	}
	again, err := lockByte(second, 1)
	if err == nil && again {
		err = errors.New("a lock that is held is granted again")
	}
	return err
}
