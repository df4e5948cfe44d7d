package testenv

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// verdict stands for a test that a helper may end. Each way of ending panics
// with its text, as the real ones do not return.
type verdict struct{ testing.TB }

func (verdict) Helper()                {}
func (verdict) Fatal(arguments ...any) { panic("fatal: " + fmt.Sprint(arguments...)) }
func (verdict) Skip(arguments ...any)  { panic("skip: " + fmt.Sprint(arguments...)) }

func ending(f func(testing.TB)) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f(verdict{})
	return ""
}

func TestAMissingServerSkipsAtADeskAndFailsInCI(t *testing.T) {
	needs := map[string]func(testing.TB){
		PostgresVariable:     func(tb testing.TB) { Postgres(tb) },
		RedisVariable:        func(tb testing.TB) { Redis(tb) },
		RedisClusterVariable: func(tb testing.TB) { RedisCluster(tb) },
	}
	for variable, need := range needs {
		t.Setenv(variable, "")
		t.Setenv("CI", "")
		if got := ending(need); !strings.HasPrefix(got, "skip: "+variable) || !strings.Contains(got, "scripts/services up") {
			t.Errorf("at a desk: %s", got)
		}
		t.Setenv("CI", "true")
		if got := ending(need); !strings.HasPrefix(got, "fatal: "+variable) {
			t.Errorf("in CI: %s", got)
		}
	}
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	urls := map[string]bool{}
	t.Run("inner", func(t *testing.T) {
		for range 2 {
			url := NewDatabase(t)
			urls[url] = true
			if err := administer(t.Context(), url, "create table t (n int)"); err != nil {
				t.Error(err)
			}
		}
	})
	if len(urls) == 0 {
		return // skipped
	}
	if len(urls) != 2 {
		t.Errorf("%d databases, want 2", len(urls))
	}
	for url := range urls {
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("%s is still there", url)
		}
	}
}
