package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// State is where an operation stands. The numbers are stored and never change.
type State uint8

// The states. Completed and Discarded are final; the others are unfinished,
// except Free and Expired, which are what a gate may find instead of a state.
const (
	// Free: nothing is known of the operation; it may run.
	Free State = 0
	// Processing: an attempt runs now, in a transaction or under a live lease.
	Processing State = 1
	// Retryable: at rest; runs again at a set time.
	Retryable State = 2
	// Parked: at rest; waits for an earlier one or for its owner.
	Parked State = 3
	// Unknown: an attempt ended without telling whether its effect happened.
	Unknown State = 4
	// Dead: at rest; needs a person. It has no outcome yet.
	Dead State = 5
	// Completed: ended; the result is frozen.
	Completed State = 6
	// Discarded: ended without its effect, by a rule or by a person.
	Discarded State = 7
	// Expired: it ended, and only its identity is still remembered.
	Expired State = 8
)

// String is the word used in SQL, API, metrics and console.
func (s State) String() string {
	switch s {
	case Free:
		return "free"
	case Processing:
		return "processing"
	case Retryable:
		return "retryable"
	case Parked:
		return "parked"
	case Unknown:
		return "unknown"
	case Dead:
		return "dead"
	case Completed:
		return "completed"
	case Discarded:
		return "discarded"
	case Expired:
		return "expired"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// ParseState reads what [State.String] writes.
func ParseState(s string) (State, error) {
	for st := Free; st <= Expired; st++ {
		if st.String() == s {
			return st, nil
		}
	}
	return Free, fmt.Errorf("state %q: not a state of an operation", s)
}

// Final reports whether an operation in this state has an outcome.
func (s State) Final() bool { return s == Completed || s == Discarded }

// Fingerprint tells whether a duplicate carries the same payload. Version
// names the algorithm; version 0 holds the caller's own bytes, which are
// compared only with version 0.
type Fingerprint struct {
	// Version of the algorithm that made Sum.
	Version int
	// Sum is the fingerprint, at most 64 bytes; nil when there is none.
	Sum []byte
}

// Equal reports whether both were made by the same algorithm from the same payload.
func (f Fingerprint) Equal(g Fingerprint) bool {
	return f.Version == g.Version && bytes.Equal(f.Sum, g.Sum)
}

// Short is the part of a fingerprint that a tombstone keeps: its first 8 bytes.
func (f Fingerprint) Short() []byte { return f.Sum[:min(len(f.Sum), 8)] }

// Field is one header line of a result.
type Field struct {
	// Name as it was written.
	Name string
	// Value, any bytes.
	Value string
}

// Result is what an operation answered, frozen with its outcome.
type Result struct {
	// Code is the HTTP status, or a number of the caller's own.
	Code int
	// Header lines in order; a name may occur several times.
	Header []Field
	// Body, any bytes.
	Body []byte
	// NotReplayable says that the answer was over the stored-response limit:
	// it was sent whole once, and duplicates get an error. Body is then empty.
	NotReplayable bool
}

// Outcome is how an operation ended for good. There is at most one per operation.
type Outcome struct {
	// State is Completed or Discarded.
	State State
	// Result is the frozen answer; duplicates get it byte for byte.
	Result Result
	// Fingerprint of the payload that was worked on.
	Fingerprint Fingerprint
	// Attempt is the number of the attempt that ended it, 1 for the first.
	Attempt int64
	// At is when it ended, by the database's clock.
	At time.Time
	// Left is what remained of the retention when it was read; the whole
	// retention for an outcome just committed.
	Left time.Duration
	// Replayed is true when this call found the outcome instead of making it.
	Replayed bool
}

// Checksum covers everything of an outcome that is served or compared: key,
// state, fingerprint, code, replayability, header and body. It shows a flipped
// byte as well as a row that was swapped with another. 16 bytes, the front of
// a SHA-256 over the encodings below.
func (o *Outcome) Checksum(key Key) []byte {
	var fixed [14]byte
	fixed[0] = byte(o.State)
	binary.BigEndian.PutUint32(fixed[1:], uint32(o.Fingerprint.Version))
	binary.BigEndian.PutUint64(fixed[5:], uint64(int64(o.Result.Code)))
	if o.Result.NotReplayable {
		fixed[13] = 1
	}
	h := sha256.New()
	var short [512]byte
	b := appendPart(appendPart(short[:0], "outcome"), string(key[:]))
	b = appendPart(appendPart(b, string(fixed[:])), string(o.Fingerprint.Sum))
	b = appendPart(b, string(AppendHeader(nil, o.Result.Header)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(o.Result.Body)))
	h.Write(b)
	h.Write(o.Result.Body)
	return h.Sum(nil)[:16]
}

// AppendHeader appends the stored form of header lines: for each, name and
// value as uint32 big-endian length and bytes.
func AppendHeader(b []byte, header []Field) []byte {
	for _, f := range header {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f.Name)))
		b = append(b, f.Name...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(f.Value)))
		b = append(b, f.Value...)
	}
	return b
}

// ParseHeader reads what [AppendHeader] wrote. Bytes that end inside a field
// are an error; the caller reports them as damage.
func ParseHeader(b []byte) ([]Field, error) {
	var header []Field
	next := func() (string, bool) {
		if len(b) < 4 {
			return "", false
		}
		n := binary.BigEndian.Uint32(b)
		if uint64(n) > uint64(len(b)-4) {
			return "", false
		}
		s := string(b[4 : 4+n])
		b = b[4+n:]
		return s, true
	}
	for len(b) > 0 {
		name, ok := next()
		if !ok {
			return nil, errors.New("stored header: ends inside a name")
		}
		value, ok := next()
		if !ok {
			return nil, errors.New("stored header: ends inside a value")
		}
		header = append(header, Field{Name: name, Value: value})
	}
	return header, nil
}
