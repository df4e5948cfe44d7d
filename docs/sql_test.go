//go:build unix

package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
)

// language is how a program of docs/sql.md is run.
type language struct {
	name, fence string
	interpreter func(t *testing.T) []string
	environment func(address *url.URL) string
}

func languages() []language {
	plain := func(address *url.URL) string { return "DATABASE_URL=" + address.String() }
	return []language{
		{"psql", "sh", func(t *testing.T) []string {
			testenv.Program(t, "postgresql-client", []string{"--version"}, "psql")
			return []string{testenv.Program(t, "dash", []string{"-c", "true"}, "sh")}
		}, plain},
		{"Python", "python", func(t *testing.T) []string {
			return []string{testenv.Program(t, "python3-psycopg", []string{"-c", "import psycopg"}, "python3", "/usr/bin/python3")}
		}, plain},
		{"PHP", "php", func(t *testing.T) []string {
			return []string{testenv.Program(t, "php-cli php-pgsql", []string{"-r", `exit(extension_loaded("pdo_pgsql") ? 0 : 1);`}, "php")}
		}, func(address *url.URL) string {
			password, _ := address.User.Password()
			return fmt.Sprintf("DATABASE_DSN=pgsql:host=%s port=%s dbname=%s user=%s password=%s sslmode=disable options='%s'", address.Hostname(), address.Port(),
				strings.TrimPrefix(address.Path, "/"), address.User.Username(), password, address.Query().Get("options"))
		}},
	}
}

// shopInSQL is one program of the page and the database that it works on.
type shopInSQL struct {
	t       *testing.T
	run     []string // interpreter and file
	setting func(address *url.URL) string
	address *url.URL
	pool    *pgxpool.Pool // a superuser's
}

func openShop(t *testing.T, l language) *shopInSQL {
	t.Helper()
	block := regexp.MustCompile("(?s)\n```" + l.fence + "\n(.*?)```\n").FindStringSubmatch(string(must(os.ReadFile("sql.md"))))
	if block == nil {
		t.Fatalf("sql.md: no program in %s", l.fence)
	}
	file := filepath.Join(t.TempDir(), "place")
	must(0, os.WriteFile(file, []byte(block[1]), 0o600))
	s := &shopInSQL{t: t, run: append(l.interpreter(t), file), setting: l.environment}
	s.address = must(url.Parse(testenv.NewDatabase(t)))
	s.pool = must(pgxpool.New(t.Context(), s.address.String()))
	t.Cleanup(s.pool.Close)
	must(s.pool.Exec(t.Context(), postgres.Roles()))
	must(0, postgres.Migrate(t.Context(), s.pool, nil))
	must(s.pool.Exec(t.Context(), `create table orders(id bigserial primary key, customer text);
		grant all on orders to unavez_app; grant usage on sequence orders_id_seq to unavez_app`))
	query := s.address.Query()
	query.Set("options", "-c role=unavez_app") // the program runs with no right more
	s.address.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return s
}

// ran is one run of the program.
type ran struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
}

// start runs the program through an address, in a group of its own.
func (s *shopInSQL) start(address *url.URL, key, customer string) *ran {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	r := &ran{cmd: exec.CommandContext(ctx, s.run[0], append(s.run[1:], key, customer)...)}
	r.cmd.Env = append(os.Environ(), s.setting(address))
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.Cancel = r.kill
	must(0, r.cmd.Start())
	return r
}

func (r *ran) kill() error { return syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) }

// ended gives the status of the program and what it printed: the answer, or else
// the error.
func (r *ran) ended() (status int, out string) {
	var exit *exec.ExitError
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return -1, err.Error()
	}
	if status = r.cmd.ProcessState.ExitCode(); status == 0 {
		return status, strings.TrimSpace(r.out.String())
	}
	return status, strings.TrimSpace(r.err.String())
}

// answers runs the program to its end and compares.
func (s *shopInSQL) answers(key, customer string, status int, out string) {
	s.t.Helper()
	if got, text := s.start(s.address, key, customer).ended(); got != status || text != out {
		s.t.Fatalf("%s %s: %d %q, want %d %q", key, customer, got, text, status, out)
	}
}

func (s *shopInSQL) orders(want int) {
	s.t.Helper()
	var n int
	if must(0, s.pool.QueryRow(s.t.Context(), "select count(*) from orders").Scan(&n)); n != want {
		s.t.Fatalf("%d orders, want %d", n, want)
	}
}

