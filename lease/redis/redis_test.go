package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/leasetest"
	"github.com/unavez/unavez/lease/redis"
)

func TestLeaserKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	shared := testenv.Redis(t)
	leasetest.Run(t, func(t *testing.T) leasetest.Harness {
		return harness(t, shared, plain(t, address(shared)))
	})
}

func TestLeaserKeepsEveryPromiseInACluster(t *testing.T) {
	t.Parallel()
	shared := clusterURL(t)
	leasetest.Run(t, func(t *testing.T) leasetest.Harness {
		return harness(t, shared, plain(t, testenv.RedisCluster(t)...))
	})
}

func harness(t *testing.T, url string, client goredis.UniversalClient) leasetest.Harness {
	opts := steady()
	swept(t, client, opts.Prefix)
	return leasetest.Harness{
		Leaser:  open(t, url, opts),
		Advance: func(t *testing.T, d time.Duration) { older(t, client, opts.Prefix, d) },
		Second:  func(t *testing.T) lease.Leaser { return open(t, url, opts) },
	}
}

func TestWhatIsInRedisIsAsDocumented(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(t *testing.T) (string, []string){
		"one server": func(t *testing.T) (string, []string) {
			url := testenv.Redis(t)
			return url, []string{address(url)}
		},
		"cluster": func(t *testing.T) (string, []string) { return clusterURL(t), testenv.RedisCluster(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, addrs := at(t)
			opts, client := steady(), plain(t, addrs...)
			swept(t, client, opts.Prefix)
			l := open(t, url, opts)
			want := func(value string) {
				t.Helper()
				got, err := client.Get(t.Context(), opts.Prefix+"{"+key+"}").Result()
				if err != nil || got != value {
					t.Errorf("%q, %v; want %q", got, err, value)
				}
			}
			// Twice, at two instants: the value holds no time.
			for range 2 {
				if held, _, _, err := l.Acquire(t.Context(), key, lease.Value{Token: "tok", Version: 258, Fingerprint: []byte{0, 1, 2}}, time.Hour); !held || err != nil {
					t.Fatal(held, err)
				}
				want("uvl1L\x03tok\x00\x00\x01\x02\x00\x01\x02")
				if err := l.Complete(t.Context(), key, "tok", time.Hour); err != nil {
					t.Fatal(err)
				}
				want("uvl1C\x03tok\x00\x00\x01\x02\x00\x01\x02")
				if err := client.Del(t.Context(), opts.Prefix+"{"+key+"}").Err(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestALifeIsRoundedUp(t *testing.T) {
	t.Parallel()
	opts, client := steady(), plain(t, address(testenv.Redis(t)))
	swept(t, client, opts.Prefix)
	l := open(t, testenv.Redis(t), opts)
	for i, life := range []time.Duration{time.Nanosecond, 0, -time.Hour} {
		held, _, _, err := l.Acquire(t.Context(), string(rune('a'+i)), lease.Value{Token: "a"}, life)
		if !held || err != nil {
			t.Errorf("life %v: held %v, %v", life, held, err)
		}
	}
	if held, _, _, err := l.Acquire(t.Context(), key, lease.Value{Token: "a"}, 1<<63-1); !held || err != nil {
		t.Errorf("the longest life: held %v, %v", held, err)
	}
	_, _, left, err := l.Acquire(t.Context(), key, lease.Value{Token: "b"}, time.Hour)
	if err != nil || left < 290*365*24*time.Hour {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestTwoProductsShareARedis(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	client := plain(t, address(url))
	var both [2]*redis.Leaser
	for i := range both {
		opts := steady()
		swept(t, client, opts.Prefix)
		both[i] = open(t, url, opts)
	}
	granted(t, both[0], key, "a")
	granted(t, both[1], key, "b")
	if err := both[0].Complete(t.Context(), key, "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	refused(t, both[1], key, "c", "b")
	if err := both[1].Release(t.Context(), key, "b"); err != nil {
		t.Fatal(err)
	}
	if held, other := acquire(t, both[0], key, "d"); held || !other.Completed {
		t.Errorf("held %v, %+v; want the mark", held, other)
	}
}

func TestAnothersValueIsAnErrorAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	client := plain(t, address(url))
	ours := "uvl1L\x01b\x00\x00\x00\x00"
	for name, put := range map[string]func(ctx context.Context, at string) error{
		"hash":    func(ctx context.Context, at string) error { return client.HSet(ctx, at, "f", "v").Err() },
		"list":    func(ctx context.Context, at string) error { return client.RPush(ctx, at, "v").Err() },
		"set":     func(ctx context.Context, at string) error { return client.SAdd(ctx, at, "v").Err() },
		"number":  func(ctx context.Context, at string) error { return client.Set(ctx, at, 7, time.Hour).Err() },
		"empty":   func(ctx context.Context, at string) error { return client.Set(ctx, at, "", time.Hour).Err() },
		"cut off": func(ctx context.Context, at string) error { return client.Set(ctx, at, ours[:8], time.Hour).Err() },
		"later form": func(ctx context.Context, at string) error {
			return client.Set(ctx, at, "uvl2"+ours[4:], time.Hour).Err()
		},
		"large":          func(ctx context.Context, at string) error { return client.SetRange(ctx, at, 1<<20, "x").Err() },
		"without an end": func(ctx context.Context, at string) error { return client.Set(ctx, at, ours, 0).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := steady()
			swept(t, client, opts.Prefix)
			l := open(t, url, opts)
			at := opts.Prefix + "{" + key + "}"
			if err := put(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			before, err := client.Dump(t.Context(), at).Result()
			if err != nil {
				t.Fatal(err)
			}
			for call, do := range calls(l) {
				if err := do(t.Context()); err == nil && call == "Acquire" {
					t.Errorf("%s: no error", call)
				} else if err != nil && len(err.Error()) > 500 {
					t.Errorf("%s: an error of %d bytes", call, len(err.Error()))
				}
			}
			if after, err := client.Dump(t.Context(), at).Result(); err != nil || after != before {
				t.Errorf("it was %q and is %q, %v", before, after, err)
			}
		})
	}
}

func TestACallEndsByItsContext(t *testing.T) {
	t.Parallel()
	l := open(t, testenv.Redis(t), steady())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for call, do := range calls(l) {
		if err := do(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestAClientThatSendsTwiceOrHangsIsRefused(t *testing.T) {
	t.Parallel()
	clients := map[string]goredis.UniversalClient{
		"client":   goredis.NewClient(&goredis.Options{}),
		"ring":     goredis.NewRing(&goredis.RingOptions{}),
		"sentinel": goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "m"}),
	}
	for name, client := range clients {
		_, err := redis.New(client, &redis.Options{Prefix: "a b", Timeout: -1, Pause: time.Hour})
		for _, want := range []string{"MaxRetries is 3", "ContextTimeoutEnabled", "Prefix", "Timeout", "Pause"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want a word of %s", name, err, want)
			}
		}
		_ = client.Close() // never connected
	}
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{MaxRetries: 2})
	defer cluster.Close()
	if _, err := redis.New(cluster, nil); err == nil || !strings.Contains(err.Error(), "MaxRetries is 2") || !strings.Contains(err.Error(), "ContextTimeoutEnabled") {
		t.Errorf("cluster: %v", err)
	}
	if _, err := redis.New(nil, nil); err == nil {
		t.Error("no client: no error")
	}
	for _, right := range []goredis.UniversalClient{
		goredis.NewClient(&goredis.Options{MaxRetries: -1, ContextTimeoutEnabled: true}),
		goredis.NewClusterClient(&goredis.ClusterOptions{MaxRetries: -1, ContextTimeoutEnabled: true}),
		goredis.NewClusterClient(&goredis.ClusterOptions{ContextTimeoutEnabled: true}),
	} {
		l, err := redis.New(right, nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := l.Close(); err != nil { // it is not the lease's to close
			t.Error(err)
		}
		if err := right.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenTakesEveryKindOfURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://127.0.0.1:6379", "rediss://user:secret@127.0.0.1/3?pool_size=4", "unix:///tmp/redis.sock?db=1",
		"redis://127.0.0.1:26379?master_name=m&addr=127.0.0.1:26380&password=secret&db=2",
		"redis://127.0.0.1:7000?addr=127.0.0.1:7001", "redis://127.0.0.1:7000?cluster=true", "redis://127.0.0.1:7000?cluster=false",
	} {
		l, err := redis.Open(url, nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		for range 2 {
			if err := l.Close(); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}
	}
	for _, url := range []string{
		"", "127.0.0.1:6379", "http://127.0.0.1", "redis://:secret@%zz", "redis://127.0.0.1/x", "redis://127.0.0.1?wat=1",
		"redis://127.0.0.1?max_retries=3", "redis://127.0.0.1?read_timeout=1h", "redis://127.0.0.1?cluster=maybe",
		"redis://127.0.0.1?master_name=m&replica_only=true", "redis://127.0.0.1?cluster=true&wat=1",
	} {
		l, err := redis.Open(url, nil)
		if err == nil {
			t.Errorf("%q is taken", url)
			_ = l.Close()
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the password: %v", url, err)
		}
	}
	if _, err := redis.Open("redis://127.0.0.1", &redis.Options{Timeout: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
}

func BenchmarkAcquireAndRelease(b *testing.B) {
	opts := steady()
	l := open(b, testenv.Redis(b), opts)
	b.ReportAllocs()
	for b.Loop() {
		held, _, _, err := l.Acquire(b.Context(), key, lease.Value{Token: "a"}, time.Minute)
		if err != nil || !held {
			b.Fatal(held, err)
		}
		if err := l.Release(b.Context(), key, "a"); err != nil {
			b.Fatal(err)
		}
	}
}
