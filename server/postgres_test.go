package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/internal/testenv"
)

// migrated is the store line of a database of the test's own.
func migrated(t *testing.T) string {
	t.Helper()
	at := testenv.NewDatabase(t)
	if m, err := Migrate(t.Context(), OpsOptions{Store: at}); err != nil || !strings.HasPrefix(m.Store, "postgres://") || strings.Contains(m.String(), "@") {
		t.Fatalf("migrate: %q, %v", m.Store, err)
	}
	return "store: " + at + "\n" + lax
}

// lax names what the shared PostgreSQL for tests lacks.
const lax = "unsafe: [postgres.fsync]"

// statement runs SQL in a database.
func statement(t *testing.T, at, text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// role makes a role of the test's own.
func role(t *testing.T, at, options string) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	statement(t, at, "CREATE ROLE "+name+" "+options)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, at)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = conn.Exec(ctx, "DROP ROLE "+name)
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return name
}

func TestOnPostgreSQLARepeatARestartAndAPersonLeaveOneEffect(t *testing.T) {
	t.Parallel()
	b := startOn(t, newApp(t), migrated(t), holding)
	first, second := b.post("/orders", "k-1"), b.post("/orders", "k-1")
	if first.status != 201 || second.body != first.body || second.header.Get("Idempotent-Replayed") != "true" || b.app.count("POST /orders") != 1 {
		t.Errorf("first %+v, second %+v", first, second)
	}
	if other := b.send(http.MethodPost, "/orders", `{"customer":"c-2"}`, "Idempotency-Key", "k-1"); other.status != 422 {
		t.Errorf("another request with the key: %+v", other)
	}
	b.app.set("/orders", dies)
	for _, key := range []string{"k-2", "k-3", "k-4"} {
		if got := b.post("/orders", key); got.problem() != "outcome-unknown" {
			t.Fatalf("%s: %+v", key, got)
		}
	}
	b.app.set("/orders", nil)
	for name, want := range map[string]string{"unavez_claims_total": "4", "unavez_completed_total": "1", `unavez_unfinished{state="unknown"}`: "3"} {
		if got := b.metric(name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/readyz", ""); got.status != 200 {
		t.Errorf("ready: %+v", got)
	}
	decide := func(o OpsOptions, name, action string) {
		t.Helper()
		ops, err := OpenOps(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer ops.Close()
		var out bytes.Buffer
		if err := ops.List(t.Context(), &out, false, ListOptions{Limit: 10}); err != nil || !strings.Contains(out.String(), name) {
			t.Errorf("list: %v\n%s", err, &out)
		}
		if err := ops.Act(t.Context(), &out, false, name, Decision{Action: action, By: "ana", Reason: "looked", Status: 201, Body: []byte("17")}); err != nil {
			t.Errorf("%s: %v", action, err)
		}
	}
	decide(OpsOptions{Admin: b.admin}, "/http//k-2", "complete")
	b.halt()
	decide(OpsOptions{Config: b.file}, "/http//k-3", "release")
	text, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	decide(OpsOptions{Store: strings.TrimPrefix(line, "store: ")}, "/http//k-4", "discard")
	b.serve()
	for key, want := range map[string]int{"k-1": 201, "k-2": 201, "k-3": 201, "k-4": 409} {
		if got := b.post("/orders", key); got.status != want || key == "k-1" && got.body != first.body || key == "k-2" && got.body != "17" {
			t.Errorf("%s after the restart: %+v", key, got)
		}
	}
	if n := b.app.count("POST /orders"); n != 5 {
		t.Errorf("%d calls of the application", n)
	}
}

func TestTwoWorkersOnOnePostgreSQLCallTheApplicationOnce(t *testing.T) {
	t.Parallel()
	for _, leased := range []bool{false, true} {
		t.Run(map[bool]string{false: "alone", true: "with Redis"}[leased], func(t *testing.T) {
			t.Parallel()
			place, application := migrated(t), newApp(t)
			if leased {
				place += "\nlease: redis://" + testenv.StartRedis(t).Addr()
			}
			arrived, release := make(chan struct{}, 100), make(chan struct{})
			application.set("/orders", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // it has arrived whole
				arrived <- struct{}{}
				<-release
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "made")
			})
			one, two := startOn(t, application, place, holding), startOn(t, application, place, holding)
			const each = 20
			answers := make(chan reply, 2*each)
			var asking sync.WaitGroup
			for _, b := range []*bed{one, two} {
				for range each {
					asking.Go(func() { answers <- b.post("/orders", "k-1") })
				}
			}
			<-arrived
			for range 2*each - 1 { // all but the first are answered while it runs
				if got := <-answers; got.problem() != "in-flight" || got.status != 409 {
					t.Errorf("a duplicate: %+v", got)
				}
			}
			close(release)
			asking.Wait()
			if got := <-answers; got.status != 201 || got.body != "made" {
				t.Errorf("the first: %+v", got)
			}
			for _, b := range []*bed{one, two} {
				if got := b.post("/orders", "k-1"); got.body != "made" || got.header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("afterwards: %+v", got)
				}
				if n := b.metric("unavez_leaser_failed_total"); n != "0" {
					t.Logf("Redis was too late %s times: a busy machine", n) // which changes no answer
				}
			}
			if n := application.count("POST /orders"); n != 1 {
				t.Errorf("%d calls of the application", n)
			}
		})
	}
}

