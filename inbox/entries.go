package inbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// The classes of what is in quarantine, besides those of package source.
const (
	reasonType     = "type"        // a type that the source does not accept
	reasonTenant   = "tenant"      // no tenant could be named
	reasonSchema   = "schema"      // the data does not fit the schema of its type
	reasonIdentity = "identity"    // no key, or one that is none
	reasonEffect   = "effect"      // a function of an effect failed on it
	reasonVersion  = "version"     // a version that cannot be compared
	reasonEnvelope = "envelope"    // more beside the data than a note holds
	reasonMask     = "mask"        // it cannot be masked
	reasonSubject  = "subject"     // it cannot be said whose data it holds
	noIdentity     = "no_identity" // the reason of the sight of an event of its own
)

// bad is why an item cannot be an operation. Its detail is for people and quotes
// nothing of the item.
type bad struct{ reason, detail string }

func badf(reason, format string, args ...any) *bad {
	return &bad{reason, fmt.Sprintf(format, args...)}
}

// made is what an item has become.
type made struct {
	event   *Event // nil if the item could not be read
	entries []store.Entry
	kept    *store.Quarantined
	own     bool // it has no identity of its sender
}

// admit makes an item of a source into entries, or keeps it. proof may be nil for
// what did not come as a delivery.
func (r *Receiver) admit(g *gate, item source.Item, proof *source.Proof, correlation string) made {
	if item.Event == nil {
		reason, detail := string(source.MalformedBody), ""
		if item.Fault != nil {
			reason, detail = string(item.Fault.Reason), item.Fault.Field
		}
		return made{kept: r.keepRaw(g, item.Raw, &bad{reason, detail})}
	}
	e, wrong := g.event(item.Event)
	if proof != nil {
		e.Unsigned = !proof.Body
	}
	e.Correlation = correlation
	if wrong == nil {
		wrong = g.accepts(e)
	}
	if wrong != nil {
		return made{event: e, kept: r.keep(g, e, wrong)}
	}
	m := made{event: e, own: len(e.ID) == 0 && !g.fetches(e)}
	m.entries, m.kept = r.entriesOf(e)
	return m
}

// event is an item of the source as effects see it.
func (g *gate) event(in *source.Event) (*Event, *bad) {
	e := &Event{
		Tenant: g.Tenant, Source: g.Name, Type: in.Type, ID: in.ID, Subject: in.Subject, Version: in.Version,
		Time: in.Time, Data: in.Data, ContentType: in.ContentType, Attributes: in.Attributes,
		Delivery: in.Delivery, Hint: in.Hint, Erasure: in.Erasure, Account: plain(in.Tenant),
	}
	if g.TenantFunc == nil {
		return e, nil
	}
	var err error
	if e.Tenant, err = guarded(in, g.TenantFunc); err != nil || e.Tenant == "" {
		e.Tenant = g.Tenant
		return e, badf(reasonTenant, "the tenant could not be named")
	}
	return e, nil
}

// accepts holds an event to the types and the schemas of the source.
func (g *gate) accepts(e *Event) *bad {
	if _, ok := g.types.match(e.Type); !ok {
		return badf(reasonType, "the source does not accept this type")
	}
	if g.fetches(e) {
		return nil // the schema is for what will be fetched
	}
	if err := g.schemas.check(e.Type, e.Data); err != nil {
		return badf(reasonSchema, "%v", err)
	}
	return nil
}

// entriesOf returns the entries that an event makes, one for each effect that
// wants it, with the payload masked; or the quarantined item that it is instead.
// Neither: no effect wants it. The event has its Source and Tenant, and is not
// masked.
func (r *Receiver) entriesOf(e *Event) ([]store.Entry, *store.Quarantined) {
	g := r.sources[e.Source]
	if g == nil {
		g = &gate{Source: Source{Name: e.Source, Contract: &source.Contract{}}}
	}
	entries, wrong := r.wanted(g, e)
	if wrong == nil && len(entries) > 0 {
		wrong = g.furnish(e, entries)
	}
	if wrong != nil {
		return nil, r.keep(g, e, wrong)
	}
	return entries, nil
}

