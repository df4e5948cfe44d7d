//go:build unix

package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// says checks that an error is the wanted one and tells what to do.
func says(t *testing.T, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

// tells checks the error of what met a full disk. Where a driver calls it an
// I/O error, a commit that met it is unknown until it is settled.
func tells(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, store.ErrCommitUnknown) && strings.Contains(err.Error(), "disk I/O error") {
		return
	}
	says(t, err, store.ErrUnavailable)
	if text := fmt.Sprint(err); !strings.Contains(text, "full") && !strings.Contains(text, "free space") {
		t.Errorf("error %q does not say that the disk is full", text)
	}
}

func TestFullDiskCommitsNothingAndSaysSo(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		t.Run("by SQLite's own limit", func(t *testing.T) {
			w := fresh(t, drv, patient())
			w.exec(t, "PRAGMA max_page_count = 60")
			fill(t, w, func() { w.exec(t, "PRAGMA max_page_count = 100000") })
		})
		t.Run("by the file system", func(t *testing.T) {
			dir, grow := smallDisk(t)
			if dir == "" {
				return // the first way has shown it
			}
			w := open(t, drv, filepath.Join(dir, "x.db"), patient())
			w.exec(t, "CREATE TABLE business (row TEXT NOT NULL, once TEXT UNIQUE)")
			fill(t, w, grow)
		})
	})
}

// fill runs operations in pairs until the disk is full, checks what became of
// the last ones, and goes on once there is room.
func fill(t *testing.T, w *worker, makeRoom func()) {
	large := strings.Repeat("x", 20_000)
	var kept []string
	for i := 0; ; i++ {
		name := fmt.Sprint(i)
		b, first, ran := w.follow(t, name, name+" large", func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, large) })
		met := <-ran
		second := commit(t, b, "x")
		e1, e2 := <-first, <-second
		if met == nil && e1.err == nil && e2.err == nil {
			kept = append(kept, name, large)
			continue
		}
		// The neighbour may have been durable before; else it knows better.
		if e1.err == nil {
			kept = append(kept, name)
			w.state(t, store.Completed, name)
		} else {
			tells(t, e1.err)
			w.state(t, store.Free, name)
		}
		if met != nil {
			tells(t, met)
		}
		tells(t, e2.err)
		w.state(t, store.Free, name+" large")
		break
	}
	w.rowsAre(t, kept...)
	makeRoom()
	txn := w.begin(t, "after")
	w.write(t, txn, "after")
	if e := <-commit(t, txn, "x"); e.err != nil {
		t.Fatal(e.err)
	}
	w.rowsAre(t, append(kept, "after")...)
}

func TestCorruptFileIsRefused(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		path := filepath.Join(t.TempDir(), "x.db")
		if err := os.WriteFile(path, []byte(strings.Repeat("this is no database ", 1000)), 0o666); err != nil {
			t.Fatal(err)
		}
		db, err := sqlite.OpenDB(drv, path, nil)
		if err == nil {
			db.Close()
		}
		says(t, err, store.ErrUnavailable, "corrupt or not a database", "backup")
	})
}

func TestCorruptPageIsAnErrorThatSaysSo(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for i := range 20 {
			txn := w.begin(t, fmt.Sprint(i))
			w.write(t, txn, "x")
			if e := <-commit(t, txn, strings.Repeat("y", 4000)); e.err != nil {
				t.Fatal(e.err)
			}
		}
		w.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
		if err := w.db.Close(); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(w.path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		size, err := file.Seek(0, io.SeekEnd)
		if err != nil {
			t.Fatal(err)
		}
		// Every page behind the schema's.
		for at := int64(4096); at < size; at += 4096 {
			if _, err := file.WriteAt([]byte(strings.Repeat("\xff", 100)), at); err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		db, err := sqlite.OpenDB(drv, w.path, nil)
		if err == nil {
			defer db.Close()
			_, err = sqlite.New(db, nil)
		}
		says(t, err, store.ErrUnavailable, "corrupt", "backup")
	})
}

