package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/internal/testenv"
)

// schemas counts those of the product in a database, beside the user's own.
func schemas(t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'unavez%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTortureHoldsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL and Redis", func(t *testing.T) {
		t.Parallel()
		url := testenv.NewDatabase(t)
		got := invoke(t, t.TempDir(), nil, "torture", "--dsn", url, "--redis", testenv.Redis(t), "--operations", "20", "--duration", "0s", "--cuts", "0", "--json")
		var report struct {
			Verdict string
			Parts   []struct {
				Operations, Deliveries int
				Violations             []string
			}
		}
		if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != 0 || report.Verdict != "held" || len(report.Parts) != 2 {
			t.Fatalf("%d, %v: %s\n%s", got.code, err, got.out, got.err)
		}
		for _, part := range report.Parts {
			if part.Operations < 20 || part.Deliveries <= part.Operations || len(part.Violations) > 0 {
				t.Errorf("%+v", part)
			}
		}
		if n := schemas(t, url); n != 0 {
			t.Errorf("%d schemas are left", n)
		}
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		got := invoke(t, dir, nil, "torture", "--dsn", "sqlite:scratch.db", "--operations", "20", "--duration", "0s")
		if got.code != 0 || !strings.Contains(got.out, "\nHELD: ") || !strings.Contains(got.out, "(met ") {
			t.Errorf("%+v", got)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	})
}

func TestTortureTouchesNothingOfOthers(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), testenv.NewDatabase(t)
	if err := os.WriteFile(filepath.Join(dir, "mine.db"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, dir, nil, "migrate", "--store", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, c := range []struct{ dsn, says string }{
		{"sqlite:mine.db", "mine.db exists"},
		{url, "it has the schema unavez"},
		{"", "--dsn is missing"},
		{"postgres://db", "--dsn: "},
	} {
		if got := invoke(t, dir, nil, "torture", "--dsn", c.dsn); got.code != 2 || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v, want %q", c.dsn, got, c.says)
		}
	}
	if got := invoke(t, dir, nil, "torture", "--dsn", "sqlite:x.db", "--redis", "rediss://cache"); got.code != 2 || !strings.Contains(got.err, "--redis: ") {
		t.Errorf("TLS: %+v", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "mine.db")); err != nil || string(text) != "mine" || schemas(t, url) != 1 {
		t.Errorf("%q, %v", text, err)
	}
}

func TestTortureThatIsInterruptedRemovesItsSchemas(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t)
	c := exec.CommandContext(t.Context(), binary, "torture", "--dsn", url, "--cuts", "0", "--duration", "10m")
	c.Dir = t.TempDir()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), "until all goes on") && c.ProcessState == nil {
			if n := schemas(t, url); n != 2 {
				t.Errorf("%d schemas while it runs, want 2", n)
			}
			_ = c.Process.Signal(os.Interrupt) // it may have ended
			break
		}
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
	}
	if err := c.Wait(); c.ProcessState.ExitCode() != 3 {
		t.Errorf("%v: %q", err, said)
	}
	if n := schemas(t, url); n != 0 {
		t.Errorf("%d schemas are left: %q", n, said)
	}
}
