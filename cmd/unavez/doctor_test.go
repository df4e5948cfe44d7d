package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
)

func TestDoctorAndAuditTellByTheirExitCode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir) // the example, which stays busy
	for _, key := range []string{"k-1", "k-2", "k-1"} {
		post(t, s, key)
	}
	if got := invoke(t, dir, nil, "audit", "--all"); got.code != 0 || !strings.Contains(got.out, "AUD001  ok                2 looked at") || got.err != "" {
		t.Errorf("audit: %+v", got)
	}
	if got := invoke(t, dir, nil, "doctor"); got.code != 0 || !strings.Contains(got.out, ": 0 refused,") || !strings.Contains(got.out, "ok       sqlite.integrity") {
		t.Errorf("doctor: %+v", got)
	}
	for _, args := range [][]string{{"audit", "--format", "json"}, {"doctor", "--format", "json", "--store", "unavez-example.db"}} {
		got := invoke(t, dir, nil, args...)
		if !json.Valid([]byte(got.out)) || got.code != 0 {
			t.Errorf("%v: %+v", args, got)
		}
	}

	loses := "postgres://" + strings.SplitN(testenv.NewDatabase(t), "://", 2)[1]
	sqlite := filepath.Join(dir, "unavez-example.db")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"doctor", "--store", loses}, 1, "REFUSED  postgres.fsync"},
		{[]string{"doctor", "--strict", "--store", sqlite, "--lease", "redis://127.0.0.1:1"}, 1, "warning  redis.reachable"},
		{[]string{"doctor", "--store", sqlite, "--lease", "redis://127.0.0.1:1"}, 0, "warning  redis.reachable"},
		{[]string{"doctor", "--format", "xml"}, 2, "want text or json"},
		{[]string{"doctor", "a", "b"}, 2, "see unavez --help"},
		{[]string{"doctor", "missing.yaml"}, 2, "no such file"},
		{[]string{"doctor", "--store", "postgres://a@127.0.0.1:1/shop"}, 3, "REFUSED  postgres.reachable"},
		{[]string{"doctor", "--store", "missing.db"}, 0, "warning  sqlite.file"},
		{[]string{"doctor", "--strict", "--store", "missing.db"}, 1, "the file does not exist"},
		{[]string{"audit", "--store", loses}, 3, "run unavez migrate"},
		{[]string{"audit", "--store", "missing.db"}, 3, "no such file"},
		{[]string{"audit", "--page", "-1"}, 2, "want 1 or more"},
		{[]string{"audit", "--unknown"}, 2, "see unavez --help"},
	} {
		if got := invoke(t, dir, nil, c.args...); got.code != c.code || !strings.Contains(got.out+got.err, c.says) {
			t.Errorf("%v: %+v; want %d with %q", c.args, got, c.code, c.says)
		}
	}
	configure(t, dir, "store: nowhere\n")
	if got := invoke(t, dir, nil, "audit"); got.code != 3 || !strings.Contains(got.err, "unavez.yaml:1: store: ") {
		t.Errorf("a configuration with faults: %+v", got)
	}
}
