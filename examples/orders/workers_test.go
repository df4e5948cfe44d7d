package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
)

// placement are three workers on one PostgreSQL, each with another library, and
// one Redis in front of them.
type placement struct {
	t     *testing.T
	store string
	db    *sql.DB // beside them
	redis *testenv.RedisServer
}

func newPlacement(t *testing.T) *placement {
	t.Helper()
	store := testenv.NewDatabase(t)
	return &placement{t: t, store: store, db: look(t, store), redis: testenv.StartRedis(t)}
}

// worker starts one, in a process of its own. Its connections carry its name.
func (p *placement) worker(way, role string) *child {
	p.t.Helper()
	at := p.store + "&application_name=" + way
	w := spawn(p.t, role, "-addr", "127.0.0.1:0", "-store", at, "-with", way, "-lease", "redis://"+p.redis.Addr(), "-lease-length", "3s")
	w.way = way
	return w
}

// command sends a command to Redis, whose answer is one line.
func (p *placement) command(text string) string {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.redis.Addr())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(text + "\r\n")); err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// flush empties Redis.
func (p *placement) flush() {
	p.t.Helper()
	if got := p.command("FLUSHALL"); got != "+OK" {
		p.t.Fatalf("FLUSHALL: %s", got)
	}
}

// ask reads one value once a query has a row.
func (p *placement) ask(query string, args ...any) (value string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	for {
		err := p.db.QueryRowContext(ctx, query, args...).Scan(&value)
		if err == nil {
			return value
		}
		if !errors.Is(err, sql.ErrNoRows) {
			p.t.Fatalf("%s: %v", query, err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			p.t.Fatalf("%s: no row within a minute", query)
		}
	}
}

// insist repeats a request at one worker after the other, as a client that
// retries behind a load balancer does, until one answers for good.
func insist(t *testing.T, workers []*child, path, key, body string) reply {
	late := time.After(time.Minute)
	var last reply
	for i := 0; ; i++ {
		last = workers[i%len(workers)].send("POST", path, key, body)
		if last.status != 0 && last.status != 409 && last.status != 503 {
			return last
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-late:
			t.Errorf("no answer within a minute, last %v", last)
			return last
		}
	}
}

// insistMany does that from many clients at once.
func insistMany(t *testing.T, workers []*child, path, key, body string) (wait func() []reply) {
	replies := make([]reply, 4*len(workers))
	var clients sync.WaitGroup
	for i := range replies {
		from := append(append([]*child{}, workers[i%len(workers):]...), workers[:i%len(workers)]...)
		clients.Go(func() { replies[i] = insist(t, from, path, key, body) })
	}
	return func() []reply { clients.Wait(); return replies }
}

// same wants one answer in all replies, and at most one that is no replay.
func same(t *testing.T, replies []reply) reply {
	t.Helper()
	firsts := 0
	for _, r := range replies {
		if r.status != 201 || r.body != replies[0].body || r.location != replies[0].location {
			t.Errorf("got %v and %v, want one answer", r, replies[0])
		}
		if !r.replayed {
			firsts++
		}
	}
	if firsts > 1 {
		t.Errorf("%d answers that are no replay, want one at most", firsts)
	}
	one := replies[0]
	one.replayed = true
	return one
}

func TestThreeWorkersWithThreeLibrariesMakeOneOrder(t *testing.T) {
	t.Parallel()
	p := newPlacement(t)
	workers := []*child{p.worker("pgx", rolePlain), p.worker("sql", rolePlain), p.worker("gorm", rolePlain)}

	// Whoever writes the order waits in the middle of it for a lock that this test holds.
	holder, err := p.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	for _, statement := range []string{
		`create function hold() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock(1, 1); return new; end'`,
		`create trigger hold before insert on order_item for each row when (new.line = 2) execute function hold()`,
		`select pg_advisory_lock(1, 1)`,
	} {
		if _, err := holder.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	wait := insistMany(t, workers, "/orders", "k1", order1)
	busy := p.ask(`select application_name from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`)
	p.flush()
	for _, w := range workers {
		if w.way == busy {
			w.kill()
		}
	}
	p.redis.Kill()
	if _, err := holder.ExecContext(t.Context(), `select pg_advisory_unlock(1, 1)`); err != nil {
		t.Fatal(err)
	}
	one := same(t, wait())
	if n, m := count(t, p.db, "orders"), count(t, p.db, "order_item"); n != 1 || m != 2 {
		t.Errorf("got %d orders with %d items, want 1 with 2", n, m)
	}

	// The worker comes back, Redis with it, and all tell the same.
	p.redis.Start()
	for i, w := range workers {
		if w.way == busy {
			workers[i] = p.worker(busy, rolePlain)
		}
	}
	for _, w := range workers {
		if got := w.send("POST", "/orders", "k1", order1); got != one {
			t.Errorf("%s: got %v, want %v", w.way, got, one)
		}
	}
	same(t, insistMany(t, workers, one.location+"/payments", "p1", paid1)())
	same(t, insistMany(t, workers, one.location+"/shipment", "s1", "")())
	if n, m := count(t, p.db, "payment"), count(t, p.db, "shipment"); n != 1 || m != 1 {
		t.Errorf("got %d payments and %d parcels, want one of each", n, m)
	}
}

func TestAWorkerKilledAtTheCarrierLeavesOneParcel(t *testing.T) {
	t.Parallel()
	for _, fate := range []string{"kept", "flushed", "killed"} {
		t.Run("Redis "+fate, func(t *testing.T) {
			t.Parallel()
			p := newPlacement(t)
			victim, others := p.worker("pgx", roleParcel), []*child{p.worker("sql", rolePlain), p.worker("gorm", rolePlain)}
			one := others[0].send("POST", "/orders", "k1", order1)
			if paid := others[1].send("POST", one.location+"/payments", "p1", paid1); paid.status != 201 {
				t.Fatal(paid)
			}
			lost := make(chan reply, 1)
			go func() { lost <- victim.send("POST", one.location+"/shipment", "s1", "") }()
			victim.await(t, "stopped") // claimed, and at the carrier
			if got := p.command("DBSIZE"); got != ":1" {
				t.Errorf("Redis has %s leases, want 1", got)
			}
			wait := insistMany(t, others, one.location+"/shipment", "s1", "")
			switch fate {
			case "flushed":
				p.flush()
			case "killed":
				p.redis.Kill()
			}
			victim.kill()
			if got := <-lost; got.status != 0 {
				t.Errorf("the killed worker answered %v", got)
			}
			if got := same(t, wait()); !strings.Contains(got.body, `"tracking":"BR`) {
				t.Errorf("got %v, want a parcel", got)
			}
			if n := count(t, p.db, "shipment"); n != 1 {
				t.Errorf("got %d parcels, want 1", n)
			}
		})
	}
}
