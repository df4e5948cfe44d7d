//go:build unix

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/redis"
)

// private gives a lease on a server of the test's own.
func private(t *testing.T, s *testenv.RedisServer) *redis.Leaser {
	t.Helper()
	return open(t, "redis://"+s.Addr(), steady())
}

// renewed renews, and checks the answer.
func renewed(t *testing.T, l lease.Leaser, token string, want bool) {
	t.Helper()
	if held, err := l.Renew(t.Context(), key, token, time.Hour); err != nil || held != want {
		t.Fatalf("Renew by %s: held %v, %v; want %v", token, held, err, want)
	}
}

// harmless has a holder whose lease was lost end as if nothing had happened.
func harmless(t *testing.T, l *redis.Leaser, late, holder string) {
	t.Helper()
	renewed(t, l, late, false)
	if err := l.Complete(t.Context(), key, late, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), key, late); err != nil {
		t.Fatal(err)
	}
	refused(t, l, key, "stranger", holder)
}

func TestAKilledRedisForgetsAndGoesOn(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	l := private(t, s)
	granted(t, l, key, "a")
	s.Kill()
	for call, do := range calls(l) {
		if err := do(t.Context()); err == nil {
			t.Errorf("%s of a dead server: no error", call)
		}
	}
	s.Start() // it does not know the scripts any more either
	granted(t, l, key, "b")
	harmless(t, l, "a", "b")
}

func TestAFlushedRedisForgetsAndGoesOn(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	l := private(t, s)
	client := plain(t, s.Addr())
	granted(t, l, key, "a")
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	granted(t, l, key, "b")
	harmless(t, l, "a", "b")
}

func TestAnEvictedLeaseIsFree(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
	l := private(t, s)
	client := plain(t, s.Addr())
	granted(t, l, key, "a")
	flood := strings.Repeat("x", 10_000)
	for i := 0; ; i++ {
		if i == 10_000 {
			t.Fatal("nothing was evicted")
		}
		if err := client.Set(t.Context(), fmt.Sprint("flood ", i), flood, 0).Err(); err != nil {
			t.Fatal(err)
		}
		held, err := l.Renew(t.Context(), fmt.Sprint(i), "nobody", time.Hour)
		if err != nil || held {
			t.Fatal(held, err)
		}
		if n, err := client.DBSize(t.Context()).Result(); err != nil {
			t.Fatal(err)
		} else if n <= int64(i) { // somebody had to go
			break
		}
	}
	// What was evicted is for Redis to choose: flood on until it was ours.
	for i := 0; ; i++ {
		if err := client.Set(t.Context(), fmt.Sprint("more ", i), flood, 0).Err(); err != nil {
			t.Fatal(err)
		}
		keys, err := client.Keys(t.Context(), "test:*").Result()
		if err != nil || i == 100_000 {
			t.Fatal("the lease stays", err)
		}
		if len(keys) == 0 {
			break
		}
	}
	granted(t, l, key, "b")
	harmless(t, l, "a", "b")
}

func TestAFullRedisRefusesNewLeasesAndEndsOldOnes(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	l := private(t, s)
	client := plain(t, s.Addr())
	granted(t, l, key, "a")
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := l.Acquire(t.Context(), "another", lease.Value{Token: "b"}, time.Hour); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Acquire: %v, want OOM", err)
	}
	renewed(t, l, "a", true)
	if err := l.Complete(t.Context(), key, "a", time.Hour); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Complete: %v, want OOM", err)
	}
	renewed(t, l, "a", false) // no mark, and no lease of an operation that is over
	if err := l.Release(t.Context(), key, "a"); err != nil {
		t.Error(err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	granted(t, l, key, "b")
}

func TestACallToAStoppedRedisEndsByItsContext(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	l := private(t, s)
	granted(t, l, key, "a")
	s.Pause()
	for call, do := range calls(l) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		err := do(ctx)
		cancel()
		if took := time.Since(began); err == nil || took > patient/2 {
			t.Errorf("%s: %v after %v", call, err, took)
		}
	}
	// And by the lease's own limit, when its caller has all the time.
	hasty := open(t, "redis://"+s.Addr(), &redis.Options{Prefix: prefix(), Timeout: 50 * time.Millisecond, Pause: time.Minute})
	began := time.Now()
	_, _, _, err := hasty.Acquire(t.Context(), key, lease.Value{Token: "c"}, time.Hour)
	if took := time.Since(began); err == nil || errors.Is(err, redis.ErrPaused) || took > patient/2 {
		t.Errorf("by the own limit: %v after %v", err, took)
	}
	for call, do := range calls(hasty) {
		if err := do(t.Context()); !errors.Is(err, redis.ErrPaused) {
			t.Errorf("%s after a call without an answer: %v, want ErrPaused", call, err)
		}
	}
	s.Resume()
	// What the stopped server had been sent it does now: the mark stands, or the
	// lease was given back, or neither was read. The token's own calls are right
	// in each case, and a stranger's is once the lease is ended.
	if _, err := l.Renew(t.Context(), key, "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), key, "a"); err != nil {
		t.Fatal(err)
	}
	granted(t, l, "another", "b")
}

func TestAReplicaRefusesToWrite(t *testing.T) {
	t.Parallel()
	master := testenv.StartRedis(t)
	granted(t, private(t, master), key, "a")
	l := private(t, master.Replica())
	if _, _, _, err := l.Acquire(t.Context(), "another", lease.Value{Token: "b"}, time.Hour); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Acquire: %v, want READONLY", err)
	}
}

func TestAFailoverThatLosesALease(t *testing.T) {
	t.Parallel()
	master := testenv.StartRedis(t)
	replica := master.Replica()
	old, opts := private(t, master), steady()
	replica.Pause() // what comes now is never copied
	granted(t, old, key, "a")
	master.Kill()
	replica.Resume()
	if err := plain(t, replica.Addr()).SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	promoted := open(t, "redis://"+replica.Addr(), opts)
	granted(t, promoted, key, "b") // two holders: the database decides
	harmless(t, promoted, "a", "b")
}

func TestSentinelLeadsToThePromotedServer(t *testing.T) {
	t.Parallel()
	master := testenv.StartRedis(t)
	replica := master.Replica()
	sentinel := testenv.StartSentinel(t, "leases", master)
	sentinel.WaitLog("+slave slave") // it knows the replica
	l := open(t, "redis://"+sentinel.Addr()+"?master_name=leases", steady())
	granted(t, l, key, "a")
	// Lost on the way to the replica or not: the token's own call is granted.
	master.Kill()
	replica.WaitLog("MASTER MODE enabled")
	sentinel.WaitLog("+switch-master leases")
	until(t, func() bool {
		held, _, _, err := l.Acquire(t.Context(), key, lease.Value{Token: "a"}, time.Hour)
		return err == nil && held
	})
	refused(t, l, key, "b", "a")
}

// until asks again, with a little pause, until the answer is yes: a client
// learns by asking that its server has gone.
func until(t *testing.T, yes func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for !yes() {
		select {
		case <-late:
			t.Fatal("not within a minute")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
