package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/conform"
	"github.com/unavez/unavez/store"
)

// effectKeyHeader carries the derived key to the application behind a proxy.
const effectKeyHeader = "Unavez-Derived-Key"

// hands are what a behaviour works with: how it writes a row, and the key that
// its outside calls carry.
type hands struct {
	insert func(ctx context.Context, op string, row int) error
	key    string
	end    func(ctx context.Context, how string) error // nil outside a transaction
}

// begin counts a run and gives its behaviour, after what it does before its
// first statement.
func (a *app[Tx]) begin(r *http.Request) (b conform.Behaviour, err error) {
	p := plannedOf(r.Context())
	run, err := a.journal.enter(p.op)
	if err != nil {
		return b, err
	}
	if len(p.plan.Runs) == 0 {
		return b, fmt.Errorf("no plan for %s", p.op)
	}
	b = p.plan.Runs[min(run, len(p.plan.Runs))-1]
	saw, err := echo(r) // every handler reads its request, as applications do
	if err != nil {
		return b, err
	}
	if b.Echo {
		b.Body = saw
	}
	if b.Panic == conform.PanicBefore {
		panic("planned, before any write")
	}
	wait(b.SleepBefore)
	return b, nil
}

// perform does what the plan of the request's path says. A returned error is
// that of the plan or of a statement; nothing has been written to w then.
func (a *app[Tx]) perform(w http.ResponseWriter, r *http.Request, h hands) error {
	b, err := a.begin(r)
	if err != nil {
		return err
	}
	p := plannedOf(r.Context())
	for i := range b.Rows {
		if err := h.insert(r.Context(), p.op, i); err != nil {
			return err
		}
	}
	if b.End != "" && h.end != nil {
		_ = h.end(r.Context(), b.End) // a handler that does this does not look at the error either
	}
	for range b.Effects {
		a.journal.charge(p.op, h.key)
	}
	a.exits.at(p, conform.ExitAfterEffect)
	wait(b.SleepAfter)
	if b.Panic == conform.PanicAfter {
		panic("planned, after the writes")
	}
	if b.Error != "" {
		return httpkey.Errorf(b.Status, "%s", b.Error)
	}
	return answer(w, b)
}

// answer sends what the plan says, in pieces if it says so.
func answer(w http.ResponseWriter, b conform.Behaviour) error {
	for _, line := range b.Header {
		w.Header().Add(line.Name, line.Value)
	}
	if b.Status != 0 {
		w.WriteHeader(b.Status)
	}
	rest := b.Body
	for n := max(b.Chunks, 1); n > 0 && len(rest) > 0; n-- {
		piece := rest[:(len(rest)+n-1)/n]
		rest = rest[len(piece):]
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if b.Chunks > 0 {
			_ = http.NewResponseController(w).Flush() // where it cannot be flushed, it is sent at the end
		}
		wait(b.ChunkDelay)
	}
	return nil
}

// echo describes the request as the handler sees it.
func echo(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	rest, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return json.Marshal(conform.Echo{
		SHA256: hex.EncodeToString(sum[:]), Length: len(body), ContentLength: r.ContentLength,
		Rest: len(rest), Replayed: r.Header.Get(httpkey.ReplayedHeader),
	})
}

// wait lets a planned time pass. It takes no context: a handler that does not
// listen is what the limits are for.
func wait(d time.Duration) {
	if d > 0 {
		<-time.NewTimer(d).C
	}
}

// handle is the handler of RouteHandle: it returns its errors.
func (a *app[Tx]) handle(w http.ResponseWriter, r *http.Request, tx Tx) error {
	return a.perform(w, r, a.within(tx))
}

// leased is the handler of RouteLease: each outside call is a step, and a step
// that was interrupted is probed.
func (a *app[Tx]) leased(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[Tx], error) {
	b, err := a.begin(r)
	if err != nil {
		return nil, unavez.NeverStarted(err)
	}
	ctx, p := r.Context(), plannedOf(r.Context())
	for i := range b.Effects {
		_, err := unavez.Step(ctx, attempt, "charge-"+strconv.Itoa(i),
			func(_ context.Context, key string) (bool, error) {
				a.journal.charge(p.op, key)
				a.exits.at(p, conform.ExitAfterEffect)
				return true, nil
			},
			func(_ context.Context, key string) (bool, unavez.Verdict, error) {
				done, err := a.journal.charged(key)
				if err != nil || !done {
					return false, unavez.NotDone, err
				}
				return true, unavez.Done, nil
			})
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, w http.ResponseWriter, tx Tx) error {
		for range b.Rows {
			if err := a.insert(ctx, tx, p.op); err != nil {
				return err
			}
		}
		return answer(w, b)
	}, nil
}

// within are the hands of a handler in the engine's transaction.
func (a *app[Tx]) within(tx Tx) hands {
	return hands{
		insert: func(ctx context.Context, op string, _ int) error { return a.insert(ctx, tx, op) },
		end:    func(ctx context.Context, how string) error { return a.end(ctx, tx, how) },
	}
}

// plain is the handler of the other routes in transaction mode: an
// http.Handler, which turns its errors into answers itself.
func (a *app[Tx]) plain(w http.ResponseWriter, r *http.Request) {
	h := hands{insert: func(ctx context.Context, op string, _ int) error { return a.insertOnce(ctx, op, "") }}
	if tx, ok := httpkey.Tx[Tx](r.Context()); ok {
		h = a.within(tx)
	}
	if err := a.perform(w, r, h); err != nil {
		problem(w, err)
	}
}

// upstream is the application behind the proxies. On RouteRetry it writes a row
// once for each derived key, as that policy asks of it.
func (a *app[Tx]) upstream(w http.ResponseWriter, r *http.Request) {
	r, err := a.withPlan(r)
	if err != nil {
		problem(w, err)
		return
	}
	h := hands{key: r.Header.Get(effectKeyHeader)}
	once := ""
	if route, _, _ := strings.Cut(plannedOf(r.Context()).op, "/"); route == conform.RouteRetry {
		once = h.key
	}
	h.insert = func(ctx context.Context, op string, row int) error {
		if once == "" {
			return a.insertOnce(ctx, op, "")
		}
		return a.insertOnce(ctx, op, once+"/"+strconv.Itoa(row))
	}
	if err := a.perform(w, r, h); err != nil {
		problem(w, err)
	}
}

// problem answers an error of a plain handler.
func problem(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var planned *httpkey.Error
	switch {
	case errors.As(err, &planned):
		status = planned.Status
	case errors.Is(err, store.ErrUnavailable):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	kind := map[int]string{http.StatusServiceUnavailable: httpkey.DefaultDocs + "#store-unavailable"}[status]
	if kind == "" {
		kind = "about:blank"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Add("Link", "<"+kind+`>; rel="describedby"`)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "title": http.StatusText(status), "status": status}) // the client is gone
}