// held keeps every program before its insert, until it is let go.
func (s *shopInSQL) held() (waits, release func()) {
	s.t.Helper()
	tx := must(s.pool.Begin(s.t.Context()))
	must(tx.Exec(s.t.Context(), "lock table orders in share mode"))
	waits = func() {
		s.t.Helper()
		s.until("the program waits", `select exists (select from pg_locks where not granted and relation = 'orders'::regclass
			and database = (select oid from pg_database where datname = current_database()))`)
	}
	return waits, func() { must(0, tx.Rollback(context.Background())) }
}

// until asks the database until it says yes.
func (s *shopInSQL) until(what, text string) {
	s.t.Helper()
	eventually(s.t, what, func() (yes bool) {
		must(0, s.pool.QueryRow(s.t.Context(), text).Scan(&yes))
		return yes
	})
}

func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		}
	}
}

const (
	answerOfFirst  = `201 {"order": 1}`
	answerOfSecond = `201 {"order": 2}`
)

// as is an answer in the way that the language writes JSON.
func as(l language, answer string) string {
	switch l.fence {
	case "sh":
		return strings.ReplaceAll(answer, `":`, `" :`)
	case "php":
		return strings.ReplaceAll(answer, `": `, `":`)
	}
	return answer
}

func operationOf(key string) unavez.Operation {
	return unavez.Operation{Tenant: "acme", Effect: "order.place.v1", Key: []string{key}}
}

func TestProgramsOfTheSQLPagePlaceOneOrder(t *testing.T) {
	t.Parallel()
	for _, l := range languages() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, l)
			first := as(l, answerOfFirst)
			for range 2 {
				s.answers("key 1 é", "O'Neil \\ é", 0, first)
			}
			id := store.Identity{Tenant: "acme", Effect: "order.place.v1", Parts: []string{"key 1 é"}}.Key().String()
			s.answers("key 1 é", "c-2", 65, "other payload operation "+id)
			s.orders(1)

			// Two at once: one runs, the other is told at once.
			waits, release := s.held()
			running := s.start(s.address, "two", "c-1")
			waits()
			two := store.Identity{Tenant: "acme", Effect: "order.place.v1", Parts: []string{"two"}}.Key().String()
			s.answers("two", "c-1", 75, "in flight operation "+two)
			release()
			if status, out := running.ended(); status != 0 || out != as(l, answerOfSecond) {
				t.Fatalf("the first: %d %q", status, out)
			}
			s.answers("two", "c-1", 0, as(l, answerOfSecond))
			s.orders(2)

			// Killed between the two functions.
			waits, release = s.held()
			killed := s.start(s.address, "killed", "c-1")
			waits()
			must(0, killed.kill())
			killed.ended()
			release()
			var status int
			var out string
			eventually(t, "the key is free", func() bool {
				status, out = s.start(s.address, "killed", "c-1").ended()
				return status != 75
			})
			if status != 0 || !strings.HasPrefix(out, "201 ") {
				t.Fatalf("after the kill: %d %q", status, out)
			}
			s.answers("killed", "c-1", 0, out)
			s.orders(3)
		})
	}
}

func TestProgramsOfTheSQLPageSettleALostCommit(t *testing.T) {
	t.Parallel()
	for _, l := range languages() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, l)
			for n, fault := range []fault{commitNotSent, commitUnanswered, commitAbandoned} {
				to := *s.address
				to.Host = breaks(t, s.address.Host, fault)
				key := fmt.Sprint("lost ", n)
				status, out := s.start(&to, key, "c-1").ended()
				if status != 0 || !strings.HasPrefix(out, "201 ") {
					t.Fatalf("fault %d: %d %q", fault, status, out)
				}
				s.answers(key, "c-1", 0, out)
				s.orders(n + 1)
			}
		})
	}
}

