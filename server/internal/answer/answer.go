// Package answer is the pure part of a probe: it fills an operation into the
// question, and reads a verdict and a result out of the answer.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// Places are what a question can name about its operation.
type Places struct {
	// Key is the client's Idempotency-Key.
	Key string
	// DerivedKey is what outside calls of the operation carry.
	DerivedKey string
	// Tenant and Principal are who called.
	Tenant, Principal string
}

// Fill puts the places into a text. Each value goes through escape, if given,
// so that a client's key cannot change the structure of what it is put into.
func Fill(text string, places Places, escape func(string) string) (string, error) {
	values := map[string]string{
		"key": places.Key, "derived_key": places.DerivedKey, "tenant": places.Tenant, "principal": places.Principal,
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, rest, closed := strings.Cut(after, "}")
		value, known := values[name]
		if !closed || !known {
			return "", fmt.Errorf("{%s is not a place (known: {key}, {derived_key}, {tenant}, {principal})", name)
		}
		if escape != nil {
			value = escape(value)
		}
		b.WriteString(value)
		text = rest
	}
}

// Path names a member of a JSON document: $.order.lines[0].state.
type Path []string

// ParsePath reads a path.
func ParsePath(text string) (Path, error) {
	wrong := fmt.Errorf("%q is not a path into JSON (write $.order.state or $.lines[0].id)", text)
	rest, ok := strings.CutPrefix(text, "$")
	if !ok || rest == "" || len(text) > 512 {
		return nil, wrong
	}
	var path Path
	for rest != "" {
		switch {
		case rest[0] == '.':
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			path = append(path, rest[1:1+end])
			rest = rest[1+end:]
		case strings.HasPrefix(rest, "['"):
			name, after, closed := strings.Cut(rest[2:], "']")
			if !closed || name == "" {
				return nil, wrong
			}
			path, rest = append(path, name), after
			continue
		case rest[0] == '[':
			index, after, closed := strings.Cut(rest[1:], "]")
			if n, err := strconv.ParseUint(index, 10, 31); !closed || err != nil || strconv.FormatUint(n, 10) != index {
				return nil, wrong
			}
			path = append(path, "["+index)
			rest = after
		default:
			return nil, wrong
		}
		if last := path[len(path)-1]; last == "" || strings.ContainsAny(last, "]*'\" ") {
			return nil, wrong
		}
	}
	return path, nil
}

// Find gives the member's own bytes, as they stand in the document.
func (p Path) Find(document []byte) (json.RawMessage, bool) {
	at := json.RawMessage(document)
	for _, step := range p {
		if index, ok := strings.CutPrefix(step, "["); ok {
			var list []json.RawMessage
			i, err := strconv.Atoi(index)
			if err != nil || json.Unmarshal(at, &list) != nil || i >= len(list) {
				return nil, false
			}
			at = list[i]
			continue
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(at, &members) != nil {
			return nil, false
		}
		member, ok := members[step]
		if !ok {
			return nil, false
		}
		at = member
	}
	return at, true
}

// Condition matches an answer: everything given must hold.
type Condition struct {
	// Status is one of these; empty means any.
	Status []int
	// Member of the body; nil means not looked at.
	Member Path
	// Is lists the values that match, as text.
	Is []string
}

func (c Condition) matches(status int, body []byte) bool {
	if len(c.Status) > 0 && !slices.Contains(c.Status, status) {
		return false
	}
	if c.Member == nil {
		return true
	}
	raw, ok := c.Member.Find(body)
	return ok && slices.Contains(c.Is, text(raw))
}

// text is a scalar as one would write it: a string without quotes, anything
// else as it stands.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil && !bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return s
	}
	return string(bytes.TrimSpace(raw))
}

// Rules read an answer.
type Rules struct {
	// Done and NotDone are the answers with a verdict; an answer that matches
	// both or neither cannot tell.
	Done, NotDone []Condition
	// Status of the result; 0 means the answer's.
	Status int
	// Body is the member that is the result's body; nil means the whole body.
	Body Path
	// Headers of the answer that the result keeps, beside Content-Type.
	Headers []string
}

// Verdict reads what became of the operation.
func (r Rules) Verdict(status int, body []byte) unavez.Verdict {
	match := func(c Condition) bool { return c.matches(status, body) }
	done, not := slices.ContainsFunc(r.Done, match), slices.ContainsFunc(r.NotDone, match)
	switch {
	case done && !not:
		return unavez.Done
	case not && !done:
		return unavez.NotDone
	}
	return unavez.CannotTell
}

// ErrNoResult says that an answer means "done" but does not hold the result.
var ErrNoResult = errors.New("the answer holds no result at result.json")

// Result makes the result that duplicates get.
func (r Rules) Result(status int, header http.Header, body []byte) (unavez.Result, error) {
	result := unavez.Result{Code: status, Body: body}
	if r.Status != 0 {
		result.Code = r.Status
	}
	if r.Body != nil {
		raw, ok := r.Body.Find(body)
		if !ok {
			return unavez.Result{}, ErrNoResult
		}
		result.Body = raw
	}
	for _, name := range append([]string{"Content-Type"}, r.Headers...) {
		for _, value := range header.Values(name) {
			result.Header = append(result.Header, store.Field{Name: name, Value: value})
		}
	}
	return result, nil
}

// NeverFrozen reports whether a header is about one connection or one caller,
// and so never part of a stored answer.
func NeverFrozen(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Content-Length", "Date",
		"Set-Cookie", "Www-Authenticate", "Proxy-Authenticate", "Authorization", "Idempotent-Replayed":
		return true
	}
	return false
}

// ReadBody reads an answer up to a limit; one over it cannot be judged.
func ReadBody(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("answer over %d bytes", limit)
	}
	return body, err
}
