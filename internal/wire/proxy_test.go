package wire_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit of what a healthy server answers at once.
const limit = 20 * time.Second

// front starts a proxy before a server.
func front(t *testing.T, protocol wire.Protocol, address string) *wire.Proxy {
	t.Helper()
	proxy, err := wire.Listen(protocol, wire.To(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return proxy
}

// database is one of the test's own, and its URL through a proxy.
func database(t *testing.T) (proxy *wire.Proxy, direct, through string) {
	t.Helper()
	direct = testenv.NewDatabase(t)
	at, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	proxy = front(t, wire.PostgreSQL, at.Host)
	at.Host = proxy.Addr()
	return proxy, direct, at.String()
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
		defer cancel()
		_ = conn.Close(ctx) // it may have been broken
	})
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, text string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}

// at gives a fate to the first message that a text begins.
func at(start string, fate wire.Fate) func(*wire.Message) wire.Fate {
	return func(m *wire.Message) wire.Fate {
		if strings.HasPrefix(m.String(), start) {
			return fate
		}
		return wire.Pass
	}
}

func TestEveryMessageIsSeenInItsOrder(t *testing.T) {
	t.Parallel()
	proxy, _, through := database(t)
	conn := connect(t, strings.Replace(through, "sslmode=disable", "sslmode=prefer", 1)) // it is told that there is no TLS
	var seen []string
	var mu sync.Mutex
	proxy.Watch(func(m *wire.Message) wire.Fate {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, m.String())
		return wire.Pass
	})
	exec(t, conn, "create table t (n int)")
	if _, err := conn.Exec(t.Context(), "insert into t values ($1)", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "select 1/0"); err == nil {
		t.Fatal("no error")
	}
	proxy.Watch(nil)
	mu.Lock()
	defer mu.Unlock()
	seen = slices.DeleteFunc(seen, func(s string) bool { return strings.HasPrefix(s, "client Close") }) // of the driver's own keeping house
	for i, s := range seen {
		if strings.HasPrefix(s, "client Parse") || strings.HasPrefix(s, "client Bind") {
			seen[i], _, _ = strings.Cut(s, " stmtcache_")
		}
	}
	want := []string{
		"client Query create table t (n int)", "server CommandComplete CREATE TABLE", "server ReadyForQuery I",
		"client Parse insert into t values ($1)", "client Describe", "client Sync",
		"server ParseComplete", "server ParameterDescription", "server NoData", "server ReadyForQuery I",
		"client Bind", "client Describe", "client Execute", "client Sync",
		"server BindComplete", "server NoData", "server CommandComplete INSERT 0 1", "server ReadyForQuery I",
		"client Query select 1/0", "server ErrorResponse 22012", "server ReadyForQuery I",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}

func TestEachFateIsWhatItSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at   string
		fate wire.Fate
		rows int
	}{
		{"client Query insert", wire.Cut, 0},
		{"client Query insert", wire.Tear, 0},
		{"client Query insert", wire.Reset, 0},
		{"client Query insert", wire.Stall, 0},
		{"server CommandComplete INSERT", wire.Cut, 1},
		{"server CommandComplete INSERT", wire.Tear, 1},
		{"server CommandComplete INSERT", wire.Reset, 1},
		{"server CommandComplete INSERT", wire.Stall, 1},
		{"server ReadyForQuery", wire.Cut, 1},
	} {
		t.Run(fmt.Sprint(c.fate, " at ", c.at), func(t *testing.T) {
			t.Parallel()
			proxy, direct, through := database(t)
			beside := connect(t, direct)
			exec(t, beside, "create table t (n int)")
			conn, other := connect(t, through), connect(t, through)
			proxy.Watch(at(c.at, c.fate))
			within := limit
			if c.fate == wire.Stall {
				within = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := conn.Exec(ctx, "insert into t values (1)")
			if err == nil {
				t.Fatal("the client got its answer")
			}
			if slow := errors.Is(err, context.DeadlineExceeded); slow != (c.fate == wire.Stall) {
				t.Errorf("%v", err)
			}
			proxy.Watch(nil)
			exec(t, other, "select 1") // others go on
			rows := 0
			if err := beside.QueryRow(t.Context(), "select count(*) from t").Scan(&rows); err != nil || rows != c.rows {
				t.Errorf("%d rows, %v; want %d", rows, err, c.rows)
			}
			waiting := 0
			const sessions = "select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
			for late := time.Now().Add(limit); ; { // until the server has seen the end
				if err := beside.QueryRow(t.Context(), sessions).Scan(&waiting); err != nil {
					t.Fatal(err)
				}
				if waiting == 2 || c.fate == wire.Stall || time.Now().After(late) {
					break
				}
			}
			want := 2
			if c.fate == wire.Stall { // nobody told the server
				want = 3
			}
			if waiting != want {
				t.Errorf("%d sessions, want %d", waiting, want)
			}
		})
	}
}

