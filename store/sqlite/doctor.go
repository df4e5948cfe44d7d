package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/unavez/unavez/store"
)

// DoctorOptions of a look at a file. The zero value of every field means its
// default.
type DoctorOptions struct {
	// Start leaves out what reads the file: what is left is what a worker
	// should look at before it serves.
	Start bool
	// Synchronous is what the workers' Options have.
	Synchronous Synchronous
	// Largest is up to how many bytes a file is read whole to see whether it is
	// sound. Default 1 GiB; negative means never.
	Largest int64
}

// The names of the checks.
const (
	checkFile        = "sqlite.file"
	checkFileSystem  = "sqlite.file_system"
	checkLocks       = "sqlite.locks"
	checkPermissions = "sqlite.permissions"
	checkDisk        = "sqlite.disk"
	checkSynchronous = "sqlite.synchronous"
	checkVersion     = "sqlite.version"
	checkJournal     = "sqlite.journal_mode"
	checkSchema      = "sqlite.schema"
	checkPageSize    = "sqlite.page_size"
	checkLog         = "sqlite.log"
	checkIntegrity   = "sqlite.integrity"
	checkQueue       = "sqlite.queue"
)

// Checks are all that Doctor looks at, each with the worst level it may have.
func Checks() []store.Check {
	const refused, warning = store.Refused, store.Warning
	return []store.Check{
		{Name: checkFile, Level: refused, Why: "without the file nothing is decided: every keyed request gets 503", Way: "is the name right? unavez serve makes a file that is missing, but no folder; let its user read and write both"},
		{Name: checkFileSystem, Level: refused, Why: "SQLite's log and the locks of operations both need one kernel: over a network two workers run one operation, or the file is damaged", Way: "put the file on a disk of this host; for several hosts use PostgreSQL"},
		{Name: checkLocks, Level: refused, Why: "operations are kept apart by locks of the open file", Way: "put the file on a file system with locks, such as ext4, xfs, btrfs or APFS"},
		{Name: checkPermissions, Level: warning, Why: "the file holds what requests were answered: whoever reads it reads that", Way: "chmod 600 the file, -wal, -shm and -gate, or 700 the folder"},
		{Name: checkDisk, Level: warning, Why: "on a full disk nothing is accepted: 503 until there is room", Way: "make room, or move the file"},
		{Name: checkSynchronous, Level: refused, Why: "a power cut loses what was answered: the operation takes effect again", Way: "leave Options.Synchronous at Full"},
		{Name: checkVersion, Level: refused, Why: "the store uses what SQLite has since 3.42", Way: "use a newer driver"},
		{Name: checkJournal, Level: warning, Why: "the store works with a write-ahead log and sets it when it opens the file; another program has set it back", Way: "let no other program change journal_mode; serve sets it again"},
		{Name: checkSchema, Level: refused, Why: "a file of a newer program may not be written to by an older one", Way: "start a newer program, or restore the backup made before it was"},
		{Name: checkPageSize, Level: warning, Why: "small pages cost more writes", Way: "PRAGMA page_size = 4096, then VACUUM in journal mode DELETE, while no worker runs"},
		{Name: checkLog, Level: warning, Why: "the log cannot be emptied into the file while somebody reads an old state of it: it grows and slows every read", Way: "end the program that keeps a transaction open"},
		{Name: checkIntegrity, Level: refused, Why: "a damaged file answers wrongly, or not at all", Way: "stop the workers; restore a backup, or try .recover of the sqlite3 shell"},
		{Name: checkQueue, Level: warning, Why: "entries in a lane that no worker holds are accepted and not done", Way: "run a worker on the file (unavez serve, or an inbox in the program)"},
	}
}

