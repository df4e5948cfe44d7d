package framing

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// refusedRequests are whole connections of which net/http by itself would make
// more or other requests than a strict parser. In each, the refused request is
// followed by one that must never be served.
func refusedRequests() map[string]string {
	const host = "Host: a\r\n"
	post := "POST / HTTP/1.1\r\n" + host
	return map[string]string{
		"length and coding":             post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"coding and length":             post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"names in other cases":          post + "content-LENGTH: 4\r\ntransfer-ENCODING: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":                   post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"one length twice":              post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
		"a list of lengths":             post + "Content-Length: 4, 4\r\n\r\nabcd",
		"signed length":                 post + "Content-Length: +4\r\n\r\nabcd",
		"negative length":               post + "Content-Length: -4\r\n\r\nabcd",
		"hexadecimal length":            post + "Content-Length: 0x4\r\n\r\nabcd",
		"empty length":                  post + "Content-Length:\r\n\r\nabcd",
		"enormous length":               post + "Content-Length: 99999999999999999999\r\n\r\nabcd",
		"length over 32 bytes":          post + "Content-Length: " + strings.Repeat("0", 40) + "4\r\n\r\nabcd",
		"white space before the colon":  post + "Content-Length : 4\r\n\r\nabcd",
		"tab before the colon":          post + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
		"two codings":                   post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"a list of codings":             post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"identity":                      post + "Transfer-Encoding: identity\r\n\r\n",
		"misspelt coding":               post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"quoted coding":                 post + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
		"vertical tab before coding":    post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"coding with HTTP/1.0":          "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"folded line":                   post + "X-A: b\r\n c\r\nContent-Length: 4\r\n\r\nabcd",
		"folded coding":                 post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"folded first line":             "POST / HTTP/1.1\r\n Host: a\r\n\r\n",
		"bare LF in the request line":   "POST / HTTP/1.1\nHost: a\r\n\r\n",
		"bare LF in a header":           post + "X-A: b\nContent-Length: 4\r\n\r\nabcd",
		"bare LF at the end":            post + "Content-Length: 4\r\n\nabcd",
		"LF in front":                   "\n" + post + "\r\n",
		"two empty lines in front":      "\r\n\r\n" + post + "\r\n",
		"bare CR in a header":           post + "X-A: b\rContent-Length: 4\r\n\r\nabcd",
		"bare CR in the request line":   "POST /\r HTTP/1.1\r\n" + host + "\r\n",
		"CR CR LF":                      post + "\r\r\n",
		"NUL in a name":                 post + "X-\x00A: b\r\n\r\n",
		"NUL in a value":                post + "X-A: \x00\r\n\r\n",
		"no colon":                      post + "Transfer-Encoding chunked\r\n\r\n",
		"no name":                       post + ": chunked\r\n\r\n",
		"name of other bytes":           post + "Transfer\xffEncoding: chunked\r\n\r\n",
		"space in front of the request": " " + post + "\r\n",
	}
}

// refusedBodies break inside the body of a request: it is served, and fails to
// read its body.
func refusedBodies() map[string]string {
	post := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	return map[string]string{
		"bare LF after the size":      post + "4\nabcd\r\n0\r\n\r\n",
		"bare LF after the chunk":     post + "4\r\nabcd\n0\r\n\r\n",
		"chunk longer than its size":  post + "3\r\nabcd\r\n0\r\n\r\n",
		"size with a sign":            post + "+4\r\nabcd\r\n0\r\n\r\n",
		"size with 0x":                post + "0x4\r\nabcd\r\n0\r\n\r\n",
		"size behind a space":         post + " 4\r\nabcd\r\n0\r\n\r\n",
		"size before a space":         post + "4 \r\nabcd\r\n0\r\n\r\n",
		"no size":                     post + "\r\nabcd\r\n0\r\n\r\n",
		"size over 13 digits":         post + "00000000000000004\r\nabcd\r\n0\r\n\r\n",
		"LF in an extension":          post + "4;a=\nb\r\nabcd\r\n0\r\n\r\n",
		"extension over its bound":    post + "4;" + strings.Repeat("a", 1000) + "\r\nabcd\r\n0\r\n\r\n",
		"folded trailer":              post + "0\r\n X: y\r\n\r\n",
		"bare LF in a trailer":        post + "0\r\nX: y\n\r\n",
		"bare LF behind the trailers": post + "0\r\n\n",
	}
}

