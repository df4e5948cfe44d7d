package source

import (
	"context"
	"crypto"
	"net/http"
	"net/url"
	"time"
)

// Contract is what is known of one kind of sender. Its functions are pure, may
// be called concurrently and keep nothing of their arguments.
type Contract struct {
	// Name is what a configuration calls the contract, as "shopify".
	Name string

	// Class says what the sender gives an event as identity.
	Class Class

	// Success is the status of the answer to a delivery that is durable.
	Success int

	// Refused is the status of the answer to a delivery that is not authentic.
	Refused int

	// TooLarge is the status of the answer to a body over the limit. It is 503
	// where the sender would drop the event at 413.
	TooLarge int

	// Timeout is how long the sender waits for an answer, 0 if it does not say.
	Timeout time.Duration

	// Window is how long the sender may repeat a delivery, by itself or by a
	// person's hand. Identities are remembered at least that long.
	Window time.Duration

	// Listed says that the sender can be asked for events that were missed.
	Listed bool

	// Secret says whether a text can be a secret of this sender: a fault at
	// configuration instead of at the first delivery. It is nil where any text
	// that is not empty can.
	Secret func(text string) error

	// Handshake answers a request that proves the endpoint and is no delivery.
	// It returns nil where the request is none. It is nil for senders without.
	// Where the sender signs its handshake, the reply is only given after Verify.
	Handshake func(ctx context.Context, config *Config, r *Request) (*Reply, error)

	// Verify says whether the request is the sender's. Its error is a *Fault.
	Verify func(ctx context.Context, config *Config, r *Request) (Proof, error)

	// Read takes the events out of a verified request. An item that cannot be
	// read is a faulty item and does not touch the others; an error is a body
	// that is no list of events at all. The error is a *Fault.
	Read func(r *Request) ([]Item, error)

	// Fetch says where a hint's resource is read, nil where events carry it.
	Fetch func(e *Event) (Fetch, error)

	// Stable returns the part of an event's content that every repetition of it
	// has alike, in one spelling: what tells another content under one identity
	// from the same one with a counter that has moved, or written anew by the
	// sender's list. It is nil where Data itself is that.
	Stable func(e *Event) []byte
}

// Class is what identifies an event of a sender.
type Class int

// The classes of identity. The zero class is a sender without any: each
// delivery is an event of its own.
const (
	// Logical identity is equal on every repetition of an event.
	Logical Class = iota + 1
	// PerDelivery identity is equal on the repetitions of one delivery; two
	// subscriptions give two.
	PerDelivery
	// Composite identity is made of several fields.
	Composite
	// Hint is no identity: something may have changed, and the resource has to
	// be fetched and compared.
	Hint
)

// String is the word for the class in logs and configuration.
func (c Class) String() string {
	switch c {
	case Logical:
		return "logical"
	case PerDelivery:
		return "delivery"
	case Composite:
		return "composite"
	case Hint:
		return "hint"
	}
	return "none"
}

// Request is one HTTP request as it arrived.
type Request struct {
	Method string      // in capitals
	URL    *url.URL    // the path and the raw query as the sender wrote them
	Header http.Header // with canonical names
	Body   []byte      // the bytes on the wire
	Plain  []byte      // the body without its Content-Encoding; nil where it had none
	At     time.Time   // the instant of arrival
}

// Text is the body without its Content-Encoding.
func (r *Request) Text() []byte {
	if r.Plain != nil {
		return r.Plain
	}
	return r.Body
}

// Config is what one configured source adds to its contract.
type Config struct {
	// Secrets are tried all. Two of them overlap while a secret is rotated.
	Secrets []Secret

	// Tolerance is how far a signed timestamp may be from the arrival, on both
	// sides. 0 is DefaultTolerance.
	Tolerance time.Duration

	// Keys returns the public key that an issuer publishes under an id. It is
	// asked during Verify, and bounds, caches and pins what it fetches. An error
	// that is no *Fault means that the key cannot be had now: the delivery is
	// answered as our own trouble and comes again.
	Keys func(ctx context.Context, issuer, id string) (crypto.PublicKey, error)

	// URL is the address that the sender was told, for schemes that sign it.
	URL string
}

// DefaultTolerance is the two-sided tolerance of the Standard Webhooks
// specification and of Stripe's libraries.
const DefaultTolerance = 5 * time.Minute

func (c *Config) tolerance() time.Duration {
	if c.Tolerance > 0 {
		return c.Tolerance
	}
	return DefaultTolerance
}

// Proof is how a request was found to be authentic. It is stored beside the
// event, since it cannot be checked again later.
type Proof struct {
	// Method names the proof: "hmac-sha256", "ed25519", "query-secret",
	// "header-secret", "jwt".
	Method string

	// Secret is the name of the secret that matched.
	Secret string

	// Body says that the proof covers the whole body. Where it is false, whoever
	// knows the secret or the token could have written any body.
	Body bool
}

// Reply is the answer to a handshake.
type Reply struct {
	Status int         // of the answer
	Header http.Header // to be added to those of the answer
	Body   []byte      // whole; may be empty
}

// Item is one event of a delivery, or what was wrong with it.
type Item struct {
	Event *Event // nil if Fault is set
	Fault *Fault // what kept the item from being an event
	Raw   []byte // the item's own bytes
}

// Event is the fact that a sender names.
type Event struct {
	// ID are the parts of the identity within the source. It is empty where the
	// sender gave none, and for hints.
	ID []string

	// Delivery identifies the arrival, for people who compare logs. It is no
	// identity, and may be empty.
	Delivery string

	// Type is the sender's name for what happened.
	Type string

	// Subject are the parts that name the resource: what order is kept by.
	Subject []string

	// Version is the sender's own order of the changes of one resource, empty
	// where the message carries none.
	Version string

	// Time is when it happened, by the sender's clock; zero if it does not say.
	Time time.Time

	// Tenant is whom the authenticated message names as its account or store,
	// empty where it names none.
	Tenant string

	// Hint says that the event has no content of its own; see Contract.Fetch.
	Hint bool

	// Erasure says that the sender asks for personal data to be erased or
	// handed out, as a law demands.
	Erasure Erasure

	// Data is what the handler gets, byte for byte, in ContentType.
	Data        []byte
	ContentType string

	// Attributes are further facts of the envelope, by name.
	Attributes map[string]string
}

// Erasure is what a sender asks on behalf of a person whose data it is.
type Erasure string

// The requests that privacy laws give a person, as Shopify and Nuvemshop pass
// them on.
const (
	EraseCustomer Erasure = "customer"
	EraseTenant   Erasure = "tenant"
	ExportData    Erasure = "export"
)

// Fetch is how the resource of a hint is read and compared.
type Fetch struct {
	Path    string   // below the API's base address, escaped
	Version []string // path of member names to the version in the answer
	Gone    []int    // statuses that say that the resource is no more
}
