package postgres_test

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	proxied "github.com/unavez/unavez/internal/wire"
	"github.com/unavez/unavez/store"
)

// through is a worker with a proxy before its database.
func (d *database) through(t *testing.T) (*worker, *proxied.Proxy) {
	t.Helper()
	at, err := url.Parse(d.url)
	must(t, "URL", err)
	proxy, err := proxied.Listen(proxied.PostgreSQL, proxied.To(at.Host))
	must(t, "proxy", err)
	w := d.worker(t, nil, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, proxy.Addr())
		}
	})
	t.Cleanup(func() { must(t, "proxy", proxy.Close()) }) // before the pool, which would wait for what is gone
	return w, proxy
}

// vanishes loses the host of a worker at the next message of this kind.
func vanishes(proxy *proxied.Proxy, kind string) {
	proxy.Watch(func(m *proxied.Message) proxied.Fate {
		if m.Kind == kind {
			return proxied.Vanish
		}
		return proxied.Pass
	})
}

// A host that is gone in the middle of a trip holds the operation's lock, and no
// limit of the server's runs there before version 17: it asks the host.
func TestKeyOfAHostThatIsGoneInTheMiddleOfATripIsFree(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *worker, store.Gate) error{
		"claim": func(ctx context.Context, w *worker, gate store.Gate) error {
			_, _, err := w.Claim(ctx, store.Claim{Gate: gate, Lease: time.Minute})
			return err
		},
		"gate": func(ctx context.Context, w *worker, gate store.Gate) error {
			txn, _, err := w.Begin(ctx, gate)
			if txn != nil {
				err = txn.Rollback(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fresh(t, nil)
			w, proxy := d.through(t)
			must(t, "warm", call(t.Context(), w, gateOf("warm")))
			vanishes(proxy, "Sync")
			gone := gateOf("gone")
			gone.Limit = 5 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := call(ctx, w, gone); err == nil {
				t.Fatal("a host that is gone has its answer")
			}
			other := d.worker(t, nil)
			if txn, v, err := other.Begin(t.Context(), gone); txn != nil || v.State != store.Processing || err != nil {
				t.Fatalf("at once: %v, %v, %v", txn, v.State, err)
			}
			other.free(t, gone)
		})
	}
}

func TestHostThatIsGoneInAPurgeKeepsNobodyFromPurging(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, proxy := d.through(t)
	w.do(t, gateOf("over"), "over")
	d.advance(t, 90*time.Minute)
	const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	proxy.Watch(func(m *proxied.Message) proxied.Fate {
		if m.From == proxied.Server && m.Kind == "CommandComplete" && m.Text() == "SELECT 1" {
			return proxied.Stall // it has the purge's lock: a process that was stopped
		}
		return proxied.Pass
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.Purge(ctx, 1000); err == nil {
		t.Fatal("a stopped worker has purged")
	}
	if n := ask[int](t, d, locks); n != 1 {
		t.Fatalf("%d locks, want the purge's", n)
	}
	other := d.worker(t, nil)
	eventually(t, "purge by another", func() bool {
		n, err := other.Purge(t.Context(), 1000)
		must(t, "Purge", err)
		return n > 0
	})
	other.state(t, gateOf("over"), store.Expired)
}

func TestWorkerStoppedInADecisionGivesItsKeyUp(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w, proxy := d.through(t)
	gate := gateOf("dead")
	attempt, _, err := w.Claim(t.Context(), store.Claim{Gate: gate, Lease: time.Minute})
	must(t, "Claim", err)
	must(t, "Rest", w.Rest(t.Context(), gate.Key, attempt.Fence, store.Rest{State: store.Dead}))
	proxy.Watch(func(m *proxied.Message) proxied.Fate {
		if m.From == proxied.Server && m.Kind == "CommandComplete" && m.Text() == "INSERT 0 1" {
			return proxied.Stall // it has the operation's lock
		}
		return proxied.Pass
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	action := store.Action{Key: gate.Key, Actor: "ana", Reason: "test"}
	if err := w.Discard(ctx, action, time.Hour, time.Hour); err == nil {
		t.Fatal("a stopped worker has its answer")
	}
	other := d.worker(t, nil)
	is(t, "Discard at once", other.Discard(t.Context(), action, time.Hour, time.Hour), store.ErrConflict)
	eventually(t, "Discard", func() bool { return other.Discard(t.Context(), action, time.Hour, time.Hour) == nil })
}
