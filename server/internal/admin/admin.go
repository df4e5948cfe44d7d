package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/answer"
	"github.com/unavez/unavez/server/internal/auth"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
)

// Bounds of a request to the API.
const (
	maxRequest = 2 << 20
	maxBody    = 1 << 20
	maxPage    = 1000
)

// Options of the API. Only Operations is required.
type Options struct {
	// Operations of the store.
	Operations store.Operations
	// Queue of the store, nil where it has none.
	Queue Queue
	// Inbox is that which is in place, nil where nothing is received.
	Inbox func() Inbox
	// Owner is the team that an effect's operations belong to, "" if nobody's.
	Owner func(effect string) string
	// Token that callers must send; an empty one means loopback only. It is
	// asked for at every request, so that it may change.
	Token func() config.Secret
	// Keep is how long the result of a decision is kept, and its identity
	// after that.
	Keep func() (retention, tombstone time.Duration)
	// Ready tells why the process takes no requests; nil means it does.
	Ready func(context.Context) error
	// Metrics, when not nil, serves /metrics.
	Metrics http.Handler
	// Acted, when not nil, is told of every decision and whether it came too late.
	Acted func(action string, conflict bool)
	// Logger for what people decide and for causes of errors.
	Logger *slog.Logger
	// Version of the binary.
	Version string
}

// api is the handler of the admin listener.
type api struct{ Options }

// New makes the handler.
func New(o Options) http.Handler {
	if o.Token == nil {
		o.Token = func() config.Secret { return config.Secret{} }
	}
	if o.Acted == nil {
		o.Acted = func(string, bool) {}
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Inbox == nil {
		o.Inbox = func() Inbox { return nil }
	}
	if o.Owner == nil {
		o.Owner = func(string) string { return "" }
	}
	a := &api{o}
	closed := http.NewServeMux()
	closed.HandleFunc("GET /{$}", a.index)
	closed.Handle("GET /api/operations", a.answer(a.list))
	closed.Handle("GET /api/operations/{key}", a.answer(a.show))
	for _, action := range Actions() {
		closed.Handle("POST /api/operations/{key}/"+action, a.answer(func(r *http.Request) (any, error) { return a.act(r, action) }))
	}
	if o.Queue != nil {
		a.received(closed)
	}
	if o.Metrics != nil {
		closed.Handle("GET /metrics", o.Metrics)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plainText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("/", a.authenticated(http.NewCrossOriginProtection().Handler(closed)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		mux.ServeHTTP(w, r)
	})
}

// Actions that a person can take.
func Actions() []string { return []string{"release", "redrive", "complete", "discard"} }

func plainText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, text) // the client has gone if it fails
}

func (a *api) index(w http.ResponseWriter, _ *http.Request) {
	plainText(w, http.StatusOK, `unavez `+a.Version+`, admin

GET  /api/operations                 unfinished operations; ?state= &tenant= &effect= &limit= &after=
GET  /api/operations/{key}           one operation with its history
POST /api/operations/{key}/release   let an unknown or parked one run again      {"by": …, "reason": …}
POST /api/operations/{key}/redrive   let a dead one run again
POST /api/operations/{key}/complete  end it as done, with the answer             {…, "result": {"status": 201, "header": [["Location", "/x"]], "body": base64}}
POST /api/operations/{key}/discard   end it as never to be done
POST /api/redrive                    let dead ones run again, by a filter        {…, "until": time, "effect": …}
GET  /api/entries/{key}              a queue entry and its further deliveries; ?payload=true
GET  /api/blocked                    ordering keys that wait; ?limit= &after=
GET  /api/quarantine                 deliveries that cannot be operations; ?source= &limit= &after=
GET  /api/quarantine/{key}           one of them; ?payload=true
POST /api/quarantine/{key}/readmit   take it as if it arrived now                {"by": …, "reason": …}
POST /api/quarantine/{key}/discard   remove it
POST /api/erase                      erase what is kept of a person or account   {…, "tenant": …, "subject": [parts]}, or {…, "tenant": …, "source": …, "account": …}
GET  /metrics                        for Prometheus
GET  /healthz                        the process lives
GET  /readyz                         it takes requests

The same on the command line: unavez ops --help
`)
}

func (a *api) ready(w http.ResponseWriter, r *http.Request) {
	if err := a.Ready(r.Context()); err != nil {
		a.Logger.WarnContext(r.Context(), "not ready", "error", err)
		plainText(w, http.StatusServiceUnavailable, "not ready\n")
		return
	}
	plainText(w, http.StatusOK, "ready\n")
}

