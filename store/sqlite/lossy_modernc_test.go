package sqlite_test

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// The functions of SQLite's file layer that a lossy disk takes the place of, as
// modernc.org/sqlite has them: https://www.sqlite.org/c3ref/io_methods.html
type (
	openFunc     = func(tls *libc.TLS, layer, name, file uintptr, flags int32, outFlags uintptr) int32
	deleteFunc   = func(tls *libc.TLS, layer, name uintptr, syncDir int32) int32
	writeFunc    = func(tls *libc.TLS, file, data uintptr, n int32, off int64) int32
	truncateFunc = func(tls *libc.TLS, file uintptr, size int64) int32
	syncFunc     = func(tls *libc.TLS, file uintptr, flags int32) int32
)

// shipped is a file layer of the driver that the binary ships: the system's,
// whose writes, syncs and deletions a lossy disk writes down.
type shipped struct {
	disk  *lossyDisk
	layer uintptr // the system's
	inner lib.Tsqlite3_vfs
	keep  []any // functions that only SQLite knows

	mu    sync.Mutex
	files map[uintptr]*shippedFile
	made  map[uintptr]uintptr // our methods, by the system's
}

type shippedFile struct {
	inner  lib.Tsqlite3_io_methods
	number int
	folder bool
}

// peek and poke read and write memory that is SQLite's.
func peek[T any](from uintptr) (value T) {
	copy(bytesOf(&value), libc.GoBytes(from, int(unsafe.Sizeof(value))))
	return value
}

func poke[T any](to uintptr, value T) {
	copy(libc.GoBytes(to, int(unsafe.Sizeof(value))), bytesOf(&value))
}

func bytesOf[T any](value *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(value)), unsafe.Sizeof(*value))
}

// function is what a pointer of SQLite's points to.
func function[F any](pointer uintptr) F {
	return *(*F)(unsafe.Pointer(&struct{ uintptr }{pointer}))
}

// pointer makes one, for as long as the layer lives.
func pointer[F any](s *shipped, f F) uintptr {
	s.keep = append(s.keep, f)
	return *(*uintptr)(unsafe.Pointer(&f))
}

// newShippedDisk registers such a layer under a name, for the folder.
func newShippedDisk(t *testing.T, name, dir string) *lossyDisk {
	t.Helper()
	tls := libc.NewTLS()
	s := &shipped{
		disk:  &lossyDisk{dir: dir, named: map[string]int{}},
		layer: lib.Xsqlite3_vfs_find(tls, 0),
		files: map[uintptr]*shippedFile{}, made: map[uintptr]uintptr{},
	}
	s.inner = peek[lib.Tsqlite3_vfs](s.layer)
	ours := s.inner
	text, err := libc.CString(name)
	if err != nil {
		t.Fatal(err)
	}
	ours.FpNext, ours.FzName = 0, text
	ours.FxOpen, ours.FxDelete = pointer[openFunc](s, s.open), pointer[deleteFunc](s, s.delete)
	at := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(ours)))
	poke(at, ours)
	if code := lib.Xsqlite3_vfs_register(tls, at, 0); code != lib.SQLITE_OK {
		t.Fatalf("file layer: %d", code)
	}
	t.Cleanup(func() {
		lib.Xsqlite3_vfs_unregister(tls, at)
		for _, ours := range s.made {
			libc.Xfree(tls, ours)
		}
		libc.Xfree(tls, at)
		libc.Xfree(tls, text)
		tls.Close()
		s.keep = nil
	})
	return s.disk
}

func (s *shipped) open(tls *libc.TLS, _, name, file uintptr, flags int32, outFlags uintptr) int32 {
	code := function[openFunc](s.inner.FxOpen)(tls, s.layer, name, file, flags, outFlags)
	if code != lib.SQLITE_OK || name == 0 {
		return code
	}
	path := libc.GoString(name)
	if filepath.Dir(path) != s.disk.dir {
		return code
	}
	methods := peek[uintptr](file)
	inner := peek[lib.Tsqlite3_io_methods](methods)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[file] = &shippedFile{inner: inner, number: s.disk.file(path), folder: flags&lib.SQLITE_OPEN_WAL != 0}
	if s.made[methods] == 0 {
		ours := inner
		ours.FxWrite, ours.FxTruncate = pointer[writeFunc](s, s.write), pointer[truncateFunc](s, s.truncate)
		ours.FxSync = pointer[syncFunc](s, s.sync)
		s.made[methods] = libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(ours)))
		poke(s.made[methods], ours)
	}
	poke(file, s.made[methods])
	return code
}

func (s *shipped) of(file uintptr) *shippedFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[file]
}

func (s *shipped) write(tls *libc.TLS, file, data uintptr, n int32, off int64) int32 {
	f := s.of(file)
	code := function[writeFunc](f.inner.FxWrite)(tls, file, data, n, off)
	if code == lib.SQLITE_OK {
		s.disk.note(change{kind: wrote, file: f.number, off: off, data: slices.Clone(libc.GoBytes(data, int(n)))})
	}
	return code
}

func (s *shipped) truncate(tls *libc.TLS, file uintptr, size int64) int32 {
	f := s.of(file)
	code := function[truncateFunc](f.inner.FxTruncate)(tls, file, size)
	if code == lib.SQLITE_OK {
		s.disk.note(change{kind: cut, file: f.number, size: size})
	}
	return code
}

func (s *shipped) sync(tls *libc.TLS, file uintptr, flags int32) int32 {
	f := s.of(file)
	code := function[syncFunc](f.inner.FxSync)(tls, file, flags)
	if code == lib.SQLITE_OK {
		s.disk.note(change{kind: synced, file: f.number, all: f.folder})
		f.folder = false
	}
	return code
}

func (s *shipped) delete(tls *libc.TLS, _, name uintptr, syncDir int32) int32 {
	code := function[deleteFunc](s.inner.FxDelete)(tls, s.layer, name, syncDir)
	if code == lib.SQLITE_OK {
		s.disk.forget(libc.GoString(name), syncDir != 0)
	}
	return code
}
