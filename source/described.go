package source

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Described is a contract that a configuration writes down: a sender that signs
// with a shared secret, or sends a fixed token, and of which no contract is
// built in.
type Described struct {
	// Name is shown in logs and metrics; "hmac" or "token" if empty.
	Name string

	// Signing is how the sender signs. Exactly one of Signing and Token is set.
	Signing *Signing

	// Token is how the sender shows a fixed token.
	Token *Token

	// ID are the parts of the identity, each a place as "header.X-Event-Id",
	// "query.id" or "body.data.id". Empty is a sender without identity: each
	// delivery is an event of its own.
	ID []string

	// Delivery, Type, Version and Tenant are places. Type may also be a fixed
	// text in quotes, as "'order.paid'".
	Delivery, Type, Version, Tenant string

	// Subject are the places of the parts that name the resource.
	Subject []string

	// Volatile are paths of members of a JSON body that change between the
	// repetitions of one event, as "$.attempts". With any, bodies are compared by
	// value and without them.
	Volatile []string

	// Success is the status of the answer, 200 if 0.
	Success int

	// Timeout and Window are what the sender's documentation says.
	Timeout, Window time.Duration
}

// Token is a fixed token that a sender puts into a header or the query.
type Token struct {
	// Header carries the token, after Prefix, as "Bearer ".
	Header, Prefix string

	// Query is the parameter that carries the token instead. It shows in the
	// access logs of everything on the way.
	Query string
}

// place is where a text is taken from.
type place struct {
	shown string
	fixed string   // a text in quotes
	from  string   // "header", "query", "body"
	path  []string // a header, a parameter, or the names of members
}

func parsePlace(text string) (place, error) {
	p := place{shown: text}
	if inner, ok := strings.CutPrefix(text, "'"); ok && strings.HasSuffix(inner, "'") && len(inner) > 1 {
		p.fixed = inner[:len(inner)-1]
		return p, nil
	}
	from, rest, ok := strings.Cut(text, ".")
	p.from = from
	switch {
	case !ok || rest == "":
	case from == "header" && isToken(rest), from == "query":
		p.path = []string{rest}
		return p, nil
	case from == "body":
		p.path = strings.Split(rest, ".")
		for _, name := range p.path {
			if name == "" {
				return p, fmt.Errorf("%q has an empty name", text)
			}
		}
		return p, nil
	}
	return p, fmt.Errorf("%q is no place: write header.NAME, query.NAME or body.MEMBER.MEMBER", text)
}

// take returns the text at a place; "" with a fault where there is none.
func (p place) take(r *Request, body []byte) (string, *Fault) {
	switch {
	case p.fixed != "":
		return p.fixed, nil
	case p.from == "header":
		text, err := line(r.Header, p.path[0])
		var f *Fault
		if errors.As(err, &f) {
			return "", f
		}
		return text, nil
	case p.from == "query":
		values := query(r)[p.path[0]]
		if len(values) != 1 || values[0] == "" {
			return "", refuse(MissingField, p.shown)
		}
		return values[0], nil
	case body == nil:
		return "", refusef(MissingField, p.shown, "the body is no JSON")
	}
	part, err := exact.PartAt(body, p.path...)
	if err != nil {
		return "", &Fault{Reason: MissingField, Field: p.shown, Cause: err}
	}
	return part, nil
}

func query(r *Request) url.Values {
	if r.URL == nil {
		return nil
	}
	return r.URL.Query()
}

// described is a Described made ready.
type described struct {
	id, subject                    []place
	delivery, kind, version, owner *place
}

