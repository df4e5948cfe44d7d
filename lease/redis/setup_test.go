package redis_test

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/redis"
)

// key is an operation's, as the engine gives it.
const key = "0123456789abcdef0123456789abcdef"

// patient is a time limit that no healthy server of a busy machine overruns.
const patient = 30 * time.Second

// prefix of one test's own on a shared server.
func prefix() string { return "test:" + rand.Text() + ":" }

// open makes a lease with the test's options; it is closed with the test.
func open(t testing.TB, url string, opts *redis.Options) *redis.Leaser {
	t.Helper()
	l, err := redis.Open(url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// steady are options under which a slow machine changes nothing.
func steady() *redis.Options {
	return &redis.Options{Prefix: prefix(), Timeout: patient, Pause: -1}
}

// clusterURL names the shared Redis Cluster.
func clusterURL(t testing.TB) string {
	t.Helper()
	addrs := testenv.RedisCluster(t)
	return "redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// plain is a client of the test's own for what a lease does not do.
func plain(t testing.TB, addrs ...string) goredis.UniversalClient {
	t.Helper()
	client := goredis.NewUniversalClient(&goredis.UniversalOptions{
		Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1,
		DialTimeout: patient, ReadTimeout: patient, WriteTimeout: patient, PoolTimeout: patient,
	})
	t.Cleanup(func() { _ = client.Close() }) // whatever became of the server
	return client
}

// address of a URL without parameters.
func address(url string) string { return strings.TrimPrefix(url, "redis://") }

// eachKey calls do for every key with the prefix, on every master.
func eachKey(t testing.TB, client goredis.UniversalClient, prefix string, do func(ctx context.Context, node goredis.Cmdable, key string) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	var mu sync.Mutex // a Cluster's masters are walked side by side
	walk := func(ctx context.Context, node *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		keys := node.Scan(ctx, 0, prefix+"*", 1000).Iterator()
		for keys.Next(ctx) {
			if err := do(ctx, node, keys.Val()); err != nil {
				return err
			}
		}
		return keys.Err()
	}
	var err error
	switch c := client.(type) {
	case *goredis.Client:
		err = walk(ctx, c)
	case *goredis.ClusterClient:
		err = c.ForEachMaster(ctx, walk)
	}
	if err != nil {
		t.Error(err)
	}
}

// older moves the clock of the leases under a prefix: their lives get shorter.
func older(t testing.TB, client goredis.UniversalClient, prefix string, d time.Duration) {
	t.Helper()
	eachKey(t, client, prefix, func(ctx context.Context, node goredis.Cmdable, key string) error {
		left, err := node.PTTL(ctx, key).Result()
		if err != nil {
			return err
		}
		if left <= d {
			return node.Del(ctx, key).Err()
		}
		return node.PExpire(ctx, key, left-d).Err()
	})
}

// swept deletes what the test leaves on a shared server.
func swept(t testing.TB, client goredis.UniversalClient, prefix string) {
	t.Cleanup(func() {
		eachKey(t, client, prefix, func(ctx context.Context, node goredis.Cmdable, key string) error {
			return node.Del(ctx, key).Err()
		})
	})
}

func acquire(t testing.TB, l lease.Leaser, key, token string) (held bool, other lease.Value) {
	t.Helper()
	held, other, _, err := l.Acquire(t.Context(), key, lease.Value{Token: token, Version: 1, Fingerprint: []byte(token)}, time.Hour)
	if err != nil {
		t.Fatalf("Acquire by %s: %v", token, err)
	}
	return held, other
}

// granted acquires what must be free or the token's own.
func granted(t testing.TB, l lease.Leaser, key, token string) {
	t.Helper()
	if held, other := acquire(t, l, key, token); !held {
		t.Fatalf("%s is refused by %+v", token, other)
	}
}

// refused acquires what the holder must hold.
func refused(t testing.TB, l lease.Leaser, key, token, holder string) {
	t.Helper()
	if held, other := acquire(t, l, key, token); held || other.Token != holder || other.Completed {
		t.Fatalf("%s: held %v, %+v; want it refused by %s", token, held, other, holder)
	}
}

// calls are the four calls of a lease, to be tried where all must fail.
func calls(l *redis.Leaser) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Acquire": func(ctx context.Context) error {
			_, _, _, err := l.Acquire(ctx, key, lease.Value{Token: "a"}, time.Hour)
			return err
		},
		"Renew":    func(ctx context.Context) error { _, err := l.Renew(ctx, key, "a", time.Hour); return err },
		"Release":  func(ctx context.Context) error { return l.Release(ctx, key, "a") },
		"Complete": func(ctx context.Context) error { return l.Complete(ctx, key, "a", time.Hour) },
	}
}
