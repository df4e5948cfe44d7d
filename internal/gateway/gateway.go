package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxBody bounds a request body, in bytes.
const maxBody = 64 << 10

// Options of a gateway. The zero value is one that honours keys, answers at
// once and shows every charge at once.
type Options struct {
	// IgnoreKeys makes a gateway without support for idempotency keys: each
	// call charges, and GET /charges/{key} finds nothing.
	IgnoreKeys bool
	// ReadDelay is how long a charge stays hidden from both reads after it was
	// made, as of a replica that lags behind. Zero or negative: not at all.
	ReadDelay time.Duration
}

// Charge is money taken.
type Charge struct {
	// ID given by the gateway.
	ID string `json:"id"`
	// Amount in minor units, with its currency.
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	// Reference is the caller's own name for the payment. It is not unique:
	// the gateway charges twice when it is asked to.
	Reference string `json:"reference"`
}

// payload is what a caller asks for.
type payload struct {
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// made is a charge with the time from which reads show it.
type made struct {
	Charge
	visible time.Time
}

// spent is what a used key remembers: the payload, and the charge or, when it
// is nil, the refusal.
type spent struct {
	payload payload
	charge  *made
}

// Gateway is the sandbox: an [http.Handler] whose methods may be called
// concurrently. Close it when done.
type Gateway struct {
	opts    Options
	mux     *http.ServeMux
	journal *journal
	closed  chan struct{}
	close   func()

	mu      sync.Mutex
	plan    []Behaviour
	charges []*made
	keys    map[string]spent
}

// New makes an empty gateway; nil options are the zero value.
func New(opts *Options) *Gateway {
	g := &Gateway{mux: http.NewServeMux(), journal: newJournal(), closed: make(chan struct{}), keys: map[string]spent{}}
	if opts != nil {
		g.opts = *opts
	}
	g.close = sync.OnceFunc(func() { close(g.closed) })
	g.mux.HandleFunc("POST /charges", g.post)
	g.mux.HandleFunc("GET /charges", g.byReference)
	g.mux.HandleFunc("GET /charges/{key}", g.byKey)
	g.mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, g.Log()) })
	g.mux.HandleFunc("PUT /plan", g.putPlan)
	return g
}

// ServeHTTP serves the API of the package comment.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// Close gives up calls that are still slow: they charge nothing and get 503.
// Call it before the server's own Close, which waits for them. It is safe to
// call twice.
func (g *Gateway) Close() { g.close() }

