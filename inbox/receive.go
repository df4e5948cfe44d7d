package inbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// Receiver turns what arrives into entries of the queue: by HTTP (Handler), from
// a broker (Receive), and from a listing or a fetched resource (Admit). It is
// safe for concurrent use.
type Receiver struct {
	queue   store.Queue
	sources map[string]*gate
	wants   []want
	opts    Options

	// appended, when not nil, is called after a commit that has made at least
	// one new entry. Set before the first delivery.
	appended func()
}

// want is what one effect asks of events: an [Effect] without the type of its
// transaction.
type want struct {
	name    string
	when    func(*Event) (bool, error)
	key     func(*Event) ([]string, error)
	orderBy func(*Event) ([]string, error)
	version func(*Event) (string, error)
}

// want is the part of the effect that the receiver needs.
func (e *Effect[Tx]) want() want {
	return want{name: e.Name, when: e.When, key: e.Key, orderBy: e.OrderBy, version: e.Version}
}

// fetchEffect is the effect name of the entries of hints whose resource is to
// be fetched. Their ordering parts are the source, the parts of the subject and
// the type, so that the waiting hints of one (resource, type) share one ordering
// key; each has an identity of its own.
const fetchEffect = "unavez.fetch.v1"

// gate is one source made ready.
type gate struct {
	Source
}

// newReceiver checks sources and wants, and reports every fault at once.
func newReceiver(queue store.Queue, sources []Source, wants []want, opts *Options) (*Receiver, error) {
	r := &Receiver{queue: queue, sources: map[string]*gate{}, wants: wants}
	if opts != nil {
		r.opts = *opts
	}
	if queue == nil {
		return nil, errors.New("queue: none")
	}
	for i := range sources {
		r.sources[sources[i].Name] = &gate{Source: sources[i]}
	}
	return r, nil
}

// start begins what runs beside the deliveries: the listings and the silence
// alarm. It returns at once; ctx is not kept.
func (r *Receiver) start() {}

// stop ends it, refuses further deliveries with 503, and waits for the flushes
// that are under way, until ctx ends.
func (r *Receiver) stop(context.Context) error { return nil }

// Receipt says what became of a delivery that is durable now. An event that
// several effects want counts once for each of them.
type Receipt struct {
	New, Duplicates, Conflicts int
	// Quarantined items, and Ignored events, which no effect wants.
	Quarantined, Ignored int
}

// Handler receives the deliveries of one source.
func (r *Receiver) Handler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
}

// Receive takes one delivery of a source and returns once it is durable.
func (r *Receiver) Receive(ctx context.Context, name string, req *source.Request) (Receipt, error) {
	return Receipt{}, fmt.Errorf("source %q: %w", name, store.ErrUnavailable)
}

// Admit takes items that did not come as a delivery.
func (r *Receiver) Admit(ctx context.Context, name string, items ...source.Item) (Receipt, error) {
	return Receipt{}, fmt.Errorf("source %q: %w", name, store.ErrUnavailable)
}

// eventOf is an item of a source as effects see it.
func (r *Receiver) eventOf(name string, in *source.Event) (*Event, error) {
	return nil, fmt.Errorf("source %q is not configured", name)
}

// entriesOf returns the entries that an event makes, one for each effect that
// wants it, with the payload masked; or the quarantined item that it is instead.
// Neither: no effect wants it. The event carries Source and Tenant and is not
// masked.
func (r *Receiver) entriesOf(e *Event) ([]store.Entry, *store.Quarantined) { return nil, nil }
