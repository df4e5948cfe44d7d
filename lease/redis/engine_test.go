//go:build unix

package redis_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease/redis"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// outside is the other system. It remembers every call by its derived key, and
// is never told what we think happened.
type outside struct {
	mu    sync.Mutex
	calls map[string]int
}

func (o *outside) call(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[key]++
	return o.calls[key]
}

// bed is two workers over one database, each with its lease in one Redis.
type bed struct {
	t       *testing.T
	outside outside
	workers [2]*unavez.Engine[*memory.Tx]
	failed  atomic.Int64 // calls of the fast lease
}

func newBed(t *testing.T, url string, opts *redis.Options) *bed {
	t.Helper()
	return newBedOver(t, memory.New(nil), url, opts)
}

func newBedOver(t *testing.T, ledger store.Ledger[*memory.Tx], url string, opts *redis.Options) *bed {
	t.Helper()
	b := &bed{t: t, outside: outside{calls: map[string]int{}}}
	for i := range b.workers {
		engine, err := unavez.New(ledger, &unavez.Options{
			SingleTenant: true, Leaser: open(t, url, opts), CacheSize: -1,
			Observe: func(o unavez.Observation) {
				if o.What == unavez.SawLeaserFailed {
					b.failed.Add(1)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			if err := engine.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		b.workers[i] = engine
	}
	return b
}

// operation has a lease that is long for a test and short for its reader: a
// lease that nobody holds any more is believed for as long.
func operation(name string) unavez.Operation {
	return unavez.Operation{Effect: "pay.v1", Key: []string{name}, Payload: []byte(name), Lease: 3 * time.Second}
}

// charge asks a worker for the operation, whose run calls outside and then
// waits for during, if that is not nil.
func (b *bed) charge(worker int, op unavez.Operation, during func()) (unavez.Outcome, error) {
	return b.workers[worker].Lease(b.t.Context(), op, func(_ context.Context, a *unavez.Attempt) (unavez.Result, error) {
		n := b.outside.call(a.DerivedKey())
		if during != nil {
			during()
		}
		return unavez.Result{Body: fmt.Appendf(nil, "call %d of %s", n, op.Key[0])}, nil
	}, nil)
}

// once holds that the operation has called outside once, and that this is what
// everybody is told: at once, or when a lease that was left behind by a call
// without an answer has been believed for its length.
func (b *bed) once(op unavez.Operation) {
	b.t.Helper()
	want := "call 1 of " + op.Key[0]
	for worker := range b.workers {
		var out unavez.Outcome
		var err error
		until(b.t, func() bool {
			out, err = b.charge(worker, op, nil)
			return unavez.CodeOf(err) != unavez.CodeInFlight
		})
		if err != nil || string(out.Result.Body) != want {
			b.t.Errorf("%s, worker %d: %q, %v; want %q", op.Key[0], worker, out.Result.Body, err, want)
		}
	}
	b.outside.mu.Lock()
	defer b.outside.mu.Unlock()
	if n := b.outside.calls[op.Identity().DerivedKey("")]; n != 1 {
		b.t.Errorf("%s: %d calls outside, want 1", op.Key[0], n)
	}
}

// through runs one operation. What happens to Redis happens while it calls
// outside; duplicates arrive before that, after it, and in the end.
func (b *bed) through(op unavez.Operation, happens, ends func()) {
	b.t.Helper()
	calling, goOn := make(chan struct{}), make(chan struct{})
	var runner sync.WaitGroup
	runner.Go(func() {
		out, err := b.charge(0, op, func() {
			close(calling)
			<-goOn
		})
		if err != nil {
			b.t.Errorf("%s, the first caller: %+v, %v", op.Key[0], out, err)
		}
	})
	select {
	case <-calling:
	case <-time.After(time.Minute):
		b.t.Fatalf("%s is not run", op.Key[0])
	}
	duplicates := func() {
		for worker := range b.workers {
			if _, err := b.charge(worker, op, nil); unavez.CodeOf(err) != unavez.CodeInFlight {
				b.t.Errorf("%s, a duplicate in flight at worker %d: %v", op.Key[0], worker, err)
			}
		}
	}
	duplicates()
	happens()
	duplicates()
	close(goOn)
	runner.Wait()
	b.once(op)
	ends()
	b.once(op)
}

// keysUnder gives the keys of leases.
func keysUnder(t *testing.T, client goredis.UniversalClient, prefix string) []string {
	t.Helper()
	keys, err := client.Keys(t.Context(), prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// mine is the prefix of the leases of a scene.
const mine = "bed:"

// none is nothing that happens.
func none() {}

// scenes are what can happen to Redis. Each makes one, and says what happens to
// it and how that ends.
func scenes() map[string]func(t *testing.T) (url string, happens, ends func()) {
	return map[string]func(t *testing.T) (url string, happens, ends func()){
		"nothing": func(t *testing.T) (string, func(), func()) {
			return "redis://" + testenv.StartRedis(t).Addr(), none, none
		},
		"it is down from the start": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			s.Kill()
			return "redis://" + s.Addr(), none, s.Start
		},
		"it is killed and comes back empty": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			return "redis://" + s.Addr(), func() { s.Kill(); s.Start() }, none
		},
		"it is killed and comes back late": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			return "redis://" + s.Addr(), s.Kill, s.Start
		},
		"it is flushed": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			flush := func() {
				if err := plain(t, s.Addr()).FlushAll(t.Context()).Err(); err != nil {
					t.Error(err)
				}
			}
			return "redis://" + s.Addr(), flush, flush
		},
		"it evicts": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random")
			client := plain(t, s.Addr())
			flood := func() {
				for i := 0; len(keysUnder(t, client, mine)) > 0; i++ {
					if err := client.Set(t.Context(), fmt.Sprint("flood ", i), strings.Repeat("x", 20_000), 0).Err(); err != nil {
						t.Error(err)
						return
					}
				}
			}
			return "redis://" + s.Addr(), flood, flood
		},
		"it is full": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			limit := func(memory string) func() {
				return func() {
					if err := plain(t, s.Addr()).ConfigSet(t.Context(), "maxmemory", memory).Err(); err != nil {
						t.Error(err)
					}
				}
			}
			return "redis://" + s.Addr(), limit("1"), limit("0")
		},
		"it stops and goes on": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			return "redis://" + s.Addr(), s.Pause, s.Resume
		},
		"it fails over and loses what it was told": func(t *testing.T) (string, func(), func()) {
			master := testenv.StartRedis(t)
			replica := master.Replica()
			var at atomic.Pointer[testenv.RedisServer]
			at.Store(master)
			front := listen(t, func(client net.Conn) { relay(client, at.Load().Addr()) })
			replica.Pause() // nothing reaches it any more
			return "redis://" + front, func() {
				master.Kill()
				replica.Resume()
				if err := plain(t, replica.Addr()).SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
					t.Error(err)
				}
				at.Store(replica)
			}, none
		},
		"its answers are lost": func(t *testing.T) (string, func(), func()) {
			p := newLossy(t, testenv.StartRedis(t).Addr())
			return "redis://" + p.addr, func() { p.next(1 << 30) }, func() { p.next(0) }
		},
		"its answers were lost from the start": func(t *testing.T) (string, func(), func()) {
			p := newLossy(t, testenv.StartRedis(t).Addr())
			p.next(1 << 30)
			return "redis://" + p.addr, none, func() { p.next(0) }
		},
		"its clock jumps ahead": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			jump := func() { older(t, plain(t, s.Addr()), mine, time.Hour) }
			return "redis://" + s.Addr(), jump, jump
		},
		"its clock jumps back": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			jump := func() { older(t, plain(t, s.Addr()), mine, -time.Hour) }
			return "redis://" + s.Addr(), jump, jump
		},
		"another program takes the key": func(t *testing.T) (string, func(), func()) {
			s := testenv.StartRedis(t)
			client := plain(t, s.Addr())
			take := func() {
				for _, at := range keysUnder(t, client, mine) {
					if err := client.Del(t.Context(), at).Err(); err != nil {
						t.Error(err)
					}
					if err := client.HSet(t.Context(), at, "field", "value").Err(); err != nil {
						t.Error(err)
					}
				}
			}
			return "redis://" + s.Addr(), take, take
		},
		"it grants everything": func(t *testing.T) (string, func(), func()) {
			return "redis://" + answering(t, ":1\r\n"), none, none
		},
		"it says that everything has completed": func(t *testing.T) (string, func(), func()) {
			return "redis://" + answering(t, "*2\r\n$11\r\nuvl1C\x01x\x00\x00\x00\x00\r\n:60000\r\n"), none, none
		},
		"it says that it is loading": func(t *testing.T) (string, func(), func()) {
			return "redis://" + answering(t, "-LOADING Redis is loading the dataset in memory\r\n"), none, none
		},
	}
}