const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

// record is a server that remembers what it served.
type record struct {
	address  string
	served   chan string
	listener *Listener
}

func serve(t *testing.T, connections int) *record {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &record{address: tcp.Addr().String(), served: make(chan string, 100), listener: Listen(tcp, connections, stall)}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				r.served <- "broken"
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			r.served <- req.Method + " " + req.URL.Path + " " + string(body)
		}),
		ReadTimeout: 10 * time.Second,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(r.listener) // ends with ErrServerClosed
	}()
	t.Cleanup(func() {
		_ = srv.Close() // the listener is closed with it
		<-done
	})
	return r
}

// converse sends bytes in steps of some size and reads until the server closes.
func (r *record) converse(t *testing.T, sent string, step int) string {
	t.Helper()
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for rest := sent; rest != ""; {
			n := min(step, len(rest))
			if _, err := io.WriteString(c, rest[:n]); err != nil {
				return // refused already
			}
			rest = rest[n:]
		}
		if half, ok := c.(*net.TCPConn); ok {
			_ = half.CloseWrite() // refused already
		}
	}()
	got, _ := io.ReadAll(c) // a reset after the answer is fine
	return string(got)
}

func (r *record) all() (list []string) {
	for {
		select {
		case s := <-r.served:
			list = append(list, s)
		default:
			return list
		}
	}
}

// stall is how long the test listeners wait for a client that does not read.
const stall = 5 * time.Second

func TestAClientThatNeverReadsLosesItsPlace(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(tcp, 1, 100*time.Millisecond)
	failed := make(chan error, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, 64<<20)) // more than the kernel holds
		failed <- err
	})}
	go func() { _ = s.Serve(l) }() // ends with Close
	defer s.Close()
	deaf, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	if _, err := io.WriteString(deaf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("the answer was written to nobody")
	}
	other, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := io.WriteString(other, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, other); err != nil || n < 64<<20 {
		t.Errorf("the next client got %d bytes, %v", n, err)
	}
}

func TestAmbiguousHeadsAreRefusedAndNothingAfterThemIsServed(t *testing.T) {
	t.Parallel()
	for name, sent := range refusedRequests() {
		for _, step := range []int{1, 7, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, step), func(t *testing.T) {
				t.Parallel()
				r := serve(t, 10)
				got := r.converse(t, sent+smuggled, step)
				if list := r.all(); len(list) > 0 {
					t.Errorf("served %q", list)
				}
				if got != "" && !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Count(got, "HTTP/1.1") > 1 {
					t.Errorf("answered %q", got)
				}
				// What net/http refuses too it may refuse first, when it comes byte by byte.
				if n := r.listener.Refused(); n != 1 && !(n == 0 && strings.HasSuffix(name, "in front")) {
					t.Errorf("%d connections counted as refused", n)
				}
			})
		}
	}
}

func TestAmbiguousHeadsAreRefusedAfterAGoodRequestToo(t *testing.T) {
	t.Parallel()
	good := "POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /good HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n3;x=y\r\nabc\r\n00\r\nX: y\r\n\r\n"
	for name, sent := range refusedRequests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := serve(t, 10)
			if strings.Contains(name, "in front") && strings.HasPrefix(sent, "\r\n") {
				sent = "\r\n" + sent
			}
			got := r.converse(t, good+sent+smuggled, 1<<20)
			if list := r.all(); len(list) != 2 || list[0] != "POST /good abc" || list[1] != "POST /good abc" {
				t.Errorf("served %q", list)
			}
			if strings.Count(got, "HTTP/1.1 200 ") != 2 || strings.Count(got, "HTTP/1.1 400 ") != 1 {
				t.Errorf("answered %q", got)
			}
		})
	}
}