// Doctor looks at the file and the disk that the promises rest on. It makes no
// file but a short-lived one beside it, to try the locks. The error is for a
// look that breaks off in the middle.
func Doctor(_ context.Context, drv driver.Driver, path string, opts *DoctorOptions) ([]store.Check, error) {
	d := &doctor{Checkup: store.NewCheckup(Checks())}
	if opts != nil {
		d.o = *opts
	}
	if d.o.Largest == 0 {
		d.o.Largest = 1 << 30
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite store: path %q: %w", path, err)
	}
	if target, err := filepath.EvalSymlinks(full); err == nil {
		full = target
	}
	d.path = full
	if err := d.disk(); err != nil {
		return d.All(), fmt.Errorf("sqlite store: doctor: %w", err)
	}
	if d.o.Start || !d.there {
		return d.All(), nil
	}
	c, err := inspector(drv, full)
	if err != nil {
		return d.All(), err
	}
	r, err := c.open(false)
	if err != nil {
		d.See(checkIntegrity, store.Refused, true, "cannot be opened: %v", err)
		return d.All(), nil
	}
	if err := errors.Join(d.content(r), r.close()); err != nil {
		d.See(checkIntegrity, store.Refused, true, "cannot be read: %v", err)
	}
	return d.All(), nil
}

// doctor is one look.
type doctor struct {
	*store.Checkup
	o     DoctorOptions
	path  string
	there bool
	size  int64
}

// small and low are how little room is a warning: in bytes, and as a part of the disk.
const (
	smallRoom = 1 << 30
	lowRoom   = 10 // percent
)

// disk looks at the file from outside.
func (d *doctor) disk() error {
	folder := filepath.Dir(d.path)
	info, err := os.Stat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if parent, err := os.Stat(folder); err != nil || !parent.IsDir() {
			d.See(checkFile, store.Refused, true, "the folder %s does not exist", folder)
			return nil
		}
		// Before a start that is as usual; else it may be a name mistyped.
		d.See(checkFile, store.Warning, !d.o.Start, "the file does not exist; the first worker (unavez serve) would make it")
	case err != nil:
		d.See(checkFile, store.Refused, true, "%v", err)
		return nil
	case !info.Mode().IsRegular():
		d.See(checkFile, store.Refused, true, "not a file")
		return nil
	default:
		d.there, d.size = true, info.Size()
		if err := writable(d.path); err != nil {
			d.See(checkFile, store.Refused, true, "cannot be written: %v", err)
			return nil
		}
		d.See(checkFile, store.Refused, false, "%s", bytesText(d.size))
	}

	if f, known, err := fileSystem(folder); err != nil {
		return err
	} else if known {
		d.See(checkFileSystem, f.level, f.level != store.Sound, "%s", f.name)
		percent := uint64(100)
		if f.size > 0 {
			percent = f.free * 100 / f.size
		}
		d.See(checkDisk, store.Warning, f.free < smallRoom || percent < lowRoom, "%s free, %d %%", bytesText(int64(f.free)), percent)
	} else {
		d.See(checkFileSystem, store.Refused, false, "not looked at on this system")
	}

	if err := tryLock(folder); err != nil {
		d.See(checkLocks, store.Refused, true, "%v", err)
	} else {
		d.See(checkLocks, store.Refused, false, "granted and refused as they should be")
	}

	d.See(checkSynchronous, store.Refused, d.o.Synchronous != Full, "%s, set on every connection", map[Synchronous]string{Full: "FULL", Normal: "NORMAL"}[d.o.Synchronous])
	if !d.there {
		return nil
	}
	var open []string
	for _, suffix := range []string{"", "-wal", "-shm", "-gate"} {
		if info, err := os.Stat(d.path + suffix); err == nil && info.Mode().Perm()&0o004 != 0 {
			open = append(open, filepath.Base(d.path)+suffix)
		}
	}
	parent, err := os.Stat(folder)
	closed := err == nil && parent.Mode().Perm()&0o005 == 0
	if len(open) > 0 && !closed && runtime.GOOS != "windows" {
		d.See(checkPermissions, store.Warning, true, "every user of this host may read %s", strings.Join(open, ", "))
	} else {
		d.See(checkPermissions, store.Warning, false, "only its owner and group read it")
	}
	return nil
}

