package fault

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
)

// Transport is one worker's way to an outside system. A GET is the step probe,
// everything else the step call.
type Transport struct {
	life  *Life
	inner http.RoundTripper
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport wraps a transport for a worker.
func NewTransport(life *Life, inner http.RoundTripper) *Transport {
	return &Transport{life: life, inner: inner}
}

// RoundTrip sends also when the request's context has ended while the step
// waited: a worker that stood still after its last look at the context does that.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	step := Call
	if r.Method == http.MethodGet {
		step = Probe
	}
	var got *http.Response
	told, err := t.life.do(r.Context(), move{
		step: step,
		apply: func(ctx context.Context, _ *Note) error {
			answer, err := t.inner.RoundTrip(r.WithContext(context.WithoutCancel(ctx)))
			got = answer
			return err
		},
		abandon: func() {
			if got != nil {
				_ = got.Body.Close() // nobody reads it
			}
		},
		refused: ErrRefused, lost: ErrReset,
	})
	if !told {
		return nil, err
	}
	return got, err
}

// Direct is a transport to a handler in this process, without a network.
type Direct struct {
	// Handler that serves.
	Handler http.Handler
}

// RoundTrip serves the request, in a goroutine of its own. The caller sees a
// connection that was reset where the worker is killed meanwhile, and where the
// handler panics with [http.ErrAbortHandler] or [ErrPanic].
func (d Direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	served := make(chan *http.Response, 1)
	go func() {
		var answer *http.Response
		defer func() { // also where the goroutine ends with its worker
			if p := recover(); p != nil && p != http.ErrAbortHandler && p != ErrPanic { //nolint:errorlint // the very values
				panic(p)
			}
			served <- answer
		}()
		w := httptest.NewRecorder()
		d.Handler.ServeHTTP(w, r)
		answer = w.Result()
	}()
	if answer := <-served; answer != nil {
		return answer, nil
	}
	return nil, ErrReset
}

// NewHandler wraps one worker's server, where each request is the step serve: it
// may be lost on its way, arrive when nobody waits for it any more, or lose its
// answer.
func NewHandler(life *Life, inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var got *httptest.ResponseRecorder
		told, _ := life.do(r.Context(), move{
			step: Serve,
			apply: func(ctx context.Context, _ *Note) error {
				answer := httptest.NewRecorder()
				inner.ServeHTTP(answer, r.WithContext(ctx))
				got = answer
				return nil
			},
			refused: ErrRefused, lost: ErrReset,
		})
		if !told {
			panic(http.ErrAbortHandler) // the caller sees a connection that was reset
		}
		maps.Copy(w.Header(), got.Header())
		w.WriteHeader(got.Code)
		_, _ = w.Write(got.Body.Bytes()) // a caller that has gone is no event
	})
}