func TestARouteThatIsClaimedByTheLeaseCommitsOnceAndAnswersAlike(t *testing.T) {
	t.Parallel()
	place, application := migrated(t)+"\nlease: redis://"+testenv.StartRedis(t).Addr(), newApp(t)
	routes := strings.Replace(holding, "unknown: hold", "unknown: retry, claim: lease", 1)
	one, two := startOn(t, application, place, routes), startOn(t, application, place, routes)
	first := one.post("/orders", "k-1")
	if first.status != 201 || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("first: %+v", first)
	}
	for _, b := range []*bed{one, two} {
		if got := b.post("/orders", "k-1"); got.body != first.body || got.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("afterwards: %+v", got)
		}
	}
	if n := application.count("POST /orders"); n != 1 {
		t.Errorf("%d calls of the application", n)
	}
	leased, claimed, failed := one.metric("unavez_leased_total"), one.metric("unavez_claims_total"), one.metric("unavez_leaser_failed_total")
	if failed == "0" && (leased != "1" || claimed != "0") || failed != "0" && claimed != "1" { // too late on a busy machine: the claim
		t.Errorf("%s began by the lease alone, %s by a claim, the lease failed %s times", leased, claimed, failed)
	}
	// What ends without telling shows, and the next repeat runs it again.
	application.set("/orders", dies)
	if got := one.post("/orders", "k-2"); got.problem() != "outcome-unknown" {
		t.Errorf("lost: %+v", got)
	}
	if got := two.metric(`unavez_unfinished{state="unknown"}`); got != "1" {
		t.Errorf("%s are unknown", got)
	}
	application.set("/orders", nil)
	if got := two.post("/orders", "k-2"); got.status != 201 {
		t.Errorf("the next repeat: %+v", got)
	}
}

func TestPostgreSQLSaysWhyItCannotBeUsed(t *testing.T) {
	t.Parallel()
	address := func() string { return strings.TrimSuffix(strings.TrimPrefix(migrated(t), "store: "), "\n"+lax) }
	good, empty, newer, closed := address(), testenv.NewDatabase(t), address(), address()
	statement(t, newer, "INSERT INTO unavez.migration (version, name) VALUES (9999, 'of the future')")
	user := role(t, closed, "LOGIN PASSWORD 'canary'")
	as := func(at string, who *url.Userinfo, host, database string) string {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if who != nil {
			u.User = who
		}
		if host != "" {
			u.Host = host
		}
		if database != "" {
			u.Path = database
		}
		return u.String()
	}
	for name, c := range map[string]struct{ at, want string }{
		"nobody there":     {as(good, url.UserPassword("a", "canary"), "127.0.0.1:1", ""), "is PostgreSQL running there"},
		"no such host":     {as(good, url.UserPassword("a", "canary"), "no.such.host.invalid", ""), "is this its address?"},
		"wrong password":   {as(good, url.UserPassword(user, "canary-wrong"), "", ""), "the user or its password is wrong"},
		"no such database": {as(good, nil, "", "/no_such_database"), "make it with createdb"},
		"no schema":        {empty, "run unavez migrate"},
		"newer schema":     {newer, "start a newer program"},
		"no grant":         {as(closed, url.UserPassword(user, "canary"), "", ""), "GRANT unavez_app"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "unavez.yaml")
			text := strings.ReplaceAll("store: "+c.at+"\n"+lax+"\nlisten: 127.0.0.1:0\n"+holding, "APP", "http://127.0.0.1:1")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			served := Serve(ctx, Options{File: file, AdminListen: "127.0.0.1:0", Out: io.Discard, Log: io.Discard})
			_, opened := OpenOps(ctx, OpsOptions{Store: c.at})
			for what, err := range map[string]error{"serve": served, "ops": opened} {
				if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %v, want %q", what, err, c.want)
				}
			}
		})
	}
	t.Run("migrate without the right", func(t *testing.T) {
		_, err := Migrate(t.Context(), OpsOptions{Store: as(empty, url.UserPassword(user, "canary"), "", "")})
		if err == nil || !strings.Contains(err.Error(), "unavez migrate --roles prints the roles and the grants") || strings.Contains(err.Error(), "canary") {
			t.Errorf("migrate: %v", err)
		}
	})
}

