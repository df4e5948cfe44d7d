package httpkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Defaults of a [Transport].
const (
	DefaultAttempts   = 4
	DefaultTotal      = 30 * time.Second
	DefaultBackoff    = 100 * time.Millisecond
	DefaultMaxBackoff = 5 * time.Second
)

// Transport is the client's side: an [http.RoundTripper] that gives each
// logical request a key and keeps it over its own retries, so that trying again
// after a lost answer is safe. It is safe for concurrent use.
//
// It sends again after a network error and after 425, 429, 502, 503 and 504;
// after 409 only when the server says when (Retry-After), which it does for a
// request in flight. Any other answer is final, 400 and 422 above all. A request
// whose body cannot be had again (no GetBody) is sent once.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Methods that get a key; nil means POST and PATCH. A request that has a
	// key already, or whose context has one, is treated alike under any method.
	Methods []string
	// Attempts is how often a request is sent at most; 0 means DefaultAttempts.
	Attempts int
	// Total bounds the time from the first attempt to the beginning of the
	// last; 0 means DefaultTotal.
	Total time.Duration
	// Backoff is the first pause where the server names none, MaxBackoff the
	// largest; pauses double and are jittered over their whole length. 0 means
	// DefaultBackoff and DefaultMaxBackoff.
	Backoff, MaxBackoff time.Duration
}

// keyKey is the context key of the caller's own key.
type keyKey struct{}

// WithKey gives the requests made under the context one key. It is for callers
// who try again themselves, or who remember the key of an order in their own
// database: one key, one logical request.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyKey{}, key)
}

// RoundTrip sends the request, again where that may help.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	value, err := t.key(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	if value == "" {
		return base.RoundTrip(r)
	}
	attempts := t.Attempts
	defaultTo(&attempts, DefaultAttempts)
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		attempts = 1
	}
	total := t.Total
	defaultTo(&total, DefaultTotal)
	deadline := time.Now().Add(total)
	for n := 1; ; n++ {
		attempt := r.Clone(r.Context())
		attempt.Header.Set(KeyHeader, value)
		if n > 1 && r.GetBody != nil {
			if attempt.Body, err = r.GetBody(); err != nil {
				return nil, fmt.Errorf("body of attempt %d: %w", n, err)
			}
		}
		response, err := base.RoundTrip(attempt)
		pause, again := t.again(r.Context(), n, response, err)
		if !again || n >= attempts || time.Now().Add(pause).After(deadline) {
			return response, err
		}
		if response != nil {
			_, _ = io.CopyN(io.Discard, response.Body, 4<<10) // so that the connection can be used again
			_ = response.Body.Close()                         // it is given up either way
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, errors.Join(context.Cause(r.Context()), err)
		}
	}
}

// key gives the header value for the request, "" when it is not to have one.
func (t *Transport) key(r *http.Request) (string, error) {
	if lines := r.Header[KeyHeader]; len(lines) > 0 {
		if _, err := ParseKey(lines); err != nil {
			return "", err
		}
		return lines[0], nil
	}
	if key, ok := r.Context().Value(keyKey{}).(string); ok {
		return FormatKey(key)
	}
	if r.Response != nil && r.Response.Request != nil { // following a redirect: still the same logical request
		if lines := r.Response.Request.Header[KeyHeader]; len(lines) == 1 && r.Method == r.Response.Request.Method {
			return lines[0], nil
		}
	}
	methods := t.Methods
	if methods == nil {
		methods = []string{http.MethodPost, http.MethodPatch}
	}
	if !slices.Contains(methods, r.Method) {
		return "", nil
	}
	return FormatKey(NewKey())
}

// again tells whether another attempt may help, and after which pause.
func (t *Transport) again(ctx context.Context, n int, response *http.Response, err error) (time.Duration, bool) {
	backoff, most := t.Backoff, t.MaxBackoff
	defaultTo(&backoff, DefaultBackoff)
	defaultTo(&most, DefaultMaxBackoff)
	for i := 1; i < n && backoff < most; i++ {
		backoff *= 2
	}
	jitter := rand.N(min(backoff, most) + 1)
	if err != nil {
		return jitter, ctx.Err() == nil
	}
	wait, told := waitOf(response.Header.Get("Retry-After"))
	switch response.StatusCode {
	case http.StatusConflict:
		return wait + jitter, told
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return wait + jitter, true
	}
	return 0, false
}

// waitOf reads a Retry-After header: seconds or a date.
func waitOf(value string) (time.Duration, bool) {
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0), true
	}
	return 0, false
}

var _ http.RoundTripper = (*Transport)(nil)
