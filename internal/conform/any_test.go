package conform_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unavez/unavez/internal/conform"
)

func TestServiceThatIgnoresTheKeyIsFound(t *testing.T) {
	t.Parallel()
	var orders atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/orders" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // an error ends the request anyhow
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%d}`, orders.Add(1))
	}))
	defer server.Close()
	runner, err := conform.New(t.Context(), conform.Target{P1: server.URL + "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	var failed, skipped []string
	report := runner.All(t.Context(), conform.Cases(), func(result conform.Result) {
		switch {
		case result.Err != nil:
			failed = append(failed, result.Case.ID)
		case result.Skipped != "":
			skipped = append(skipped, result.Case.ID)
		}
	})
	slices.Sort(failed)
	if want := []string{"1", "25", "29", "3", "36", "4", "5", "7", "9", "D1"}; !slices.Equal(failed, want) {
		t.Errorf("failed: got %q, want %q", failed, want)
	}
	if got, want := len(failed)+len(skipped), len(conform.Cases()); got != want {
		t.Errorf("failed or left out: got %d, want all %d", got, want)
	}
	if !report.Failed(conform.Must) || !report.Failed(conform.Default) {
		t.Error("the report hides what failed")
	}
	var text strings.Builder
	if _, err := report.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAILS     3    M", "differs   4    D", "left out  13   M", "the target has no control endpoints", "0 cases passed, 10 failed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("report: no %q in\n%s", want, text.String())
		}
	}
}

func TestTargetIsChecked(t *testing.T) {
	t.Parallel()
	for _, target := range []conform.Target{{}, {P1: "localhost:8080"}, {P1: "ftp://localhost"}, {P1: "http://127.0.0.1:1", P2: "::"}} {
		if _, err := conform.New(t.Context(), target); err == nil {
			t.Errorf("New(%+v): got no error", target)
		}
	}
}
