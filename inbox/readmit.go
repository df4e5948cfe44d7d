package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/store"
)

// RefusedError says why a quarantined item cannot be readmitted: it would go into
// quarantine again.
type RefusedError struct {
	// Reason is its class, as of store.Quarantined; Detail is for people.
	Reason, Detail string
}

// Error names the class and the detail.
func (e *RefusedError) Error() string {
	return "still cannot be an operation (" + e.Reason + "): " + e.Detail
}

// Readmit makes a quarantined item the entries that it would be if it arrived
// now, by the sources and effects as they are now, and removes it, in one commit.
// The action's key names the item. An item that no effect wants stays as it is,
// and Receipt.Ignored says so.
//
// What is kept is masked, so that a key of the item is taken from masked data:
// one that would read a masked value is refused. A later repetition of the
// sender's is then a conflict, since its data is not masked.
//
// Errors: store.ErrNotFound, a *RefusedError, store.ErrUnavailable and
// store.ErrCommitUnknown (readmitting again is safe).
func (r *Receiver) Readmit(ctx context.Context, action store.Action) (Receipt, error) {
	kept, ok := r.queue.(store.Quarantine)
	if !ok {
		return Receipt{}, errors.New("readmit: this store keeps no quarantine")
	}
	if err := action.Validate(); err != nil {
		return Receipt{}, err
	}
	q, err := kept.ShowQuarantined(ctx, action.Key)
	if err != nil {
		return Receipt{}, err
	}
	entries, err := r.readmitted(&q)
	if err != nil {
		return Receipt{}, err
	}
	if len(entries) == 0 {
		return Receipt{Ignored: 1}, nil
	}
	results, err := kept.Readmit(ctx, action, entries)
	if err != nil {
		return Receipt{}, err
	}
	var receipt Receipt
	for _, result := range results {
		switch result {
		case store.Duplicate:
			receipt.Duplicates++
		case store.Conflict:
			receipt.Conflicts++
		default:
			receipt.New++
		}
	}
	if receipt.New > 0 && r.appended != nil {
		r.appended()
	}
	return receipt, nil
}

// readmitted are the entries of a quarantined item.
func (r *Receiver) readmitted(q *store.Quarantined) ([]store.Entry, error) {
	g := r.sources[q.Source]
	switch {
	case g == nil:
		return nil, &RefusedError{"source", fmt.Sprintf("source %q is not configured", q.Source)}
	case q.Erased:
		return nil, &RefusedError{"erased", "its content was erased on a person's demand"}
	case g.mask != nil && len(q.Payload) == 0:
		return nil, &RefusedError{reasonMask, "its content was not kept, since it could not be masked; have the sender repeat it"}
	case q.Note.Source == "":
		return nil, &RefusedError{q.Reason, "it could not be read, so that there is no event in it; have the sender repeat it"}
	}
	n := &q.Note
	e := &Event{
		Tenant: q.Tenant, Source: q.Source, Type: n.Type, ID: n.ID, Subject: n.Subject, Version: n.Version, Time: n.Time,
		Data: q.Payload, ContentType: n.ContentType, Attributes: n.Attributes, Delivery: n.Delivery, Correlation: n.Correlation,
		Unsigned: n.Unsigned, Hint: n.Hint, Account: n.Account,
	}
	if q.Reason == reasonTenant {
		return nil, &RefusedError{q.Reason, "whom it belongs to could not be named; have the sender repeat it"}
	}
	if wrong := g.accepts(e); wrong != nil {
		return nil, &RefusedError{wrong.reason, wrong.detail}
	}
	entries, again := r.entriesOf(e)
	if again != nil {
		return nil, &RefusedError{again.Reason, again.Detail}
	}
	for i := range entries {
		note := &entries[i].Note
		masked := strings.Trim(exact.Masked, `"`)
		if g.mask != nil && (slices.Contains(note.Identity.Parts, masked) || slices.Contains(note.Ordering, masked) || note.Version == masked) {
			return nil, &RefusedError{reasonMask, fmt.Sprintf("the key of effect %s would be a masked value", note.Identity.Effect)}
		}
	}
	return entries, nil
}
