package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Bounds of an identity. They keep a stored readable text small; the key
// itself has a fixed size.
const (
	MaxParts    = 16   // parts of a key
	MaxPartSize = 1024 // bytes of one part, of a tenant, of an effect name
)

// lockConstant separates the locks of operations from other users of the same
// 64-bit lock space. It is part of the protocol and never changes: two workers
// with different constants would not exclude each other.
const lockConstant = 0x756e6176657a2001

// Key is the database key of an operation: the first 16 bytes of the SHA-256
// of its identity.
type Key [16]byte

// String is the key in lower-case hexadecimal, 32 characters.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads what [Key.String] writes.
func ParseKey(s string) (Key, error) {
	var k Key
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(k) {
		return Key{}, fmt.Errorf("key %q: want 32 hexadecimal digits", s)
	}
	copy(k[:], b)
	return k, nil
}

// Hash64 is the operation's lock: the key's first 8 bytes, big-endian, XOR a
// constant fixed for ever. Two operations that share it only delay each other.
func (k Key) Hash64() int64 {
	return int64(binary.BigEndian.Uint64(k[:8]) ^ lockConstant)
}

// Identity names an operation: who it belongs to, what is to be done, and the
// parts of its key, never concatenated by the caller.
type Identity struct {
	// Tenant separates customers of one installation; empty only where the
	// installation has declared itself single-tenant.
	Tenant string `json:"tenant"`
	// Effect is the effect name, such as "order.import.v1"; "http" for requests.
	Effect string `json:"effect"`
	// Parts are the key parts, at least one.
	Parts []string `json:"parts"`
}

// Validate reports every fault of the identity at once.
func (id Identity) Validate() error {
	if id.sound() {
		return nil
	}
	var faults []error
	check := func(name, s string) {
		if len(s) > MaxPartSize {
			faults = append(faults, fmt.Errorf("%s: %d bytes, at most %d", name, len(s), MaxPartSize))
		}
		if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			faults = append(faults, fmt.Errorf("%s: not valid UTF-8 without NUL", name))
		}
	}
	check("tenant", id.Tenant)
	check("effect", id.Effect)
	if id.Effect == "" {
		faults = append(faults, errors.New("effect: empty"))
	}
	if len(id.Parts) == 0 || len(id.Parts) > MaxParts {
		faults = append(faults, fmt.Errorf("key: %d parts, want 1 to %d", len(id.Parts), MaxParts))
	}
	empty := true
	for i, p := range id.Parts {
		check(fmt.Sprintf("key part %d", i+1), p)
		empty = empty && p == ""
	}
	if len(id.Parts) > 0 && empty {
		faults = append(faults, errors.New("key: every part is empty"))
	}
	return errors.Join(faults...)
}

// sound is Validate without the words, for the identities that have no fault.
func (id Identity) sound() bool {
	fits := func(s string) bool {
		return len(s) <= MaxPartSize && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
	}
	if !fits(id.Tenant) || id.Effect == "" || !fits(id.Effect) || len(id.Parts) == 0 || len(id.Parts) > MaxParts {
		return false
	}
	empty := true
	for _, p := range id.Parts {
		if !fits(p) {
			return false
		}
		empty = empty && p == ""
	}
	return !empty
}

// Sum is the SHA-256 over tenant, effect name and key parts, each as a uint32
// big-endian length followed by its UTF-8 bytes.
func (id Identity) Sum() [32]byte {
	var short [256]byte // enough for most identities, without the heap
	b := appendPart(appendPart(short[:0], id.Tenant), id.Effect)
	for _, p := range id.Parts {
		b = appendPart(b, p)
	}
	return sha256.Sum256(b)
}

// Key is the first 16 bytes of [Identity.Sum].
func (id Identity) Key() Key {
	sum := id.Sum()
	return Key(sum[:16])
}

// DerivedKey is the idempotency key an outside call of this operation carries:
// "uv1-" and the hexadecimal form of the first 16 bytes of the SHA-256 over
// the parts "derive", the 32 bytes of [Identity.Sum], and the step's name
// (empty for the operation itself). It depends on nothing else, so every
// attempt, worker and version sends the same one.
func (id Identity) DerivedKey(step string) string {
	sum := id.Sum()
	b := appendPart(appendPart(appendPart(nil, "derive"), string(sum[:])), step)
	sum = sha256.Sum256(b)
	return "uv1-" + hex.EncodeToString(sum[:16])
}

// Text is the readable form kept beside the key: the parts of the identity,
// path-escaped, joined by slashes. It is for people; nothing compares it.
func (id Identity) Text() string {
	var b strings.Builder
	b.WriteString(url.PathEscape(id.Tenant))
	b.WriteByte('/')
	b.WriteString(url.PathEscape(id.Effect))
	for _, p := range id.Parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(p))
	}
	return b.String()
}

// ParseText reads what [Identity.Text] writes.
func ParseText(s string) (Identity, error) {
	fields := strings.Split(s, "/")
	for i, f := range fields {
		var err error
		if fields[i], err = url.PathUnescape(f); err != nil {
			return Identity{}, fmt.Errorf("operation %q: %w", s, err)
		}
	}
	if len(fields) < 3 {
		return Identity{}, fmt.Errorf("operation %q: want tenant/effect/part", s)
	}
	return Identity{Tenant: fields[0], Effect: fields[1], Parts: fields[2:]}, nil
}

// appendPart appends one part of a list: uint32 big-endian length, bytes.
func appendPart(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}
