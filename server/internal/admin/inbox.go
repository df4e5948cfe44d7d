package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/store"
)

// Queue is what the API needs of a store that receives; see [store.Queue].
type Queue interface {
	// Load and Waiting are those of the queue.
	Load(ctx context.Context, key store.Key) (store.Entry, error)
	Waiting(ctx context.Context, lanes []int, after store.Place, limit int) ([]store.Waiting, error)
	store.Quarantine
	store.Privacy
}

// Inbox is what the API needs of an inbox; see [inbox.Inbox].
type Inbox interface {
	// Receiver, Redrive and Wake are those of the inbox.
	Receiver() *inbox.Receiver
	Redrive(ctx context.Context, r inbox.Redrive) (inbox.Redriven, error)
	Wake()
}

// maxSeen bounds the deliveries of an entry that are shown.
const maxSeen = 100

// received adds the routes about what is received.
func (a *api) received(mux *http.ServeMux) {
	mux.Handle("GET /api/entries/{key}", a.answer(a.entry))
	mux.Handle("GET /api/blocked", a.answer(a.blocked))
	mux.Handle("GET /api/quarantine", a.answer(a.quarantine))
	mux.Handle("GET /api/quarantine/{key}", a.answer(a.quarantined))
	mux.Handle("POST /api/quarantine/{key}/readmit", a.answer(a.readmit))
	mux.Handle("POST /api/quarantine/{key}/discard", a.answer(a.drop))
	mux.HandleFunc("POST /api/erase", a.erase)
	mux.HandleFunc("POST /api/redrive", a.redrive)
}

// payload reports whether a request asks for what was carried, as it is kept:
// masked. Who reads it is in the log.
func (a *api) payload(r *http.Request, key store.Key) bool {
	if r.URL.Query().Get("payload") != "true" {
		return false
	}
	a.Logger.InfoContext(r.Context(), "payload shown", "key", key.String())
	return true
}

func (a *api) entry(r *http.Request) (any, error) {
	key, err := a.key(r)
	if err != nil {
		return nil, err
	}
	e, err := a.Queue.Load(r.Context(), key)
	if err != nil {
		return nil, err
	}
	n := &e.Note
	out := Entry{
		Key: e.Key.String(), Name: n.Event.Text(), Operation: e.Operation.String(), OperationName: n.Identity.Text(), Order: e.Order.String(), Ordering: n.Ordering,
		Sequence: e.Sequence, Tenant: n.Event.Tenant, Effect: n.Event.Effect, Source: n.Source, Type: n.Type, ID: n.ID, Subject: n.Subject, Version: n.Version,
		ContentType: n.ContentType, Size: e.Size, Erased: e.Erased, Unsigned: n.Unsigned, Hint: n.Hint, Delivery: n.Delivery, Correlation: n.Correlation, Arrived: e.Arrived,
		Deliveries: []Delivery{},
	}
	if !n.Time.IsZero() {
		out.Time = &n.Time
	}
	seen, err := a.Queue.Deliveries(r.Context(), key, maxSeen)
	if err != nil {
		return nil, err
	}
	for _, d := range seen {
		out.Deliveries = append(out.Deliveries, Delivery{At: d.At, What: d.What.String()})
	}
	if a.payload(r, key) {
		out.Payload = e.Payload
	}
	return out, nil
}

// bounds reads limit and after of a list.
func bounds(r *http.Request, known ...string) (limit int, after, source string, err error) {
	limit = store.DefaultPage
	for name, values := range r.URL.Query() {
		switch {
		case name == "limit":
			if limit, err = strconv.Atoi(values[0]); err != nil || limit < 1 || limit > maxPage {
				return 0, "", "", httpkey.Errorf(http.StatusBadRequest, "limit: want 1 to %d", maxPage)
			}
		case name == "after":
			after = values[0]
		case name == "source" && len(known) > 0:
			source = values[0]
		default:
			return 0, "", "", httpkey.Errorf(http.StatusBadRequest, "unknown parameter (known: %s)", strings.Join(append(known, "limit", "after"), ", "))
		}
	}
	return limit, after, source, nil
}

