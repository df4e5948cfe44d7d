package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// Receiver turns what arrives into entries of the queue: by HTTP (Handler), from
// a broker (Receive), and from a listing or a fetched resource (Admit). It is
// safe for concurrent use.
type Receiver struct {
	queue   store.Queue
	privacy store.Privacy // nil where the store cannot erase
	sources map[string]*gate
	wants   []want
	opts    Options
	flusher *flusher
	quiet   *hush
	beside  *beside // what runs beside the deliveries

	// appended, when not nil, is called after a commit that has made at least
	// one new entry. Set before the first delivery.
	appended func()

	mu       sync.Mutex
	full     bool // the queue, as far as was told
	disputes disputes
}

// want is what one effect asks of events: an [Effect] without the type of its
// transaction.
type want struct {
	name    string
	sources []string // nil: all
	when    func(*Event) (bool, error)
	key     func(*Event) ([]string, error)
	orderBy func(*Event) ([]string, error)
	version func(*Event) (string, error)
}

// want is the part of the effect that the receiver needs.
func (e *Effect[Tx]) want() want {
	return want{name: e.Name, sources: e.Sources, when: e.When, key: e.Key, orderBy: e.OrderBy, version: e.Version}
}

// fetchEffect is the effect name of the entries of hints whose resource is to
// be fetched. Their ordering parts are the source, the parts of the subject and
// the type, so that the waiting hints of one (resource, type) share one ordering
// key; each has an identity of its own.
const fetchEffect = "unavez.fetch.v1"

// newReceiver checks sources and wants, and reports every fault at once.
func newReceiver(queue store.Queue, sources []Source, wants []want, opts *Options) (*Receiver, error) {
	r := &Receiver{queue: queue, sources: map[string]*gate{}, wants: wants, quiet: newHush()}
	if opts != nil {
		r.opts = *opts
	}
	var faults []error
	if queue == nil {
		faults = append(faults, errors.New("queue: none (pass the engine's store)"))
	}
	r.privacy, _ = queue.(store.Privacy)
	faults = append(faults, r.opts.receiving()...)
	for i := range sources {
		g, err := newGate(sources[i])
		switch {
		case err != nil:
			faults = append(faults, err)
			continue
		case r.sources[g.Name] != nil:
			faults = append(faults, fmt.Errorf("source %q: named twice", g.Name))
		case g.Erase && r.privacy == nil:
			faults = append(faults, fmt.Errorf("source %q: erase: this store cannot erase", g.Name))
		}
		r.sources[g.Name] = g
	}
	faults = append(faults, r.checkWants()...)
	r.beside = newBeside(r)
	faults = append(faults, r.beside.check()...)
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	r.flusher = newFlusher(queue, r.opts.Flush, r.opts.FlushSize)
	return r, nil
}

// receiving fills the defaults of what the receiver uses and reports its faults.
func (o *Options) receiving() (faults []error) {
	if o.Flush == 0 {
		o.Flush = 2 * time.Millisecond
	}
	if o.FlushSize == 0 {
		o.FlushSize = 500
	}
	if o.Flush < 0 || o.Flush > time.Second {
		faults = append(faults, fmt.Errorf("flush: %v, want up to a second", o.Flush))
	}
	if o.FlushSize < 1 || o.FlushSize > store.MaxAppend {
		faults = append(faults, fmt.Errorf("flush size: %d, want 1 to %d", o.FlushSize, store.MaxAppend))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return faults
}

// start begins what runs beside the deliveries: the listings and the silence
// alarm. It returns at once.
func (r *Receiver) start() { r.beside.start() }

// stop ends it, refuses further deliveries with 503, and waits for the flushes
// that are under way, until ctx ends.
func (r *Receiver) stop(ctx context.Context) error {
	return errors.Join(r.beside.stop(ctx), r.flusher.close(ctx))
}

// Receipt says what became of a delivery that is durable now. An event that
// several effects want counts once for each of them.
type Receipt struct {
	// New entries, duplicates that changed nothing, and duplicates with another
	// content, which changed nothing either.
	New, Duplicates, Conflicts int
	// Quarantined items, and Ignored events, which no effect wants.
	Quarantined, Ignored int
}

// ErrTooLarge is the error of a delivery over the limits of its source.
var ErrTooLarge = errors.New("over the limit of the source")

// Receive takes one delivery of a source, as a broker hands it over, and returns
// once it is durable: acknowledge it then. A *source.Fault, or ErrTooLarge, is for
// one that is refused and need not come again; any other error is for one that
// should. It does not answer handshakes.
func (r *Receiver) Receive(ctx context.Context, name string, in *source.Request) (Receipt, error) {
	g := r.sources[name]
	if g == nil {
		return Receipt{}, fmt.Errorf("source %q is not configured", name)
	}
	d := r.begin(g)
	receipt, err := d.receive(ctx, in)
	d.end(err)
	return receipt, err
}

// Admit takes items of a source that did not come as a delivery: what a listing
// shows, or a program hands over. They are known already, as a rule.
func (r *Receiver) Admit(ctx context.Context, name string, items ...source.Item) (Receipt, error) {
	g := r.sources[name]
	if g == nil {
		return Receipt{}, fmt.Errorf("source %q is not configured", name)
	}
	d := r.begin(g)
	d.listed = true
	return d.admit(ctx, items, nil)
}