// authenticated lets a request through that carries the token, or, where there
// is none, that was sent to a loopback name.
func (a *api) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := a.Token()
		if token.Empty() {
			if !loopbackName(r.Host) {
				a.problem(w, r, httpkey.Errorf(http.StatusForbidden, "This listener answers to 127.0.0.1 and localhost only; set admin.token for others."))
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		got, ok := auth.Bearer(r)
		// Hashes, so that neither length nor a common front shows in the time.
		sum, want := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(token.Reveal()))
		if subtle.ConstantTimeCompare(sum[:], want[:]) != 1 || !ok {
			e := httpkey.Errorf(http.StatusUnauthorized, "Send Authorization: Bearer with the admin token.")
			e.Header = http.Header{"Www-Authenticate": {"Bearer"}}
			a.problem(w, r, e)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func loopbackName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// answer turns what a function returns into JSON, or its error into a problem.
func (a *api) answer(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value, err := f(r)
		if err != nil {
			a.problem(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // the client has gone if it fails
	})
}

// problem answers an error: what the store said becomes a status, and its text
// stays in the log.
func (a *api) problem(w http.ResponseWriter, r *http.Request, err error) {
	var p *httpkey.Error
	var refused *inbox.RefusedError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &refused):
		p = httpkey.Errorf(http.StatusConflict, "It %s.", refused.Error())
	case errors.Is(err, store.ErrNotFound):
		p = httpkey.Errorf(http.StatusNotFound, "Nothing of this key is remembered.")
	case errors.Is(err, store.ErrConflict):
		p = httpkey.Errorf(http.StatusConflict, "The operation is not in a state that allows this, or has changed since it was looked at.")
	case errors.Is(err, store.ErrUnavailable):
		p = httpkey.Errorf(http.StatusServiceUnavailable, "The store is unavailable.")
	default:
		p = &httpkey.Error{Status: http.StatusInternalServerError}
	}
	if p.Status >= 500 {
		a.Logger.ErrorContext(r.Context(), "admin request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	for name, values := range p.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client has gone if it fails
		"type": "about:blank", "title": http.StatusText(p.Status), "status": p.Status, "detail": p.Detail,
	})
}

func (a *api) list(r *http.Request) (any, error) {
	filter := store.Filter{Limit: 100}
	query := r.URL.Query()
	for name, values := range query {
		value := values[0]
		var err error
		switch name {
		case "state":
			for _, word := range values {
				for _, text := range strings.Split(word, ",") {
					state, err := store.ParseState(text)
					if err != nil || state == store.Free || state == store.Expired {
						return nil, httpkey.Errorf(http.StatusBadRequest, "state: want processing, retryable, parked, unknown, dead, completed or discarded")
					}
					filter.States = append(filter.States, state)
				}
			}
		case "tenant":
			filter.Tenant = &value
		case "effect":
			filter.Effect = value
		case "limit":
			if filter.Limit, err = strconv.Atoi(value); err != nil || filter.Limit < 1 || filter.Limit > maxPage {
				return nil, httpkey.Errorf(http.StatusBadRequest, "limit: want 1 to %d", maxPage)
			}
		case "after":
			if filter.After, err = parseCursor(value); err != nil {
				return nil, httpkey.Errorf(http.StatusBadRequest, "after: not what next said")
			}
		default:
			return nil, httpkey.Errorf(http.StatusBadRequest, "unknown parameter (known: state, tenant, effect, limit, after)")
		}
	}
	records, err := a.Operations.List(r.Context(), filter)
	if err != nil {
		return nil, err
	}
	page := Page{Operations: []Operation{}}
	for _, record := range records {
		o := operationOf(record)
		o.Owner = a.Owner(o.Effect)
		page.Operations = append(page.Operations, o)
	}
	if len(records) == filter.Limit {
		last := records[len(records)-1]
		page.Next = strconv.FormatInt(last.Changed.UnixNano(), 10) + "-" + last.Key.String()
	}
	return page, nil
}

func parseCursor(text string) (*store.Cursor, error) {
	at, key, _ := strings.Cut(text, "-")
	nanos, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil, err
	}
	parsed, err := store.ParseKey(key)
	return &store.Cursor{Changed: time.Unix(0, nanos), Key: parsed}, err
}

func (a *api) key(r *http.Request) (store.Key, error) {
	key, err := store.ParseKey(r.PathValue("key"))
	if err != nil {
		return key, httpkey.Errorf(http.StatusBadRequest, "key: want 32 hexadecimal digits")
	}
	return key, nil
}

func (a *api) show(r *http.Request) (any, error) {
	key, err := a.key(r)
	if err != nil {
		return nil, err
	}
	return a.operation(r.Context(), key)
}

func (a *api) operation(ctx context.Context, key store.Key) (any, error) {
	record, history, steps, err := a.Operations.Show(ctx, key)
	if err != nil {
		return nil, err
	}
	o := operationOf(record)
	o.Owner = a.Owner(o.Effect)
	for _, t := range history {
		o.History = append(o.History, Transition{At: t.At, From: t.From.String(), To: t.To.String(), Attempt: t.Attempt, Actor: t.Actor, Reason: t.Reason})
	}
	for _, s := range steps {
		o.Steps = append(o.Steps, Step{Name: s.Name, Done: s.Done, Attempt: s.Fence})
	}
	return o, nil
}