func (a *api) blocked(r *http.Request) (any, error) {
	limit, text, _, err := bounds(r)
	if err != nil {
		return nil, err
	}
	var after store.Place
	if text != "" {
		order, sequence, _ := strings.Cut(text, "-")
		key, bad := store.ParseKey(order)
		n, wrong := strconv.ParseInt(sequence, 10, 64)
		if bad != nil || wrong != nil {
			return nil, httpkey.Errorf(http.StatusBadRequest, "after: not what next said")
		}
		after = store.Place{Order: key, Sequence: n}
	}
	list, err := a.Queue.Waiting(r.Context(), nil, after, limit)
	if err != nil {
		return nil, err
	}
	page := BlockedPage{Blocked: []Blocked{}}
	for _, w := range list {
		page.Blocked = append(page.Blocked, Blocked{
			Order: w.Order.String(), Sequence: w.Sequence, Lane: w.Lane, Key: w.Key.String(), Operation: w.Operation.String(),
			Gap: w.Gap, Done: w.Done, State: w.State.String(), Attempt: w.Fence, DueIn: w.DueIn.Seconds(),
		})
	}
	if len(list) == limit {
		last := list[len(list)-1]
		page.Next = last.Order.String() + "-" + strconv.FormatInt(last.Sequence, 10)
	}
	return page, nil
}

func (a *api) quarantine(r *http.Request) (any, error) {
	limit, text, source, err := bounds(r, "source")
	if err != nil {
		return nil, err
	}
	var after store.Key
	if text != "" {
		if after, err = store.ParseKey(text); err != nil {
			return nil, httpkey.Errorf(http.StatusBadRequest, "after: not what next said")
		}
	}
	list, err := a.Queue.Quarantined(r.Context(), source, after, limit)
	if err != nil {
		return nil, err
	}
	page := QuarantinePage{Items: []Quarantined{}}
	for i := range list {
		page.Items = append(page.Items, quarantinedOf(&list[i]))
	}
	if len(list) == limit {
		page.Next = list[len(list)-1].Key.String()
	}
	return page, nil
}

func (a *api) quarantined(r *http.Request) (any, error) {
	key, err := a.key(r)
	if err != nil {
		return nil, err
	}
	q, err := a.Queue.ShowQuarantined(r.Context(), key)
	if err != nil {
		return nil, err
	}
	out := quarantinedOf(&q)
	if a.payload(r, key) {
		out.Payload = q.Payload
	}
	return out, nil
}

// decision reads who decides and why, about the key of the path.
func (a *api) decision(r *http.Request) (store.Action, error) {
	key, err := a.key(r)
	if err != nil {
		return store.Action{}, err
	}
	var d Decision
	if err := body(r, &d, "by and reason"); err != nil {
		return store.Action{}, err
	}
	d.By, d.Reason = strings.TrimSpace(d.By), strings.TrimSpace(d.Reason)
	return store.Action{Key: key, Actor: d.By, Reason: d.Reason}, who(d.By, d.Reason)
}

// errNoInbox says that this needs the configuration's sources and effects.
func errNoInbox() error {
	return httpkey.Errorf(http.StatusConflict, "This needs the sources and effects of a configuration: run it against the server or, without one, name the configuration (unavez ops … --config FILE).")
}

func (a *api) readmit(r *http.Request) (any, error) {
	action, err := a.decision(r)
	if err != nil {
		return nil, err
	}
	in := a.Inbox()
	if in == nil {
		return nil, errNoInbox()
	}
	receipt, err := in.Receiver().Readmit(r.Context(), action)
	if err != nil {
		return nil, err
	}
	if receipt.Ignored > 0 {
		return nil, httpkey.Errorf(http.StatusConflict, "No effect wants it; discard it, or configure one.")
	}
	a.acted(r.Context(), "readmit", action)
	return Readmitted{New: receipt.New, Duplicates: receipt.Duplicates, Conflicts: receipt.Conflicts}, nil
}

// drop discards a quarantined item.
func (a *api) drop(r *http.Request) (any, error) {
	action, err := a.decision(r)
	if err != nil {
		return nil, err
	}
	if _, err := a.Queue.Readmit(r.Context(), action, nil); err != nil {
		return nil, err
	}
	a.acted(r.Context(), "discard quarantined", action)
	return Readmitted{}, nil
}

// acted writes a decision into the log.
func (a *api) acted(ctx context.Context, what string, action store.Action) {
	a.Logger.InfoContext(ctx, "decision", "action", what, "key", action.Key.String(), "by", action.Actor, "reason", action.Reason)
}

func (a *api) erase(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it may take long; a handler in process has none
	a.answer(a.erased).ServeHTTP(w, r)
}

