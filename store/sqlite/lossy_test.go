package sqlite_test

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3/vfs"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// change is one thing that was done to the files of a database.
type change struct {
	kind changeKind
	file int    // as the disk counts files: one that is made anew is another
	name string // for made and removed
	off  int64  // for wrote
	data []byte // for wrote
	size int64  // for cut
	all  bool   // for synced: the folder's names, too
}

type changeKind int

const (
	made changeKind = iota
	removed
	wrote
	cut
	synced
)

// lossyDisk is a file layer that writes down what is done to the files of one
// folder, in order. Reading and locking are the system's own.
type lossyDisk struct {
	vfs.VFSFilename
	dir string

	mu      sync.Mutex
	changes []change
	files   int
	named   map[string]int
}

// newLossyDisk registers a file layer under a name, for the folder.
func newLossyDisk(t *testing.T, name, dir string) *lossyDisk {
	t.Helper()
	system, ok := vfs.Find("os").(vfs.VFSFilename)
	if !ok {
		t.Fatal("the driver's file layer opens no file names")
	}
	d := &lossyDisk{VFSFilename: system, dir: dir, named: map[string]int{}}
	vfs.Register(name, d)
	t.Cleanup(func() { vfs.Unregister(name) })
	return d
}

// now is how many changes there were.
func (d *lossyDisk) now() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.changes)
}

func (d *lossyDisk) note(c change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes = append(d.changes, c)
}

// file is the number of the file of a name, which is made if it is new.
func (d *lossyDisk) file(path string) int {
	name := filepath.Base(path)
	d.mu.Lock()
	defer d.mu.Unlock()
	n, there := d.named[name]
	if !there {
		d.files++
		n = d.files
		d.named[name] = n
		d.changes = append(d.changes, change{kind: made, file: n, name: name})
	}
	return n
}

// OpenFilename implements vfs.VFSFilename.
func (d *lossyDisk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := d.VFSFilename.OpenFilename(name, flags)
	if err != nil || name == nil || filepath.Dir(name.String()) != d.dir {
		return f, flags, err
	}
	return &lossyFile{File: f, disk: d, number: d.file(name.String()), folder: flags&vfs.OPEN_WAL != 0}, flags, nil
}

// Delete implements vfs.VFS.
func (d *lossyDisk) Delete(path string, syncDir bool) error {
	err := d.VFSFilename.Delete(path, syncDir)
	if err == nil {
		d.forget(path, syncDir)
	}
	return err
}

// forget takes a name away.
func (d *lossyDisk) forget(path string, syncDir bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := filepath.Base(path)
	if n, there := d.named[name]; there {
		delete(d.named, name)
		d.changes = append(d.changes, change{kind: removed, file: n, name: name})
		if syncDir {
			d.changes = append(d.changes, change{kind: synced, all: true})
		}
	}
}

// lossyFile is one open file. A change is written down after it was made and
// before anybody is told.
type lossyFile struct {
	vfs.File
	disk   *lossyDisk
	number int
	folder bool // the next sync is the folder's, too: of a log, as SQLite does it
}

// What SQLite asks of a file beyond that.
var (
	_ vfs.FileSharedMemory       = (*lossyFile)(nil)
	_ vfs.FileLockState          = (*lossyFile)(nil)
	_ vfs.FilePersistWAL         = (*lossyFile)(nil)
	_ vfs.FilePowersafeOverwrite = (*lossyFile)(nil)
)

func (f *lossyFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	f.disk.note(change{kind: wrote, file: f.number, off: off, data: slices.Clone(p[:max(n, 0)])})
	return n, err
}

func (f *lossyFile) Truncate(size int64) error {
	err := f.File.Truncate(size)
	if err == nil {
		f.disk.note(change{kind: cut, file: f.number, size: size})
	}
	return err
}