func TestWhateverHappensToRedisOutsideIsCalledOnce(t *testing.T) {
	t.Parallel()
	for name, scene := range scenes() {
		for _, pause := range []time.Duration{-1, time.Minute} {
			t.Run(fmt.Sprintf("%s/pause %v", name, pause), func(t *testing.T) {
				t.Parallel()
				url, happens, ends := scene(t)
				b := newBed(t, url, &redis.Options{Prefix: mine, Timeout: 100 * time.Millisecond, Pause: pause})
				b.through(operation("4711"), happens, ends)
				b.through(operation("4712"), none, none)
			})
		}
	}
}

// relay passes bytes between a client and a server until either hangs up.
func relay(client net.Conn, server string) {
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	_, _ = io.Copy(client, upstream)
	_ = client.Close()
	<-done
}

// counted is a database that counts what it is asked.
type counted struct {
	*memory.Store
	claims, looks atomic.Int64
}

func (c *counted) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	c.claims.Add(1)
	return c.Store.Claim(ctx, claim)
}

func (c *counted) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	c.looks.Add(1)
	return c.Store.Look(ctx, key)
}

func TestAHealthyRedisSparesTheDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := steady()
	swept(t, plain(t, address(url)), opts.Prefix)
	ledger := &counted{Store: memory.New(nil)}
	b := newBedOver(t, ledger, url, opts)
	const duplicates = 10
	many := func(want func(error) bool) {
		t.Helper()
		for range duplicates {
			if _, err := b.charge(1, operation("4711"), nil); !want(err) {
				t.Errorf("a duplicate: %v", err)
			}
		}
	}
	out, err := b.charge(0, operation("4711"), func() {
		other := operation("4711")
		other.Payload = []byte("other")
		if _, err := b.charge(1, other, nil); unavez.CodeOf(err) != unavez.CodeMismatch {
			t.Errorf("another payload, in flight: %v", err)
		}
		many(func(err error) bool { return unavez.CodeOf(err) == unavez.CodeInFlight })
	})
	if err != nil {
		t.Fatal(out, err)
	}
	many(func(err error) bool { return err == nil })
	// One claim is the operation's, one asks about the other payload: "reused" is the database's word alone.
	if claims, looks := ledger.claims.Load(), ledger.looks.Load(); claims != 2 || looks != duplicates {
		t.Errorf("%d claims and %d looks, want 2 and %d", claims, looks, duplicates)
	}
	b.once(operation("4711"))
}