func TestFileOfANewerProgramIsRefused(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		w.exec(t, "INSERT INTO unavez_migration (version, name, at) VALUES (99, 'future', 0)")
		_, err := sqlite.New(w.db, nil)
		if err == nil || !strings.Contains(err.Error(), "newer") {
			t.Errorf("file of a newer program: %v", err)
		}
		w.exec(t, "DELETE FROM unavez_migration WHERE version = 99")
		w.exec(t, "UPDATE unavez_setting SET value = '2' WHERE name = 'protocol'")
		if _, err := sqlite.New(w.db, nil); err == nil || !strings.Contains(err.Error(), "protocol") {
			t.Errorf("file with another protocol: %v", err)
		}
	})
}

func TestSchemaIsMigratedOnceByWorkersThatStartTogether(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		path := filepath.Join(t.TempDir(), "x.db")
		dbs := make([]*sql.DB, 4)
		errs := make(chan error, len(dbs))
		for i := range dbs {
			go func() {
				var err error
				if dbs[i], err = sqlite.OpenDB(drv, path, patient()); err == nil {
					_, err = sqlite.New(dbs[i], nil)
				}
				errs <- err
			}()
		}
		for range dbs {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		for _, db := range dbs {
			if db != nil {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		db, err := sqlite.OpenDB(drv, filepath.Join(t.TempDir(), "old.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := sqlite.New(db, &sqlite.StoreOptions{NoMigrate: true}); err == nil || !strings.Contains(err.Error(), "migrate") {
			t.Errorf("an old schema without migrating: %v", err)
		}
	})
}

// The tables of the application may be there before ours.
func TestSchemaIsMadeBesideTheApplications(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		db, err := sqlite.OpenDB(drv, filepath.Join(t.TempDir(), "x.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.New(db, nil); err != nil {
			t.Errorf("a file with a table of the application: %v", err)
		}
	})
}

// TestReadOnlyFileIsRefused runs as a user who may not write: root may always.
func TestReadOnlyFileIsRefused(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		if err := w.db.Close(); err != nil {
			t.Fatal(err)
		}
		// A worker that was killed has left its files, the log among them.
		for _, name := range []string{w.path, w.path + "-gate", filepath.Dir(w.path)} {
			mode := os.FileMode(0o444)
			if name == filepath.Dir(w.path) {
				mode = 0o555
			}
			if err := os.Chmod(name, mode); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if err := os.Chmod(filepath.Dir(w.path), 0o755); err != nil {
				t.Error(err)
			}
		})
		out := asNobody(t, drv, w.path, "gate")
		if !strings.Contains(out, "gate file") || !strings.Contains(out, store.ErrUnavailable.Error()) {
			t.Errorf("read-only gate file: %s", out)
		}
		if err := os.Chmod(w.path+"-gate", 0o666); err != nil {
			t.Fatal(err)
		}
		out = asNobody(t, drv, w.path, "file")
		if !strings.Contains(out, "right") && !strings.Contains(out, "read-only") || !strings.Contains(out, store.ErrUnavailable.Error()) {
			t.Errorf("read-only file: %s", out)
		}
	})
}

// asNobody opens the file in a process without root's powers and returns what
// it says.
func asNobody(t *testing.T, drv driver.Driver, path, part string) string {
	t.Helper()
	program := os.Args[0]
	var attr *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		program = filepath.Join(t.TempDir(), "program")
		// Copied by another process: one of ours that is being started beside
		// this would keep the copy open for writing, and so not runnable.
		if out, err := exec.Command("cp", os.Args[0], program).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		for dir := filepath.Dir(program); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for dir := filepath.Dir(filepath.Dir(path)); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(program, nameOf(drv), path, part)
	cmd.Env = append(os.Environ(), "UNAVEZ_SQLITE_CHILD=write")
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s: the process wrote a file it may only read", part)
	}
	return fmt.Sprintf("%s(%v)", out, err)
}
