package postgres_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/storetest"
)

// behind puts a pooler in front of a database.
func (d *database) behind(t *testing.T, b *testenv.PgBouncer) *database {
	t.Helper()
	at, err := url.Parse(d.url)
	must(t, "URL", err)
	d.pooler = b.URL(strings.TrimPrefix(at.Path, "/"))
	return d
}

// PgBouncer in transaction mode: every transaction may be on another connection.
func TestPooledStoreHoldsWhatEveryStorePromises(t *testing.T) {
	all := &beds{t: t}
	pooler := testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app")
	storetest.Run(t, func(t *testing.T) storetest.Harness[pgx.Tx] {
		d := all.fresh(t).behind(t, pooler)
		open := func(t *testing.T) *worker { return d.worker(t, nil) }
		return harness(t, d, open(t), open)
	})
}

func TestPooledWorkersShareConnections(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	pooler := testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app", "default_pool_size=3")
	d.behind(t, pooler)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol} {
		w := d.worker(t, nil, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = "pooled"
			c.ConnConfig.DefaultQueryExecMode = mode
		})
		var all sync.WaitGroup
		for client := range 12 { // four times the connections
			all.Go(func() {
				for i := range 10 {
					gate := gateOf(mode.String(), fmt.Sprint(client, i))
					txn, v, err := w.Begin(t.Context(), gate)
					if err != nil || txn == nil {
						t.Errorf("%v: Begin: %v, %v", mode, v.State, err)
						return
					}
					err = write(t.Context(), txn.Tx(), mode.String())
					if err == nil {
						_, err = txn.Commit(t.Context(), completed("pooled"))
					}
					if err != nil {
						t.Errorf("%v: %v", mode, err)
						return
					}
				}
			})
		}
		all.Wait()
		if _, v, err := w.Begin(t.Context(), gateOf(mode.String(), fmt.Sprint(3, 4))); err != nil || v.State != store.Completed {
			t.Errorf("%v: %v, %v", mode, v.State, err)
		}
		var user string
		if err := w.pool.QueryRow(t.Context(), "SELECT current_user").Scan(&user); err != nil || user != "unavez_app" {
			t.Errorf("%v: as %s: %v", mode, user, err)
		}
	}
	if n := len(d.rows(t)); n != 3*12*10 {
		t.Errorf("%d rows", n)
	}
	if n := ask[int](t, d, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pooled'"); n < 1 || n > 3 {
		t.Errorf("%d connections behind the pooler", n)
	}
}

func TestPoolerThatRefusesSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	d.behind(t, testenv.StartPgBouncer(t, testenv.Postgres(t), "unavez_app", "default_pool_size=2"))
	pool, err := open(d.pooler+"&tcp_user_timeout=10000", "", nil)
	must(t, "open", err)
	defer pool.Close()
	if _, err := postgres.New(pool, nil); err == nil || !strings.Contains(err.Error(), "tcp_user_timeout") || !strings.Contains(err.Error(), "take it out of the URL") {
		t.Errorf("New with a parameter: %v", err)
	}

	// With prepared statements, which this PgBouncer may lose: the error says so.
	prepared, err := open(strings.Replace(d.pooler, "default_query_exec_mode=exec", "default_query_exec_mode=cache_statement", 1), "", nil)
	must(t, "open", err)
	defer prepared.Close()
	w := d.worker(t, nil)
	done := map[string]bool{}
	var refusal error
	if s, err := postgres.New(prepared, nil); err != nil {
		refusal = err
	} else {
		for i := 0; i < 20 && refusal == nil; i++ {
			row := fmt.Sprint("prepared ", i)
			var held store.Txn[pgx.Tx]
			if i%2 == 1 { // the connection that the other statements were prepared on
				held = w.begin(t, gateOf("held", row))
			}
			var txn store.Txn[pgx.Tx]
			if txn, _, refusal = s.Begin(t.Context(), gateOf(row)); refusal == nil {
				if refusal = write(t.Context(), txn.Tx(), row); refusal == nil {
					_, refusal = txn.Commit(t.Context(), completed(row))
				}
				done[row] = refusal == nil
				must(t, "Rollback", txn.Rollback(t.Context()))
			}
			if held != nil {
				must(t, "Rollback", held.Rollback(t.Context()))
			}
		}
	}
	if refusal != nil && !strings.Contains(refusal.Error(), "default_query_exec_mode=exec") {
		t.Errorf("prepared statements: %v", refusal)
	}
	if refusal == nil && len(done) != 20 { // a PgBouncer that keeps them
		t.Errorf("%d operations", len(done))
	}
	for _, row := range d.rows(t) {
		if !done[row] {
			t.Errorf("row %q of an operation that failed", row)
		}
	}
}