func TestTheSchemaBelongsToItsRoleAndTheServerRunsWithItsRightsOnly(t *testing.T) {
	t.Parallel()
	at := testenv.NewDatabase(t)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(u.Path, "/")
	statement(t, at, Roles()+"; GRANT CREATE ON DATABASE "+database+" TO unavez_migrate")
	deployer, shop := role(t, at, "LOGIN PASSWORD 'd' IN ROLE unavez_migrate"), role(t, at, "LOGIN PASSWORD 's' IN ROLE unavez_app")
	u.User = url.UserPassword(deployer, "d")
	for range 2 { // the second changes nothing
		if _, err := Migrate(t.Context(), OpsOptions{Store: u.String()}); err != nil {
			t.Fatal(err)
		}
	}
	statement(t, at, "DO $$ BEGIN ASSERT (SELECT nspowner = 'unavez_migrate'::regrole FROM pg_namespace WHERE nspname = 'unavez'); END $$")
	u.User = url.UserPassword(shop, "s")
	b := startOn(t, newApp(t), "store: "+u.String()+"\n"+lax, holding)
	first, second := b.post("/orders", "k-1"), b.post("/orders", "k-1")
	if first.status != 201 || second.body != first.body || b.metric(`unavez_unfinished{state="unknown"}`) != "0" {
		t.Errorf("first %+v, second %+v", first, second)
	}
}

func TestAPostgreSQLThatIsDownMeans503UntilItIsBack(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t)
	at := server.URL()
	if _, err := Migrate(t.Context(), OpsOptions{Store: at}); err != nil {
		t.Fatal(err)
	}
	b := startOn(t, newApp(t), "store: "+at, holding)
	first := b.post("/orders", "k-1")
	server.Kill()
	got := b.post("/orders", "k-2")
	if got.status != 503 || got.header.Get("Retry-After") == "" || b.app.count("POST /orders") != 1 {
		t.Errorf("while it is down: %+v, %d calls", got, b.app.count("POST /orders"))
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/readyz", ""); got.status != 503 {
		t.Errorf("ready: %+v", got)
	}
	server.Start()
	b.eventually("it works again", func() bool { return b.post("/orders", "k-2").status == 201 })
	if second := b.post("/orders", "k-1"); second.body != first.body || b.app.count("POST /orders") != 2 {
		t.Errorf("what was accepted before: %+v", second)
	}
}

func TestStoreAndLeaseNeedARestartAndAreNotShown(t *testing.T) {
	t.Parallel()
	b := start(t, "lease: redis://:canary@127.0.0.1:1\n"+holding)
	b.edit("redis://:canary@127.0.0.1:1", "redis://:canary@127.0.0.1:2")
	b.edit("store: sqlite:", "store: postgres://a:canary@127.0.0.1:1/") // a path is no database
	b.reload <- struct{}{}
	b.log.wait(t, "configuration refused")
	b.edit("store: postgres://a:canary@127.0.0.1:1/", "store: sqlite:.")
	b.reload <- struct{}{}
	b.log.wait(t, "lease: cannot change while running")
	if log := b.log.String(); !strings.Contains(log, "store: cannot change while running") || strings.Contains(log, "canary") {
		t.Errorf("log:\n%s", log)
	}
}
