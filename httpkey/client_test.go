package httpkey_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/httpkey"
)

// script is a server's side of a client test: one entry for each attempt.
type script struct {
	steps []func() (*http.Response, error)
	keys  []string
	sent  []string
	at    []time.Duration
	start time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.at = append(s.at, time.Since(s.start))
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		_ = r.Body.Close()
		s.sent = append(s.sent, string(body))
	}
	step := s.steps[min(len(s.keys), len(s.steps))-1]
	response, err := step()
	if response != nil {
		response.Request = r
	}
	return response, err
}

func says(status int, header ...string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("x"))}, nil
	}
}

func breaks() (*http.Response, error) { return nil, errors.New("connection reset by peer") }

func TestTheClientKeepsItsKeyOverRetries(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		steps    []func() (*http.Response, error)
		attempts int
		status   int // 0: an error
		least    time.Duration
	}{
		{"first answer", []func() (*http.Response, error){says(201)}, 1, 201, 0},
		{"lost answers", []func() (*http.Response, error){breaks, breaks, says(201)}, 3, 201, 0},
		{"nothing but lost answers", []func() (*http.Response, error){breaks}, 4, 0, 0},
		{"in flight", []func() (*http.Response, error){says(409, "Retry-After", "3"), says(409, "Retry-After", "2"), says(201)}, 3, 201, 5 * time.Second},
		{"another conflict", []func() (*http.Response, error){says(409)}, 1, 409, 0},
		{"overloaded", []func() (*http.Response, error){says(429), says(503, "Retry-After", "2"), says(502), says(200)}, 4, 200, 2 * time.Second},
		{"key reused", []func() (*http.Response, error){says(422, "Retry-After", "1")}, 1, 422, 0},
		{"bad request", []func() (*http.Response, error){says(400)}, 1, 400, 0},
		{"server error", []func() (*http.Response, error){says(500)}, 1, 500, 0},
		{"later than the whole time", []func() (*http.Response, error){says(503, "Retry-After", "3600")}, 1, 503, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{steps: tc.steps}
				r := httptest.NewRequest("POST", "http://x/", nil)
				r.Body = io.NopCloser(strings.NewReader("body"))
				r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
				response, err := (&httpkey.Transport{Base: s}).RoundTrip(r)
				if (err == nil) != (tc.status != 0) || err == nil && response.StatusCode != tc.status {
					t.Fatalf("%v, %v", response, err)
				}
				if len(s.keys) != tc.attempts || len(slices.Compact(slices.Clone(s.keys))) != 1 || len(s.keys[0]) < 20 {
					t.Errorf("keys %q, want %d times the same", s.keys, tc.attempts)
				}
				if len(slices.Compact(s.sent)) != 1 || s.sent[0] != "body" {
					t.Errorf("bodies %q", s.sent)
				}
				if took := s.at[len(s.at)-1]; took < tc.least || took > tc.least+2*time.Second {
					t.Errorf("last attempt after %v, want %v and jitter", took, tc.least)
				}
				if r.Header.Get("Idempotency-Key") != "" {
					t.Error("the caller's request was changed")
				}
			})
		})
	}
}

func TestTheClientUsesTheKeyItIsGiven(t *testing.T) {
	t.Parallel()
	s := &script{steps: []func() (*http.Response, error){says(200)}}
	tr := &httpkey.Transport{Base: s}
	do := func(ctx context.Context, method, key string) error {
		r := httptest.NewRequestWithContext(ctx, method, "http://x/", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		_, err := tr.RoundTrip(r)
		return err
	}
	ctx := httpkey.WithKey(t.Context(), `order "7"`)
	for _, tc := range []struct {
		ctx         context.Context
		method, key string
		want        string
	}{
		{t.Context(), "POST", "k-1", "k-1"},
		{ctx, "POST", "", `"order \"7\""`},
		{ctx, "PUT", "", `"order \"7\""`},
		{t.Context(), "PUT", "k-2", "k-2"},
		{t.Context(), "GET", "", ""},
	} {
		if err := do(tc.ctx, tc.method, tc.key); err != nil {
			t.Fatal(err)
		}
		if got := s.keys[len(s.keys)-1]; got != tc.want {
			t.Errorf("%s with %q: %q, want %q", tc.method, tc.key, got, tc.want)
		}
	}
	sent := len(s.keys)
	if err := do(t.Context(), "POST", `"`); !errors.Is(err, httpkey.ErrMalformedKey) {
		t.Errorf("malformed header: %v", err)
	}
	if err := do(httpkey.WithKey(t.Context(), "a\nb"), "POST", ""); !errors.Is(err, httpkey.ErrMalformedKey) {
		t.Errorf("malformed key: %v", err)
	}
	if len(s.keys) != sent {
		t.Error("a request with a malformed key was sent")
	}
}

func TestTheClientSendsOnceWhatItCannotSendAgain(t *testing.T) {
	t.Parallel()
	s := &script{steps: []func() (*http.Response, error){breaks}}
	r := httptest.NewRequest("POST", "http://x/", io.MultiReader(strings.NewReader("once")))
	if _, err := (&httpkey.Transport{Base: s}).RoundTrip(r); err == nil || len(s.keys) != 1 {
		t.Errorf("%v after %d attempts", err, len(s.keys))
	}
}

func TestTheClientStopsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := &script{steps: []func() (*http.Response, error){says(503, "Retry-After", "20")}}
		_, err := (&httpkey.Transport{Base: s}).RoundTrip(httptest.NewRequestWithContext(ctx, "POST", "http://x/", nil))
		if !errors.Is(err, context.DeadlineExceeded) || len(s.keys) != 1 {
			t.Errorf("%v after %d attempts", err, len(s.keys))
		}
	})
}

// A 307 makes the http.Client send the request again: still one logical request.
func TestARedirectKeepsTheKey(t *testing.T) {
	t.Parallel()
	var keys []string
	srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}
	}))
	c := &http.Client{Transport: &httpkey.Transport{Base: client().Transport}}
	response, err := c.Post(srv.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if len(keys) != 2 || keys[0] != keys[1] || keys[0] == "" {
		t.Errorf("keys %q", keys)
	}
}

// Client and layer together: the answer of the first attempt is lost on the
// way, and the second gets it.
func TestClientAndLayerMakeALostAnswerHarmless(t *testing.T) {
	eachStore(t, func(t *testing.T, s *shop) {
		var runs, arrived atomic.Int64
		h, err := s.handle(nil, quiet(), creates(&runs))
		if err != nil {
			t.Fatal(err)
		}
		srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if arrived.Add(1) == 1 {
				h.ServeHTTP(httptest.NewRecorder(), r) // it is done, and nobody hears of it
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		}))
		base := client().Transport.(*http.Transport)
		base.DisableKeepAlives = true // else net/http would send again by itself
		c := &http.Client{Transport: &httpkey.Transport{Base: base, Backoff: time.Millisecond}}
		response, err := c.Post(srv.URL, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != `{"run":1}` || response.Header.Get("Idempotent-Replayed") != "true" || runs.Load() != 1 || arrived.Load() != 2 {
			t.Errorf("%s, %v, %d runs, %d arrivals", body, err, runs.Load(), arrived.Load())
		}
	})
}
