package sqlite_test

import (
	"database/sql/driver"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// doctor looks at a file; the folder must be as it was afterwards.
func doctor(t *testing.T, drv driver.Driver, path string, o *sqlite.DoctorOptions) map[string]store.Check {
	t.Helper()
	before, _ := os.ReadDir(filepath.Dir(path)) // it may be missing
	all, err := sqlite.Doctor(t.Context(), drv, path, o)
	if err != nil {
		t.Fatal(err)
	}
	after, _ := os.ReadDir(filepath.Dir(path))
	if len(after) != len(before) {
		t.Errorf("the folder had %d entries and has %d", len(before), len(after))
	}
	seen := map[string]store.Check{}
	for _, c := range all {
		if c.Value == "" || c.Why == "" || c.Way == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = c
	}
	return seen
}

func sees(t *testing.T, seen map[string]store.Check, name string, level store.Level, value string) {
	t.Helper()
	if c, ok := seen[name]; !ok || c.Level != level || !strings.Contains(c.Value, value) {
		t.Errorf("%s: %v %q; want %v with %q", name, c.Level, c.Value, level, value)
	}
}

func TestDoctorOfAFileFindsNothingWhereAllIsWell(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		busy(t, w)
		if err := os.Chmod(filepath.Dir(w.path), 0o700); err != nil {
			t.Fatal(err)
		}
		seen := doctor(t, drv, w.path, nil)
		for _, c := range sqlite.Checks() {
			got, ok := seen[c.Name]
			if !ok && runtime.GOOS == "linux" {
				t.Errorf("%s is not looked at", c.Name)
			}
			// The disk is the machine's.
			if got.Level != store.Sound && c.Name != "sqlite.disk" && c.Name != "sqlite.file_system" {
				t.Errorf("%s: %v %q", c.Name, got.Level, got.Value)
			}
		}
		if n := len(doctor(t, drv, w.path, &sqlite.DoctorOptions{Start: true})); n == 0 || n >= len(seen) {
			t.Errorf("%d of %d checks before a start", n, len(seen))
		}
		sees(t, doctor(t, drv, w.path, &sqlite.DoctorOptions{Synchronous: sqlite.Normal}), "sqlite.synchronous", store.Refused, "NORMAL")
		sees(t, doctor(t, drv, w.path, &sqlite.DoctorOptions{Largest: -1}), "sqlite.integrity", store.Sound, "not read")
		sees(t, seen, "sqlite.queue", store.Sound, "6 entries are not done; 0 of 256")
		w.advance(t, 2*time.Hour)
		sees(t, doctor(t, drv, w.path, nil), "sqlite.queue", store.Warning, "256 of 256 lanes have no worker")
		w.exec(t, "INSERT INTO unavez_migration VALUES (99, 'later', 0)")
		sees(t, doctor(t, drv, w.path, nil), "sqlite.schema", store.Refused, "version 99")
	})
}

func TestDoctorOfAFileSaysWhatIsWrong(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		dir := t.TempDir()
		none := doctor(t, drv, filepath.Join(dir, "none.db"), nil)
		sees(t, none, "sqlite.file", store.Warning, "the file does not exist")
		if _, ok := none["sqlite.permissions"]; ok {
			t.Error("permissions of a file that is not there")
		}
		sees(t, doctor(t, drv, filepath.Join(dir, "none.db"), &sqlite.DoctorOptions{Start: true}), "sqlite.file", store.Sound, "does not exist")
		sees(t, doctor(t, drv, filepath.Join(dir, "no", "where.db"), nil), "sqlite.file", store.Refused, "does not exist")
		sees(t, doctor(t, drv, dir, nil), "sqlite.file", store.Refused, "not a file")

		other := filepath.Join(dir, "text.db")
		if err := os.WriteFile(other, []byte(strings.Repeat("this is no database\n", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if c := doctor(t, drv, other, nil)["sqlite.integrity"]; c.Level != store.Refused {
			t.Errorf("a text: %+v", c)
		}

		w := fresh(t, drv, patient())
		busy(t, w)
		w.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
		file, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 4096; i < len(file); i += 512 { // in every page but the first
			file[i+3] ^= 0xff
		}
		damaged := filepath.Join(dir, "damaged.db")
		if err := os.WriteFile(damaged, file, 0o600); err != nil {
			t.Fatal(err)
		}
		if c := doctor(t, drv, damaged, nil)["sqlite.integrity"]; c.Level != store.Refused || c.Value == "ok" {
			t.Errorf("a damaged file: %+v", c)
		}

		plain := filepath.Join(dir, "plain.db")
		conn, err := drv.Open(plain)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"PRAGMA page_size = 512", "CREATE TABLE t (a)"} {
			s, err := conn.Prepare(text)
			if err != nil {
				t.Fatal(err)
			}
			//lint:ignore SA1019 every driver has it, and nothing else is needed
			if _, err := s.Exec(nil); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		seen := doctor(t, drv, plain, nil)
		sees(t, seen, "sqlite.journal_mode", store.Warning, "delete")
		sees(t, seen, "sqlite.page_size", store.Warning, "512")
		sees(t, seen, "sqlite.schema", store.Sound, "none yet")
		if runtime.GOOS == "windows" {
			return
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(plain, 0o644); err != nil {
			t.Fatal(err)
		}
		sees(t, doctor(t, drv, plain, nil), "sqlite.permissions", store.Warning, "every user of this host may read plain.db")
	})
}
