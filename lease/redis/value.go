package redis

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/unavez/unavez/lease"
)

// The form of a value; see the package comment.
const (
	form      = "uvl1"
	held      = 'L'
	completed = 'C'

	maxToken       = math.MaxUint8
	maxFingerprint = 64
	maxValue       = len(form) + 2 + maxToken + 4 + maxFingerprint
)

// errForeign says that a key holds what this package did not put there.
var errForeign = errors.New("the key holds something else (give each program a Redis or an Options.Prefix of its own)")

// keyName is the name of a lease's key within the prefix.
func keyName(key string) string {
	if len(key) == 32 && isHex(key) {
		return "{" + key + "}"
	}
	sum := sha256.Sum256([]byte(key))
	return "{sha256:" + hex.EncodeToString(sum[:]) + "}"
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// head is how the value of a lease begins that the token holds. No other
// token's value begins so, since the length stands before the token.
func head(token string) (string, error) {
	if len(token) > maxToken {
		return "", fmt.Errorf("token: %d bytes, want at most %d", len(token), maxToken)
	}
	return form + string([]byte{held, byte(len(token))}) + token, nil
}

// encode gives the value of a lease.
func encode(v lease.Value) (string, error) {
	if v.Version < 0 || int64(v.Version) > math.MaxUint32 {
		return "", fmt.Errorf("fingerprint version: %d, want 0 to %d", v.Version, uint32(math.MaxUint32))
	}
	if len(v.Fingerprint) > maxFingerprint {
		return "", fmt.Errorf("fingerprint: %d bytes, want at most %d", len(v.Fingerprint), maxFingerprint)
	}
	start, err := head(v.Token)
	if err != nil {
		return "", err
	}
	value := binary.BigEndian.AppendUint32([]byte(start), uint32(v.Version))
	return string(append(value, v.Fingerprint...)), nil
}

// decode reads a value that somebody put at a key of ours.
func decode(value string) (lease.Value, error) {
	fixed := len(form) + 2
	if len(value) < fixed || len(value) > maxValue || value[:len(form)] != form {
		return lease.Value{}, errForeign
	}
	state, token := value[len(form)], int(value[len(form)+1])
	if state != held && state != completed || len(value) < fixed+token+4 {
		return lease.Value{}, errForeign
	}
	rest := value[fixed+token:]
	if len(rest) > 4+maxFingerprint {
		return lease.Value{}, errForeign
	}
	v := lease.Value{
		Token:     value[fixed : fixed+token],
		Version:   int(binary.BigEndian.Uint32([]byte(rest[:4]))),
		Completed: state == completed,
	}
	if len(rest) > 4 {
		v.Fingerprint = []byte(rest[4:])
	}
	return v, nil
}
