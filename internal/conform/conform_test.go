//go:build unix

package conform_test

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/conform"
)

// only narrows the suite down while somebody works on a case.
var only = flag.String("case", "", "run only these `IDs` of the suite, such as 43,48b")

// showLogs shows what the workers have logged when something failed.
var showLogs = flag.Bool("logs", false, "show the workers' logs when a test fails")

// slack is how much slower than a service may be a service on a busy machine is.
func slack() float64 {
	if raceEnabled {
		return 6
	}
	return 3
}

func (p *pair) target() conform.Target {
	return conform.Target{P1: p.url(1), P2: p.url(2), Control: p, Outage: p, Logs: p.logs, Slack: slack()}
}

// selected are the cases to run.
func selected(t *testing.T) []conform.Case {
	t.Helper()
	cases := conform.Cases()
	if *only == "" {
		return cases
	}
	ids := strings.Split(*only, ",")
	cases = slices.DeleteFunc(cases, func(c conform.Case) bool { return !slices.Contains(ids, c.ID) })
	if len(cases) != len(ids) {
		t.Fatalf("-case %s: found %d of %d", *only, len(cases), len(ids))
	}
	return cases
}

func TestTwoWorkersOnOneSQLiteFileConform(t *testing.T) {
	t.Parallel()
	p := startPair(t, buildApp(t))
	runner, err := conform.New(t.Context(), p.target())
	if err != nil {
		t.Fatal(err)
	}
	if !runner.Controlled() {
		t.Fatal("the app was not recognised")
	}
	warm := slices.DeleteFunc(conform.Cases(), func(c conform.Case) bool { return c.ID != "36" })
	if report := runner.All(t.Context(), warm, nil); report[0].Err != nil {
		t.Fatal(report[0].Err)
	}
	before := p.settled(t, 2, conform.Runtime{})

	report := runner.All(t.Context(), selected(t), nil)
	for _, result := range report {
		t.Run(result.Case.ID+" "+result.Case.Title, func(t *testing.T) {
			t.Logf("took %v", result.Took.Round(time.Millisecond))
			if result.Err != nil {
				t.Error(result.Err)
			}
			if result.Skipped != "" {
				t.Errorf("left out: %s", result.Skipped)
			}
		})
	}
	t.Run("as any service", p.asAnyService)
	t.Run("nothing is left behind", func(t *testing.T) { p.settled(t, 2, before) })
	t.Run("the workers end well", func(t *testing.T) { p.quit(t) })
}

// asAnyService hides the control endpoints: the cases that need none must pass.
func (p *pair) asAnyService(t *testing.T) {
	p.plan(t, "plain/any", conform.Plan{Runs: []conform.Behaviour{{Status: http.StatusCreated, Body: []byte("done"), Rows: 1}}})
	to, err := url.Parse(p.url(1))
	if err != nil {
		t.Fatal(err)
	}
	inner := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/ctl/") {
			http.NotFound(w, r)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer front.Close()
	runner, err := conform.New(t.Context(), conform.Target{
		P1: front.URL + conform.PathWork + "plain/any", Slack: slack(),
		Header: http.Header{"Authorization": {"Bearer any@acme"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if runner.Controlled() {
		t.Error("the control endpoints were found")
	}
	passed := 0
	for _, result := range runner.All(t.Context(), conform.Cases(), nil) {
		if result.Err != nil {
			t.Error(result.Err)
		} else if result.Skipped == "" {
			passed++
		}
	}
	if want := 10; passed != want {
		t.Errorf("cases that need no control endpoints: %d passed, want %d", passed, want)
	}
}

// settled waits until a worker uses no more than before, and a little: the
// suite's connections end a moment after their answers. Without a before it
// waits until two looks agree.
func (p *pair) settled(t *testing.T, n int, before conform.Runtime) conform.Runtime {
	t.Helper()
	const spare = 8 // readers that the database's pool has opened meanwhile, in files
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last conform.Runtime
	for {
		var now conform.Runtime
		if err := p.get(ctx, n, conform.PathRuntime, &now); err != nil {
			t.Fatalf("worker %d: %v; last look: %+v, before: %+v", n, err, last, before)
		}
		if before == (conform.Runtime{}) {
			if now == last {
				return now
			}
		} else if now.Goroutines <= before.Goroutines+spare && now.Files <= before.Files+3*spare {
			return now
		}
		last = now
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			t.Fatalf("worker %d: goroutines and files: got %+v, want about %+v", n, last, before)
		}
	}
}