func (a *api) act(r *http.Request, action string) (any, error) {
	key, err := a.key(r)
	if err != nil {
		return nil, err
	}
	var d Decision
	if err := body(r, &d, "by, reason and, for complete, result"); err != nil {
		return nil, err
	}
	if err := d.validate(action); err != nil {
		return nil, err
	}
	err = a.apply(r.Context(), key, action, d)
	if err == nil || errors.Is(err, store.ErrConflict) {
		a.Acted(action, err != nil)
	}
	if errors.Is(err, store.ErrConflict) {
		return nil, a.refused(r.Context(), key, action)
	}
	if err != nil {
		return nil, err
	}
	a.Logger.InfoContext(r.Context(), "decision", "action", action, "operation", key.String(), "by", d.By, "reason", d.Reason)
	if in := a.Inbox(); in != nil {
		in.Wake()
	}
	return a.operation(r.Context(), key)
}

// refused says why a decision was not carried out, by what the operation is now.
func (a *api) refused(ctx context.Context, key store.Key, action string) error {
	record, _, _, err := a.Operations.Show(ctx, key)
	if err != nil {
		return err
	}
	o := operationOf(record)
	text := fmt.Sprintf("The operation is not in a state that allows %s, or has changed since it was looked at: it is %s, attempt %d, since %s", action, o.State, o.Attempt, o.Changed.UTC().Format(time.RFC3339))
	if o.Code != 0 {
		text += fmt.Sprintf(", with the answer %d", o.Code)
	}
	return httpkey.Errorf(http.StatusConflict, "%s.", text)
}

// body reads the JSON of a change.
func body(r *http.Request, into any, wanted string) error {
	// A form of another page cannot send this type, and not two of them.
	if kinds := r.Header["Content-Type"]; len(kinds) != 1 || strings.TrimSpace(strings.Split(kinds[0], ";")[0]) != "application/json" {
		return httpkey.Errorf(http.StatusUnsupportedMediaType, "Send application/json.")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil || decoder.More() {
		return httpkey.Errorf(http.StatusBadRequest, "want one JSON object with %s", wanted)
	}
	return nil
}

func (a *api) apply(ctx context.Context, key store.Key, action string, d Decision) error {
	act := store.Action{Key: key, Fence: d.Attempt, Actor: d.By, Reason: d.Reason}
	retention, tombstone := a.Keep()
	switch action {
	case "release":
		return a.Operations.Release(ctx, act)
	case "redrive":
		return a.Operations.Redrive(ctx, act)
	case "complete":
		result := store.Result{Code: d.Result.Status, Body: d.Result.Body}
		for _, line := range d.Result.Header {
			result.Header = append(result.Header, store.Field{Name: line[0], Value: line[1]})
		}
		return a.Operations.Complete(ctx, act, result, retention, tombstone)
	}
	return a.Operations.Discard(ctx, act, retention, tombstone)
}

// who refuses a decision without a name or a reason.
func who(by, reason string) error {
	switch {
	case by == "" || len(by) > store.MaxActor:
		return httpkey.Errorf(http.StatusBadRequest, "by: who decides, 1 to %d bytes", store.MaxActor)
	case reason == "" || len(reason) > store.MaxReason:
		return httpkey.Errorf(http.StatusBadRequest, "reason: why, 1 to %d bytes", store.MaxReason)
	}
	return nil
}

// validate refuses a decision without a name or a reason, and a result that
// could not be an answer.
func (d *Decision) validate(action string) error {
	d.By, d.Reason = strings.TrimSpace(d.By), strings.TrimSpace(d.Reason)
	if err := who(d.By, d.Reason); err != nil {
		return err
	}
	switch {
	case d.Attempt < 0:
		return httpkey.Errorf(http.StatusBadRequest, "attempt: not negative")
	case action != "complete" && d.Result != nil:
		return httpkey.Errorf(http.StatusBadRequest, "result: only complete has one")
	case action == "complete" && d.Result == nil:
		return httpkey.Errorf(http.StatusBadRequest, "result: missing; it is what every duplicate gets")
	case d.Result == nil:
		return nil
	case d.Result.Status < 200 || d.Result.Status > 499 || d.Result.Status == http.StatusNotModified:
		return httpkey.Errorf(http.StatusBadRequest, "result.status: want 200 to 499")
	case len(d.Result.Body) > maxBody:
		return httpkey.Errorf(http.StatusBadRequest, "result.body: at most %d bytes", maxBody)
	case len(d.Result.Body) > 0 && (d.Result.Status == http.StatusNoContent || d.Result.Status == http.StatusResetContent):
		return httpkey.Errorf(http.StatusBadRequest, "result.body: status %d has none", d.Result.Status)
	}
	for _, line := range d.Result.Header {
		name := http.CanonicalHeaderKey(line[0])
		if !config.IsHeader(name) || strings.ContainsFunc(line[1], func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return httpkey.Errorf(http.StatusBadRequest, "result.header: %q is no header line", line[0])
		}
		if answer.NeverFrozen(name) {
			return httpkey.Errorf(http.StatusBadRequest, "result.header: %s is never part of a stored answer", name)
		}
	}
	return nil
}
