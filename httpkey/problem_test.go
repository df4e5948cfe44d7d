package httpkey

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/unavez/unavez"
)

// kinds are all types of problems.
func kinds() []string {
	all := []string{
		TypeKeyMissing, TypeKeyMalformed, TypeConnectionHeader, TypeBodyUnreadable, TypeBodyTimeout, TypeRequestTooLarge, TypeScope,
		TypeForbidden, TypeAnswerTooLarge, TypePath, TypeUpstreamDown, TypeUpstreamSlow, TypeUpstreamBroken, TypeInternal,
	}
	for _, code := range []unavez.Code{
		unavez.CodeInFlight, unavez.CodeMismatch, unavez.CodeExpired, unavez.CodeNotReplayable, unavez.CodeDamaged, unavez.CodeDiscarded,
		unavez.CodeUnknown, unavez.CodeParked, unavez.CodeRetrying, unavez.CodeDead, unavez.CodeUnresolved, unavez.CodeUnavailable,
		unavez.CodeClosed, unavez.CodeLimit, unavez.CodeLeaseLost, unavez.CodeForeignCommit, unavez.CodeAborted,
	} {
		all = append(all, string(code))
	}
	return all
}

func TestEveryTypeHasATitleAndAParagraph(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, kind := range kinds() {
		title := titles(kind)
		if other, twice := seen[title]; twice {
			t.Errorf("%s and %s have one title: %s", kind, other, title)
		}
		seen[title] = kind
		if !strings.Contains(string(page), "\n### "+kind+"\n") {
			t.Errorf("docs/http-api.md has no paragraph about %s", kind)
		}
	}
}

func TestAnEnginesErrorTellsNoInternals(t *testing.T) {
	t.Parallel()
	secret := errors.New("dsn of the database")
	for _, kind := range kinds() {
		p := engineProblem(&unavez.Error{Code: unavez.Code(kind), Operation: "acme/http/alice/key", Err: secret})
		header, body := p.answer("https://docs.example/page")
		if strings.Contains(string(body), "dsn") || strings.Contains(string(body), "alice") {
			t.Errorf("%s: %s", kind, body)
		}
		if p.Status < 400 || p.Status > 599 || p.Status == http.StatusServiceUnavailable && header.Get("Retry-After") == "" {
			t.Errorf("%s: status %d, Retry-After %q", kind, p.Status, header.Get("Retry-After"))
		}
		if !errors.Is(p, secret) {
			t.Errorf("%s: the cause is lost to the log", kind)
		}
	}
	if p := engineProblem(secret); p.Status != 500 || p.kind() != TypeInternal {
		t.Errorf("any error: %v", p)
	}
}

func TestAnErrorOfTheApplicationIsAProblem(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	e := &Error{
		Status: 402, Type: "https://shop.example/balance", Title: "No balance", Detail: "<30 of 50>", Err: cause,
		Members: map[string]any{"balance": 30, "status": 200}, Header: http.Header{"x-own": {"1"}},
	}
	header, body := e.answer(DefaultDocs)
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if got["balance"] != 30.0 || got["status"] != 402.0 || got["type"] != e.Type || got["detail"] != e.Detail || header.Get("X-Own") != "1" || header.Get("Link") != "" {
		t.Errorf("%v %v", header, got)
	}
	if strings.Contains(string(body), "cause") || !strings.Contains(string(body), "<30") || e.Error() != "402: No balance: <30 of 50>: cause" {
		t.Errorf("%s, %v", body, e)
	}
	e.Members["bad"] = func() {}
	if _, body := e.answer(DefaultDocs); !json.Valid(body) || !strings.Contains(string(body), "402") {
		t.Errorf("a member that JSON cannot hold: %s", body)
	}
	if e := Errorf(404, "no order %d: %w", 7, cause); e.Detail != "no order 7" || !errors.Is(e, cause) {
		t.Errorf("%v", e)
	}
	if _, body := (&Error{Status: 404}).answer(DefaultDocs); !strings.Contains(string(body), `"type":"about:blank"`) || !strings.Contains(string(body), "Not Found") {
		t.Errorf("%s", body)
	}
}
