package memory

import (
	"maps"
	"slices"

	"github.com/unavez/unavez/store"
)

// What goes in and what comes out is copied: callers own their slices.

func cloneOutcome(o store.Outcome) store.Outcome {
	o.Result.Header = slices.Clone(o.Result.Header)
	o.Result.Body = slices.Clone(o.Result.Body)
	o.Fingerprint = cloneFingerprint(o.Fingerprint)
	return o
}

func cloneFingerprint(f store.Fingerprint) store.Fingerprint {
	f.Sum = slices.Clone(f.Sum)
	return f
}

func cloneEntry(e store.Entry) store.Entry {
	e.Fingerprint, e.Payload = cloneFingerprint(e.Fingerprint), slices.Clone(e.Payload)
	n := &e.Note
	n.Event, n.Identity = cloneIdentity(n.Event), cloneIdentity(n.Identity)
	n.Ordering, n.ID, n.Subject = slices.Clone(n.Ordering), slices.Clone(n.ID), slices.Clone(n.Subject)
	n.Attributes = maps.Clone(n.Attributes)
	return e
}

func cloneQuarantined(q store.Quarantined) store.Quarantined {
	q.Payload = slices.Clone(q.Payload)
	return q
}

func cloneVersion(v store.Version) store.Version {
	v.Content = slices.Clone(v.Content)
	return v
}

func cloneIdentity(id store.Identity) store.Identity {
	id.Parts = slices.Clone(id.Parts)
	return id
}
