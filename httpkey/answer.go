package httpkey

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/unavez/unavez"
)

// spoolMemory is how much of an answer is held in memory; the rest goes to a
// temporary file until the commit.
const spoolMemory = 1 << 20

// What keeps an answer from being held until the commit.
var (
	// errSpool: it cannot be held.
	errSpool = errors.New("spool of an answer")
	// errAnswerTooLarge: it is over Options.SpoolLimit.
	errAnswerTooLarge = fmt.Errorf("%w: over the spool limit of a keyed request", errSpool)
)

// spool holds a body until the commit: memory first, then a file.
type spool struct {
	memory []byte
	keep   int64 // bytes that are held in memory
	limit  int64 // bytes in all
	size   int64
	file   *os.File
}

func newSpool(stored, limit int64) *spool {
	return &spool{keep: max(spoolMemory, stored), limit: limit}
}

// Write appends to the body.
func (s *spool) Write(p []byte) (int, error) {
	if s.size+int64(len(p)) > s.limit {
		return 0, errAnswerTooLarge
	}
	if s.file == nil && s.size+int64(len(p)) <= s.keep {
		s.memory = append(s.memory, p...)
		s.size += int64(len(p))
		return len(p), nil
	}
	if s.file == nil {
		file, err := os.CreateTemp("", "unavez-answer-*")
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errSpool, err)
		}
		s.file = file
		if _, err := file.Write(s.memory); err != nil {
			return 0, fmt.Errorf("%w: %w", errSpool, err)
		}
		s.memory = nil
	}
	n, err := s.file.Write(p)
	s.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("%w: %w", errSpool, err)
	}
	return n, nil
}

// front is the beginning of the body, for the sniffing of its type.
func (s *spool) front() []byte {
	if s.file == nil {
		return s.memory[:min(len(s.memory), 512)]
	}
	b := make([]byte, 512)
	n, _ := s.file.ReadAt(b, 0) // what cannot be read here fails in send
	return b[:n]
}

// send writes the body out.
func (s *spool) send(w io.Writer) error {
	if s.file == nil {
		_, err := w.Write(s.memory)
		return err
	}
	_, err := io.Copy(w, io.NewSectionReader(s.file, 0, s.size))
	return err
}

// close gives the file up. It is safe to call twice and on nil.
func (s *spool) close() {
	if s == nil || s.file == nil {
		return
	}
	_ = s.file.Close() // it is deleted, whatever became of it
	_ = os.Remove(s.file.Name())
	s.file = nil
}

// answer is a whole answer that has not been sent.
type answer struct {
	status int
	header http.Header
	body   *spool
	lost   bool // the body could not be held
}

// bodyless statuses have no body and no Content-Length.
func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

// ofConnection tells the headers that are about one connection and travel no
// further.
func ofConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// complete makes the header agree with the body: the type is sniffed as
// net/http would do, and the length is the body's own.
func (a *answer) complete() {
	closes := hasToken(a.header["Connection"], "close")
	dropConnection(a.header)
	if closes {
		a.header.Set("Connection", "close")
	}
	delete(a.header, ReplayedHeader)
	delete(a.header, "Content-Length")
	if bodyless(a.status) {
		return
	}
	if _, set := a.header["Content-Type"]; !set && a.body.size > 0 && a.header.Get("Content-Encoding") == "" {
		a.header.Set("Content-Type", http.DetectContentType(a.body.front()))
	}
	a.header.Set("Content-Length", strconv.FormatInt(a.body.size, 10))
}

// dropConnection takes out the lines about the connection, those that
// Connection names, and trailers.
func dropConnection(header http.Header) {
	for token := range tokens(header["Connection"]) {
		delete(header, http.CanonicalHeaderKey(token))
	}
	for name := range header {
		if ofConnection(name) || strings.HasPrefix(name, http.TrailerPrefix) {
			delete(header, name)
		}
	}
}

// tokens are the members of a comma-separated list over several lines.
func tokens(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for token := range strings.SplitSeq(line, ",") {
				if token = strings.TrimSpace(token); token != "" && !yield(token) {
					return
				}
			}
		}
	}
}

func hasToken(lines []string, want string) bool {
	for token := range tokens(lines) {
		if strings.EqualFold(token, want) {
			return true
		}
	}
	return false
}

