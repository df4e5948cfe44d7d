// Package auth tells the callers of keyed requests apart: who is calling is
// known before a key is looked up, and a stored answer is never shown to
// another caller.
//
// Every mode fails closed. Credentials are compared by their hash in constant
// time, are never logged, and are never part of an error.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
)

// Scope makes the function that names the caller of a request. It is nil in
// the mode single_tenant, where there is only one. The client is for the mode
// forward.
func Scope(c config.Auth, client *http.Client) httpkey.ScopeFunc {
	switch c.Mode {
	case "forward":
		return (&forward{config: c, client: client}).scope
	case "token":
		return tokens(c)
	case "credential":
		return credential(c)
	}
	return nil
}

// unauthorized asks the caller for credentials.
func unauthorized(scheme, detail string) error {
	e := httpkey.Errorf(http.StatusUnauthorized, "%s", detail)
	if scheme != "" {
		e.Header = http.Header{"Www-Authenticate": {scheme}}
	}
	return e
}

func tokens(c config.Auth) httpkey.ScopeFunc {
	type known struct {
		sum   []byte
		scope httpkey.Scope
	}
	var list []known
	for _, t := range c.Tokens {
		sum, err := hex.DecodeString(t.SHA256)
		if err != nil {
			continue // config has refused it
		}
		list = append(list, known{sum, httpkey.Scope{Tenant: t.Tenant, Principal: t.Principal}})
	}
	return func(r *http.Request) (httpkey.Scope, error) {
		token, ok := Bearer(r)
		if !ok {
			return httpkey.Scope{}, unauthorized("Bearer", "Send Authorization: Bearer with your token.")
		}
		sum := sha256.Sum256([]byte(token))
		found := -1
		for i := range list { // all of them, so that the time tells nothing
			if subtle.ConstantTimeCompare(sum[:], list[i].sum) == 1 {
				found = i
			}
		}
		if found < 0 {
			return httpkey.Scope{}, unauthorized(`Bearer error="invalid_token"`, "This token is not known.")
		}
		return list[found].scope, nil
	}
}

// Bearer gives the one bearer token of a request.
func Bearer(r *http.Request) (string, bool) {
	lines := r.Header["Authorization"]
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(lines[0], " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}

// credential makes the credential itself the principal, by its hash: two
// callers never share, and the credential cannot be read back. Whether it is
// still valid is only seen by the application.
func credential(c config.Auth) httpkey.ScopeFunc {
	return func(r *http.Request) (httpkey.Scope, error) {
		var values []string
		detail := "Send exactly one Authorization header."
		scheme := "Bearer"
		if c.Cookie == "" {
			values = r.Header["Authorization"]
		} else {
			detail, scheme = "Send exactly one cookie of this session.", ""
			for _, cookie := range r.CookiesNamed(c.Cookie) {
				values = append(values, cookie.Value)
			}
		}
		if len(values) != 1 || values[0] == "" {
			return httpkey.Scope{}, unauthorized(scheme, detail)
		}
		sum := sha256.Sum256([]byte(values[0]))
		return httpkey.Scope{Tenant: c.Tenant, Principal: "sha256-" + hex.EncodeToString(sum[:])}, nil
	}
}

// forward asks the application or a gateway about every keyed request.
type forward struct {
	config config.Auth
	client *http.Client
}

// unavailable refuses a request because the question had no usable answer.
func unavailable(err error) error {
	return &httpkey.Error{
		Status: http.StatusServiceUnavailable, Title: "Authentication is not available",
		Detail: "Repeat the request with the same key.", Header: http.Header{"Retry-After": {"1"}}, Err: err,
	}
}

func (f *forward) scope(r *http.Request) (httpkey.Scope, error) {
	ctx, cancel := context.WithTimeout(r.Context(), f.config.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, f.config.URL, nil)
	if err != nil {
		return httpkey.Scope{}, unavailable(fmt.Errorf("auth: %w", err))
	}
	for _, name := range f.config.Headers {
		if values := r.Header.Values(name); len(values) > 0 {
			q.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	q.Header.Set("X-Forwarded-Method", r.Method)
	q.Header.Set("X-Forwarded-Uri", r.URL.RequestURI())
	q.Header.Set("X-Forwarded-Host", r.Host)
	q.Header.Set("User-Agent", "unavez")
	resp, err := f.client.Do(q)
	if err != nil {
		return httpkey.Scope{}, unavailable(fmt.Errorf("auth: %w", errors.Unwrap(err))) // without the URL
	}
	defer resp.Body.Close()
	// The body says nothing to us; a short one is read so that the connection
	// can be used again. An error only means that it cannot.
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e := &httpkey.Error{Status: resp.StatusCode}
		if challenges := resp.Header.Values("Www-Authenticate"); len(challenges) > 0 {
			e.Header = http.Header{"Www-Authenticate": challenges}
		}
		return httpkey.Scope{}, e
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return httpkey.Scope{}, unavailable(fmt.Errorf("auth: status %d", resp.StatusCode))
	}
	var s httpkey.Scope
	if s.Principal, err = named(resp.Header, f.config.PrincipalHeader); err != nil {
		return httpkey.Scope{}, unavailable(err)
	}
	if !f.config.SingleTenant {
		if s.Tenant, err = named(resp.Header, f.config.TenantHeader); err != nil {
			return httpkey.Scope{}, unavailable(err)
		}
	}
	return s, nil
}

// named reads a header of the answer that names tenant or principal.
func named(header http.Header, name string) (string, error) {
	values := header.Values(name)
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("auth: the answer has %d headers %s, want one that is not empty", len(values), name)
	}
	v := values[0]
	if len(v) > store.MaxPartSize || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
		return "", fmt.Errorf("auth: header %s of the answer is no name", name)
	}
	return v, nil
}
