package fault_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/fault"
)

// httpFlow is transaction mode behind the Idempotency-Key layer: requests and
// answers get lost as well.
func httpFlow[Tx any]() *flow[Tx] {
	return &flow[Tx]{
		name:   "http",
		op:     unavez.Operation{Effect: "http", Key: []string{"anna"}},
		actors: []actor[Tx]{{"A", "one", request[Tx]}, {"B", "two", request[Tx]}},
		rest: func(s *scene[Tx]) {
			w := s.start("rest")
			s.untilFinal(func(ctx context.Context) (unavez.Outcome, error) { return s.request(ctx, w, "rest") }, w)
		},
		steps: append(doSteps(), fault.Serve),
		wants: []string{"replay served", "answered in-flight", "answer lost"},
	}
}

// request is a client that posts, and once more where it got no answer or one that
// allows it.
func request[Tx any](s *scene[Tx], w *worker[Tx], client string) {
	s.asks(w, client, s.op, func(ctx context.Context) (unavez.Outcome, error) { return s.request(ctx, w, client) })
}

func (s *scene[Tx]) request(ctx context.Context, w *worker[Tx], client string) (unavez.Outcome, error) {
	none := unavez.Outcome{}
	layer, err := httpkey.New(w.engine, func(*http.Request) (httpkey.Scope, error) {
		return httpkey.Scope{Tenant: s.op.Tenant, Principal: "anna"}, nil
	}, &httpkey.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return none, err
	}
	handler := layer.Handle(func(rw http.ResponseWriter, r *http.Request, tx Tx) error {
		// A request may run long after its client has given up: its run is not that
		// of the client's present call.
		made, err := s.handles(w, "a request of "+client, s.op)(r.Context(), tx)
		if err != nil {
			return err
		}
		rw.WriteHeader(made.Code)
		_, err = rw.Write(made.Body)
		return err
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://worker/orders", strings.NewReader("{}"))
	if err != nil {
		return none, err
	}
	r.Header.Set("Idempotency-Key", `"`+s.op.Key[1]+`"`)
	got, err := fault.Direct{Handler: fault.NewHandler(w.life, handler)}.RoundTrip(r)
	if err != nil {
		return none, errNoAnswer
	}
	body, err := answered(got, nil)
	if err != nil {
		return none, err
	}
	switch got.StatusCode {
	case http.StatusCreated:
		return unavez.Outcome{Result: unavez.Result{Code: got.StatusCode, Body: []byte(body)}, Replayed: got.Header.Get("Idempotent-Replayed") != ""}, nil
	case http.StatusConflict:
		return none, &unavez.Error{Code: unavez.CodeInFlight}
	case http.StatusServiceUnavailable:
		code := unavez.CodeUnavailable
		if strings.Contains(body, "unresolved") {
			code = unavez.CodeUnresolved
		}
		return none, &unavez.Error{Code: code}
	case http.StatusInternalServerError:
		return none, fault.ErrHandler
	}
	return none, errors.New(fmt.Sprint(got.StatusCode, " ", body))
}

func TestRequestsUnderEveryFault(t *testing.T) {
	t.Parallel()
	exploreAll(t, []plan{{httpFlow[tx](), single(0), far(1)}})
}
