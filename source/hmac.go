package source

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"
	"time"
)

// Signing describes a signature with a shared secret: where it stands, how it is
// written, and over what it was made. Everything is fixed by the description;
// nothing of it is read from the request.
type Signing struct {
	// Header carries the digest.
	Header string

	// Prefix stands before the digest, as "sha256=".
	Prefix string

	// Param names the digest where the header is a list as "t=1,v1=ab,v1=cd".
	// Any of several digests may match: senders send two while they rotate.
	Param string

	// Encoding of the digest: "hex" (default), "base64" or "base64url".
	Encoding string

	// Hash is "sha256" (default), "sha512" or "sha1". The last is for senders
	// that have nothing better.
	Hash string

	// Key says how the secret becomes the key: "text" (default), "hex" or
	// "base64".
	Key string

	// Signed is what the digest is over: "{body}" (default) with any of {body},
	// {timestamp}, {id} and {url} and text between them.
	Signed string

	// Timestamp is the header that carries the time of sending, or with Param
	// the parameter. It is needed where Signed names it, and then held to the
	// tolerance.
	Timestamp string

	// Milliseconds says that the timestamp counts milliseconds instead of
	// seconds since 1970.
	Milliseconds bool

	// ID is the header that Signed calls {id}.
	ID string
}

// signing is a description made ready.
type signing struct {
	Signing
	parts  []string // text and placeholders in turn, starting with text
	digest func() hash.Hash
	size   int
	decode func(string) ([]byte, error)
}

// ready checks the description and fills in the defaults. It reports all faults.
func (d Signing) ready() (*signing, error) {
	s := &signing{Signing: d}
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if !isToken(d.Header) {
		fault("header", "%q is no header name: name the one that the signature stands in", d.Header)
	}
	switch d.Hash {
	case "", "sha256":
		s.digest, s.size, s.Hash = sha256.New, sha256.Size, "sha256"
	case "sha512":
		s.digest, s.size = sha512.New, sha512.Size
	case "sha1":
		s.digest, s.size = sha1.New, sha1.Size
	default:
		fault("hash", "%q is none of sha256, sha512, sha1", d.Hash)
	}
	switch d.Encoding {
	case "", "hex":
		s.Encoding, s.decode = "hex", hex.DecodeString
	case "base64":
		s.decode = base64.StdEncoding.Strict().DecodeString
	case "base64url":
		s.decode = func(text string) ([]byte, error) {
			return base64.RawURLEncoding.Strict().DecodeString(strings.TrimRight(text, "="))
		}
	default:
		fault("encoding", "%q is none of hex, base64, base64url", d.Encoding)
	}
	if _, err := keyOf(d.Key, "00"); errors.Is(err, errKeyForm) {
		fault("key", "%q is none of text, hex, base64", d.Key)
	}
	if s.Signed == "" {
		s.Signed = "{body}"
	}
	var err error
	if s.parts, err = placeholders(s.Signed, "body", "timestamp", "id", "url"); err != nil {
		fault("signed", "%w", err)
	}
	names := map[string]bool{}
	for i := 1; i < len(s.parts); i += 2 {
		names[s.parts[i]] = true
	}
	if err == nil && !names["body"] && !names["id"] {
		fault("signed", "%q signs neither {body} nor {id}", s.Signed)
	}
	if names["timestamp"] != (d.Timestamp != "") {
		fault("timestamp", "name it here and in signed, or in neither: a time that is not signed proves nothing")
	}
	if d.Timestamp != "" && d.Param == "" && !isToken(d.Timestamp) {
		fault("timestamp", "%q is no header name", d.Timestamp)
	}
	if names["id"] != (d.ID != "") {
		fault("id", "name its header here and {id} in signed, or neither")
	}
	if d.Prefix != "" && d.Param != "" {
		fault("prefix", "not together with param")
	}
	return s, errors.Join(faults...)
}

// body says that the whole body is signed.
func (s *signing) body() bool { return strings.Contains(s.Signed, "{body}") }

