package inbox

import (
	"errors"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// sees tells the caller's observer.
func (r *Receiver) sees(s Sight) {
	if r.opts.Observe == nil {
		return
	}
	s.Count = max(s.Count, 1)
	r.opts.Observe(s)
}

// alert tells of a condition that needs a person.
func (r *Receiver) alert(c Condition) {
	if r.opts.Alert != nil {
		r.opts.Alert(c)
	}
}

// fills tells when the queue takes nothing more, and when it does again: once each.
func (r *Receiver) fills(err error) {
	full := errors.Is(err, store.ErrFull)
	if err != nil && !full {
		return
	}
	r.mu.Lock()
	changed := full != r.full
	r.full = full
	r.mu.Unlock()
	switch {
	case changed && full:
		r.opts.Log.Error("the queue is full: deliveries are answered 503 until some of it is done")
		r.alert(Condition{Kind: "full", Text: "the queue is full: deliveries are answered 503 until some of it is done"})
	case changed:
		r.opts.Log.Info("the queue takes deliveries again")
		r.alert(Condition{Kind: "full", Text: "the queue takes deliveries again", Over: true})
	}
}

// disputed tells of an event that came with another content than before: once for
// each of the last ones.
func (r *Receiver) disputed(entry *store.Entry) {
	r.mu.Lock()
	first := r.disputes.add(entry.Key)
	r.mu.Unlock()
	if !first {
		return
	}
	note := &entry.Note
	const text = "an event came again with another content; the first one counts"
	r.opts.Log.Warn(text, "source", note.Source, "type", note.Type, "effect", note.Event.Effect, "key", entry.Key.String(), "correlation", note.Correlation)
	r.alert(Condition{Kind: "conflict", Source: note.Source, Effect: note.Event.Effect, Key: entry.Key, Text: text})
}

// disputes remembers the last keys.
type disputes struct {
	known map[store.Key]bool
	ring  [1000]store.Key
	next  int
}

// add reports whether the key is new.
func (d *disputes) add(key store.Key) bool {
	if d.known[key] {
		return false
	}
	if d.known == nil {
		d.known = map[store.Key]bool{}
	}
	delete(d.known, d.ring[d.next])
	d.ring[d.next] = key
	d.next = (d.next + 1) % len(d.ring)
	d.known[key] = true
	return true
}

// hush lets one line of a kind pass in a minute: whoever can send rubbish must
// not be able to fill the log.
type hush struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	hushFor   = time.Minute
	hushKinds = 1000
)

func newHush() *hush { return &hush{last: map[string]time.Time{}} }

func (h *hush) passes(kind string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if last, ok := h.last[kind]; ok && now.Sub(last) < hushFor {
		return false
	}
	if len(h.last) >= hushKinds {
		clear(h.last)
	}
	h.last[kind] = now
	return true
}
