//go:build unix

package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store/postgres"
)

// childVariable makes this test program a worker that can be killed.
const childVariable = "UNAVEZ_LEASE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := child(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// shortLease is one that a test can wait for.
const shortLease = 2 * time.Second

// mortal is the operation of a worker that is killed: claimed in the database,
// or by the lease alone.
func mortal(way string) unavez.Operation {
	op := repeatable("4711")
	op.Lease, op.ClaimByLease = shortLease, way == "lease"
	return op
}

// child runs the operation, stops at a place until it is told to go on, and says
// how it ended.
func child(database, url, way, place string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	ledger, err := postgres.New(pool, nil)
	if err != nil {
		return err
	}
	fast, err := redis.Open(url, &redis.Options{Prefix: mine, Timeout: patient})
	if err != nil {
		return err
	}
	lost := 0
	engine, err := unavez.New(ledger, &unavez.Options{SingleTenant: true, Leaser: fast, Observe: func(o unavez.Observation) {
		if o.What == unavez.SawLeaseLost {
			lost++
		}
	}})
	if err != nil {
		return err
	}
	at := func(here string) {
		if here == place {
			fmt.Println("at", here)
			_, _ = io.Copy(io.Discard, os.Stdin) // until it is closed
		}
	}
	out, err := engine.Lease(ctx, mortal(way), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
		at("work")
		return unavez.Result{Body: []byte("of the child")}, nil
	}, func(ctx context.Context, tx pgx.Tx, _ *unavez.Result) error {
		_, err := tx.Exec(ctx, "INSERT INTO payment VALUES ('of the child')")
		at("finish")
		return err
	})
	fmt.Printf("ended %q replayed=%v code=%q lost=%d\n", out.Result.Body, out.Replayed, unavez.CodeOf(err), lost)
	return nil
}

// worker is another worker, in a process of its own.
type worker struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startWorker(t *testing.T, arguments ...string) *worker {
	t.Helper()
	cmd := exec.Command(os.Args[0], arguments...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	w := &worker{t, cmd, in, bufio.NewScanner(out)}
	t.Cleanup(w.kill)
	return w
}

// says waits for a line that begins so.
func (w *worker) says(start string) string {
	w.t.Helper()
	for w.out.Scan() {
		if strings.HasPrefix(w.out.Text(), start) {
			return w.out.Text()
		}
	}
	w.t.Fatalf("it ended without saying %q: %v", start, w.out.Err())
	return ""
}

func (w *worker) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends it without a goodbye; it may be gone already.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// ways are those in which a repeatable operation is claimed.
var ways = []string{"store", "lease"}

// deathBed is a shop on PostgreSQL and Redis that a worker of another process
// works on too.
func deathBed(t *testing.T, way, place string) (*shop[pgx.Tx], *worker) {
	t.Helper()
	url := "redis://" + testenv.StartRedis(t).Addr()
	s, at := inPostgres(t, url, &redis.Options{Prefix: mine, Timeout: patient})
	return s, startWorker(t, at, url, way, place)
}

func TestAWorkerKilledInWorkOrFinishLeavesOneEffect(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		for _, place := range []string{"work", "finish"} {
			t.Run(way+" in "+place, func(t *testing.T) {
				t.Parallel()
				s, w := deathBed(t, way, place)
				w.says("at " + place)
				if err := s.charge(0, mortal(way), nil); unavez.CodeOf(err) != unavez.CodeInFlight {
					t.Errorf("while it runs: %v", err)
				}
				w.kill()
				until(t, func() bool {
					err := s.charge(0, mortal(way), nil)
					if err != nil && unavez.CodeOf(err) != unavez.CodeInFlight {
						t.Fatal(err)
					}
					return err == nil
				})
				s.settled(mortal(way))
				s.holds(1)
				taken := s.saw[unavez.SawTakenOver]
				if want := map[string]int{"store": 1, "lease": 0}[way]; taken != want {
					t.Errorf("taken over %d times, want %d", taken, want)
				}
			})
		}
	}
}

func TestAWorkerStoppedPastItsLeaseLeavesOneEffectAndSaysSo(t *testing.T) {
	t.Parallel()
	for way, want := range map[string]string{
		"store": `ended "" replayed=false code="lease-lost" lost=1`, // a claim says that its end was refused
		"lease": `ended "call 1 of 4711" replayed=true code="" lost=1`,
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s, w := deathBed(t, way, "work")
			w.says("at work")
			w.signal(syscall.SIGSTOP)
			until(t, func() bool { return s.charge(0, mortal(way), nil) == nil })
			w.signal(syscall.SIGCONT)
			if err := w.in.Close(); err != nil {
				t.Fatal(err)
			}
			if got := w.says("ended"); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			s.settled(mortal(way))
			s.holds(1)
		})
	}
}

func TestOnPostgreSQLWorkLongerThanItsLeaseKeepsIt(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s, w := deathBed(t, way, "work")
			w.says("at work")
			for began := time.Now(); time.Since(began) < 3*shortLease; {
				if err := s.charge(0, mortal(way), nil); unavez.CodeOf(err) != unavez.CodeInFlight {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
			}
			if err := w.in.Close(); err != nil {
				t.Fatal(err)
			}
			if got := w.says("ended"); got != `ended "of the child" replayed=false code="" lost=0` {
				t.Error(got)
			}
			if err := s.charge(1, mortal(way), nil); err != nil || s.answers["4711"]["of the child"] != 1 {
				t.Errorf("%v, answers %v", err, s.answers)
			}
			if rows := s.rows(); len(rows) != 1 {
				t.Errorf("rows %v", rows)
			}
		})
	}
}
