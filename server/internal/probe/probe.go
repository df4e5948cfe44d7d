// Package probe asks an application what became of an attempt whose answer was
// lost, by the question that the configuration describes.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/answer"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
)

// maxAnswer bounds the body of an answer, in bytes.
const maxAnswer = 1 << 20

// Asker asks about operations of one route. It is safe for concurrent use.
type Asker struct {
	config config.Probe
	rules  answer.Rules
	client *http.Client
	now    func() time.Time
}

// New makes an asker; now is the clock that the store's instants are compared
// with.
func New(c config.Probe, client *http.Client, now func() time.Time) (*Asker, error) {
	rules := answer.Rules{Status: c.Result.Status, Headers: c.Result.Headers}
	var faults []error
	path := func(text string) answer.Path {
		if text == "" {
			return nil
		}
		p, err := answer.ParsePath(text)
		faults = append(faults, err)
		return p
	}
	conditions := func(list []config.Answer) (out []answer.Condition) {
		for _, a := range list {
			out = append(out, answer.Condition{Status: a.Status, Member: path(a.JSON), Is: a.Is})
		}
		return out
	}
	rules.Body = path(c.Result.JSON)
	rules.Done, rules.NotDone = conditions(c.Done), conditions(c.NotDone)
	return &Asker{config: c, rules: rules, client: client, now: now}, errors.Join(faults...)
}

// Subject is the operation that is asked about.
type Subject struct {
	// Identity of a keyed request: tenant, and principal and key as parts.
	Identity store.Identity
	// DerivedKey of its outside calls.
	DerivedKey string
	// Ended is when its last attempt ended, by the store's clock.
	Ended time.Time
}

// Ask sends the question. "Not done" is believed only when the settle delay is
// over: before that the first call may still be under way.
func (a *Asker) Ask(ctx context.Context, s Subject) (unavez.Result, unavez.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	req, err := a.question(ctx, s)
	if err != nil {
		return unavez.Result{}, unavez.CannotTell, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return unavez.Result{}, unavez.CannotTell, plain(err)
	}
	defer resp.Body.Close()
	body, err := answer.ReadBody(resp.Body, maxAnswer)
	if err != nil {
		return unavez.Result{}, unavez.CannotTell, err
	}
	switch a.rules.Verdict(resp.StatusCode, body) {
	case unavez.Done:
		result, err := a.rules.Result(resp.StatusCode, resp.Header, body)
		if err != nil {
			return unavez.Result{}, unavez.CannotTell, err
		}
		return result, unavez.Done, nil
	case unavez.NotDone:
		if left := a.config.Settle - a.now().Sub(s.Ended); left > 0 {
			return unavez.Result{}, unavez.CannotTell, unsettled(left)
		}
		return unavez.Result{}, unavez.NotDone, nil
	}
	return unavez.Result{}, unavez.CannotTell, nil
}

// unsettled is a "not done" that is not believed yet.
type unsettled time.Duration

func (u unsettled) Error() string {
	return fmt.Sprintf("answered not done, which is believed in %v: the first call may still be under way", time.Duration(u).Round(time.Second))
}

// RetryAfter is when asking again makes sense.
func (u unsettled) RetryAfter() time.Duration { return time.Duration(u) }

// plain takes the URL, which holds the client's key, out of an error.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("probe: %w", u.Err)
	}
	return err
}

func (a *Asker) question(ctx context.Context, s Subject) (*http.Request, error) {
	places := answer.Places{Tenant: s.Identity.Tenant, DerivedKey: s.DerivedKey}
	if len(s.Identity.Parts) == 2 {
		places.Principal, places.Key = s.Identity.Parts[0], s.Identity.Parts[1]
	}
	path, query, asked := strings.Cut(a.config.URL, "?")
	filled, err := answer.Fill(path, places, escapeSegment)
	if err != nil {
		return nil, err
	}
	if asked {
		if query, err = answer.Fill(query, places, url.QueryEscape); err != nil {
			return nil, err
		}
		filled += "?" + query
	}
	req, err := http.NewRequestWithContext(ctx, a.config.Method, filled, nil)
	if err != nil {
		return nil, plain(err)
	}
	req.Header.Set("User-Agent", "unavez")
	for name, value := range a.config.Headers {
		text, err := answer.Fill(value.Reveal(), places, nil)
		if err != nil {
			return nil, fmt.Errorf("probe: header %s names an unknown place", name)
		}
		if strings.ContainsAny(text, "\r\n\x00") {
			return nil, fmt.Errorf("probe: header %s would hold a line break", name)
		}
		req.Header.Set(name, text)
	}
	return req, nil
}

// escapeSegment keeps a value within its segment of a path: a key of dots is
// no way upwards.
func escapeSegment(s string) string { return strings.ReplaceAll(url.PathEscape(s), ".", "%2E") }