func (f *lossyFile) Sync(flags vfs.SyncFlag) error {
	err := f.File.Sync(flags)
	if err == nil {
		f.disk.note(change{kind: synced, file: f.number, all: f.folder})
		f.folder = false
	}
	return err
}

func (f *lossyFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}
func (f *lossyFile) LockState() vfs.LockLevel { return f.File.(vfs.FileLockState).LockState() }
func (f *lossyFile) PersistWAL() bool         { return f.File.(vfs.FilePersistWAL).PersistWAL() }
func (f *lossyFile) SetPersistWAL(keep bool)  { f.File.(vfs.FilePersistWAL).SetPersistWAL(keep) }

func (f *lossyFile) PowersafeOverwrite() bool {
	return f.File.(vfs.FilePowersafeOverwrite).PowersafeOverwrite()
}

func (f *lossyFile) SetPowersafeOverwrite(is bool) {
	f.File.(vfs.FilePowersafeOverwrite).SetPowersafeOverwrite(is)
}

// platter is what a disk holds when the power goes: what was synced, and of what
// came after it anything.
type platter struct {
	lies    bool // it says that it has synced and has not
	files   map[int]*platterFile
	names   map[string]int // as a running system sees them
	durable map[string]int // as they were synced last
}

type platterFile struct {
	synced  []byte
	pending []change
}

func newPlatter(lies bool) *platter {
	return &platter{lies: lies, files: map[int]*platterFile{}, names: map[string]int{}, durable: map[string]int{}}
}

// apply takes up the next change.
func (p *platter) apply(c change) {
	switch c.kind {
	case made:
		p.files[c.file] = &platterFile{}
		p.names[c.name] = c.file
	case removed:
		delete(p.names, c.name)
	case wrote, cut:
		f := p.files[c.file]
		f.pending = append(f.pending, c)
	case synced:
		if p.lies {
			return
		}
		if f := p.files[c.file]; f != nil {
			f.synced, f.pending = f.content(keepAll, nil), nil
		}
		if c.all {
			p.durable = maps.Clone(p.names)
		}
	}
}

// keeping says what is left of the changes that were not synced.
type keeping int

const (
	keepNone    keeping = iota
	keepAll             // as after the death of the process alone
	keepFront           // the first of them, and a part of the next
	keepSome            // any of them, whole or in part
	keepSectors         // each sector as it was at any time since
	keepings
)

func (k keeping) String() string {
	return [...]string{"nothing", "all", "the front", "some", "sectors of any time"}[k]
}

// content is what a file holds.
func (f *platterFile) content(k keeping, random *rand.Rand) []byte {
	if k == keepNone || len(f.pending) == 0 {
		return slices.Clone(f.synced)
	}
	// since tells for each change which of its sectors are there.
	front, torn := 0, 0
	if k == keepFront {
		front = random.IntN(len(f.pending) + 1)
		torn = random.IntN(16)
	}
	until := map[int64]int{} // by sector: how many of the changes it has
	some := make([]int, len(f.pending))
	for i := range some {
		switch { // 0 is none of it, 1 is all, 2 is a part
		case k != keepSome:
		case random.IntN(2) == 0:
			some[i] = 1 + random.IntN(4)/3
		}
	}
	has := func(i int, at int64) bool {
		switch k {
		case keepFront:
			return i < front || i == front && at/sector%16 < int64(torn)
		case keepSome:
			return some[i] == 1 || some[i] == 2 && random.IntN(2) == 0
		case keepSectors:
			n, known := until[at/sector]
			if !known {
				n = random.IntN(len(f.pending) + 1)
				until[at/sector] = n
			}
			return i < n
		}
		return true
	}
	out := slices.Clone(f.synced)
	grow := func(size int64) {
		for int64(len(out)) < size { // what was never written may be anything
			b := byte(0)
			if k != keepAll && random.IntN(2) == 0 {
				b = byte(random.IntN(256))
			}
			out = append(out, slices.Repeat([]byte{b}, int(min(size-int64(len(out)), sector)))...)
		}
	}
	for i, c := range f.pending {
		if c.kind == cut {
			if !has(i, c.size) {
				continue
			}
			grow(c.size)
			out = out[:c.size]
			continue
		}
		for at := int64(0); at < int64(len(c.data)); {
			end := min((c.off+at)/sector*sector+sector-c.off, int64(len(c.data)))
			if has(i, c.off+at) {
				grow(c.off + end)
				copy(out[c.off+at:], c.data[at:end])
			}
			at = end
		}
	}
	return out
}