// wanted are the entries without payload.
func (r *Receiver) wanted(g *gate, e *Event) (entries []store.Entry, wrong *bad) {
	id := e.ID
	if len(id) == 0 {
		id = []string{own()}
	}
	parts := append([]string{e.Source}, id...)
	if g.fetches(e) {
		ordering := append(append([]string{e.Source}, e.Subject...), e.Type)
		identity := store.Identity{Tenant: e.Tenant, Effect: fetchEffect, Parts: parts}
		entry, wrong := newEntry(e, identity, nil, ordering, e.Version)
		return []store.Entry{entry}, wrong
	}
	for i := range r.wants {
		w := &r.wants[i]
		if !w.takes(g.Name) {
			continue
		}
		wants, key, ordering, version, wrong := w.ask(e)
		if wrong != nil {
			return nil, wrong
		}
		if !wants {
			continue
		}
		if len(e.ID) == 0 && w.key == nil {
			return nil, badf(reasonIdentity, "the event has no identity, and effect %s takes none from its data (Effect.Key)", w.name)
		}
		entry, wrong := newEntry(e, store.Identity{Tenant: e.Tenant, Effect: w.name, Parts: parts}, key, ordering, version)
		if wrong != nil {
			return nil, wrong
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// takes reports whether an effect can want events of a source.
func (w *want) takes(source string) bool {
	return w.sources == nil || slices.Contains(w.sources, source)
}

// ask asks an effect's functions. Their errors may quote the event, so that only
// the effect is named.
func (w *want) ask(e *Event) (wants bool, key, ordering []string, version string, wrong *bad) {
	failed := func(what string, err error) {
		if err != nil && wrong == nil {
			wrong = badf(reasonEffect, "%s of effect %s failed", what, w.name)
		}
	}
	wants = true
	var err error
	if w.when != nil {
		wants, err = guarded(e, w.when)
		failed("When", err)
	}
	if !wants || wrong != nil {
		return wants, nil, nil, "", wrong
	}
	if w.key != nil {
		key, err = guarded(e, w.key)
		failed("Key", err)
		if err == nil && len(key) == 0 {
			wrong = badf(reasonIdentity, "Key of effect %s returned no parts", w.name)
		}
	}
	if w.orderBy != nil {
		ordering, err = guarded(e, w.orderBy)
		failed("OrderBy", err)
	}
	version = e.Version // for the handler; it is compared only where the effect says so
	if w.version != nil {
		version, err = guarded(e, w.version)
		failed("Version", err)
		if err == nil && version != "" && !isVersion(version) {
			wrong = badf(reasonVersion, "Version of effect %s is neither an integer nor an RFC 3339 time", w.name)
		}
	}
	return wants, key, ordering, version, wrong
}

// guarded calls a function of the configuration. A panic in it is an error: it
// would come again with every repetition of the delivery.
func guarded[In, Out any](in In, fn func(In) (Out, error)) (out Out, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("panic")
		}
	}()
	return fn(in)
}

// isVersion says whether a text can be a version: an integer or an instant.
func isVersion(text string) bool {
	if _, ok := new(big.Int).SetString(text[:min(len(text), maxDigits)], 10); ok {
		return len(text) <= maxDigits
	}
	_, ok := source.Instant(text)
	return ok
}

// own is the identity of an event that its sender gave none.
func own() string { return "own-" + rand.Text() }

// newEntry is one entry of an event, without payload.
func newEntry(e *Event, id store.Identity, key, ordering []string, version string) (store.Entry, *bad) {
	note := store.Note{
		Event: id, Identity: id, Ordering: ordering, Version: version, Source: e.Source, Type: e.Type, ID: e.ID,
		Subject: e.Subject, Time: e.Time, ContentType: e.ContentType, Attributes: e.Attributes,
		Delivery: e.Delivery, Correlation: e.Correlation, Unsigned: e.Unsigned, Hint: e.Hint, Account: e.Account,
	}
	if key != nil {
		note.Identity.Parts = key
	}
	for _, id := range []store.Identity{note.Event, note.Identity, {Tenant: e.Tenant, Effect: id.Effect, Parts: append([]string{"x"}, ordering...)}} {
		if id.Validate() != nil {
			return store.Entry{}, badf(reasonIdentity, "effect %s: the identity, or the ordering key, has too many, too long or empty parts, or such as are not UTF-8", id.Effect)
		}
	}
	if !fits(&note) {
		return store.Entry{}, badf(reasonEnvelope, "what stands beside the data is more than %d bytes", store.MaxNote)
	}
	return store.Entry{Key: note.Event.Key(), Operation: note.Identity.Key(), Order: note.Order(), Note: note}, nil
}

// fits says whether a note can be stored. Most are so small that it need not be
// written to know: a byte is six at most.
func fits(n *store.Note) bool {
	size := 1024 + len(n.Version) + len(n.Source) + len(n.Type) + len(n.ContentType) + len(n.Delivery) + len(n.Correlation) + len(n.Account)
	for _, parts := range [][]string{n.Event.Parts, n.Identity.Parts, n.Ordering, n.ID, n.Subject, {n.Event.Tenant, n.Event.Effect, n.Identity.Tenant, n.Identity.Effect}} {
		for _, part := range parts {
			size += len(part) + 1
		}
	}
	for name, value := range n.Attributes {
		size += len(name) + len(value) + 1
	}
	if size < store.MaxNote/6 {
		return true
	}
	_, err := n.Encode()
	return err == nil
}

// furnish gives the entries of an event their payload, its fingerprint and its
// subject: the fingerprint of what arrived, the payload as it is kept.
func (g *gate) furnish(e *Event, entries []store.Entry) *bad {
	payload, ok := g.mask.Apply(e.Data)
	if !ok && len(e.Data) > 0 {
		return badf(reasonMask, "the data is not JSON, so that nobody can say where in it the masked values stand")
	}
	subject, wrong := g.subject(e)
	if wrong != nil {
		return wrong
	}
	sum := sha256.Sum256(g.stable(e))
	if g.erases(e) {
		// The demand itself is kept for the effect that carries it on: its own
		// repetition must not erase it.
		subject = store.Key{}
		for i := range entries {
			entries[i].Note.Account = ""
		}
	}
	for i := range entries {
		entries[i].Payload, entries[i].Subject = payload, subject
		entries[i].Fingerprint = store.Fingerprint{Sum: sum[:]}
	}
	return nil
}

// stable is what of the data is alike on every repetition.
func (g *gate) stable(e *Event) []byte {
	if g.Contract.Stable == nil {
		return e.Data
	}
	return g.Contract.Stable(&source.Event{
		ID: e.ID, Type: e.Type, Subject: e.Subject, Data: e.Data, ContentType: e.ContentType, Attributes: e.Attributes,
	})
}

// subject is the key of the person whose data an event holds, zero if nobody's.
func (g *gate) subject(e *Event) (store.Key, *bad) {
	parts := e.Subject
	switch {
	case g.SubjectFunc != nil:
		var err error
		if parts, err = guarded(e, g.SubjectFunc); err != nil {
			return store.Key{}, badf(reasonSubject, "SubjectFunc failed")
		}
	case e.Erasure == "":
		return store.Key{}, nil
	}
	if len(parts) == 0 {
		return store.Key{}, nil
	}
	if (store.Identity{Effect: "subject", Parts: parts}).Validate() != nil {
		return store.Key{}, badf(reasonSubject, "the parts of the subject are no key")
	}
	return store.SubjectKey(e.Tenant, parts), nil
}

// quarantineEffect stands for an effect in the keys of quarantined items.
const quarantineEffect = "unavez.quarantine.v1"

// keep is an event that cannot be an operation. Its key is that of the sender's
// identity, so that a repetition makes no further row, and of what it lacks: once
// that is mended and something else is wrong, it is seen again.
func (r *Receiver) keep(g *gate, e *Event, wrong *bad) *store.Quarantined {
	parts := append([]string{e.Source, wrong.reason}, e.ID...)
	id := store.Identity{Tenant: e.Tenant, Effect: quarantineEffect, Parts: parts}
	if len(e.ID) == 0 || id.Validate() != nil {
		id.Parts = []string{e.Source, wrong.reason, sumText(g.stable(e))}
	}
	q := &store.Quarantined{
		Key: id.Key(), Tenant: plain(e.Tenant), Source: e.Source, Type: plain(e.Type),
		Reason: wrong.reason, Detail: store.CutReason(wrong.detail), ContentType: plain(e.ContentType),
		Note: store.Note{
			Source: e.Source, Type: e.Type, ID: e.ID, Subject: e.Subject, Version: e.Version, Time: e.Time,
			ContentType: e.ContentType, Attributes: e.Attributes, Delivery: e.Delivery, Correlation: e.Correlation,
			Unsigned: e.Unsigned, Hint: e.Hint, Account: e.Account,
		},
	}
	if !fits(&q.Note) {
		q.Note = store.Note{}
	}
	q.Payload, _ = g.mask.Apply(e.Data) // nothing, where it cannot be masked
	q.Subject, _ = g.subject(e)
	return q
}

// keepRaw is an item that could not be read. Where in it the masked values stand
// is not known either.
func (r *Receiver) keepRaw(g *gate, raw []byte, wrong *bad) *store.Quarantined {
	id := store.Identity{Tenant: g.Tenant, Effect: quarantineEffect, Parts: []string{g.Name, wrong.reason, sumText(raw)}}
	q := &store.Quarantined{
		Key: id.Key(), Tenant: g.Tenant, Source: g.Name, Reason: wrong.reason, Detail: store.CutReason(wrong.detail),
	}
	q.Payload, _ = g.mask.ApplyAnywhere(raw)
	return q
}

func sumText(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// plain is a text of the sender as every store can keep it: valid UTF-8 without
// NUL, and not longer than a part of a key.
func plain(text string) string {
	text = strings.ReplaceAll(text[:min(len(text), store.MaxPartSize)], "\x00", "")
	return strings.ToValidUTF8(text, "")
}