func TestAmbiguousBodiesAreNeverWholeAndNothingAfterThemIsServed(t *testing.T) {
	t.Parallel()
	for name, sent := range refusedBodies() {
		for _, step := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, step), func(t *testing.T) {
				t.Parallel()
				r := serve(t, 10)
				r.converse(t, sent+smuggled, step)
				if list := r.all(); len(list) != 1 || list[0] != "broken" {
					t.Errorf("served %q", list)
				}
			})
		}
	}
}

func TestOrdinaryRequestsPassUnchanged(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x\n\r\n\x00", 50_000)
	sent := "GET /a HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nX-Odd: \xe4\xb6 \t \"\\,;\r\n\r\n" +
		"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length:\t4  \r\n\r\n\r\n\r\n" +
		"\r\nPOST /c HTTP/1.1\r\nHost: a\r\ntransfer-encoding: CHUNKED\r\n\r\nA;q=\"x\"\r\n0123456789\r\n1\r\n\n\r\n0;last\r\nTrailer: x\r\n\r\n" +
		"PUT /d HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" +
		fmt.Sprintf("POST /e HTTP/1.1\r\nHost: a\r\nX-Content-Length: 3\r\nContent-Length: %d\r\n\r\n%s", len(big), big) +
		"GET /f HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	want := []string{"GET /a ", "POST /b \r\n\r\n", "POST /c 0123456789\n", "PUT /d ", "POST /e " + big, "GET /f "}
	for _, step := range []int{1, 3, 1000, 1 << 20} {
		if step == 1 {
			sent := strings.Replace(sent, big, big[:500], 1)
			sent = strings.Replace(sent, fmt.Sprint(len(big)), "500", 1)
			r := serve(t, 10)
			r.converse(t, sent, step)
			if got := r.all(); len(got) != len(want) {
				t.Errorf("byte by byte: served %d requests, want %d", len(got), len(want))
			}
			continue
		}
		r := serve(t, 10)
		r.converse(t, sent, step)
		got := r.all()
		if len(got) != len(want) {
			t.Fatalf("in steps of %d: served %d requests, want %d", step, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("in steps of %d: request %d differs", step, i)
			}
		}
	}
}

func TestConnectionsBeyondTheCapWaitForAPlace(t *testing.T) {
	t.Parallel()
	r := serve(t, 1)
	first, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := io.WriteString(first, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := <-r.served; got != "GET /first " {
		t.Fatal(got)
	}
	second := make(chan string)
	go func() {
		second <- r.converse(t, "GET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 1<<20)
	}()
	select {
	case got := <-r.served:
		t.Fatalf("%q was served over the cap", got)
	case <-time.After(50 * time.Millisecond):
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-second; !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("second: %q", got)
	}
}

// FuzzScanner holds the scanner against net/http: where both accept, they see
// each request end at the same byte.
func FuzzScanner(f *testing.F) {
	for _, set := range []map[string]string{refusedRequests(), refusedBodies()} {
		for _, sent := range set {
			f.Add([]byte(sent + smuggled))
		}
	}
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n" + smuggled))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s scanner
		ends := map[int]bool{}
		good := 0
		for ; good < len(data); good++ {
			if _, bad := s.scan(data[good : good+1]); bad {
				break
			}
			if s == (scanner{}) {
				ends[good+1] = true
			}
		}
		var whole scanner
		if n, _ := whole.scan(data); n != good {
			t.Fatalf("%d good bytes at once, %d one by one", n, good)
		}
		counted := &counter{r: bytes.NewReader(data[:good])}
		buffered := bufio.NewReader(counted)
		for {
			req, err := http.ReadRequest(buffered)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			if end := int(counted.n.Load()) - buffered.Buffered(); !ends[end] {
				t.Fatalf("net/http sees the end of %s %s at %d, the scanner at %v", req.Method, req.URL, end, ends)
			}
		}
	})
}

type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func BenchmarkScanner(b *testing.B) {
	head := []byte("POST /orders HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: curl/8\r\nAccept: */*\r\nIdempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("x", 100))
	b.ReportAllocs()
	b.SetBytes(int64(len(head)))
	var s scanner
	for b.Loop() {
		if _, bad := s.scan(head); bad {
			b.Fatal("refused")
		}
	}
}