// image writes what the disk holds into a folder.
func (p *platter) image(dir string, k keeping, random *rand.Rand) error {
	names := maps.Clone(p.durable)
	for _, name := range slices.Sorted(maps.Keys(p.names)) { // made or replaced since
		if k == keepAll || k != keepNone && random.IntN(2) == 0 {
			names[name] = p.names[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) { // removed since
		if _, there := p.names[name]; !there && (k == keepAll || k != keepNone && random.IntN(2) == 0) {
			delete(names, name)
		}
	}
	var faults []error
	for name, number := range names {
		faults = append(faults, os.WriteFile(filepath.Join(dir, name), p.files[number].content(k, random), 0o600))
	}
	if random != nil && random.IntN(3) == 0 { // the index of the log is memory: anything may be in its file
		garbage := make([]byte, 32<<10)
		for i := range garbage {
			garbage[i] = byte(random.IntN(256))
		}
		faults = append(faults, os.WriteFile(filepath.Join(dir, "x.db-shm"), garbage, 0o600))
	}
	return errors.Join(faults...)
}

func TestLossyDiskLosesWhatWasNotSyncedAndNothingElse(t *testing.T) {
	t.Parallel()
	p := newPlatter(false)
	random := rand.New(rand.NewPCG(1, 2))
	write := func(off int64, text string) { p.apply(change{kind: wrote, file: 1, off: off, data: []byte(text)}) }
	a, b, c := strings.Repeat("a", 2*sector), strings.Repeat("b", sector), strings.Repeat("c", 2*sector)
	p.apply(change{kind: made, file: 1, name: "x"})
	write(0, a)
	p.apply(change{kind: synced, file: 1, all: true})
	write(0, b)
	write(sector, c)
	seen := map[string]map[keeping]bool{}
	for k := range keepings {
		for range 200 {
			got := p.files[1].content(k, random)
			text := ""
			for at := 0; at < len(got); at += sector {
				text += string(got[at])
				if strings.Trim(string(got[at:min(at+sector, len(got))]), string(got[at])) != "" {
					t.Fatalf("%v: a sector in part", k)
				}
			}
			if seen[text[:2]] == nil {
				seen[text[:2]] = map[keeping]bool{}
			}
			seen[text[:2]][k] = true
			if len(text) > 2 && text[2] != 'c' && k == keepAll {
				t.Fatalf("%v: %q", k, text)
			}
		}
	}
	if want := []string{"aa", "ac", "ba", "bc"}; !slices.Equal(slices.Sorted(maps.Keys(seen)), want) {
		t.Errorf("seen %v, want each of %q", seen, want)
	}
	if len(seen["aa"]) < 3 || len(seen["ac"]) != 2 || !seen["bc"][keepAll] || seen["bc"][keepNone] || len(seen["ba"]) < 2 {
		t.Errorf("seen %v", seen)
	}
	// A file whose name was not synced may be gone, and one that was removed may be there.
	p.apply(change{kind: made, file: 2, name: "y"})
	p.apply(change{kind: removed, file: 1, name: "x"})
	for k, want := range map[keeping][]bool{keepNone: {true, false}, keepAll: {false, true}} {
		dir := t.TempDir()
		if err := p.image(dir, k, nil); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"x", "y"} {
			if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) == want[i] {
				t.Errorf("%v: %s: %v", k, name, err)
			}
		}
	}
}
