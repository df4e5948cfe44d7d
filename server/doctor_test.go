package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store"
)

// configured writes a configuration in front of nothing.
func configured(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "unavez.yaml")
	text = strings.ReplaceAll(text+"\nlisten: 127.0.0.1:0\n"+holding, "APP", "http://127.0.0.1:1")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// starts serves until the listeners take connections, or gives the error.
func starts(t *testing.T, file string, log io.Writer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	up := errors.New("up")
	err := Serve(ctx, Options{
		File: file, AdminListen: "127.0.0.1:0", Out: io.Discard, Log: log, Poll: time.Hour,
		Started: func(string, string) { cancel() },
	})
	if err == nil {
		return up
	}
	return err
}

func TestAServerDoesNotStartOnWhatLosesUnlessThatIsNamed(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t, "fsync=off", "full_page_writes=off", "synchronous_commit=off")
	if _, err := Migrate(t.Context(), OpsOptions{Store: server.URL()}); err != nil {
		t.Fatal(err)
	}
	all := []string{"postgres.fsync", "postgres.full_page_writes", "postgres.synchronous_commit"}
	err := starts(t, configured(t, "store: "+server.URL()), io.Discard)
	for _, name := range all {
		if err == nil || !strings.Contains(err.Error(), name+" is off") || !strings.Contains(err.Error(), "unsafe: ["+name+"]") {
			t.Errorf("%s: %v", name, err)
		}
	}
	err = starts(t, configured(t, "store: "+server.URL()+"\nunsafe: [postgres.fsync, postgres.full_page_writes]"), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "postgres.synchronous_commit is off") || strings.Contains(err.Error(), "postgres.fsync") {
		t.Errorf("two of three: %v", err)
	}
	var log bytes.Buffer
	err = starts(t, configured(t, "store: "+server.URL()+"\nunsafe: ["+strings.Join(all, ", ")+"]"), &log)
	if err == nil || err.Error() != "up" {
		t.Errorf("named: %v", err)
	}
	for _, name := range all {
		if !strings.Contains(log.String(), `"check":"`+name+`","level":"accepted"`) || !strings.Contains(log.String(), "the configuration accepts what may be lost") {
			t.Errorf("%s is not logged:\n%s", name, &log)
		}
	}

	// Doctor says the same of the same configuration, and goes on refusing what is not named.
	for named, want := range map[int]Diagnosis{0: {Refused: 3}, 2: {Refused: 1, Accepted: 2}, 3: {Accepted: 3}} {
		file := configured(t, "store: "+server.URL()+"\nunsafe: ["+strings.Join(all[:named], ", ")+"]")
		d, bad := levels(t, DoctorOptions{File: file})
		if d.Warnings = 0; d != want {
			t.Errorf("%d named: %+v: %v", named, d, bad)
		}
		var text bytes.Buffer
		if _, err := Doctor(t.Context(), DoctorOptions{File: file, Out: &text}); err != nil {
			t.Fatal(err)
		}
		report := strings.Join(strings.Fields(text.String()), " ")
		if said := strings.Count(report, "accepted: "+file+" names it: unsafe: ["); said != named || strings.Contains(report, " accepted, ") != (named > 0) {
			t.Errorf("%d named, %d said:\n%s", named, said, &text)
		}
	}

	standby := server.Standby()
	err = starts(t, configured(t, "store: "+standby.URL()+"\nunsafe: ["+strings.Join(all, ", ")+"]"), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "postgres.primary is a standby") || strings.Contains(err.Error(), "unsafe:") {
		t.Errorf("a standby: %v", err)
	}
	if _, err := Check(configured(t, "store: "+server.URL()+"\nunsafe: [postgres.primary]")); err == nil || !strings.Contains(err.Error(), "unsafe[0]") {
		t.Errorf("what cannot be waived: %v", err)
	}
}

