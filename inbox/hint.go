package inbox

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// A hint says that its resource may have changed. The hints of one (resource,
// type) share an ordering key, so one fetch at a time serves those that wait:
//
//	claim      of the first hint's operation, committed
//	fetch      Source.Fetch, a GET; no transaction is open
//	finish     the outcomes of all hints that waited when the fetch began, and
//	           what was fetched, appended as an event: one commit
//
//   - Killed before the finish: the lane's next holder fetches again. A GET may be
//     repeated, and what it brings is compared by its version.
//   - Paused after the fetch, while a later holder fetches and appends: the finish
//     is refused, so that an old content cannot come after a newer one.
//   - A hint that arrives while a fetch is under way is not among those that
//     waited, and causes another.
//   - The commit's answer is lost: the ledger tells.

const (
	// hintPause is the least time between the beginnings of two fetches for one
	// (resource, type): what arrives in between shares the second.
	hintPause = time.Second
	// maxCoalesced bounds the hints that share a fetch.
	maxCoalesced = 100
)

// addFetch makes the effect that fetches, if a source has hints.
func (in *Inbox[Tx]) addFetch(sources []Source) {
	names := []string{}
	for i := range sources {
		if s := &sources[i]; s.Fetch != nil {
			names = append(names, s.Name)
		}
	}
	for i := range sources {
		if s := &sources[i]; s.Fetch == nil || s.Contract == nil || s.Contract.Fetch == nil {
			continue
		}
		ef := &effect[Tx]{Effect: Effect[Tx]{Name: fetchEffect, Unknown: unavez.Retry, Tombstone: in.opts.Tombstone}}
		defaultTo(&ef.Tombstone, DefaultTombstone)
		if in.receiver != nil {
			ef.Retention, _, _ = in.receiver.Retention(0, names) // nobody asks for another one
			ef.Retention = max(ef.Retention, in.opts.Retention)
		}
		ef.trait = &trait{name: fetchEffect, lease: true, repeats: true, hint: true, retry: Retry{}.filled()}
		in.effects[fetchEffect] = ef
	}
}

// fetch runs the first hint of a line, and with it those that wait.
func (in *Inbox[Tx]) fetch(ctx context.Context, l *line, it *item) run {
	in.mu.Lock()
	with := slices.Clone(l.items[:min(len(l.items), maxCoalesced)])
	in.mu.Unlock()
	with = slices.DeleteFunc(with, func(other *item) bool { return other == it })
	began := time.Now()
	f := &fetching[Tx]{in: in, hold: l.lane.hold, ef: in.effects[fetchEffect], first: it, with: with}
	out, err := in.engine.Lease(ctx, f.operation(it), f.run, f.finish)
	if err != nil {
		return in.classifyLease(ctx, f.ef, f.hold, it, err)
	}
	in.mu.Lock()
	if l.until = began.Add(hintPause); f.finished && !l.lane.lost {
		for _, other := range with {
			in.board.remove(l, other)
		}
	}
	in.mu.Unlock()
	if f.appended {
		in.appended()
	}
	if f.finished && len(with) > 0 {
		n := &it.entry.Note
		in.opts.Observe(Sight{What: "coalesced", Source: n.Source, Type: n.Type, Effect: fetchEffect, Tenant: n.Event.Tenant, Count: len(with)})
	}
	return endedBy(out, version{})
}

// fetching is one fetch.
type fetching[Tx any] struct {
	in    *Inbox[Tx]
	hold  store.Hold
	ef    *effect[Tx]
	first *item
	with  []*item

	event    *Event // what was fetched; nil if it is in quarantine
	finished bool   // the outcomes of all hints were written
	appended bool   // so was something new
}

// operation is that of one hint.
func (f *fetching[Tx]) operation(it *item) unavez.Operation {
	op := f.ef.operation(it.entry.Note.Event, &it.entry, f.hold)
	op.Fingerprint = it.entry.Fingerprint
	return op
}

// run fetches.
func (f *fetching[Tx]) run(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
	var result unavez.Result
	err := f.in.caught(f.ef, func() error {
		g := f.in.receiver.sources[f.first.entry.Note.Source]
		if g == nil || g.Fetch == nil || g.Contract.Fetch == nil {
			return fmt.Errorf("source %q is not one whose hints are fetched here", f.first.entry.Note.Source)
		}
		status, err := f.get(ctx, g, attempt.Fence())
		result.Code = status
		if err != nil || f.event == nil {
			return err
		}
		wrong := g.accepts(f.event)
		if wrong == nil {
			_, kept := f.in.receiver.entriesOf(f.event)
			return f.quarantine(ctx, kept)
		}
		return f.quarantine(ctx, f.in.receiver.keep(g, f.event, wrong))
	})
	return result, f.in.certain(f.ef, f.first, attempt.Fence(), err)
}

