package httpkey_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/store/memory"
)

// till is a handler of Layer.Lease with an outside system that can be told how
// to answer.
type till struct {
	server  *httptest.Server
	store   *memory.Store
	charges atomic.Int64
	next    atomic.Pointer[func() error] // what the next charge answers, nil for "yes"
}

func newTill(t *testing.T, policy unavez.Unknown) *till {
	t.Helper()
	s := memory.New(nil)
	engine, err := unavez.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := httpkey.New(engine, func(*http.Request) (httpkey.Scope, error) {
		return httpkey.Scope{Tenant: "acme", Principal: "shop"}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &till{store: s}
	c.server = httptest.NewServer(layer.Lease(policy, func(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[*memory.Tx], error) {
		order, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		receipt, err := unavez.Step(r.Context(), attempt, "charge", func(_ context.Context, key string) (string, error) {
			if next := c.next.Swap(nil); next != nil {
				return "", (*next)()
			}
			c.charges.Add(1)
			return "receipt for " + string(order), nil
		}, nil)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, w http.ResponseWriter, tx *memory.Tx) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			tx.Put("payment", receipt)
			w.Header().Set("Location", "/payments/1")
			w.WriteHeader(http.StatusCreated)
			_, err := fmt.Fprint(w, receipt)
			return err
		}, nil
	}))
	t.Cleanup(func() {
		c.server.Close()
		if err := engine.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c
}

// answers tells how the next charge ends.
func (c *till) answers(next func() error) { c.next.Store(&next) }

// post sends the order and gives status, body and header.
func (c *till) post(t *testing.T, key string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.server.URL, strings.NewReader("2 x A"))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set(httpkey.KeyHeader, key)
	}
	response, err := c.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

func TestALeasedHandlerChargesOnceAndFreezesWhatItsFinishAnswered(t *testing.T) {
	t.Parallel()
	c := newTill(t, unavez.Hold)
	for i := range 3 {
		status, body, header := c.post(t, "k-1")
		if status != http.StatusCreated || body != "receipt for 2 x A" || header.Get("Location") != "/payments/1" || (header.Get(httpkey.ReplayedHeader) != "") != (i > 0) {
			t.Errorf("answer %d: %d %s %v", i+1, status, body, header)
		}
	}
	if row, _ := c.store.Get("payment"); row != "receipt for 2 x A" || c.charges.Load() != 1 {
		t.Errorf("row %q, %d charges", row, c.charges.Load())
	}
}

func TestTheErrorOfALeasedHandlerDecides(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset by peer")
	cases := map[string]struct {
		policy       unavez.Unknown
		err          error
		status       int
		kind         string
		retry        bool
		again        int // status of the same request repeated
		chargedAgain int64
	}{
		"declined":                  {unavez.Hold, httpkey.Errorf(http.StatusPaymentRequired, "card declined"), 402, "", false, 402, 0},
		"asked to come later":       {unavez.Hold, httpkey.Errorf(http.StatusTooManyRequests, "slow down"), 409, "#outcome-unknown", false, 409, 0},
		"not sent":                  {unavez.Hold, unavez.NeverStarted(lost), 503, "#not-started", true, 201, 1},
		"not sent, with its answer": {unavez.Hold, unavez.NeverStarted(httpkey.Errorf(http.StatusTooManyRequests, "slow down")), 429, "", false, 201, 1},
		"lost, held":                {unavez.Hold, lost, 409, "#outcome-unknown", false, 409, 0},
		"lost, nothing said":        {nil, lost, 409, "#outcome-unknown", false, 409, 0},
		"lost, repeatable":          {unavez.Steps, lost, 409, "#outcome-unknown", true, 201, 1},
		"lost, asked first":         {unavez.Probe(probed), lost, 409, "#outcome-unknown", true, 200, 0},
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTill(t, want.policy)
			c.answers(func() error { return want.err })
			status, body, header := c.post(t, "k-1")
			if status != want.status || !strings.Contains(body, want.kind) || strings.Contains(body, "reset by peer") || (header.Get("Retry-After") != "") != want.retry {
				t.Errorf("%d %s %v", status, body, header)
			}
			if status, body, _ := c.post(t, "k-1"); status != want.again || c.charges.Load() != want.chargedAgain {
				t.Errorf("repeated: %d %s, %d charges", status, body, c.charges.Load())
			}
		})
	}
}

// probed is a probe that finds the charge.
func probed(context.Context, *unavez.Attempt) (unavez.Result, unavez.Verdict, error) {
	return unavez.Result{Code: http.StatusOK, Body: []byte("found")}, unavez.Done, nil
}

func TestALeasedHandlerNeedsAKey(t *testing.T) {
	t.Parallel()
	c := newTill(t, unavez.Hold)
	if status, body, _ := c.post(t, ""); status != http.StatusBadRequest || !strings.Contains(body, "#key-missing") || c.charges.Load() != 0 {
		t.Errorf("%d %s, %d charges", status, body, c.charges.Load())
	}
}