// Contract checks the description and returns the contract. It reports every
// fault at once, each with the name of its field.
func (d Described) Contract() (*Contract, error) {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	one := func(field, text string) *place {
		if text == "" {
			return nil
		}
		p, err := parsePlace(text)
		if err != nil {
			fault(fmt.Errorf("%s: %w", field, err))
		}
		return &p
	}
	many := func(field string, texts []string) (places []place) {
		for i, text := range texts {
			if p := one(fmt.Sprintf("%s[%d]", field, i), text); p != nil {
				places = append(places, *p)
			} else {
				fault(fmt.Errorf("%s[%d]: empty", field, i))
			}
		}
		return places
	}
	c := &Contract{
		Name: d.Name, Success: d.Success, Refused: http.StatusUnauthorized,
		TooLarge: http.StatusRequestEntityTooLarge, Timeout: d.Timeout, Window: d.Window,
	}
	if c.Success == 0 {
		c.Success = http.StatusOK
	}
	if c.Success < 200 || c.Success > 299 {
		fault(fmt.Errorf("success: %d is no status of the 200s", c.Success))
	}
	if d.Timeout < 0 || d.Window < 0 {
		fault(errors.New("timeout, window: negative"))
	}
	switch {
	case (d.Signing == nil) == (d.Token == nil):
		fault(errors.New("signing, token: give exactly one"))
	case d.Signing != nil:
		s, err := d.Signing.ready()
		fault(err)
		c.Verify = s.verify
		if c.Name == "" {
			c.Name = "hmac"
		}
		c.Secret = func(text string) error {
			_, err := keyOf(d.Signing.Key, text)
			return err
		}
	default:
		fault(d.Token.check())
		token := *d.Token
		c.Verify = token.verify
		if c.Name == "" {
			c.Name = "token"
		}
	}
	p := described{
		id: many("id", d.ID), subject: many("subject", d.Subject),
		delivery: one("delivery", d.Delivery), kind: one("type", d.Type),
		version: one("version", d.Version), owner: one("tenant", d.Tenant),
	}
	if p.kind == nil {
		fault(errors.New("type: empty; name its place, or give a fixed one in quotes, as 'order.paid'"))
	}
	if len(d.ID) > 0 {
		c.Class = Composite
	}
	if len(d.Volatile) > 0 {
		selection, err := exact.NewSelection(nil, d.Volatile)
		if err != nil {
			fault(fmt.Errorf("volatile: %w", err))
		}
		c.Stable = stable(selection)
	}
	c.Read = p.read
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return c, nil
}

func (p *described) read(r *Request) ([]Item, error) {
	body := r.Text()
	text := body
	if exact.Check(text) != nil {
		text = nil
	}
	event := &Event{Data: body, ContentType: optional(r.Header, "Content-Type")}
	item := Item{Raw: body}
	take := func(from *place) string {
		if from == nil {
			return ""
		}
		value, f := from.take(r, text)
		if f != nil && item.Fault == nil {
			item.Fault = f
		}
		return value
	}
	for i := range p.id {
		event.ID = append(event.ID, take(&p.id[i]))
	}
	event.Type = take(p.kind)
	event.Tenant = take(p.owner)
	for i := range p.subject {
		event.Subject = append(event.Subject, take(&p.subject[i]))
	}
	event.Version = take(p.version)
	if p.delivery != nil {
		event.Delivery, _ = p.delivery.take(r, text) // for people only
	}
	if item.Fault == nil {
		item.Event = event
	}
	return []Item{item}, nil
}

func (t Token) check() error {
	if (t.Header == "") == (t.Query == "") {
		return errors.New("token: give exactly one of header and query")
	}
	if t.Header != "" && !isToken(t.Header) {
		return fmt.Errorf("token.header: %q is no header name", t.Header)
	}
	if t.Prefix != "" && t.Query != "" {
		return errors.New("token.prefix: only with header")
	}
	return nil
}

func (t Token) verify(_ context.Context, config *Config, r *Request) (Proof, error) {
	secrets, err := config.usable()
	if err != nil {
		return Proof{}, err
	}
	field, method, got := t.Header, "header-secret", ""
	if t.Query != "" {
		field, method = t.Query, "query-secret"
		values := query(r)[t.Query]
		if len(values) == 0 || len(values) == 1 && values[0] == "" {
			return Proof{}, refuse(MissingHeader, field)
		}
		if len(values) > 1 {
			return Proof{}, refusef(MalformedHeader, field, "sent %d times", len(values))
		}
		got = values[0]
	} else {
		text, err := line(r.Header, t.Header)
		if err != nil {
			return Proof{}, err
		}
		var ok bool
		if got, ok = cutPrefixFold(text, t.Prefix); !ok {
			return Proof{}, refuse(MalformedHeader, field)
		}
	}
	name, err := matchText(secrets, field, r.At, got)
	if err != nil {
		return Proof{}, err
	}
	return Proof{Method: method, Secret: name}, nil
}

// matchText compares by digests, so that the time tells nothing of the length.
func matchText(secrets []Secret, field string, at time.Time, got string) (string, error) {
	sum := sha256.Sum256([]byte(got))
	return match(secrets, field, at, func(s Secret) bool {
		want := sha256.Sum256([]byte(s.Reveal()))
		return subtle.ConstantTimeCompare(sum[:], want[:]) == 1
	})
}

// cutPrefixFold removes a prefix whose letters may be of either case, as the
// scheme of an Authorization header.
func cutPrefixFold(text, prefix string) (string, bool) {
	if len(text) < len(prefix) || !strings.EqualFold(text[:len(prefix)], prefix) {
		return "", false
	}
	return strings.TrimLeft(text[len(prefix):], " "), true
}
