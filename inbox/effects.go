package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// effect is an [Effect] made ready.
type effect[Tx any] struct {
	Effect[Tx]
	trait *trait
}

// trait is what the running of entries has to know of their effect.
type trait struct {
	name       string
	batch      bool // several entries may share a transaction
	lease      bool // it runs outside of one
	repeats    bool // it may run again, or is asked about, when nobody knows how it ended
	hint       bool // it fetches
	versioned  bool
	contiguous bool
	gapWait    time.Duration
	retry      Retry
	owner      string
}

// add checks an effect and makes it ready; every fault at once.
func (in *Inbox[Tx]) add(given Effect[Tx]) error {
	ef := &effect[Tx]{Effect: given}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	set := 0
	for _, there := range []bool{ef.Handle != nil, ef.HandleBatch != nil, ef.Run != nil} {
		if there {
			set++
		}
	}
	if set != 1 {
		fault("set exactly one of Handle, HandleBatch and Run, not %d of them", set)
	}
	if ef.Batch && ef.Handle == nil {
		fault("Batch: goes with Handle")
	}
	if ef.Run == nil && (ef.Finish != nil || ef.Unknown != nil) {
		fault("Finish, Unknown: go with Run")
	}
	switch {
	case ef.Version != nil && ef.OrderBy == nil:
		fault("Version: needs OrderBy, which says whose versions they are")
	case ef.Contiguous && ef.Version == nil:
		fault("Contiguous: needs Version")
	case ef.GapWait != 0 && !ef.Contiguous:
		fault("GapWait: goes with Contiguous")
	}
	within := func(name string, d, low, high time.Duration) {
		if d != 0 && (d < low || d > high) {
			fault("%s: %v, want %v to %v", name, d, low, high)
		}
	}
	within("GapWait", ef.GapWait, time.Second, maxRetry)
	within("Retry.First", ef.Retry.First, time.Millisecond, maxRetry)
	within("Retry.Longest", ef.Retry.Longest, max(ef.Retry.First, time.Millisecond), maxRetry)
	within("Retry.Age", ef.Retry.Age, time.Second, unavez.MaxRetention)
	if ef.Retry.Attempts < 0 {
		fault("Retry.Attempts: %d, want 1 or more, or 0 for %d", ef.Retry.Attempts, retryAttempts)
	}
	within("Limit", ef.Limit, time.Millisecond, unavez.MaxLimit)
	within("Lease", ef.Lease, 10*time.Millisecond, unavez.MaxLease)
	defaultTo(&ef.Retention, in.opts.Retention)
	defaultTo(&ef.Tombstone, in.opts.Tombstone)
	within("Tombstone", ef.Tombstone, time.Second, unavez.MaxRetention)
	defaultTo(&ef.Tombstone, DefaultTombstone)
	within("Retention", ef.Retention, unavez.MinRetention, unavez.MaxRetention)
	if in.receiver != nil {
		kept, warning, err := in.receiver.Retention(ef.Retention, ef.Sources)
		if err != nil {
			fault("%w", err)
		}
		if ef.Retention = kept; warning != "" {
			in.log.Warn("inbox: "+warning, "effect", ef.Name)
		}
	}
	ef.trait = &trait{
		name: ef.Name, batch: ef.Batch || ef.HandleBatch != nil, lease: ef.Run != nil,
		versioned: ef.Version != nil, contiguous: ef.Contiguous, gapWait: ef.GapWait, retry: ef.Retry.filled(), owner: ef.Owner,
	}
	defaultTo(&ef.trait.gapWait, defaultGapWait)
	policy, _ := ef.Unknown.(unavez.Policy) // Hold where it is none
	_, probed := ef.Unknown.(unavez.Probe)
	ef.trait.repeats = probed || policy != unavez.Hold
	in.effects[ef.Name] = ef
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("effect %q: %w", ef.Name, err)
	}
	return nil
}

// checkTenants refuses a source without tenant where the engine wants one.
func (in *Inbox[Tx]) checkTenants(sources []Source) error {
	var faults []error
	for i := range sources {
		if s := &sources[i]; s.Tenant == "" && s.TenantFunc == nil && in.engine != nil && !in.engine.SingleTenant() {
			faults = append(faults, fmt.Errorf("source %q: tenant: none (set Tenant or TenantFunc, or declare SingleTenant in the engine's options)", s.Name))
		}
	}
	return errors.Join(faults...)
}

// operation is one operation of an entry, its own event or what the event names.
func (ef *effect[Tx]) operation(id store.Identity, e *store.Entry, hold store.Hold) unavez.Operation {
	return unavez.Operation{
		Tenant: id.Tenant, Effect: id.Effect, Key: id.Parts, Hold: hold, Origin: e.Note.Source,
		Limit: ef.Limit, Lease: ef.Lease, Retention: ef.Retention, Tombstone: ef.Tombstone,
		Unknown: ef.Unknown, Rerunnable: true,
	}
}

// event is an entry as its handler sees it, at the given run.
func eventOfEntry(e *store.Entry, attempt int64) *Event {
	n := &e.Note
	return &Event{
		Tenant: n.Identity.Tenant, Source: n.Source, Type: n.Type, ID: n.ID, Subject: n.Subject, Version: n.Version,
		Time: n.Time, Data: e.Payload, ContentType: n.ContentType, Attributes: n.Attributes,
		Delivery: n.Delivery, Correlation: n.Correlation, Unsigned: n.Unsigned, Hint: n.Hint, Account: n.Account,
		Effect: n.Identity.Effect, Operation: n.Identity, Attempt: attempt,
		Sequence: e.Sequence, Arrived: e.Arrived, Erased: e.Erased,
	}
}

// handlerError is what a handler returned, as opposed to what the engine says.
type handlerError struct{ err error }

func (h *handlerError) Error() string { return h.err.Error() }
func (h *handlerError) Unwrap() error { return h.err }

// caught runs a handler's function. A panic in it is an error: it is the
// entry's trouble, and the worker's other entries go on.
func (in *Inbox[Tx]) caught(ef *effect[Tx], fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			in.log.Error("inbox: a handler panicked", "effect", ef.Name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = &handlerError{fmt.Errorf("the handler panicked: %v", v)}
		}
	}()
	if err = fn(); err != nil {
		return &handlerError{err}
	}
	return nil
}

// load gives an item its payload, where that was too long to be read with it.
func (in *Inbox[Tx]) load(ctx context.Context, it *item) error {
	if it.entry.Payload != nil || it.entry.Erased || it.entry.Size <= store.MaxInline {
		return nil
	}
	whole, err := in.store.Load(ctx, it.entry.Key)
	if err != nil {
		return err
	}
	it.entry.Payload, it.entry.Erased = whole.Payload, whole.Erased
	return nil
}

// trait is that of an entry's effect, nil if this worker has none of that name.
func (in *Inbox[Tx]) trait(e *store.Entry) *trait {
	if ef := in.effects[e.Note.Identity.Effect]; ef != nil {
		return ef.trait
	}
	return nil
}