// levels are the names of the checks that are not sound.
func levels(t *testing.T, o DoctorOptions) (Diagnosis, map[string]string) {
	t.Helper()
	var out bytes.Buffer
	o.Out, o.JSON = &out, true
	d, err := Doctor(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Store             string
		Refused, Warnings int
		Checks            []struct{ Name, Level, Value string }
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || report.Refused != d.Refused || report.Warnings != d.Warnings || report.Store == "" {
		t.Fatalf("%v: %s", err, &out)
	}
	bad := map[string]string{}
	for _, c := range report.Checks {
		if c.Level != "ok" {
			bad[c.Name] = c.Level + " " + c.Value
		}
	}
	return d, bad
}

func TestDoctorLooksAtStoreAndLease(t *testing.T) {
	t.Parallel()
	lru := testenv.StartRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru", "--min-replicas-to-write", "1")
	place := migrated(t)
	_, bad := levels(t, DoctorOptions{File: configured(t, place+"\nlease: redis://"+lru.Addr())})
	for name, want := range map[string]string{
		"postgres.fsync": "accepted off", "redis.maxmemory_policy": "warning allkeys-lru", "redis.min_replicas": "warning 0 replicas connected, 1 wanted",
	} {
		if !strings.HasPrefix(bad[name], want) {
			t.Errorf("%s: %q, want %q", name, bad[name], want)
		}
	}
	lru.Kill()
	at, _, _ := strings.Cut(strings.TrimPrefix(place, "store: "), "\n")
	d, bad := levels(t, DoctorOptions{Store: at, Lease: "redis://" + lru.Addr()})
	if !strings.HasPrefix(bad["redis.reachable"], "warning ") || d.Refused != 1 {
		t.Errorf("%+v: %v", d, bad)
	}
	d, bad = levels(t, DoctorOptions{Store: "postgres://a:canary@127.0.0.1:1/shop"}) // tried with TLS and without
	if text := bad["postgres.reachable"]; !d.Unreachable || strings.Count(text, "connection refused") != 1 || !strings.Contains(text, "is PostgreSQL running there") || strings.Contains(text, "canary") {
		t.Errorf("nobody there: %q", text)
	}
	for _, o := range []DoctorOptions{
		{Store: "x.db", File: "y.yaml"},
		{Lease: "redis://127.0.0.1:1"},
		{File: filepath.Join(t.TempDir(), "missing.yaml")},
		{Store: "postgres://a:canary@/"},
		{Store: "x.db", Lease: "http://canary"},
	} {
		o.Out = io.Discard
		if _, err := Doctor(t.Context(), o); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestWhatIsSaidOfRedis(t *testing.T) {
	t.Parallel()
	good := redis.ServerFacts{Address: "a:1", Version: "7.2.4", Role: "master", Policy: "noeviction", MaxMemory: 100 << 20, UsedMemory: 1 << 20, Latency: time.Millisecond}
	for want, change := range map[string]func(*redis.ServerFacts){
		"":                     func(*redis.ServerFacts) {},
		checkRedisVersion:      func(s *redis.ServerFacts) { s.Version = "6.2" },
		checkRedisRole:         func(s *redis.ServerFacts) { s.Role = "slave" },
		checkRedisPolicy:       func(s *redis.ServerFacts) { s.Policy = "volatile-ttl" },
		checkRedisMemory:       func(s *redis.ServerFacts) { s.UsedMemory = 91 << 20 },
		checkRedisWrites:       func(s *redis.ServerFacts) { s.MinReplicas = 2 },
		checkRedisClock:        func(s *redis.ServerFacts) { s.Ahead = -2 * time.Second },
		checkRedisLatency:      func(s *redis.ServerFacts) { s.Latency = time.Second },
		" " + checkRedisWrites: func(s *redis.ServerFacts) { s.MinReplicas = -1 }, // not told is no fault
	} {
		s := good
		change(&s)
		look := store.NewCheckup(redisChecks())
		judgeRedis(look, s, false)
		var warned []string
		for _, c := range look.All() {
			if c.Level == store.Warning {
				warned = append(warned, c.Name)
			}
			if c.Level == store.Refused {
				t.Errorf("Redis is disposable, and %s is refused", c.Name)
			}
		}
		if want != "" && want[0] != ' ' && !slices.Equal(warned, []string{want}) || (want == "" || want[0] == ' ') && warned != nil {
			t.Errorf("%q: %v", want, warned)
		}
	}
}

func TestReportsForPeopleSayWhatIsWrongAndTheWayOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "unavez.db")
	if _, err := Migrate(t.Context(), OpsOptions{Store: path}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if violated, err := Audit(t.Context(), AuditOptions{Store: path, Out: &out}); err != nil || violated != 0 || !strings.HasSuffix(out.String(), "19 invariants: 19 hold, 0 violated\n") {
		t.Errorf("%d, %v:\n%s", violated, err, &out)
	}
	s, err := openSQLite(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 7 {
		if _, err := s.db.ExecContext(t.Context(), "INSERT INTO unavez_step VALUES (?, 'pay', 1, 1, NULL)", bytes.Repeat([]byte{byte(n)}, 16)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	violated, err := Audit(t.Context(), AuditOptions{Store: path, Out: &out})
	for _, want := range []string{"AUD016  VIOLATED          7 of 7", "05050505", "and 2 more", "means: Steps without", "way out: ", "19 invariants: 18 hold, 1 violated"} {
		if want == "05050505" { // only the first five are named
			if strings.Contains(out.String(), want) {
				t.Errorf("%q is there:\n%s", want, &out)
			}
		} else if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
	if err != nil || violated != 1 {
		t.Errorf("%d, %v", violated, err)
	}
	out.Reset()
	if _, err := Audit(t.Context(), AuditOptions{Store: path, Out: &out, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Violated != 1 || len(r.Invariants) != 19 || r.Invariants[12].Code != store.StepsOwned || r.Invariants[12].Broken != 7 || r.Invariants[12].Way == "" {
		t.Errorf("%v: %s", err, &out)
	}
	out.Reset()
	if _, err := Doctor(t.Context(), DoctorOptions{Store: filepath.Join(t.TempDir(), "no", "where.db"), Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"REFUSED  sqlite.file", "         why: ", "         way out: ", "1 check: 1 refused, 0 warnings"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 140 && !strings.Contains(line, "does not exist") {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
}
