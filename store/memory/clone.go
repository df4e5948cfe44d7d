package memory

import (
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

func cloneIdentity(id store.Identity) store.Identity {
	id.Parts = slices.Clone(id.Parts)
	return id
}
