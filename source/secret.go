package source

import (
	"fmt"
	"log/slog"
	"time"
)

// Secret is a shared secret with a name. However it is printed, encoded or
// logged, only its name shows.
type Secret struct {
	Name  string    // what metrics and logs call it, as "old"
	Until time.Time // not accepted from this instant on; zero is for ever
	text  string
}

// NewSecret returns a secret. The name is shown to people, the text never.
func NewSecret(name, text string) Secret { return Secret{Name: name, text: text} }

// Expiring returns the secret with an end, for the time of a rotation.
func (s Secret) Expiring(until time.Time) Secret {
	s.Until = until
	return s
}

// Reveal returns the text: for computing a digest, and for nothing else.
func (s Secret) Reveal() string { return s.text }

// String hides the text.
func (s Secret) String() string { return "secret " + s.Name }

// Format hides the text from every verb, %#v and %x among them.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText hides the text from JSON, YAML and whatever else asks for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the text from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// usable are the secrets to try. None at all, or an empty one, is a fault of
// the configuration and refuses every delivery: an HMAC with an empty key is one
// that anybody can compute.
func (c *Config) usable() ([]Secret, error) {
	if len(c.Secrets) == 0 {
		return nil, refusef(EmptySecret, "", "the source has no secret")
	}
	for _, s := range c.Secrets {
		if s.text == "" {
			return nil, refusef(EmptySecret, "", "the secret %q is empty", s.Name)
		}
	}
	return c.Secrets, nil
}

// match tries every secret, all of them whatever comes out, and tells which one
// matched. A match by an expired secret is told apart: an operator wants to know
// that a sender was forgotten. field is what a refusal names.
func match(secrets []Secret, field string, at time.Time, try func(Secret) bool) (string, error) {
	name, expired := "", false
	found := false
	for _, s := range secrets {
		if !try(s) {
			continue
		}
		if !s.Until.IsZero() && !at.Before(s.Until) {
			expired = true
			continue
		}
		if !found {
			found, name = true, s.Name
		}
	}
	switch {
	case found:
		return name, nil
	case expired:
		return "", refuse(ExpiredSecret, field)
	}
	return "", refuse(BadSignature, field)
}