func (s *signing) verify(_ context.Context, config *Config, r *Request) (Proof, error) {
	secrets, err := config.usable()
	if err != nil {
		return Proof{}, err
	}
	text, err := line(r.Header, s.Header)
	if err != nil {
		return Proof{}, err
	}
	digests, stamp, err := s.split(text)
	if err != nil {
		return Proof{}, err
	}
	values := map[string]string{"url": config.URL}
	if s.ID != "" {
		if values["id"], err = line(r.Header, s.ID); err != nil {
			return Proof{}, err
		}
	}
	var at time.Time
	if s.Timestamp != "" {
		if s.Param == "" {
			if stamp, err = line(r.Header, s.Timestamp); err != nil {
				return Proof{}, err
			}
		}
		unit := time.Second
		if s.Milliseconds {
			unit = time.Millisecond
		}
		var ok bool
		if at, ok = instant(stamp, unit); !ok {
			return Proof{}, refuse(MalformedHeader, s.Timestamp)
		}
		values["timestamp"] = stamp
	}
	name, err := match(secrets, s.Header, r.At, func(secret Secret) bool {
		key, err := keyOf(s.Key, secret.Reveal())
		if err != nil {
			return false
		}
		mac := hmac.New(s.digest, key)
		for i, part := range s.parts {
			switch {
			case i%2 == 0:
				_, _ = mac.Write([]byte(part)) // a hash never fails
			case part == "body":
				_, _ = mac.Write(r.Body)
			default:
				_, _ = mac.Write([]byte(values[part]))
			}
		}
		sum, ok := mac.Sum(nil), false
		for _, d := range digests {
			if hmac.Equal(d, sum) {
				ok = true
			}
		}
		return ok
	})
	if err != nil {
		return Proof{}, err
	}
	// The time is looked at last: of a forged one nothing is told.
	if s.Timestamp != "" {
		if err := within(r.At, at, config.tolerance(), s.Timestamp); err != nil {
			return Proof{}, err
		}
	}
	return Proof{Method: "hmac-" + s.Hash, Secret: name, Body: s.body()}, nil
}

// split takes the digests, and with Param the timestamp, out of the header.
func (s *signing) split(text string) (digests [][]byte, stamp string, err error) {
	if s.Param == "" {
		bare, ok := strings.CutPrefix(text, s.Prefix)
		if !ok {
			return nil, "", refuse(MalformedHeader, s.Header)
		}
		d, ok := s.bytes(bare)
		if !ok {
			return nil, "", refuse(MalformedHeader, s.Header)
		}
		return [][]byte{d}, "", nil
	}
	const most = 16 // digests that are tried; a sender that rotates sends two
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case s.Param:
			if d, ok := s.bytes(value); ok && len(digests) < most {
				digests = append(digests, d)
			}
		case s.Timestamp:
			if stamp != "" {
				return nil, "", refusef(MalformedHeader, s.Header, "%s twice", name)
			}
			stamp = value
		}
	}
	if len(digests) == 0 || s.Timestamp != "" && stamp == "" {
		return nil, "", refuse(MalformedHeader, s.Header)
	}
	return digests, stamp, nil
}

// bytes decodes one digest. One in hex has exactly its length.
func (s *signing) bytes(text string) ([]byte, bool) {
	if s.Encoding == "hex" && len(text) != hex.EncodedLen(s.size) {
		return nil, false
	}
	d, err := s.decode(text)
	return d, err == nil && len(d) > 0
}

var errKeyForm = errors.New("unknown form of key")

// keyOf is the key that a secret's text stands for. It is not empty: an HMAC with
// an empty key is one that anybody can compute.
func keyOf(form, text string) (key []byte, err error) {
	switch form {
	case "", "text":
		key = []byte(text)
	case "hex":
		key, err = hex.DecodeString(text)
	case "base64":
		key, err = base64.StdEncoding.DecodeString(text) // which passes over the ends of lines
	default:
		err = errKeyForm
	}
	if err == nil && len(key) == 0 {
		err = errors.New("no key is in it")
	}
	return key, err
}

// placeholders splits "a{x}b" into text and names in turn.
func placeholders(text string, known ...string) ([]string, error) {
	var parts []string
	for {
		before, rest, ok := strings.Cut(text, "{")
		parts = append(parts, before)
		if !ok {
			return parts, nil
		}
		name, after, ok := strings.Cut(rest, "}")
		if !ok {
			return nil, fmt.Errorf("%q is not closed", "{"+name)
		}
		found := false
		for _, k := range known {
			found = found || k == name
		}
		if !found {
			return nil, fmt.Errorf("{%s} is none of {%s}", name, strings.Join(known, "}, {"))
		}
		parts = append(parts, name)
		text = after
	}
}

// isToken says whether a text can be a header's name (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}
