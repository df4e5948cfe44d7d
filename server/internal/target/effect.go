package target

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source/cloudevents"
)

// Switch says of a target whether it is called at all. A target that answers
// "gone" is switched off for every worker until a person switches it on again.
type Switch interface {
	// Off says why the target is not called, or "" that it is.
	Off(ctx context.Context) (string, error)
	// TurnOff is called when the target has answered that it is gone.
	TurnOff(ctx context.Context, why string) error
}

// Run sends an event, for [inbox.Effect]: the event as a CloudEvent in the
// binary mode, under the operation's derived key.
func (t *Target) Run(ctx context.Context, attempt *unavez.Attempt, e *inbox.Event, off Switch) (unavez.Result, error) {
	if e.Erased {
		return unavez.Result{}, inbox.Discard("its content was erased on a person's demand before it was sent")
	}
	why, err := off.Off(ctx)
	if err != nil {
		return unavez.Result{}, inbox.RetryAfter(fmt.Errorf("is the target switched off: %w", err), 0)
	}
	if why != "" {
		return unavez.Result{}, inbox.Permanent(fmt.Errorf("%s is switched off: %s", t.URL(), why))
	}
	a := t.Call(ctx, messageOf(attempt.DerivedKey(), attempt.Fence(), e))
	switch a.Verdict {
	case Done:
		return unavez.Result{Code: a.Status}, nil
	case NotDone:
		return unavez.Result{}, inbox.RetryAfter(fmt.Errorf("%s: %w", t.URL(), a.Err), a.RetryAfter)
	case Refused:
		return unavez.Result{}, inbox.Permanent(fmt.Errorf("%s: %w", t.URL(), a.Err))
	case Gone:
		err := fmt.Errorf("%s: %w", t.URL(), a.Err)
		if failed := off.TurnOff(context.WithoutCancel(ctx), a.Err.Error()); failed != nil {
			err = fmt.Errorf("%w; it could not be switched off: %w", err, failed) // the next call finds it gone again
		}
		return unavez.Result{}, inbox.Permanent(err)
	}
	return unavez.Result{}, fmt.Errorf("%s: %w", t.URL(), a.Err)
}

// Headers that tell the application about the attempt.
const (
	HeaderEffect  = "Unavez-Effect"
	HeaderAttempt = "Unavez-Attempt"
)

// messageOf is the request that carries an event.
func messageOf(key string, attempt int64, e *inbox.Event) Message {
	m := Message{ID: key, ContentType: e.ContentType, Body: e.Data, Header: http.Header{}}
	m.Header.Set(HeaderEffect, e.Effect)
	m.Header.Set(HeaderAttempt, strconv.FormatInt(attempt, 10))
	id := strings.Join(e.ID, "/")
	if id == "" {
		id = key
	}
	ce := cloudevents.Event{
		ID: id, Source: "/" + e.Source, Type: e.Type, Subject: strings.Join(e.Subject, "/"), Time: e.Time,
		Extensions: map[string]string{},
	}
	for name, value := range map[string]string{"tenant": e.Tenant, "version": e.Version} {
		if value != "" {
			ce.Extensions[name] = value
		}
	}
	if e.Unsigned {
		ce.Extensions["unsigned"] = "true"
	}
	if ce.Type == "" {
		ce.Type = "event" // a CloudEvent has one
	}
	ce.WriteBinary(m.Header)
	return m
}
