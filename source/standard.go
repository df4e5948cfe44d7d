package source

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Standard Webhooks: id, timestamp and body are signed, v1 with HMAC-SHA256
// under a secret "whsec_" + base64, v1a with Ed25519 under "whpk_" + base64.
// The header may hold several signatures, apart by spaces; those of a version
// that is not configured are passed over. (standardwebhooks.com, specification
// 1.0.) The id is part of what is signed, so it is the identity.
//
// A prefix other than "webhook" is for senders that use the same scheme under
// names of their own ("svix").
func StandardWebhooks(prefix string) *Contract {
	if prefix == "" {
		prefix = "webhook"
	}
	s := standard{id: prefix + "-id", timestamp: prefix + "-timestamp", signature: prefix + "-signature"}
	return &Contract{
		Name: "standard-webhooks", Class: Logical,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 15 * time.Second, Window: 76 * time.Hour,
		Secret: func(text string) error { _, _, err := standardKey(text); return err },
		Verify: s.verify, Read: s.read,
	}
}

// standard holds the names of the three headers.
type standard struct{ id, timestamp, signature string }

func (s standard) verify(_ context.Context, config *Config, r *Request) (Proof, error) {
	secrets, err := config.usable()
	if err != nil {
		return Proof{}, err
	}
	var values [3]string
	for i, name := range []string{s.id, s.timestamp, s.signature} {
		if values[i], err = line(r.Header, name); err != nil {
			return Proof{}, err
		}
	}
	id, stamp, signatures := values[0], values[1], values[2]
	// A dot would let a part of one field pass for a part of the next.
	if strings.Contains(id, ".") {
		return Proof{}, refusef(MalformedHeader, s.id, "holds a dot")
	}
	at, ok := instant(stamp, time.Second)
	if !ok {
		return Proof{}, refuse(MalformedHeader, s.timestamp)
	}
	const most = 32
	var v1, v1a [][]byte
	for text := range strings.FieldsSeq(signatures) {
		version, digest, _ := strings.Cut(text, ",")
		d, err := base64.StdEncoding.Strict().DecodeString(digest)
		if err != nil || len(v1)+len(v1a) == most {
			continue
		}
		switch version {
		case "v1":
			v1 = append(v1, d)
		case "v1a":
			v1a = append(v1a, d)
		}
	}
	signed := bytes.Join([][]byte{[]byte(id), []byte(stamp), r.Body}, []byte("."))
	method := "hmac-sha256"
	name, err := match(secrets, s.signature, r.At, func(secret Secret) bool {
		key, public, err := standardKey(secret.Reveal())
		if err != nil {
			return false
		}
		found := false
		if public != nil {
			for _, d := range v1a {
				found = ed25519.Verify(public, signed, d) || found
			}
			if found {
				method = "ed25519"
			}
			return found
		}
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write(signed) // a hash never fails
		sum := mac.Sum(nil)
		for _, d := range v1 {
			found = hmac.Equal(d, sum) || found
		}
		return found
	})
	if err != nil {
		return Proof{}, err
	}
	if err := within(r.At, at, config.tolerance(), s.timestamp); err != nil {
		return Proof{}, err
	}
	return Proof{Method: method, Secret: name, Body: true}, nil
}

// standardKey reads a secret: a symmetric key, or a public one.
func standardKey(text string) (key []byte, public ed25519.PublicKey, err error) {
	if encoded, ok := strings.CutPrefix(text, "whpk_"); ok {
		d, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(d) != ed25519.PublicKeySize {
			return nil, nil, errors.New(`a "whpk_" secret is the base64 of an Ed25519 public key of 32 bytes`)
		}
		if weakPoint(d) {
			return nil, nil, errors.New("the public key is of low order: anybody can sign for it")
		}
		return nil, d, nil
	}
	d, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if err != nil {
		return nil, nil, errors.New(`a secret is "whsec_" and base64`)
	}
	if len(d) < 24 || len(d) > 64 {
		return nil, nil, fmt.Errorf("a secret has 24 to 64 bytes; this one has %d", len(d))
	}
	return d, nil, nil
}

func (s standard) read(r *Request) ([]Item, error) {
	id, fault := header(r, s.id)
	if fault != nil {
		return nil, fault
	}
	item := Item{Raw: r.Text()}
	o, fault := object(r.Text())
	if item.Fault = fault; fault != nil {
		return []Item{item}, nil
	}
	e := &Event{ID: []string{id}, Delivery: id, Type: o.Text("type"), Data: r.Text(), ContentType: "application/json"}
	if at, err := time.Parse(time.RFC3339Nano, o.Text("timestamp")); err == nil {
		e.Time = at
	}
	if subject, err := exact.PartAt(r.Text(), "data", "id"); err == nil {
		e.Subject = []string{subject}
	}
	item.Event = e
	return []Item{item}, nil
}

// weakPoint says whether an Ed25519 public key has a small order. Such keys, the
// 32 zero bytes of an unset one among them, verify signatures that anybody can
// make. Of the eight points of small order these are the y coordinates, and the
// two encodings of them that are not reduced (RFC 8032, section 5.1.3; the list
// is that of libsodium's check). The sign bit does not count.
func weakPoint(key []byte) bool {
	weak := []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	}
	bare := append([]byte(nil), key...)
	bare[len(bare)-1] &= 0x7f
	text := fmt.Sprintf("%x", bare)
	for _, w := range weak {
		if text == w {
			return true
		}
	}
	return false
}

// SignStandard signs a message as Standard Webhooks 1.0 has it: the value of one
// signature, as "v1,base64". The secret is "whsec_" and base64; the id holds no
// dot. Signatures by several secrets stand in one header, apart by a space.
func SignStandard(secret Secret, id string, at time.Time, body []byte) (string, error) {
	if id == "" || strings.Contains(id, ".") {
		return "", errors.New("the id of a message is not empty and holds no dot")
	}
	key, public, err := standardKey(secret.Reveal())
	if err != nil {
		return "", err
	}
	if public != nil {
		return "", errors.New("a public key cannot sign")
	}
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%d.", id, at.Unix()) // a hash never fails
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}
