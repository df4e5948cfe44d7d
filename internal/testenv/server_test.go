//go:build unix

package testenv

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ask sends one inline command to a Redis and gives the first line of the answer.
func ask(t *testing.T, s *RedisServer, command string, within time.Duration) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func (s *RedisServer) want(t *testing.T, command, want string) {
	t.Helper()
	if got, err := ask(t, s, command, limit); err != nil || got != want {
		t.Fatalf("%s: %q, %v; want %q", command, got, err, want)
	}
}

func TestARedisIsKilledPausedAndCopied(t *testing.T) {
	t.Parallel()
	s := StartRedis(t)
	s.want(t, "SET k v", "+OK")
	replica := s.Replica()
	replica.want(t, "GET k", "$1")
	s.Pause()
	if got, err := ask(t, s, "PING", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("paused: %q, %v", got, err)
	}
	s.Resume()
	s.want(t, "GET k", "$1")
	s.Kill()
	if got, err := ask(t, s, "PING", limit); err == nil {
		t.Errorf("killed: %q", got)
	}
	replica.want(t, "REPLICAOF NO ONE", "+OK")
	replica.want(t, "SET k w", "+OK")
	s.Start()
	s.want(t, "EXISTS k", ":0")
	StartSentinel(t, "m", s).want(t, "SENTINEL ckquorum m", "+OK 1 usable Sentinels. Quorum and failover authorization can be reached")
}

func TestAPostgresIsKilledPausedAndPromoted(t *testing.T) {
	t.Parallel()
	s := StartPostgres(t, "work_mem=5MB")
	exec := func(s *PostgresServer, statement string) error { return administer(t.Context(), s.URL(), statement) }
	if err := exec(s, "create table t (n int)"); err != nil {
		t.Fatal(err)
	}
	count := func(s *PostgresServer) (n int, settings string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if err := conn.QueryRow(t.Context(), "select (select count(*) from t), current_setting('work_mem') || current_setting('fsync')").Scan(&n, &settings); err != nil {
			t.Fatal(err)
		}
		return n, settings
	}
	s.Kill()
	s.Start()
	if _, settings := count(s); settings != "5MBon" {
		t.Errorf("settings %s", settings)
	}
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := administer(ctx, s.URL(), "select 1"); err == nil {
		t.Error("paused: it answers")
	}
	s.Resume()
	standby := s.Standby()
	if err := exec(standby, "insert into t values (1)"); err == nil {
		t.Error("a standby takes a write")
	}
	s.Stop()
	standby.Promote()
	if err := exec(standby, "insert into t values (1)"); err != nil {
		t.Error(err)
	}
	if n, _ := count(standby); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	s.Start()
	if n, _ := count(s); n != 0 {
		t.Errorf("%d rows on the old primary, want 0", n)
	}
}
