package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
)

func TestPostgreSQLIsMigratedByItsCommandAlone(t *testing.T) {
	t.Parallel()
	app, calls := application(t, 0)
	dir := t.TempDir()
	env := []string{"STORE=" + testenv.NewDatabase(t)}
	configure(t, dir, "store: ${STORE}\nunsafe: [postgres.fsync]\nauth: {mode: single_tenant}\noutbound: {allow: [127.0.0.1/32]}\nhttp: [{route: POST /orders, upstream: \""+app+"\", unknown: hold}]\n")
	if got := invoke(t, dir, env, "check", "unavez.yaml"); got.code != 0 {
		t.Errorf("check: %+v", got)
	}
	for _, args := range [][]string{{"serve"}, {"ops", "list", "--config", "unavez.yaml"}} {
		if got := invoke(t, dir, env, args...); got.code != 1 || !strings.Contains(got.err, "run unavez migrate") || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%v before: %+v", args, got)
		}
	}
	for _, want := range []string{": schema version 0 → ", ": nothing to do, the schema is at version "} {
		if got := invoke(t, dir, env, "migrate"); got.code != 0 || !strings.HasPrefix(got.out, "postgres://127.0.0.1:") || !strings.Contains(got.out, want) {
			t.Errorf("migrate: %+v", got)
		}
	}
	// What the configuration accepts, doctor refuses no more.
	if got := invoke(t, dir, env, "doctor"); got.code != 0 || !strings.Contains(got.out, "accepted postgres.fsync") {
		t.Errorf("doctor: %+v", got)
	}
	if got := invoke(t, dir, env, "doctor", "--strict", "--format", "json"); got.code != 1 || !strings.Contains(got.out, `"accepted": "unavez.yaml names it: unsafe: [postgres.fsync]"`) {
		t.Errorf("doctor --strict: %+v", got)
	}
	s := serve(t, dir, env...)
	first, second := post(t, s, "k-1"), post(t, s, "k-1")
	if first.status != 201 || second.body != first.body || second.header.Get("Idempotent-Replayed") != "true" || calls() != 1 {
		t.Errorf("first %+v, second %+v, %d calls", first, second, calls())
	}
	// A restored volume, said by a person: the call of a new key may have been made before.
	if got := invoke(t, dir, env, "ops", "new-incarnation", "--config", "unavez.yaml"); got.code != 0 || !strings.HasPrefix(got.out, "Incarnation 2.") || !strings.Contains(got.out, "becomes unknown") {
		t.Errorf("new-incarnation: %+v", got)
	}
	if third := post(t, s, "k-2"); third.status != 409 || !strings.Contains(third.body, "outcome-unknown") || calls() != 1 {
		t.Errorf("first call after it: %+v, %d calls", third, calls())
	}
	if again := post(t, s, "k-1"); again.body != first.body {
		t.Errorf("replay after it: %+v", again)
	}
	if got := invoke(t, dir, nil, "ops", "new-incarnation", "--store", "x.db"); got.code != 2 || !strings.Contains(got.err, "PostgreSQL") {
		t.Errorf("new-incarnation of a file: %+v", got)
	}
	if got := invoke(t, dir, nil, "migrate", "--roles"); got.code != 0 || !strings.Contains(got.out, "CREATE ROLE unavez_app") {
		t.Errorf("roles: %+v", got)
	}
	if got := invoke(t, dir, nil, "migrate", "--roles", "--store", "x"); got.code == 0 {
		t.Errorf("roles of a store: %+v", got)
	}
}

func TestAWorkerThatIsKilledLeavesItsCallToTheOtherOneAndToAPerson(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	var calls atomic.Int64
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			arrived <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	}))
	defer app.Close()
	defer close(release)
	redis := testenv.StartRedis(t)
	env := []string{"STORE=" + testenv.NewDatabase(t)}
	text := "store: ${STORE}\nunsafe: [postgres.fsync]\nlease: redis://" + redis.Addr() + "\nauth: {mode: single_tenant}\noutbound: {allow: [127.0.0.1/32]}\nhttp: [{route: POST /orders, upstream: \"" + app.URL + "\", unknown: hold, lease: 1s}]\n"
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		configure(t, dir, text)
	}
	if got := invoke(t, dirs[0], env, "migrate", "--config", "unavez.yaml"); got.code != 0 {
		t.Fatalf("migrate: %+v", got)
	}
	one, two := serve(t, dirs[0], env...), serve(t, dirs[1], env...)
	lost := make(chan error, 1)
	go func() {
		_, err := send(t, http.MethodPost, one.requests+"/orders", order, "Idempotency-Key", "k-1")
		lost <- err
	}()
	<-arrived
	if got := post(t, two, "k-1"); got.status != 409 || !strings.Contains(got.body, "in-flight") {
		t.Errorf("at the other worker: %+v", got)
	}
	one.signal(syscall.SIGKILL)
	one.end()
	if <-lost == nil {
		t.Error("an answer came from a killed process")
	}
	two.wait("lease ran out")
	if got := post(t, two, "k-1"); got.status != 409 || !strings.Contains(got.body, "outcome-unknown") || calls.Load() != 1 {
		t.Errorf("after the kill: %+v, %d calls", got, calls.Load())
	}
	redis.Kill() // it takes nothing with it
	one = serve(t, dirs[0], env...)
	metrics, err := send(t, http.MethodGet, one.admin+"/metrics", "")
	if !strings.Contains(must(t, metrics, err).body, "\nunavez_leaser_failed_total 1\n") {
		t.Error("the metrics do not tell that Redis is gone")
	}
	if got := invoke(t, dirs[0], env, "ops", "release", "/http//k-1", "--config", "unavez.yaml", "--by", "ana", "--reason", "it is not there"); got.code != 0 {
		t.Errorf("release: %+v", got)
	}
	first, second := post(t, one, "k-1"), post(t, two, "k-1")
	if first.status != 201 || first.body != "made" || second.body != "made" || second.header.Get("Idempotent-Replayed") != "true" || calls.Load() != 2 {
		t.Errorf("first %+v, second %+v, %d calls", first, second, calls.Load())
	}
}