func TestARedisThatRefusesEverythingOnlyDelays(t *testing.T) {
	t.Parallel()
	op := operation("4711")
	op.Payload, op.Lease = nil, 500*time.Millisecond
	lie := "*2\r\n$11\r\nuvl1L\x01x\x00\x00\x00\x00\r\n:60000\r\n" // a stranger's, for a minute
	b := newBed(t, "redis://"+answering(t, lie), nil)
	until(t, func() bool {
		_, err := b.charge(0, op, nil)
		if err != nil && unavez.CodeOf(err) != unavez.CodeInFlight {
			t.Fatal(err)
		}
		return err == nil
	})
	until(t, func() bool {
		_, err := b.charge(1, op, nil)
		return err == nil
	})
	b.once(op)
}

func TestARedisThatHangsCostsAWorkerOneTimeoutAPause(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	b := newBed(t, "redis://"+s.Addr(), &redis.Options{Timeout: 500 * time.Millisecond, Pause: time.Minute})
	s.Pause()
	began := time.Now()
	const operations = 200
	for i := range operations {
		if _, err := b.charge(i%2, operation(fmt.Sprint(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > operations*500*time.Millisecond/4 {
		t.Errorf("%d operations took %v", operations, took)
	}
	if n := b.failed.Load(); n != operations {
		t.Errorf("the fast lease failed %d times, want %d", n, operations)
	}
}

func TestMidLoadEveryFaultOutsideIsCalledOncePerOperation(t *testing.T) {
	t.Parallel()
	s := testenv.StartRedis(t)
	b := newBed(t, "redis://"+s.Addr(), &redis.Options{Timeout: 100 * time.Millisecond, Pause: 5 * time.Millisecond})
	client := plain(t, s.Addr())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const operations, duplicates = 60, 8
	faults := []func(){
		func() { s.Kill(); s.Start() },
		func() { _ = client.FlushAll(t.Context()).Err() }, // its connection may be a dead server's
		s.Pause,
		func() {},
	}
	for round := range 8 {
		var callers sync.WaitGroup
		for i := range operations {
			op := operation(fmt.Sprintf("%d/%d", round, i))
			for n := range duplicates {
				callers.Go(func() {
					out, err := b.charge(n%2, op, nil)
					if err != nil && unavez.CodeOf(err) != unavez.CodeInFlight || err == nil && len(out.Result.Body) == 0 {
						t.Errorf("%s: %+v, %v", op.Key[0], out, err)
					}
				})
			}
			switch i % 20 {
			case 10:
				faults[random.IntN(len(faults))]()
			case 15:
				s.Resume() // if it was stopped
			}
		}
		callers.Wait()
	}
	// Leases that nobody holds may be left, of calls that were never answered.
	s.Kill()
	for round := range 8 {
		for i := range operations {
			b.once(operation(fmt.Sprintf("%d/%d", round, i)))
		}
	}
}
