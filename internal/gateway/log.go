package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Event is what an entry of the log tells.
type Event string

// The events. A call to POST /charges makes Arrived, and later exactly one of
// the others up to Invalid; a read makes Probed.
const (
	// Arrived: the call is here; nothing has happened yet.
	Arrived Event = "arrived"
	// Charged: money was taken.
	Charged Event = "charged"
	// Duplicate: the key was known; the first answer was given again.
	Duplicate Event = "duplicate"
	// Mismatched: the key was known with another payload.
	Mismatched Event = "mismatched"
	// Refused: declined, nothing was charged.
	Refused Event = "refused"
	// Failed: given up before the effect, nothing was charged.
	Failed Event = "failed"
	// Invalid: not a charge; nothing was done.
	Invalid Event = "invalid"
	// Probed: somebody asked for charges by reference or key.
	Probed Event = "probed"
)

// Entry is one line of the log.
type Entry struct {
	// Time of the event.
	Time time.Time `json:"time"`
	// Call is the number of the call that the event belongs to, from 1.
	Call int `json:"call"`
	// Event that happened.
	Event Event `json:"event"`
	// Key is the idempotency key of the call, empty when it had none.
	Key string `json:"key,omitempty"`
	// Reference is the caller's own name for the payment.
	Reference string `json:"reference,omitempty"`
	// Amount in minor units, with its currency.
	Amount   int64  `json:"amount,omitempty"`
	Currency string `json:"currency,omitempty"`
	// Charge is the charge that was made or shown again, empty when none was.
	Charge string `json:"charge,omitempty"`
}

// journal is the append-only log. Its methods may be called concurrently.
type journal struct {
	mu      sync.Mutex
	calls   int
	entries []Entry
	grown   chan struct{} // closed and replaced at each append
}

func newJournal() *journal { return &journal{grown: make(chan struct{})} }

// arrive numbers a call and logs its event, at the time of now.
func (j *journal) arrive(e Entry) Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls++
	e.Call = j.calls
	j.append(e)
	return e
}

// add logs a further event of a call.
func (j *journal) add(e Entry, event Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Event = event
	j.append(e)
}

func (j *journal) append(e Entry) {
	e.Time = time.Now()
	j.entries = append(j.entries, e)
	close(j.grown)
	j.grown = make(chan struct{})
}

// read gives a copy, and a channel that is closed when there is more.
func (j *journal) read() ([]Entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries), j.grown
}

// Log is a copy of the log so far, oldest first.
func (g *Gateway) Log() []Entry {
	entries, _ := g.journal.read()
	return entries
}

// Await waits until the log satisfies done, which is called with a copy of it
// again and again, or until ctx ends.
func (g *Gateway) Await(ctx context.Context, done func(log []Entry) bool) error {
	for {
		entries, grown := g.journal.read()
		if done(entries) {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