func (a *api) erased(r *http.Request) (any, error) {
	var d Erasure
	if err := body(r, &d, "by, reason, tenant and subject, or tenant, source and account"); err != nil {
		return nil, err
	}
	d.By, d.Reason = strings.TrimSpace(d.By), strings.TrimSpace(d.Reason)
	if err := who(d.By, d.Reason); err != nil {
		return nil, err
	}
	action := store.Action{Actor: d.By, Reason: d.Reason}
	account := store.Account{Tenant: d.Tenant, Source: d.Source, Name: d.Account}
	switch {
	case len(d.Subject) == 0 && account == (store.Account{}):
		return nil, httpkey.Errorf(http.StatusBadRequest, "subject: missing; the parts that name the person, or else tenant, source or account, of which everything is erased")
	case len(d.Subject) > 0 && d.Source+d.Account != "":
		return nil, httpkey.Errorf(http.StatusBadRequest, "subject: given beside source or account; a person, or all of an account")
	case len(d.Subject) == 0:
		action.Key = account.Key()
	default:
		if err := (store.Identity{Tenant: d.Tenant, Effect: "subject", Parts: d.Subject}).Validate(); err != nil {
			return nil, httpkey.Errorf(http.StatusBadRequest, "subject: the parts that name the person, as the sources' subject gives them")
		}
		action.Key = store.SubjectKey(d.Tenant, d.Subject)
	}
	n, err := 0, error(nil)
	if len(d.Subject) > 0 {
		n, err = a.Queue.Erase(r.Context(), action)
	} else {
		n, err = a.Queue.EraseAccount(r.Context(), action, account)
	}
	if err != nil {
		return nil, err
	}
	a.acted(r.Context(), "erase", action)
	return Erased{Payloads: n}, nil
}

// redrive answers with a line of JSON now and then, and a last one.
func (a *api) redrive(w http.ResponseWriter, r *http.Request) {
	var d Redrive
	order, err := a.redriveOf(r, &d)
	if err != nil {
		a.problem(w, r, err)
		return
	}
	in := a.Inbox()
	if in == nil {
		a.problem(w, r, errNoInbox())
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // it may take long; a handler in process has none
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder := json.NewEncoder(w)
	send := func(p Progress) {
		_ = encoder.Encode(p) // the context ends when the client has gone
		_ = control.Flush()
	}
	order.Progress = func(p inbox.Redriven) { send(Progress{Redriven: p.Redriven, Moved: p.Moved}) }
	a.Logger.InfoContext(r.Context(), "decision", "action", "redrive many", "effect", order.Effect, "source", order.Source, "owner", order.Owner,
		"since", order.Since, "until", order.Until, "by", order.Actor, "reason", order.Reason)
	done, err := in.Redrive(r.Context(), order)
	last := Progress{Redriven: done.Redriven, Moved: done.Moved, Done: err == nil}
	if err != nil {
		a.Logger.WarnContext(r.Context(), "redrive was cut off", "redriven", done.Redriven, "error", err)
		last.Error = "cut off; the log has the cause. The same command again goes on"
	}
	send(last)
}

// redriveOf reads a redrive and refuses what makes none.
func (a *api) redriveOf(r *http.Request, d *Redrive) (inbox.Redrive, error) {
	if err := body(r, d, "by, reason, until and a filter"); err != nil {
		return inbox.Redrive{}, err
	}
	d.By, d.Reason = strings.TrimSpace(d.By), strings.TrimSpace(d.Reason)
	if err := who(d.By, d.Reason); err != nil {
		return inbox.Redrive{}, err
	}
	switch {
	case d.Until.IsZero():
		return inbox.Redrive{}, httpkey.Errorf(http.StatusBadRequest, "until: the moment of the decision; what dies after it is not run again")
	case d.Until.Before(d.Since):
		return inbox.Redrive{}, httpkey.Errorf(http.StatusBadRequest, "until: before since")
	case d.Rate < 0 || d.Rate > 10_000:
		return inbox.Redrive{}, httpkey.Errorf(http.StatusBadRequest, "rate: want more than 0 and at most 10000 a second, or 0 for 50")
	}
	return inbox.Redrive{
		Actor: d.By, Reason: d.Reason, Tenant: d.Tenant, Source: d.Source, Effect: d.Effect, Owner: d.Owner, Contains: d.Contains,
		Since: d.Since, Until: d.Until, Rate: d.Rate,
	}, nil
}
