package httpkey_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// Cases 13, 15, 17, 18, 19.
func TestAReplayIsTheFirstAnswerByteForByte(t *testing.T) {
	random := make([]byte, 64<<10)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	answers := map[string]http.HandlerFunc{
		"headers": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "application/json")
			h.Set("Location", "/orders/1")
			h.Set("ETag", `"v1"`)
			h["Link"] = []string{`</a>; rel="a"`, `</b>; rel="b"`}
			h.Set("Content-Disposition", `attachment; filename="a,b.txt"`)
			h.Set("Content-Encoding", "x-own")
			h.Add("Set-Cookie", "session=1")
			h.Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, `{"id":1}`)
		},
		"random bytes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(random)
		},
		"no content":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"nothing in 201": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		"nothing at all": func(http.ResponseWriter, *http.Request) {},
		"sniffed":        func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html><p>hello") },
		"text": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "hello")
		},
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>hello")
		},
		"see other": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/orders/1", http.StatusSeeOther) },
		"problem": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"type":"about:blank"}`)
		},
		"small writes": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				fmt.Fprintf(w, "piece %d\n", i)
				w.(http.Flusher).Flush()
			}
		},
		"cached": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			io.WriteString(w, "x")
		},
		"wrong length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "longer")
		},
		"read from": func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, strings.NewReader("copied")) },
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusAccepted)
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("Connection", "X-Hop")
			w.Header().Set("X-Hop", "1")
			io.WriteString(w, "body")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-Other", "1")
		},
	}
	eachStore(t, func(t *testing.T, s *shop) {
		var runs atomic.Int64
		srv := s.wrapped(t, nil, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			answers[r.URL.Query().Get("a")](w, r)
		})
		for name := range answers {
			before := runs.Load()
			q := request{url: srv.URL + "/?a=" + strings.ReplaceAll(name, " ", "+"), key: "of " + name}
			first := send(t, q)
			again := send(t, q)
			wantReplay(t, first, again)
			if runs.Load() != before+1 {
				t.Errorf("%s: %d runs", name, runs.Load()-before)
			}
			if first.status != 204 && again.header.Get("Content-Length") != strconv.Itoa(len(again.body)) {
				t.Errorf("%s: content length %q of %d bytes", name, again.header.Get("Content-Length"), len(again.body))
			}
			if again.header.Get("Set-Cookie") != "" || again.header.Get("WWW-Authenticate") != "" {
				t.Errorf("%s: cookie or challenge was frozen", name)
			}
			switch name {
			case "headers":
				if first.header.Get("Set-Cookie") == "" || first.header.Get("WWW-Authenticate") == "" || len(again.header["Link"]) != 2 {
					t.Errorf("%s: %v, then %v", name, first.header, again.header)
				}
			case "sniffed":
				if again.header.Get("Content-Type") != "text/html; charset=utf-8" {
					t.Errorf("%s: type %q", name, again.header.Get("Content-Type"))
				}
			case "wrong length":
				if first.body != "longer" {
					t.Errorf("%s: %q", name, first.body)
				}
			}
		}
	})
}

// Case 21.
func TestAnAnswerOverTheLimitIsWholeOnceAndNeverTruncated(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		opts := quiet()
		opts.ResponseLimit = 256 << 10
		opts.SpoolLimit = 8 << 20
		var runs atomic.Int64
		srv := s.wrapped(t, opts, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			if err := s.insert(r.Context(), "x"); err != nil {
				t.Error(err)
			}
			n, _ := strconv.Atoi(r.URL.Query().Get("n"))
			w.WriteHeader(http.StatusCreated)
			for range n >> 10 {
				io.WriteString(w, strings.Repeat("x", 1<<10))
			}
		})
		for i, n := range []int{257 << 10, 1<<20 + 256<<10, 7 << 20} {
			q := request{url: srv.URL + "/?n=" + strconv.Itoa(n), key: "big" + strconv.Itoa(n)}
			if first := send(t, q); first.status != 201 || len(first.body) != n {
				t.Fatalf("first answer %d, %d bytes of %d", first.status, len(first.body), n)
			}
			wantProblem(t, send(t, q), 422, "not-replayable")
			if runs.Load() != int64(i+1) {
				t.Fatalf("%d runs", runs.Load())
			}
		}
		s.wantRows(t, 3)
		over := request{url: srv.URL + "/?n=" + strconv.Itoa(9<<20), key: "too big"}
		wantProblem(t, send(t, over), 500, "answer-too-large")
		s.wantRows(t, 3)
	})
}
