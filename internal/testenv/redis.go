//go:build unix

package testenv

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// RedisServer is a Redis of one test's own, in memory only. It ends with the
// test. Its methods are for the test's goroutine.
type RedisServer struct {
	process
	port int
}

// StartRedis runs a Redis with the given arguments of redis-server, such as
// "--maxmemory", "3mb".
func StartRedis(tb testing.TB, arguments ...string) *RedisServer {
	tb.Helper()
	program := redisProgram(tb)
	s := &RedisServer{process: process{tb: tb, name: "redis", ready: "Ready to accept connections"}}
	dir := tb.TempDir()
	s.build = func() *exec.Cmd {
		cmd := exec.Command(program, append([]string{
			"--bind", host, "--port", strconv.Itoa(s.port), "--dir", dir,
			"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
		}, arguments...)...)
		cmd.Dir, cmd.SysProcAttr = dir, attributes()
		return cmd
	}
	s.first(tb)
	return s
}

// StartSentinel runs a Sentinel that watches a master under a name, alone: its
// quorum is 1 and it needs half a second to call a server down.
func StartSentinel(tb testing.TB, name string, master *RedisServer) *RedisServer {
	tb.Helper()
	program := redisProgram(tb)
	s := &RedisServer{process: process{tb: tb, name: "sentinel", ready: "+monitor master " + name}}
	file := filepath.Join(tb.TempDir(), "sentinel.conf")
	conf := "sentinel monitor " + name + " " + host + " " + strconv.Itoa(master.port) + " 1\n" +
		"sentinel down-after-milliseconds " + name + " 500\nsentinel failover-timeout " + name + " 5000\n"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.build = func() *exec.Cmd {
		cmd := exec.Command(program, file, "--sentinel", "--bind", host, "--port", strconv.Itoa(s.port))
		cmd.Dir, cmd.SysProcAttr = filepath.Dir(file), attributes()
		return cmd
	}
	s.first(tb)
	return s
}

// StartRedisCluster runs a Redis Cluster of three masters without replicas, each
// with a third of the slots. One that is killed does not stop the others.
func StartRedisCluster(tb testing.TB) []*RedisServer {
	tb.Helper()
	const slots, masters = 16384, 3
	var all []*RedisServer
	for i := range masters {
		bus := strconv.Itoa(freePort(tb))
		s := StartRedis(tb, "--cluster-enabled", "yes", "--cluster-port", bus,
			"--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
		all = append(all, s)
		s.must("CLUSTER SET-CONFIG-EPOCH " + strconv.Itoa(i+1))
		s.must("CLUSTER ADDSLOTSRANGE " + strconv.Itoa(i*slots/masters) + " " + strconv.Itoa((i+1)*slots/masters-1))
		for _, other := range all[:i] {
			other.must("CLUSTER MEET " + host + " " + strconv.Itoa(s.port) + " " + bus)
		}
	}
	for _, s := range all {
		late := time.After(limit)
		for !s.whole(slots) {
			select {
			case <-late:
				tb.Fatalf("the Cluster does not come together:\n%s", s.logged.tail())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return all
}

// whole tells whether this member of a Cluster knows the place of every slot.
func (s *RedisServer) whole(slots int) bool {
	s.tb.Helper()
	info := s.ask("CLUSTER INFO")
	return strings.Contains(info, "cluster_state:ok\r\n") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r\n")
}

// must sends one command and wants the answer OK.
func (s *RedisServer) must(command string) {
	s.tb.Helper()
	if got := s.ask(command); got != "OK" {
		s.tb.Fatalf("%s: %s", command, got)
	}
}

// ask sends one command and gives its answer: a line, or a text.
func (s *RedisServer) ask(command string) string {
	s.tb.Helper()
	conn, err := net.DialTimeout("tcp", s.Addr(), limit)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		s.tb.Fatal(err)
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		s.tb.Fatal(err)
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		s.tb.Fatalf("%s: %v", command, err)
	}
	line = strings.TrimSpace(line)
	size, isText := strings.CutPrefix(line, "$")
	n, err := strconv.Atoi(size)
	if !isText || err != nil || n < 0 {
		return strings.TrimPrefix(line, "+")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(in, text); err != nil {
		s.tb.Fatalf("%s: %v", command, err)
	}
	return string(text)
}

func redisProgram(tb testing.TB) string {
	tb.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		missing(tb, "no redis-server on the PATH; run, as root: scripts/services up redis")
	}
	return program
}

func (s *RedisServer) first(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(s.kill)
	first(tb, func(port int) error {
		s.port = port
		return s.start()
	})
}

// Addr is its host:port, the same after a restart.
func (s *RedisServer) Addr() string { return address(s.port) }

// Port is its port.
func (s *RedisServer) Port() int { return s.port }

// Kill ends it at once, as kill -9 does. Its data is gone.
func (s *RedisServer) Kill() { s.tb.Helper(); s.kill() }

// Start runs it again after [RedisServer.Kill], empty.
func (s *RedisServer) Start() {
	s.tb.Helper()
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// Pause stops it as it stands: its connections stay open and nothing answers.
func (s *RedisServer) Pause() { s.tb.Helper(); s.signal(syscall.SIGSTOP) }

// Resume lets it go on after [RedisServer.Pause].
func (s *RedisServer) Resume() { s.tb.Helper(); s.signal(syscall.SIGCONT) }

// Replica runs a replica of it, and returns when that has all its data.
func (s *RedisServer) Replica() *RedisServer {
	s.tb.Helper()
	r := StartRedis(s.tb, "--replicaof", host+" "+strconv.Itoa(s.port))
	r.says("MASTER <-> REPLICA sync: Finished with success")
	return r
}

// WaitLog returns when its log has said text.
func (s *RedisServer) WaitLog(text string) { s.tb.Helper(); s.says(text) }