// Plan sets how the next calls to POST /charges behave, one behaviour each, in
// the order of their arrival; later ones are normal. It replaces what was left
// of the plan before.
func (g *Gateway) Plan(behaviours ...Behaviour) error {
	plan := slices.Clone(behaviours)
	for i := range plan {
		if err := plan[i].validate(); err != nil {
			return fmt.Errorf("plan: behaviour %d: %w", i+1, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plan = plan
	return nil
}

// next takes the behaviour of a call that sets none itself.
func (g *Gateway) next() Behaviour {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.plan) == 0 {
		return Behaviour{Kind: Normal}
	}
	b := g.plan[0]
	g.plan = g.plan[1:]
	return b
}

// post is POST /charges.
func (g *Gateway) post(w http.ResponseWriter, r *http.Request) {
	var want payload
	faults := decode(w, r, &want)
	behaviour, set, err := ofRequest(r)
	call := g.journal.arrive(Entry{
		Event: Arrived, Key: r.Header.Get("Idempotency-Key"),
		Reference: want.Reference, Amount: want.Amount, Currency: want.Currency,
	})
	if faults == nil {
		faults = want.validate()
	}
	if err := errors.Join(faults, err); err != nil {
		g.journal.add(call, Invalid)
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if !set {
		behaviour = g.next()
	}
	if behaviour.Kind == Slow && !g.wait(behaviour) || behaviour.Kind == FailBefore {
		g.journal.add(call, Failed)
		refuse(w, http.StatusServiceUnavailable, "try again later; nothing was charged")
		return
	}
	event, charge := g.apply(call, want, behaviour.Kind == Refuse)
	switch {
	case behaviour.Kind == LostAnswer:
		panic(http.ErrAbortHandler) // the server drops the connection
	case event == Mismatched:
		refuse(w, http.StatusUnprocessableEntity, "this idempotency key was used with another payload")
	case behaviour.Kind == FailAfter:
		refuse(w, http.StatusInternalServerError, "something went wrong")
	case charge == nil:
		refuse(w, http.StatusPaymentRequired, "declined")
	default:
		if event == Duplicate {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		answer(w, http.StatusCreated, charge.Charge)
	}
}

// wait is what Slow does before its effect; false means that the gateway was
// closed meanwhile. The caller's hanging up changes nothing: the request has
// arrived.
func (g *Gateway) wait(b Behaviour) bool {
	until := b.Until
	if until == nil {
		passed := make(chan struct{})
		timer := time.AfterFunc(b.Delay, func() { close(passed) })
		defer timer.Stop()
		until = passed
	}
	select {
	case <-until:
		return true
	case <-g.closed:
		return false
	}
}

// apply decides a call and takes effect, under one lock: two calls with one
// key charge once. The charge is nil for a refusal, also one shown again.
func (g *Gateway) apply(call Entry, want payload, refused bool) (Event, *made) {
	g.mu.Lock()
	defer g.mu.Unlock()
	keyed := call.Key != "" && !g.opts.IgnoreKeys
	event, charge := Charged, (*made)(nil)
	first, known := g.keys[call.Key]
	switch {
	case keyed && known && first.payload != want:
		event = Mismatched
	case keyed && known:
		event, charge = Duplicate, first.charge
	case refused:
		event = Refused
	default:
		charge = &made{
			Charge:  Charge{ID: "ch_" + strconv.Itoa(len(g.charges)+1), Amount: want.Amount, Currency: want.Currency, Reference: want.Reference},
			visible: time.Now().Add(g.opts.ReadDelay),
		}
		g.charges = append(g.charges, charge)
	}
	if keyed && !known {
		g.keys[call.Key] = spent{payload: want, charge: charge}
	}
	if charge != nil {
		call.Charge = charge.ID
	}
	g.journal.add(call, event) // inside the lock: the log's order is the order of effects
	return event, charge
}

// byReference is GET /charges?reference=…: the charges of a reference that
// reads can see by now, oldest first; an empty list when there is none.
func (g *Gateway) byReference(w http.ResponseWriter, r *http.Request) {
	reference := r.URL.Query().Get("reference")
	if reference == "" {
		refuse(w, http.StatusBadRequest, "the query parameter reference is missing")
		return
	}
	found := []Charge{}
	g.mu.Lock()
	for _, c := range g.charges {
		if c.Reference == reference && c.shown() {
			found = append(found, c.Charge)
		}
	}
	g.mu.Unlock()
	seen := Entry{Event: Probed, Reference: reference}
	if len(found) > 0 {
		seen.Charge = found[0].ID
	}
	g.journal.arrive(seen)
	answer(w, http.StatusOK, struct {
		Charges []Charge `json:"charges"`
	}{found})
}

// byKey is GET /charges/{key}: 404 when the key charged nothing that reads can
// see by now.
func (g *Gateway) byKey(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	g.mu.Lock()
	charge := g.keys[key].charge
	g.mu.Unlock()
	if charge == nil || !charge.shown() {
		g.journal.arrive(Entry{Event: Probed, Key: key})
		refuse(w, http.StatusNotFound, "no charge with this idempotency key")
		return
	}
	g.journal.arrive(Entry{Event: Probed, Key: key, Charge: charge.ID})
	answer(w, http.StatusOK, charge.Charge)
}

func (m *made) shown() bool { return !time.Now().Before(m.visible) }

// putPlan is PUT /plan.
func (g *Gateway) putPlan(w http.ResponseWriter, r *http.Request) {
	var plan []Behaviour
	err := decode(w, r, &plan)
	if err == nil {
		err = g.Plan(plan...)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// validate reports all faults at once.
func (p payload) validate() error {
	var faults []error
	if p.Amount <= 0 {
		faults = append(faults, errors.New("amount: want more than 0, in minor units"))
	}
	if len(p.Currency) != 3 {
		faults = append(faults, errors.New("currency: want three letters"))
	}
	if p.Reference == "" || len(p.Reference) > 200 {
		faults = append(faults, errors.New("reference: want 1 to 200 bytes"))
	}
	return errors.Join(faults...)
}

// decode reads one JSON value, and nothing else, from a bounded body.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("body: more than one JSON value")
	}
	return nil
}

// refuse answers an error.
func refuse(w http.ResponseWriter, status int, reason string) {
	answer(w, status, struct {
		Error string `json:"error"`
	}{reason})
}

// answer writes a JSON body. A caller that has gone is no event.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may have hung up
}
