package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
)

// The headers by which calls say what they are.
const (
	derivedHeader   = "Derived-Key"
	operationHeader = "Operation"
)

// outside is the other system: an application that makes what it is told once
// for each key, remembers every call, and is never told what the product thinks
// of it. Some of its answers get lost after it has done what was asked.
type outside struct {
	server   *http.Server
	listener net.Listener

	mu     sync.Mutex
	random *rand.Rand
	calls  map[string]map[string]int // by operation and derived key
	order  []string                  // operations, as they were first made
	kinds  map[string]int            // how many there are of each
	lost   int                       // answers
	asked  int                       // whether something was made
}

// openOutside starts it on loopback.
func openOutside(seed uint64) (*outside, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &outside{
		listener: listener, random: rand.New(rand.NewPCG(seed, 1)),
		calls: map[string]map[string]int{}, kinds: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /calls", o.call)
	mux.HandleFunc("POST /payments", o.call)
	mux.HandleFunc("POST /records", o.call)
	mux.HandleFunc("GET /calls", o.made)
	o.server = &http.Server{Handler: mux}
	go func() { _ = o.server.Serve(listener) }() // until close
	return o, nil
}

func (o *outside) close() { _ = o.server.Close() }

func (o *outside) url() string { return "http://" + o.listener.Addr().String() }

// named is the body of every request here.
type named struct {
	Operation string `json:"operation"`
	Customer  string `json:"customer,omitempty"`
	Number    int    `json:"number,omitempty"`
}

// call makes what is asked, once for each key; and now and then its answer is lost.
func (o *outside) call(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var n named
	if r.URL.Path == "/records" { // an event, as its sender wrote it
		var envelope struct{ Data named }
		err = errors.Join(err, json.Unmarshal(body, &envelope))
		n = envelope.Data
		n.Operation = "called/" + n.Operation
	} else {
		err = errors.Join(err, json.Unmarshal(body, &n))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.Header.Get(derivedHeader)
	if key == "" {
		key = r.Header.Get("Idempotency-Key")
	}
	if o.make(n.Operation, key) {
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"receipt":%q}`, key) // a client that is gone asks again
}

func (o *outside) make(operation, key string) (lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls[operation] == nil {
		o.calls[operation] = map[string]int{}
		o.order = append(o.order, operation)
		kind, _, _ := strings.Cut(operation, "/")
		o.kinds[kind]++
		lost = o.kinds[kind]%8 == 1 // one of each kind at least
	}
	o.calls[operation][key]++
	if lost = lost || o.random.IntN(20) == 0; lost {
		o.lost++
	}
	return lost
}

// made tells whether it has made that.
func (o *outside) made(w http.ResponseWriter, r *http.Request) {
	operation, key := r.Header.Get(operationHeader), r.Header.Get(derivedHeader)
	o.mu.Lock()
	made := o.calls[operation][key] > 0
	o.asked++
	o.mu.Unlock()
	if !made {
		http.Error(w, "no", http.StatusNotFound)
		return
	}
	_, _ = fmt.Fprintf(w, `{"receipt":%q}`, key) // a client that is gone asks again
}

// seen tells how many different keys an operation has come with, and how often.
func (o *outside) seen(operation string) (keys, calls int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.calls[operation] {
		keys++
		calls += n
	}
	return keys, calls
}

// totals are the answers that it lost, and the times that it was asked what it
// has made.
func (o *outside) totals() (lost, asked int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost, o.asked
}

// first are the operations of a front in the order in which they were first made.
func (o *outside) first(front string) (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, operation := range o.order {
		if strings.HasPrefix(operation, front) {
			all = append(all, operation)
		}
	}
	return all
}