func TestProgramsOfTheSQLPageShareOperationsWithGo(t *testing.T) {
	t.Parallel()
	for _, l := range languages() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, l)
			engine := must(unavez.New(must(postgres.New(s.pool, nil)), nil))
			op := operationOf("shared")
			op.Payload = []byte("c-1")
			must(engine.Do(t.Context(), op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
				_, err := tx.Exec(ctx, "insert into orders(customer) values ('c-1')")
				return unavez.Result{Code: 202, Body: []byte("by Go")}, err
			}))
			s.answers("shared", "c-1", 0, "202 by Go")
			op = operationOf("theirs")
			op.Payload = []byte("c-1")
			s.answers("theirs", "c-1", 0, as(l, answerOfSecond))
			outcome := must(engine.Do(t.Context(), op, func(context.Context, pgx.Tx) (unavez.Result, error) {
				return unavez.Result{}, errors.New("ran a second time")
			}))
			if got := fmt.Sprint(outcome.Result.Code, " ", string(outcome.Result.Body)); got != as(l, answerOfSecond) {
				t.Errorf("Go got %s", got)
			}
			s.orders(2)

			// An attempt in lease mode whose outcome is not known.
			op = operationOf("unknown")
			op.Payload = []byte("c-1")
			_, err := engine.Lease(t.Context(), op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
				return unavez.Result{}, errors.New("the answer is lost")
			}, nil)
			if unavez.CodeOf(err) != unavez.CodeUnknown {
				t.Fatal(err)
			}
			id := store.Identity{Tenant: "acme", Effect: "order.place.v1", Parts: []string{"unknown"}}.Key().String()
			s.answers("unknown", "c-1", 70, "unknown operation "+id)
			s.orders(2)
		})
	}
}

// fault is what becomes of the first COMMIT on a connection.
type fault int

const (
	commitNotSent    fault = iota // it never leaves
	commitUnanswered              // it took effect, and its answer is lost
	commitAbandoned               // it is sent, and nobody waits
)

// breaks forwards to a server and spoils the first COMMIT that passes.
func breaks(t *testing.T, server string, f fault) (address string) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	var all sync.WaitGroup
	var once sync.Once
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
		once.Do(func() { t.Errorf("fault %d: no COMMIT passed", f) })
	})
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() { forward(client, server, f, &once) })
		}
	})
	return listener.Addr().String()
}

// commitMessage is a query that commits, simple or parsed first.
var commitMessage = regexp.MustCompile(`(?is)[QP]....\x00?commit;?\x00`)

func forward(client net.Conn, server string, f fault, once *sync.Once) {
	defer client.Close()
	back, err := net.Dial("tcp", server)
	if err != nil {
		return // the client finds out
	}
	defer back.Close()
	committed := make(chan bool, 1)
	var answers sync.WaitGroup
	defer answers.Wait()
	defer back.Close()
	answers.Go(func() {
		defer client.Close()
		buffer := make([]byte, 1<<16)
		for {
			n, err := back.Read(buffer)
			select {
			case <-committed:
				return // with the answer, which goes nowhere
			default:
			}
			if err != nil {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		spoilt := false
		if commitMessage.Match(buffer[:n]) {
			once.Do(func() { spoilt = true })
		}
		if spoilt && f == commitNotSent {
			return
		}
		if spoilt {
			committed <- true
		}
		if _, err := back.Write(buffer[:n]); err != nil || spoilt && f == commitAbandoned {
			return
		}
		if spoilt { // until the answer is there
			answers.Wait()
			_, _ = io.Copy(io.Discard, client) // it is closed by now
			return
		}
	}
}

// The block of the page about enqueue, as it stands there, twice.
func TestEntryOfTheSQLPageIsInTheQueueOnce(t *testing.T) {
	t.Parallel()
	page := string(must(os.ReadFile("sql.md")))
	block := regexp.MustCompile("(?s)```sql\n(begin;\ninsert into orders.*?unavez\\.enqueue.*?)```\n").FindStringSubmatch(page)
	if block == nil {
		t.Fatal("sql.md: no block that enqueues")
	}
	s := openShop(t, languages()[0])
	app := must(pgxpool.New(t.Context(), s.address.String()))
	defer app.Close()
	for range 2 {
		must(app.Exec(t.Context(), block[1]))
	}
	s.orders(2) // the order has no operation of its own here
	queue := must(postgres.New(app, nil))
	lanes := make([]int, queue.Lanes())
	for i := range lanes {
		lanes[i] = i
	}
	got := must(queue.Read(t.Context(), store.Reading{Lanes: lanes, Limit: 10})).Entries
	id := store.Identity{Tenant: "acme", Effect: "order.ship.v1", Parts: []string{"order-1"}}
	if len(got) != 1 || got[0].Key != id.Key() || got[0].Note.Ordering[0] != "c-1" || string(got[0].Payload) != `{"order": "order-1"}` ||
		got[0].Note.Source != "shop" || got[0].Subject != store.SubjectKey("acme", []string{"customer", "c-1"}) {
		t.Errorf("in the queue: %+v", got)
	}
}
