package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	redisclient "github.com/redis/go-redis/v9"

	"github.com/unavez/unavez/internal/torture"
	"github.com/unavez/unavez/internal/wire"
)

// Fault happens to what runs, and is over when it returns.
type Fault struct {
	// Name says what happens, for people.
	Name string
	// Do makes it happen, waits for as long as it lasts, and mends it.
	Do func(ctx context.Context) error
	// Met counts what goes up when somebody meets the fault; nil counts the
	// deliveries that had no answer, and not for want of patience.
	Met func() int
	// Cache says that it happens to Redis, which clients need not notice: it is met
	// by a worker whose lease fails, or that asks in vain.
	Cache bool
	// Once says that it can happen but once, such as a failover.
	Once bool
}

// Wait waits for a time, as most faults do; it ends early with the context.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pauseLength is longer than every lease here and every limit.
const pauseLength = 2500 * time.Millisecond

// network is what stands between the workers and their servers.
type network struct {
	database, redis string // as the workers reach them
	beside          string // Redis, by no proxy
	prefix          string

	postgres, cache *wire.Proxy
	down            atomic.Bool // Redis cannot be reached

	mu     sync.Mutex
	fates  map[string]wire.Fate // what becomes of a kind of message, for now
	struck map[string]int
}

// The places at which connections are cut.
const (
	anyMessage = "any"
	commits    = "commit"
	toRedis    = "redis"
	gone       = "gone"      // Redis
	forgotten  = "forgotten" // keys of Redis
	asked      = "asked"     // Redis
)

func openNetwork(o *Options) (*network, error) {
	n := &network{database: o.Database, prefix: o.Prefix, fates: map[string]wire.Fate{}, struck: map[string]int{}}
	if IsPostgres(o.Database) {
		config, err := pgx.ParseConfig(o.Database)
		if err != nil {
			return nil, err
		}
		n.postgres, err = wire.Listen(wire.PostgreSQL, func(ctx context.Context) (net.Conn, error) {
			if o.Target != nil {
				network, address := o.Target()
				return (&net.Dialer{Timeout: callLimit}).DialContext(ctx, network, address)
			}
			return torture.Dial(ctx, config)
		})
		if err != nil {
			return nil, err
		}
		n.postgres.Watch(n.watchPostgres)
		if n.database, err = through(o.Database, n.postgres.Addr()); err != nil {
			n.close()
			return nil, err
		}
	}
	if o.Redis == "" {
		return n, nil
	}
	at, err := url.Parse(o.Redis)
	if err != nil {
		n.close()
		return nil, err
	}
	dial := wire.To(at.Host)
	n.cache, err = wire.Listen(wire.Redis, func(ctx context.Context) (net.Conn, error) {
		if n.down.Load() {
			n.struckAt(gone)
			return nil, errors.New("it is not there")
		}
		conn, err := dial(ctx)
		if err != nil {
			n.struckAt(gone)
		}
		return conn, err
	})
	if err != nil {
		n.close()
		return nil, err
	}
	n.cache.Watch(n.watchRedis)
	n.beside = o.Redis
	at.Host = n.cache.Addr()
	n.redis = at.String()
	return n, nil
}

func (n *network) close() {
	for _, proxy := range []*wire.Proxy{n.postgres, n.cache} {
		if proxy != nil {
			_ = proxy.Close() // its connections end with it
		}
	}
}

// calm ends what is still to happen.
func (n *network) calm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.fates)
	n.down.Store(false)
}

func (n *network) struckAt(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.struck[what]++
}

// strike takes the fate of a place, once.
func (n *network) strike(at string) wire.Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	fate, ok := n.fates[at]
	if ok {
		delete(n.fates, at)
		n.struck[at]++
	}
	return fate
}

func (n *network) watchPostgres(m *wire.Message) wire.Fate {
	if m.From == wire.Server && m.Kind == "CommandComplete" && m.Text() == "COMMIT" {
		if fate := n.strike(commits); fate != wire.Pass {
			return fate
		}
	}
	return n.strike(anyMessage)
}

func (n *network) watchRedis(m *wire.Message) wire.Fate {
	if m.From == wire.Client {
		n.struckAt(asked)
	}
	if n.down.Load() {
		n.struckAt(gone)
		return wire.Cut
	}
	return n.strike(toRedis)
}

