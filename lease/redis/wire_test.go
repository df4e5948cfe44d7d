package redis_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/lease"
	"github.com/unavez/unavez/lease/redis"
)

// listen accepts connections until the test ends, each for serve, which owns it.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for conn := range open {
			_ = conn.Close() // closed already, most of them
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().String()
}

// lossy stands between a client and its server. While it loses answers, a
// command reaches the server and the connection ends before the answer is back.
type lossy struct {
	addr string
	mu   sync.Mutex
	lose int
	lost int
}

func newLossy(t *testing.T, server string) *lossy {
	t.Helper()
	p := &lossy{}
	p.addr = listen(t, func(client net.Conn) {
		upstream, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer upstream.Close()
		go func() {
			_, _ = io.Copy(upstream, client) // ends when either end closes
			_ = upstream.Close()
		}()
		buffer := make([]byte, 64<<10)
		for {
			n, err := upstream.Read(buffer)
			if err != nil || p.loses() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	return p
}

func (p *lossy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose == 0 {
		return false
	}
	p.lose--
	p.lost++
	return true
}

// next loses the next answers.
func (p *lossy) next(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

func TestACallWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts, client := steady(), plain(t, address(url))
	swept(t, client, opts.Prefix)
	proxy := newLossy(t, address(url))
	l, other := open(t, "redis://"+proxy.addr, opts), open(t, url, opts)
	granted(t, l, "warm", "w") // the connection and the scripts are there
	renewed(t, l, "nobody", false)
	if err := l.Release(t.Context(), key, "nobody"); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), key, "nobody", time.Hour); err != nil {
		t.Fatal(err)
	}
	lost := func(call string) {
		t.Helper()
		proxy.next(1)
		if err := calls(l)[call](t.Context()); err == nil {
			t.Fatalf("%s: its answer was lost, and there is no error", call)
		}
		proxy.mu.Lock()
		defer proxy.mu.Unlock()
		if proxy.lose != 0 {
			t.Fatalf("%s lost nothing", call)
		}
	}
	lost("Acquire")
	refused(t, other, key, "b", "a") // it was done
	granted(t, l, key, "a")          // and is ours
	lost("Renew")
	renewed(t, l, "a", true)
	lost("Release")
	if err := l.Release(t.Context(), key, "a"); err != nil {
		t.Fatal(err)
	}
	granted(t, other, key, "b")
	if err := l.Release(t.Context(), key, "a"); err != nil {
		t.Fatal(err)
	}
	refused(t, l, key, "a", "b")
	if err := other.Release(t.Context(), key, "b"); err != nil {
		t.Fatal(err)
	}
	granted(t, l, key, "a")
	lost("Complete")
	if err := l.Complete(t.Context(), key, "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	if held, mark := acquire(t, other, key, "b"); held || !mark.Completed {
		t.Errorf("held %v, %+v; want the mark", held, mark)
	}
}

// answering is a server that knows the handshake and gives every script one
// answer.
func answering(t *testing.T, answer string) string {
	t.Helper()
	return listen(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			words, err := command(in)
			if err != nil || len(words) == 0 {
				return
			}
			reply := "+OK\r\n"
			switch strings.ToUpper(words[0]) {
			case "HELLO":
				reply = "-ERR unknown command 'HELLO'\r\n"
			case "EVALSHA", "EVAL", "ASKING":
				reply = answer
			}
			if _, err := io.WriteString(conn, reply); err != nil || reply == "" {
				return
			}
		}
	})
}

// command reads one command of RESP.
func command(in *bufio.Reader) ([]string, error) {
	line := func(kind byte) (int, error) {
		text, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if text[0] != kind {
			return 0, errors.New("not RESP")
		}
		return strconv.Atoi(strings.TrimSpace(text[1:]))
	}
	n, err := line('*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := line('$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

func TestWhateverRedisSaysIsAnErrorAndNoMore(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"loading":        "-LOADING Redis is loading the dataset in memory\r\n",
		"read-only":      "-READONLY You can't write against a read only replica.\r\n",
		"out of memory":  "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
		"no script":      "-NOSCRIPT No matching script. Please use EVAL.\r\n",
		"moved":          "-MOVED 3999 127.0.0.1:1\r\n",
		"ask":            "-ASK 3999 127.0.0.1:1\r\n",
		"cluster down":   "-CLUSTERDOWN Hash slot not served\r\n",
		"master down":    "-MASTERDOWN Link with MASTER is down\r\n",
		"busy":           "-BUSY Redis is busy running a script\r\n",
		"no replicas":    "-NOREPLICAS Not enough good replicas to write.\r\n",
		"no permission":  "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
		"not RESP":       "HTTP/1.1 400 Bad Request\r\n",
		"hung up":        "",
		"cut off":        "*2\r\n$5\r\nuv",
		"large":          "$-3\r\n",
		"other shape":    "*3\r\n:1\r\n:2\r\n:3\r\n",
		"other types":    "*2\r\n:1\r\n:2\r\n",
		"nothing":        "$-1\r\n",
		"text":           "$2\r\nOK\r\n",
		"another number": ":7\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t, "redis://"+answering(t, answer), &redis.Options{Timeout: 500 * time.Millisecond, Pause: -1})
			held, other, _, err := l.Acquire(t.Context(), key, lease.Value{Token: "a"}, time.Hour)
			if err == nil || held {
				t.Errorf("Acquire: held %v, %+v, %v; want an error", held, other, err)
			}
			if held, _ := l.Renew(t.Context(), key, "a", time.Hour); held {
				t.Error("Renew: held")
			}
			if !strings.HasPrefix(answer, "-") {
				return
			}
			for call, do := range calls(l) {
				if err := do(t.Context()); err == nil {
					t.Errorf("%s: no error", call)
				}
			}
		})
	}
}

func TestOneServersSayingIsNoSilence(t *testing.T) {
	t.Parallel()
	l := open(t, "redis://"+answering(t, "-LOADING Redis is loading the dataset in memory\r\n"), &redis.Options{Timeout: patient, Pause: time.Minute})
	for range 3 {
		if err := l.Release(t.Context(), key, "a"); err == nil || errors.Is(err, redis.ErrPaused) {
			t.Errorf("%v, want what Redis said", err)
		}
	}
	gone := open(t, "redis://127.0.0.1:1", &redis.Options{Timeout: patient, Pause: time.Minute})
	if err := gone.Release(t.Context(), key, "a"); err == nil || errors.Is(err, redis.ErrPaused) {
		t.Errorf("%v, want the connection's error", err)
	}
	if err := gone.Release(t.Context(), key, "a"); !errors.Is(err, redis.ErrPaused) {
		t.Errorf("%v, want ErrPaused", err)
	}
}
