package postgres

import (
	"bytes"
	"time"

	"github.com/unavez/unavez/store"
)

// found is the row of unavez.gate: everything that is stored of an operation.
type found struct {
	state                    int16
	at                       *time.Time
	granted, stale, lapsed   bool
	attempt                  *int64
	incarnation              *int64
	position                 *string
	durability               *string
	operation                *string
	number                   *int64
	version                  *int32
	fingerprint              []byte
	expires, ended           *time.Time
	code                     *int64
	unreplayable             *bool
	header, body, checksum   []byte
	due, created, changed    *time.Time
	derived, origin, because *string
}

// columns are the destinations of the row, in its order.
func (f *found) columns() []any {
	return []any{
		&f.state, &f.at, &f.granted, &f.stale, &f.lapsed, &f.attempt, &f.incarnation, &f.position, &f.durability,
		&f.operation, &f.number, &f.version, &f.fingerprint, &f.expires,
		&f.ended, &f.code, &f.unreplayable, &f.header, &f.body, &f.checksum,
		&f.due, &f.created, &f.changed, &f.derived, &f.origin, &f.because,
	}
}

// saw completes a sight by what the statement found.
func (f *found) saw(before sight) sight {
	before.number, before.position = value(f.incarnation), place(value(f.position))
	return before
}

// verdict is what a gate answers.
func (f *found) verdict(key store.Key) (store.Verdict, error) {
	v := store.Verdict{State: store.State(f.state)}
	switch v.State {
	case store.Completed, store.Discarded:
		header, err := store.ParseHeader(f.header)
		o := &store.Outcome{
			State: v.State,
			Result: store.Result{
				Code: int(value(f.code)), NotReplayable: value(f.unreplayable), Header: header, Body: f.body,
			},
			Fingerprint: store.Fingerprint{Version: int(value(f.version)), Sum: f.fingerprint},
			Attempt:     value(f.number), At: value(f.ended).UTC(), Left: f.expires.Sub(*f.at), Replayed: true,
		}
		if err != nil || !bytes.Equal(o.Checksum(key), f.checksum) {
			return store.Verdict{}, &fault{store.ErrDamaged, "outcome of " + value(f.operation), err}
		}
		v.Outcome = o
	case store.Expired:
		v.Short = f.fingerprint
	case store.Free:
	default:
		if f.operation == nil { // the lock was not granted
			return v, nil
		}
		a, err := f.row(key)
		if err != nil {
			return store.Verdict{}, err
		}
		v.Attempt = a
	}
	return v, nil
}

// row is the attempt that was found.
func (f *found) row(key store.Key) (*store.Attempt, error) {
	id, err := store.ParseText(value(f.operation))
	if err != nil {
		return nil, err
	}
	a := &store.Attempt{
		Key: key, Identity: id, Fence: value(f.number), State: store.State(f.state),
		Fingerprint: store.Fingerprint{Version: int(value(f.version)), Sum: f.fingerprint},
		DerivedKey:  value(f.derived), Origin: value(f.origin), Reason: value(f.because),
		Created: value(f.created).UTC(), Changed: value(f.changed).UTC(),
	}
	switch a.State {
	case store.Processing:
		a.LeaseLeft = f.expires.Sub(*f.at)
	case store.Retryable:
		a.DueIn = f.due.Sub(*f.at)
	}
	return a, nil
}

// open reports whether the operation may run under a gate that allows taking
// over the attempt from.
func (f *found) open(from int64) bool {
	switch store.State(f.state) {
	case store.Free:
		return true
	case store.Unknown, store.Parked:
		return from != 0 && value(f.number) == from
	case store.Retryable:
		return from != 0 && value(f.number) == from && !f.due.After(*f.at)
	}
	return false
}

// fence is that of the attempt to take over, 0 for a free operation.
func (f *found) fence() int64 {
	if store.State(f.state) == store.Free {
		return 0
	}
	return value(f.number)
}

// value is what a pointer points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
