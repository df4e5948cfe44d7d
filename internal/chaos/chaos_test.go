//go:build unix

package chaos_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/chaos"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/server"
)

// How a run is made longer, and one that failed is repeated.
var (
	seed       = flag.Uint64("seed", 0, "seed of what is drawn; 0 means a new one")
	operations = flag.Int("operations", 0, "how many operations at least; 0 means as many as CI has time for")
	duration   = flag.Duration("duration", 0, "how long there are faults at least; 0 means once each")
	only       = flag.String("only", "", "names of faults, by their starts, with commas between; empty means all")
)

// workerVariable has the test's own program be a worker.
const workerVariable = "UNAVEZ_CHAOS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	serve := func(ctx context.Context, file string, started func(string)) error {
		return server.Serve(ctx, server.Options{File: file, Out: io.Discard, Log: os.Stderr, Started: func(requests, _ string) { started(requests) }})
	}
	if err := chaos.Work(ctx, os.Stdin, os.Stdout, serve); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command() *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=none")
	cmd.Env = append(os.Environ(), workerVariable+"=1")
	return cmd
}

// run runs the program and holds it to what it promises.
func run(t *testing.T, name string, o chaos.Options) {
	t.Helper()
	o.Seed, o.Command, o.Log, o.Duration = *seed, command, t.Logf, *duration
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if evidence.Long() {
		o.Operations, o.Duration = 20*o.Operations, max(o.Duration, 2*time.Minute)
	}
	if *operations > 0 {
		o.Operations = *operations
	}
	t.Logf("-seed %d", o.Seed)
	found, err := chaos.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found.Violations {
		t.Error(violation)
	}
	for _, never := range found.Never() {
		if *only == "" {
			t.Error(never)
		}
	}
	t.Logf("%d operations in %d deliveries (%d without an answer, %d told to wait), %d effects, %d calls outside", found.Operations, found.Deliveries, found.Unanswered, found.Waited, found.Effects, found.Calls)
	t.Logf("faults %+v, sometimes %v", found.Faults, found.Sometimes)
	record := evidence.Run{
		Name: "chaos-" + name, Long: evidence.Long(), Seed: o.Seed, Faults: found.Happened(), Operations: found.Operations,
		Deliveries: found.Deliveries, Violations: len(found.Violations), Sometimes: found.Sometimes,
	}
	for fault, hits := range found.Faults {
		record.Sees("met: "+fault, hits.Met)
	}
	if err := record.Write(); err != nil {
		t.Error(err)
	}
}

// killed and stopped are faults of a server of the test's own.
func killed(name string, s interface {
	Kill()
	Start()
},
) chaos.Fault {
	return chaos.Fault{Name: name + " is killed", Do: func(ctx context.Context) error {
		s.Kill()
		err := chaos.Wait(ctx, 200*time.Millisecond)
		s.Start()
		return err
	}}
}

func stopped(name string, s interface {
	Pause()
	Resume()
},
) chaos.Fault {
	return chaos.Fault{Name: name + " is stopped", Do: func(ctx context.Context) error {
		s.Pause()
		err := chaos.Wait(ctx, 2500*time.Millisecond)
		s.Resume()
		return err
	}}
}

// servers are a primary with a synchronous standby. Faults happen to the one
// that serves. Its methods are for the test's goroutine, but for target.
type servers struct {
	primary, standby *testenv.PostgresServer
	serving          atomic.Pointer[testenv.PostgresServer]
}

func startServers(t *testing.T) *servers {
	t.Helper()
	s := &servers{primary: testenv.StartPostgres(t, "synchronous_standby_names=*")}
	s.standby = s.primary.Standby("wal_retrieve_retry_interval=100ms", "synchronous_standby_names=")
	s.serving.Store(s.primary)
	return s
}

func (s *servers) target() (network, address string) { return "tcp", s.serving.Load().Addr() }
func (s *servers) Kill()                             { s.serving.Load().Kill() }
func (s *servers) Start()                            { s.serving.Load().Start() }
func (s *servers) Pause()                            { s.serving.Load().Pause() }
func (s *servers) Resume()                           { s.serving.Load().Resume() }

// failover kills the primary for good and has its standby serve.
func (s *servers) failover(context.Context) error {
	s.primary.Kill()
	s.standby.Promote()
	s.serving.Store(s.standby)
	return nil
}

func (s *servers) faults() []chaos.Fault {
	return []chaos.Fault{
		killed("PostgreSQL", s), stopped("PostgreSQL", s),
		{Name: "PostgreSQL fails over to its standby", Once: true, Do: s.failover},
	}
}

// caches are the faults of a Redis of the test's own.
func caches(cache *testenv.RedisServer) []chaos.Fault {
	faults := []chaos.Fault{killed("Redis", cache), stopped("Redis", cache)}
	for i := range faults {
		faults[i].Cache = true
	}
	return faults
}

func TestEveryOperationTakesEffectOnceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	s, cache := startServers(t), testenv.StartRedis(t)
	run(t, "postgres", chaos.Options{
		Database: s.primary.URL(), Redis: "redis://" + cache.Addr(), Prefix: "unavez:chaos:", Operations: 150,
		Target: s.target, Faults: append(s.faults(), caches(cache)...),
	})
}

func TestEveryOperationTakesEffectOnceOnSQLite(t *testing.T) {
	t.Parallel()
	run(t, "sqlite", chaos.Options{Database: filepath.Join(t.TempDir(), "chaos.db"), Operations: 80})
}

func TestEveryOperationOfTheBinaryTakesEffectOnceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	o := chaos.Options{Serve: t.TempDir(), Operations: 100}
	if evidence.Long() {
		s, cache := startServers(t), testenv.StartRedis(t)
		o.Database, o.Redis, o.Target, o.Faults = s.primary.URL(), "redis://"+cache.Addr(), s.target, append(s.faults(), caches(cache)...)
	} else { // CI has no time for all of it twice
		s := testenv.StartPostgres(t)
		o.Database, o.Faults = s.URL(), []chaos.Fault{killed("PostgreSQL", s)}
	}
	run(t, "serve-postgres", o)
}

func TestEveryOperationOfTheBinaryTakesEffectOnceOnSQLite(t *testing.T) {
	t.Parallel()
	run(t, "serve-sqlite", chaos.Options{Serve: t.TempDir(), Database: filepath.Join(t.TempDir(), "chaos.db"), Operations: 80})
}