// neverFrozen are lines that belong to one answer and not to its replays.
func neverFrozen(name string) bool {
	switch name {
	case "Set-Cookie", "Www-Authenticate", "Proxy-Authenticate", "Authorization", "Proxy-Authorization",
		"Authentication-Info", "Proxy-Authentication-Info", "Date", "Content-Length", "Preference-Applied", ReplayedHeader:
		return true
	}
	return ofConnection(name)
}

// freeze makes the result that duplicates get. Lines that base has already are
// those of the layers around and are not the operation's.
func (a *answer) freeze(base http.Header, limit int64) unavez.Result {
	result := unavez.Result{Code: a.status}
	names := make([]string, 0, len(a.header))
	size := a.body.size
	for name, values := range a.header {
		if neverFrozen(name) {
			continue
		}
		names = append(names, name)
		for _, v := range values {
			size += int64(len(name) + len(v))
		}
	}
	if a.lost || size > limit {
		result.NotReplayable = true
		return result
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range added(base[name], a.header[name]) {
			result.Header = append(result.Header, unavez.Field{Name: name, Value: value})
		}
	}
	if !bodyless(a.status) {
		result.Body = a.body.memory
	}
	return result
}

// added are the values that were appended to base, or all of them when base
// was replaced.
func added(base, values []string) []string {
	if len(values) >= len(base) && slices.Equal(values[:len(base)], base) {
		return values[len(base):]
	}
	return values
}

// listed headers of a replay join what the layers around have set; all others
// replace it.
func listed(name string) bool {
	switch name {
	case "Vary", "Link", "Via", "Server-Timing", "Access-Control-Expose-Headers":
		return true
	}
	return false
}

// merge puts lines over those of the layers around, or beside them where both
// count.
func merge(into, lines http.Header) {
	for name, values := range lines {
		if listed(name) {
			values = append(slices.Clone(into[name]), values...)
		}
		into[name] = values
	}
}

// send writes the answer out, with exactly its header.
func (a *answer) send(w http.ResponseWriter) error {
	header := w.Header()
	for name := range header {
		if _, kept := a.header[name]; !kept {
			delete(header, name)
		}
	}
	for name, values := range a.header {
		header[name] = values
	}
	w.WriteHeader(a.status)
	if bodyless(a.status) {
		return nil
	}
	return a.body.send(w)
}

// replay writes a frozen result out, and the headers for this request's origin
// over the frozen ones.
func (x *exchange) replay(result unavez.Result) error {
	header := x.w.Header()
	values := x.lines[:0] // behind the lines that have one value; never grown, they are in use
	if need := len(result.Header) + 3; need > cap(values) {
		values = make([]string, 0, need)
	}
	one := func(v string) []string {
		values = append(values, v)
		return values[len(values)-1 : len(values) : len(values)]
	}
	caching := false
	for i, field := range result.Header {
		name := http.CanonicalHeaderKey(field.Name)
		if neverFrozen(name) { // a result that was put in by hand
			continue
		}
		caching = caching || name == "Cache-Control"
		first := i == 0 || !slices.ContainsFunc(result.Header[:i], func(f unavez.Field) bool { return http.CanonicalHeaderKey(f.Name) == name })
		switch {
		case !first:
		case !listed(name):
			header[name] = one(field.Value)
			continue
		case slices.Contains(header[name], field.Value): // a layer around has said it already
			continue
		}
		header[name] = append(header[name], field.Value)
	}
	if _, set := header["Content-Type"]; !set {
		header["Content-Type"] = nil // there was none: do not guess one
	}
	if !caching {
		header["Cache-Control"] = one("no-store")
	}
	header[ReplayedHeader] = one("true")
	if !bodyless(result.Code) {
		header["Content-Length"] = one(strconv.Itoa(len(result.Body)))
	}
	x.CORS.apply(header, x.r)
	x.w.WriteHeader(result.Code)
	if bodyless(result.Code) {
		return nil
	}
	return write(x.w, result.Body)
}

// sendable tells whether a result can be written as an HTTP answer.
func sendable(result unavez.Result) bool { return result.Code >= 200 && result.Code <= 999 }
