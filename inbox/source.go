package inbox

import (
	"context"
	"time"

	"github.com/unavez/unavez/source"
)

// Source is one configured sender.
type Source struct {
	// Name of the source, as "shop": 1 to 64 letters, digits, '-' and '_'. It is
	// part of the identity of its events. Required.
	Name string
	// Contract of its kind of sender. Required.
	Contract *source.Contract
	// Config has its secrets.
	Config source.Config
	// ConfigFunc, when not nil, is asked for each request instead of Config, so
	// that secrets can be replaced while requests arrive.
	ConfigFunc func() source.Config
	// Tenant that its events belong to; "" in a single-tenant installation.
	Tenant string
	// TenantFunc, when not nil, names the tenant of an event instead, from what
	// the sender's proof covers. An error puts the event into quarantine.
	TenantFunc func(e *source.Event) (string, error)
	// Types that are accepted: names, or patterns whose last character is '*',
	// which stands for any rest. Another authentic type goes to quarantine.
	// Required: at least one; "*" is all.
	Types []string
	// Schemas are JSON Schemas by type (or pattern, the longest match counts);
	// an event that does not fit goes to quarantine.
	Schemas map[string][]byte
	// Mask are JSON paths ($.a.b, $.items[*].name) whose values are replaced in
	// everything that is kept. Identity, keys and fingerprint are taken before.
	Mask []string
	// SubjectFunc, when not nil, names the person whose data an event holds, for
	// erasure; none if it returns no parts.
	SubjectFunc func(e *Event) ([]string, error)
	// BodyLimit bounds a body, 0 means 1 MiB; PlainLimit bounds what it may be
	// without its Content-Encoding, 0 means 4 times BodyLimit. Bytes.
	BodyLimit, PlainLimit int64
	// Silence is how long the source may send nothing before an alert; 0 means
	// never.
	Silence time.Duration
	// Fetch reads the resource of a hint: the path is below the sender's API. It
	// is required where Contract.Class is source.Hint and hints are accepted. An
	// error that is neither unavez.Again nor unavez.Dead is tried again.
	Fetch func(ctx context.Context, e *Event, path string) (status int, contentType string, body []byte, err error)
	// Polls are lists of the sender in which what was never delivered is looked
	// for.
	Polls []Poll
	// Erase carries out what a sender asks on behalf of a person, before it is
	// acknowledged: an event with Event.Erasure "customer" erases the payloads of
	// its subject, one with "tenant" those of everything that the source has
	// brought of its account.
	Erase bool
}