// cut has the connections at a place end, one after the other, count times.
func (n *network) cut(ctx context.Context, at string, count int, fates ...wire.Fate) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for i := range count {
		n.mu.Lock()
		n.fates[at] = fates[i%len(fates)]
		n.mu.Unlock()
		for {
			n.mu.Lock()
			_, waiting := n.fates[at]
			n.mu.Unlock()
			if !waiting {
				break
			}
			select {
			case <-tick.C:
			case <-late.C: // nobody sends such a message
				n.calm()
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func (n *network) count(at string) func() int {
	return func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.struck[at]
	}
}

// forget removes the keys of this run from Redis, and no others, as soon as
// there are any.
func (n *network) forget(ctx context.Context) error {
	before := n.count(forgotten)()
	for range 200 {
		removed, err := Forget(ctx, n.beside, n.prefix)
		for range removed {
			n.struckAt(forgotten)
		}
		if err != nil || n.count(forgotten)() > before {
			return err
		}
		if err := Wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Forget removes the keys of a Redis that begin with a prefix, and no others.
func Forget(ctx context.Context, redis, prefix string) (removed int, err error) {
	options, err := redisclient.ParseURL(redis)
	if err != nil {
		return 0, err
	}
	client := redisclient.NewClient(options)
	defer func() { _ = client.Close() }() // its answers are here
	keys := client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if !strings.HasPrefix(keys.Val(), prefix) {
			continue // what means more to SCAN than to us
		}
		n, err := client.Del(ctx, keys.Val()).Result()
		if err != nil {
			return removed, err
		}
		removed += int(n)
	}
	return removed, keys.Err()
}

// faults are those that can be made here, and the caller's.
func (p *program) faults() []Fault {
	some := func() *worker { return p.workers[p.random.IntN(len(p.workers))] }
	all := []Fault{{Name: "a worker is killed", Do: func(ctx context.Context) error {
		w := some()
		w.kill()
		return w.start(ctx)
	}}, {Name: "all workers are killed", Do: func(ctx context.Context) error {
		for _, w := range p.workers {
			w.kill()
		}
		for _, w := range p.workers {
			if err := w.start(ctx); err != nil {
				return err
			}
		}
		return nil
	}}}
	if canPause {
		all = append(all, Fault{Name: "a worker is stopped for longer than its lease", Do: func(ctx context.Context) error {
			w := some()
			if err := w.pause(); err != nil {
				return err
			}
			err := Wait(ctx, pauseLength)
			if again := w.resume(); again != nil {
				return again
			}
			return err
		}})
	}
	if p.net.postgres != nil {
		all = append(all,
			Fault{Name: "connections to the database are cut", Met: p.net.count(anyMessage), Do: func(ctx context.Context) error {
				return p.net.cut(ctx, anyMessage, 20, wire.Cut, wire.Tear, wire.Reset)
			}},
			Fault{Name: "answers of COMMIT are lost", Met: p.net.count(commits), Do: func(ctx context.Context) error {
				return p.net.cut(ctx, commits, 8, wire.Cut, wire.Reset)
			}},
			Fault{Name: "a connection to the database falls silent", Met: p.net.count(anyMessage), Do: func(ctx context.Context) error {
				return p.net.cut(ctx, anyMessage, 1, wire.Stall)
			}},
		)
	}
	if p.net.cache != nil {
		all = append(all,
			Fault{Name: "connections to Redis are cut", Met: p.net.count(toRedis), Do: func(ctx context.Context) error {
				return p.net.cut(ctx, toRedis, 10, wire.Cut, wire.Reset, wire.Tear)
			}},
			Fault{Name: "Redis cannot be reached", Met: p.net.count(gone), Do: func(ctx context.Context) error {
				p.net.down.Store(true)
				defer p.net.down.Store(false)
				return Wait(ctx, 700*time.Millisecond)
			}},
		)
		if p.o.Prefix != "" {
			all = append(all, Fault{Name: "Redis has forgotten everything", Met: p.net.count(forgotten), Do: p.net.forget})
		}
	}
	return append(all, p.o.Faults...)
}

// configure writes the configuration of workers that are the binary.
func configure(folder string, s Setup) (file string, err error) {
	database := s.Database
	if !IsPostgres(database) {
		database = "sqlite:" + database
	}
	text := fmt.Sprintf(`store: %q
listen: "%s:0"
admin: {listen: "%s:0"}
unsafe: [postgres.fsync, postgres.full_page_writes, postgres.synchronous_commit, sqlite.file_system]
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
log: {level: error, format: json}
limits: {drain: 3s}
http:
  - {route: POST /payments, upstream: %q, unknown: retry, lease: %v, timeout: %v, limit: %v, derived_key_header: %s}
sources:
  - {name: shop, contract: standard-webhooks, path: /in/shop, secrets: [%q], types: ["*"]}
effects:
  - name: event.call.v1
    order_by: [data.data.customer]
    send: {url: %q, timeout: %v}
    unknown: retry
    retry: {first: 20ms, longest: 200ms, attempts: 10000, age: 1h}
    owner: torture
    limit: %v
    lease: %v
inbox: {lease: %v, poll: 100ms}
`, database, s.Host, s.Host, s.Outside, leaseLength, callLimit, workLimit, derivedHeader, secret, s.Outside+"/records", callLimit, workLimit, leaseLength, laneLease)
	if s.Redis != "" {
		text = fmt.Sprintf("lease: %q\n", s.Redis) + text
	}
	file = filepath.Join(folder, "unavez.yaml")
	return file, os.WriteFile(file, []byte(text), 0o600)
}