// get reads the resource and makes the event of what it finds.
func (f *fetching[Tx]) get(ctx context.Context, g *gate, fence int64) (int, error) {
	note := &f.first.entry.Note
	from, err := g.Contract.Fetch(&source.Event{
		Delivery: note.Delivery, Type: note.Type, Subject: note.Subject, Version: note.Version, Time: note.Time, Hint: true,
		Data: f.first.entry.Payload, ContentType: note.ContentType, Attributes: note.Attributes,
	})
	if err != nil {
		return 0, unavez.Dead(fmt.Errorf("fetch: %w", err))
	}
	status, contentType, body, err := g.Fetch(ctx, eventOfEntry(&f.first.entry, fence), from.Path)
	if err != nil {
		return status, err
	}
	e := eventOfEntry(&f.first.entry, 0)
	e.Hint, e.Effect, e.Operation, e.Attempt, e.Sequence, e.Arrived = false, "", store.Identity{}, 0, 0, time.Time{}
	id := append(slices.Clone(note.Subject), note.Type)
	switch gone := slices.Contains(from.Gone, status); {
	case gone:
		e.Attributes = maps.Clone(note.Attributes)
		if e.Attributes == nil {
			e.Attributes = map[string]string{}
		}
		e.Attributes["gone"] = strconv.Itoa(status)
		e.ID = append(id, "gone", note.Event.Parts[len(note.Event.Parts)-1])
		e.Version = ""
	case status < 200 || status > 299:
		return status, refusal(status)
	case int64(len(body)) > g.PlainLimit:
		return status, unavez.Dead(fmt.Errorf("fetch: %d bytes, at most %d", len(body), g.PlainLimit))
	default:
		e.Data, e.ContentType = body, contentType
		if e.Version = versionAt(body, from.Version); e.Version != "" {
			e.ID = append(id, e.Version)
		} else {
			e.ID = append(id, sumText(g.stable(e)))
		}
	}
	f.event = e
	return status, nil
}

// versionAt is the version in a fetched body, "" if there is none to be found.
func versionAt(body []byte, path []string) string {
	if len(path) == 0 || exact.Check(body) != nil {
		return ""
	}
	version, err := exact.PartAt(body, path...)
	if err != nil {
		return ""
	}
	return version
}

// refusal is an answer that is neither the resource nor the word that it is gone.
func refusal(status int) error {
	err := fmt.Errorf("fetch: status %d", status)
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return err
	}
	if 400 <= status && status < 500 {
		return unavez.Dead(err)
	}
	return err
}

// quarantine keeps what was fetched and cannot be an operation. It is durable
// before the hints end; another fetch that brings the same changes nothing.
func (f *fetching[Tx]) quarantine(ctx context.Context, kept *store.Quarantined) error {
	if kept == nil {
		return nil
	}
	f.event = nil
	_, err := f.in.receiver.flusher.append(ctx, store.Arrival{Quarantined: []store.Quarantined{*kept}})
	if err == nil {
		f.in.opts.Observe(Sight{What: "quarantined", Source: kept.Source, Type: kept.Type, Tenant: kept.Tenant, Reason: kept.Reason, Count: 1})
	}
	return err
}

// finish ends all hints and appends what was fetched.
func (f *fetching[Tx]) finish(ctx context.Context, tx Tx, _ *unavez.Result) error {
	f.finished, f.appended = false, false
	for _, it := range f.with {
		_, err := f.in.engine.Join(ctx, tx, f.operation(it), func(context.Context) (unavez.Result, error) { return unavez.Result{}, nil })
		if err != nil {
			return err
		}
	}
	if f.event != nil {
		disputed, err := f.enqueue(ctx, tx, nil)
		if err == nil && len(disputed) > 0 {
			// Another content under one version: an event of its own.
			_, err = f.enqueue(ctx, tx, disputed)
		}
		if err != nil {
			return err
		}
	}
	f.finished = true
	return nil
}

// enqueue appends what was fetched for every effect that wants it, or for those
// given under an identity that also tells its content. It returns the effects for
// which the version is there with another content.
func (f *fetching[Tx]) enqueue(ctx context.Context, tx Tx, only []string) (disputed []string, err error) {
	e := *f.event
	if only != nil {
		g := f.in.receiver.sources[e.Source]
		e.ID = append(slices.Clone(e.ID), sumText(g.stable(&e)))
	}
	entries, _ := f.in.receiver.entriesOf(&e)
	if only != nil {
		entries = slices.DeleteFunc(entries, func(entry store.Entry) bool { return !slices.Contains(only, entry.Note.Event.Effect) })
	}
	if len(entries) == 0 {
		return nil, nil
	}
	said, err := f.in.store.enqueuer.Enqueue(ctx, tx, entries)
	if err != nil {
		return nil, err
	}
	for i, was := range said {
		switch was {
		case store.New:
			f.appended = true
		case store.Conflict:
			disputed = append(disputed, entries[i].Note.Event.Effect)
		}
	}
	return disputed, nil
}
