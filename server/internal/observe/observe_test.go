package observe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store"
)

func TestCredentialsAreMaskedEvenIfSomebodyLogsThem(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		var b bytes.Buffer
		Logger(&b, format, slog.LevelInfo).Info("x",
			"Authorization", "canary", "cookie", "canary", "body", "canary", "token", "canary", "Idempotency-Key", "canary",
			"header", http.Header{"Authorization": {"canary"}}, slog.Group("request", "Set-Cookie", "canary"))
		if strings.Contains(b.String(), "canary") || !strings.Contains(b.String(), "redacted") {
			t.Errorf("%s: %s", format, &b)
		}
	}
}

func TestEverythingThatHappensIsCounted(t *testing.T) {
	t.Parallel()
	m := NewMetrics(Gauges{
		Counts: func(context.Context) (store.Counts, error) {
			return store.Counts{Unfinished: map[store.State]int64{store.Dead: 3}, OldestAtRest: 90 * time.Second}, nil
		},
		Refused: func() float64 { return 4 }, Open: func() float64 { return 5 }, Version: "v1",
	})
	for _, what := range []string{unavez.SawCompleted, unavez.SawClaimed, unavez.SawTakenOver, unavez.SawRolledBack, unavez.SawLeaseLost, unavez.SawUnknown, unavez.SawLeaserFailed} {
		m.Engine(unavez.Observation{What: what})
	}
	for _, kind := range []string{httpkey.SawCompleted, httpkey.SawReplayed, httpkey.SawRolledBack, string(unavez.CodeInFlight), string(unavez.CodeMismatch), string(unavez.CodeDead), httpkey.TypeKeyMissing} {
		m.Request(httpkey.Observation{Type: kind, Duration: time.Millisecond})
	}
	found := &unavez.Error{Code: unavez.CodeUnknown}
	lost := &unavez.Error{Code: unavez.CodeUnknown, Err: errors.New("connection reset")}
	if d := Duplicate(httpkey.Observation{Type: string(unavez.CodeUnknown), Err: found}); d != "after" {
		t.Errorf("an operation found unknown is a duplicate %q", d)
	}
	if d := Duplicate(httpkey.Observation{Type: string(unavez.CodeUnknown), Err: lost}); d != "" {
		t.Errorf("the request whose answer was lost is a duplicate %q", d)
	}
	m.LeaserFailed()
	m.Probed(unavez.Done, nil)
	m.Probed(unavez.NotDone, nil)
	m.Probed(unavez.CannotTell, nil)
	m.Probed(unavez.Done, errors.New("x"))
	m.Acted("release", false)
	m.Acted("release", true)
	m.Purged(7)
	m.Expired(2)
	m.Reloaded(true)
	m.Reloaded(false)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		"unavez_completed_total 1", "unavez_claims_total 2", "unavez_rolled_back_total 1", "unavez_lease_lost_total 1", "unavez_leaser_failed_total 2", "unavez_unknown_total 1",
		"unavez_replays_total 1", "unavez_in_flight_total 1", "unavez_mismatches_total 1", "unavez_dead_total 1",
		`unavez_duplicates_total{duplicate="in_flight"} 1`, `unavez_duplicates_total{duplicate="after"} 2`, `unavez_problems_total{type="key-missing"} 1`,
		`unavez_probed_total{verdict="done"} 1`, `unavez_probed_total{verdict="not_done"} 1`, `unavez_probed_total{verdict="cannot_tell"} 1`, `unavez_probed_total{verdict="error"} 1`,
		`unavez_actions_total{action="release"} 1`, "unavez_conflicts_total 1", "unavez_purged_total 7", "unavez_expired_total 2",
		"unavez_reloads_total 1", "unavez_reload_faults_total 1", `unavez_unfinished{state="dead"} 3`, `unavez_unfinished{state="unknown"} 0`,
		"unavez_oldest_at_rest_seconds 90", "unavez_refused_connections_total 4", "unavez_connections 5", `unavez_build_info{version="v1"} 1`,
		`unavez_request_duration_seconds_count{ended="problem"} 4`,
	} {
		if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
			t.Errorf("no sample %s", line)
		}
	}
}