// Behind a pooler a failover makes no new connection of the worker's: the gate
// itself looks at the timeline.
func TestFailoverBehindAPoolerIsNoticed(t *testing.T) {
	t.Parallel()
	primary := testenv.StartPostgres(t, "fsync=off")
	d := prepare(t, primary.URL())
	d.migrate(t, nil)
	standby := primary.Standby()
	moves := forward(t, primary.Addr())
	d.pooler = testenv.StartPgBouncer(t, "postgres://postgres@"+moves.address, "unavez_app", "server_login_retry=0.1").URL("postgres")
	var dials atomic.Int64
	w := d.worker(t, nil, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.MaxConnIdleTime, c.MaxConnLifetime, c.HealthCheckPeriod = time.Hour, time.Hour, time.Hour
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	var changes atomic.Int64
	w.OnIncarnation(func() { changes.Add(1) })
	ctx := t.Context()
	kept, lost := gateOf("kept"), gateOf("lost")
	w.do(t, kept, "kept")
	after := ask[string](t, d, "SELECT pg_current_wal_lsn()::text")
	eventually(t, "the standby follows", func() bool {
		return ask[bool](t, d, "SELECT coalesce(bool_or(replay_lsn >= $1::text::pg_lsn), false) FROM pg_stat_replication", after)
	})
	standby.Stop() // what comes now is acknowledged and lost
	w.do(t, lost, "lost")
	before := dials.Load()
	primary.Kill()
	standby.Start()
	standby.Promote()
	moves.to(standby.Addr())
	if changes.Load() != 0 {
		t.Fatal("a change was told before anybody looked")
	}
	var txn store.Txn[pgx.Tx]
	eventually(t, "a gate after the failover", func() bool {
		var err error
		txn, _, err = w.Begin(ctx, lost)
		return err == nil
	})
	if txn == nil || changes.Load() < 1 {
		t.Fatalf("after the failover: running %v, %d changes were told", txn != nil, changes.Load())
	}
	must(t, "write", write(ctx, txn.Tx(), "again")) // effect and outcome were lost together
	_, err := txn.Commit(ctx, completed("again"))
	must(t, "Commit", err)
	w.state(t, kept, store.Completed)
	attempt, v, err := w.Claim(ctx, store.Claim{Gate: gateOf("outside"), Lease: time.Minute})
	if err != nil || attempt != nil || v.State != store.Unknown {
		t.Fatalf("first claim after a failover: %+v, %v, %v", attempt, v.State, err)
	}
	if made := dials.Load() - before; made != 0 {
		t.Errorf("%d connections were made", made)
	}
}

// moving forwards connections to a server that may change.
type moving struct {
	address string
	target  atomic.Value
}

func (m *moving) to(target string) { m.target.Store(target) }

func forward(t *testing.T, target string) *moving {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "listen", err)
	m := &moving{address: listener.Addr().String()}
	m.to(target)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return // closed
			}
			far, err := net.Dial("tcp", m.target.Load().(string))
			if err != nil {
				_ = near.Close() // the pooler tries again
				continue
			}
			for _, ends := range [][2]net.Conn{{near, far}, {far, near}} {
				all.Go(func() {
					_, _ = io.Copy(ends[0], ends[1])
					_, _ = ends[0].Close(), ends[1].Close()
				})
			}
		}
	})
	return m
}