// tryLock locks a byte of a file of its own twice: the second open file must be
// refused.
func tryLock(folder string) (err error) {
	first, err := os.CreateTemp(folder, ".unavez-doctor-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.Close(), os.Remove(first.Name())) }()
	return lockExcludes(first.Name())
}

// minVersion is the first SQLite with milliseconds in unixepoch.
const minVersion = 3*1_000_000 + 42*1000

// content looks at the file from inside.
func (d *doctor) content(r *raw) error {
	text := func(sql string) (string, error) {
		var s string
		_, err := r.row(sql, nil, func(v []driver.Value) error { s = word(v[0]); return nil })
		return s, err
	}
	number, err := text("SELECT sqlite_version()")
	if err != nil {
		return err
	}
	var major, minor, patch int
	_, err = fmt.Sscanf(number, "%d.%d.%d", &major, &minor, &patch)
	d.See(checkVersion, store.Refused, err != nil || major*1_000_000+minor*1000+patch < minVersion, "%s", number)

	mode, err := text("PRAGMA journal_mode")
	if err != nil {
		return err
	}
	d.See(checkJournal, store.Warning, mode != "wal", "%s", mode)

	all, err := steps()
	if err != nil {
		return err
	}
	at, err := version(r)
	if err != nil {
		return err
	}
	newest := int64(len(all))
	switch {
	case at == 0:
		d.See(checkSchema, store.Refused, false, "none yet: the first worker makes it")
	case at < newest:
		d.See(checkSchema, store.Refused, false, "version %d: the first worker brings it to %d", at, newest)
	default:
		d.See(checkSchema, store.Refused, at > newest, "version %d, this program's is %d", at, newest)
	}

	size, err := r.number("PRAGMA page_size")
	if err != nil {
		return err
	}
	d.See(checkPageSize, store.Warning, size < 4096, "%d", size)

	var log int64
	if info, err := os.Stat(d.path + "-wal"); err == nil {
		log = info.Size()
	}
	d.See(checkLog, store.Warning, log > 256<<20, "%s", bytesText(log))

	if d.o.Largest < 0 || d.size > d.o.Largest {
		d.See(checkIntegrity, store.Refused, false, "not read: the file is larger than %s", bytesText(max(d.o.Largest, 0)))
	} else {
		sound, err := text("PRAGMA quick_check(1)")
		if err != nil {
			return err
		}
		if d.See(checkIntegrity, store.Refused, sound != "ok", "%s", sound); sound != "ok" {
			return nil
		}
	}
	return d.queue(r, at == newest)
}

// queue looks for entries that nobody does.
func (d *doctor) queue(r *raw, there bool) error {
	if !there {
		d.See(checkQueue, store.Warning, false, "none yet")
		return nil
	}
	const text = "SELECT count(*), coalesce(sum(worker = '' OR expires <= " + now + "), 0) FROM unavez_lane"
	var lanes, free int64
	_, err := r.row(text, nil, func(v []driver.Value) error {
		lanes, free = integer(v[0]), integer(v[1])
		return nil
	})
	if err != nil {
		return err
	}
	var wait int64
	err = r.query(depth(), nil, func(v []driver.Value) error {
		wait += integer(v[1])
		return nil
	})
	if err != nil {
		return err
	}
	many := ""
	if wait >= store.DepthLimit {
		many = " or more"
	}
	d.See(checkQueue, store.Warning, wait > 0 && free > 0, "%d entries%s are not done; %d of %d lanes have no worker", wait, many, free, lanes)
	return nil
}

// bytesText is a size for people.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// volume is what is known of a file system.
type volume struct {
	name       string
	level      store.Level
	free, size uint64
}