// The server finds out that a host is gone, and not that a process is stopped.
func TestAHostThatIsGoneAnswersNothing(t *testing.T) {
	t.Parallel()
	proxy, direct, through := database(t)
	beside, conn := connect(t, direct), connect(t, through)
	exec(t, conn, "set application_name = 'lost'; set tcp_keepalives_idle = 1; set tcp_keepalives_interval = 1; set tcp_keepalives_count = 1")
	fate := wire.Vanish
	if runtime.GOOS != "linux" {
		fate = wire.Cut // which is all it can be told there
	}
	proxy.Watch(at("client", fate))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "select 1"); err == nil {
		t.Fatal("a host that is gone has answered")
	}
	for late, n := time.Now().Add(limit), 1; n > 0; {
		if err := beside.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = 'lost'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 && time.Now().After(late) {
			t.Fatal("the server still has the session")
		}
	}
}

func TestWhatIsHeldIsLostWithItsConnectionOrComesLater(t *testing.T) {
	t.Parallel()
	proxy, _, through := database(t)
	conn := connect(t, through)
	proxy.Watch(at("server CommandComplete", wire.Hold))
	exec(t, conn, "select 1")
	proxy.Watch(func(m *wire.Message) wire.Fate {
		switch {
		case m.From == wire.Client:
			return wire.Pass
		case m.Kind == "ReadyForQuery":
			return wire.Cut
		}
		return wire.Hold
	})
	results := 0
	reader := conn.PgConn().Exec(t.Context(), "select 1; select 2")
	for reader.NextResult() {
		results++
	}
	if err := reader.Close(); err == nil || results != 0 {
		t.Errorf("%d answers of a connection that lost them, %v", results, err)
	}
}

func TestAServerThatLiesIsTheWatchers(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := front(t, wire.Redis, at.Host)
	conn, err := net.DialTimeout("tcp", proxy.Addr(), limit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	ask := func(command string) string {
		t.Helper()
		if _, err := io.WriteString(conn, command); err != nil {
			t.Fatal(err)
		}
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	const ping = "*1\r\n$4\r\nping\r\n"
	if got := ask(ping); got != "+PONG" {
		t.Errorf("ping: %s", got)
	}
	proxy.Watch(func(m *wire.Message) wire.Fate {
		if m.String() == "server status +PONG" {
			m.Bytes = []byte("-ERR not today\r\n")
		}
		return wire.Pass
	})
	if got := ask(ping); got != "-ERR not today" {
		t.Errorf("ping: %s", got)
	}
	if got := ask("TIME\r\n"); got != "*2" {
		t.Errorf("time: %s", got)
	}
}

func TestAServerThatIsNotThereIsAClosedConnection(t *testing.T) {
	t.Parallel()
	proxy := front(t, wire.Redis, "127.0.0.1:1")
	conn, err := net.DialTimeout("tcp", proxy.Addr(), limit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the end", err)
	}
}
