package inbox

import (
	"errors"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// observe tells the observer of one thing that happened to an entry.
func (in *Inbox[Tx]) observe(e *store.Entry, what, reason string, took time.Duration) {
	n := &e.Note
	in.opts.Observe(Sight{
		What: what, Source: n.Source, Type: n.Type, Effect: n.Identity.Effect, Tenant: n.Identity.Tenant,
		Reason: reason, Took: took, Count: 1,
	})
}

// seen is the word for an operation that came to rest.
func seen(state store.State, person bool) string {
	switch {
	case state == store.Retryable:
		return "retry"
	case state == store.Dead:
		return "dead"
	case state == store.Unknown:
		return "unknown"
	case state == store.Parked:
		return "parked"
	}
	return "blocked"
}

// classOf is the class of an error, for metrics: never its text.
func classOf(err error) string {
	var h *handlerError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errWorkerLost):
		return "worker-lost"
	case errors.As(err, &h):
		return "handler"
	}
	return string(unavez.CodeOf(err))
}

// kindOf is the kind of the condition that an operation needs a person.
func kindOf(state store.State) string {
	if state == store.Dead {
		return "dead"
	}
	return "held"
}

// conditions are what is to be told of an entry that comes to rest: that it needs
// a person, once, or does no longer. The rest notes it.
func (in *Inbox[Tx]) conditions(it *item, w *rest, why error) (told []Condition) {
	kind := ""
	if w.due.IsZero() {
		kind = kindOf(w.state)
	}
	if w.alert = kind; it.alert == kind {
		return nil
	}
	n := &it.entry.Note
	c := Condition{Source: n.Source, Effect: n.Identity.Effect, Key: it.entry.Operation}
	if it.trait != nil {
		c.Owner = it.trait.owner
	}
	if it.alert != "" {
		c.Kind, c.Over = it.alert, true
		told = append(told, c)
	}
	if kind != "" {
		c.Kind, c.Over = kind, false
		c.Text = text(w.state, n, why)
		told = append(told, c)
	}
	return told
}

// text says for people what an operation waits for.
func text(state store.State, n *store.Note, why error) string {
	said := "operation " + n.Identity.Text()
	switch state {
	case store.Dead:
		said += " is dead"
	case store.Unknown:
		said += ": whether it took effect is not known"
	case store.Parked:
		said += " is parked for its owner"
	default:
		said += " cannot run here"
	}
	if reason := classOf(why); reason != "" {
		said += " (" + reason + ")"
	}
	return said
}

// ends tells of an entry that has ended.
func (in *Inbox[Tx]) ends(it *item, r run) {
	if it.alert != "" {
		n := &it.entry.Note
		in.opts.Alert(Condition{Kind: it.alert, Source: n.Source, Effect: n.Identity.Effect, Key: it.entry.Operation, Over: true})
	}
	if r.at.IsZero() {
		return
	}
	in.clock.hear(r.at)
	in.observe(&it.entry, r.how, "", max(r.at.Sub(it.entry.Arrived), 0))
}
