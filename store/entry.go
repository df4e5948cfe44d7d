package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

// Entry is one operation waiting to be done: what the inbox received, or what
// an outbox has to send. An event that three effects want makes three entries.
type Entry struct {
	// Sequence is the entry's place in the order of arrival, set by the store,
	// from 1. It has gaps. Of two entries of one ordering key the one that was
	// durable before the other arrived has the smaller one.
	Sequence int64
	// Key is what duplicates of the entry share: Note.Event.Key().
	Key Key
	// Operation is the operation's key: Note.Identity.Key().
	Operation Key
	// Order is the ordering key; see [Note.Order].
	Order Key
	// Subject is whose data the payload holds, for [Privacy.Erase]; zero if nobody's.
	Subject Key
	// Fingerprint of the payload as it arrived. Another one under the same Key
	// is a conflict.
	Fingerprint Fingerprint
	// Note is everything else that is known of the entry.
	Note Note
	// Payload is what the handler gets, as it is kept (masked, if masks are
	// configured). Read and Followers leave one of more than MaxInline bytes out;
	// see Size.
	Payload []byte
	// Size of the payload in bytes, set by the store.
	Size int
	// Erased says that the payload was erased on a person's demand.
	Erased bool
	// Arrived is when the entry was appended, by the database's clock.
	Arrived time.Time
}

// Bounds of what a queue takes and hands out at once.
const (
	MaxInline  = 32 << 10 // bytes of a payload that is read with its entry
	MaxAppend  = 1000     // entries of one Append
	MaxReading = 1000     // entries of one page
	MaxNote    = 64 << 10 // bytes of an encoded note
)

// Note describes an entry. Its JSON form is stored and part of the protocol: a
// program in another language that appends by SQL writes the same members.
type Note struct {
	// Event is the identity that duplicates share: the sender's event together
	// with the effect that wants it. Equal to Identity where the effect takes
	// its identity from the event.
	Event Identity `json:"event"`
	// Identity of the operation.
	Identity Identity `json:"operation"`
	// Ordering are the parts of the ordering key; none: no other entry waits
	// for this one, nor it for them.
	Ordering []string `json:"ordering,omitempty"`
	// Version is the sender's own order of the changes of one resource.
	Version string `json:"version,omitempty"`
	// Source and Type of the event.
	Source string `json:"source,omitempty"`
	Type   string `json:"type,omitempty"`
	// ID are the parts of the sender's event id, for people and handlers.
	ID []string `json:"id,omitempty"`
	// Subject are the parts that name the event's resource.
	Subject []string `json:"subject,omitempty"`
	// Account is the account or store that the sender's message names, for
	// [Privacy.EraseAccount]; empty if it names none.
	Account string `json:"account,omitempty"`
	// Time is when it happened, by the sender's clock; zero if it does not say.
	Time time.Time `json:"time,omitzero"`
	// ContentType of the payload.
	ContentType string `json:"contentType,omitempty"`
	// Attributes are further facts of the envelope.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Delivery and Correlation are for people who compare logs.
	Delivery    string `json:"delivery,omitempty"`
	Correlation string `json:"correlation,omitempty"`
	// Unsigned says that the proof of the sender did not cover the payload.
	Unsigned bool `json:"unsigned,omitempty"`
	// Hint says that the event has no content of its own: its resource is to be
	// fetched.
	Hint bool `json:"hint,omitempty"`
}

// Order is the ordering key: of (tenant, effect name, ordering parts), or the
// event's own key where there are none.
func (n *Note) Order() Key {
	if len(n.Ordering) == 0 {
		return n.Event.Key()
	}
	return Identity{Tenant: n.Identity.Tenant, Effect: n.Identity.Effect, Parts: n.Ordering}.Key()
}

// Encode is the note as it is stored. One of more than MaxNote bytes is an error.
func (n *Note) Encode() ([]byte, error) {
	text, err := json.Marshal(n)
	if err == nil && len(text) > MaxNote {
		return nil, fmt.Errorf("note of %s: %d bytes, at most %d", n.Identity.Text(), len(text), MaxNote)
	}
	return text, err
}

// DecodeNote reads what [Note.Encode] writes.
func DecodeNote(text []byte) (Note, error) {
	var n Note
	err := json.Unmarshal(text, &n)
	return n, err
}

// SubjectKey is the key of a person or account whose data a payload holds, in
// one tenant: of (tenant, "subject", parts).
func SubjectKey(tenant string, parts []string) Key {
	return Identity{Tenant: tenant, Effect: "subject", Parts: parts}.Key()
}

// LaneOf is the lane of an ordering key, 0 to lanes-1: its first 8 bytes,
// big-endian, modulo lanes. It is part of the protocol.
func LaneOf(order Key, lanes int) int {
	return int(binary.BigEndian.Uint64(order[:8]) % uint64(lanes))
}

// laneLockConstant separates the locks of lanes from those of operations; it is
// part of the protocol and never changes.
const laneLockConstant = 0x756e6176657a4c00

// LaneLock is the 64-bit lock of a lane.
func LaneLock(lane int) int64 { return int64(laneLockConstant) + int64(lane)<<16 }

// orderLockConstant separates the locks of ordering keys, which an append
// inside a transaction takes before it draws its sequence.
const orderLockConstant = 0x756e6176657a4f01

// OrderLock is the 64-bit lock of an ordering key.
func (k Key) OrderLock() int64 {
	return int64(binary.BigEndian.Uint64(k[:8]) ^ orderLockConstant)
}

// Quarantined is an authentic delivery that cannot be an operation. It is kept
// until a person readmits or discards it.
type Quarantined struct {
	// Key is what repetitions of the same item share, so that they make one row.
	Key Key
	// Tenant, Source and Type of the item, as far as they are known.
	Tenant, Source, Type string
	// Reason is its class, as "schema"; Detail says more, for people, without
	// content of the payload. At most MaxReason bytes each.
	Reason, Detail string
	// Subject is whose data the payload holds; zero if unknown.
	Subject Key
	// Note is what is known of the event that the item would have been, without
	// operations: what readmitting it needs, since its headers are not kept. It
	// is stored as text ([Note.Encode]), zero where the item could not be read.
	Note Note
	// Payload is the item's own bytes, masked if masks are configured.
	Payload     []byte
	ContentType string
	// Erased says that the payload was erased on a person's demand.
	Erased bool
	// Arrived is when it was first kept, by the database's clock.
	Arrived time.Time
}
