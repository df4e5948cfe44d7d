package source

import (
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// GitHub signs the raw body with HMAC-SHA256 and repeats nothing by itself: a
// person or the API redelivers within three days, with the same
// X-GitHub-Delivery. One event that two hooks report has two of them. The older
// SHA-1 header is not looked at. (docs.github.com, "Validating webhook
// deliveries", "Redelivering webhooks".)
func GitHub() *Contract {
	s := must(Signing{Header: "X-Hub-Signature-256", Prefix: "sha256="}.ready())
	return &Contract{
		Name: "github", Class: PerDelivery,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 10 * time.Second, Window: 3 * 24 * time.Hour, Listed: true,
		Verify: s.verify, Read: readGitHub, Stable: stableGitHub,
	}
}

// stableGitHub is the JSON of a payload in one spelling: a hook may send it as a
// form, and the list of deliveries shows it as JSON written anew.
func stableGitHub(e *Event) []byte {
	text := e.Data
	if media, _, _ := mime.ParseMediaType(e.ContentType); media == "application/x-www-form-urlencoded" {
		if form, err := url.ParseQuery(string(text)); err == nil && form.Has("payload") {
			text = []byte(form.Get("payload"))
		}
	}
	if plain, ok := exact.Canonical(text, nil); ok {
		return plain
	}
	return text
}

func readGitHub(r *Request) ([]Item, error) {
	id, fault := header(r, "X-GitHub-Delivery")
	kind, missing := header(r, "X-GitHub-Event")
	if fault == nil {
		fault = missing
	}
	item := Item{Raw: r.Text(), Fault: fault}
	if fault != nil {
		return []Item{item}, nil
	}
	e := &Event{
		ID: []string{id}, Delivery: id, Type: kind,
		Data: r.Text(), ContentType: optional(r.Header, "Content-Type"),
	}
	// The body may be a form, or not UTF-8: the identity stands in the headers,
	// and what the body adds is only for order and for people.
	if o, err := exact.ReadObject(r.Text()); err == nil {
		if action := o.Text("action"); action != "" {
			e.Type += "." + action
		}
		if repository, err := exact.PartAt(r.Text(), "repository", "id"); err == nil {
			e.Subject = []string{repository}
		}
	}
	item.Event = e
	return []Item{item}, nil
}

// header is a header that an event cannot do without.
func header(r *Request, name string) (string, *Fault) {
	text, err := line(r.Header, name)
	if err != nil {
		return "", refuse(MissingField, name)
	}
	return text, nil
}

// must is for descriptions that are written down in this package: a fault in
// one is a fault of the program.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
