package inbox

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/unavez/unavez/source"
)

const (
	// answerWithin is how long a delivery waits for each of what it needs of others
	// (keys, a commit) before the answer is 503. The flush goes on; the sender's
	// repetition finds what it kept.
	answerWithin = 1800 * time.Millisecond
	// retryAfter is what an answer of 503 asks for, in seconds.
	retryAfter = "5"
	// A compressed body is taken for a bomb where it unpacks to more than
	// maxRatio times its size, once that is more than ratioFrom bytes.
	maxRatio  = 100
	ratioFrom = 1 << 20
)

// errCutOff: the body ended before its end. It is no delivery at all.
var errCutOff = errors.New("the body was cut off")

// Handler receives the deliveries of one source, and answers the handshakes of
// its sender, with the statuses that its contract wants. A delivery is answered
// with success after its commit and not before; where it cannot be stored the
// answer is 503 with Retry-After, within two seconds. Answers have no body, and
// never quote anything. An unknown name is answered 404.
//
// A server in front of it has to bound the time that a request may take to arrive
// (http.Server.ReadTimeout).
func (r *Receiver) Handler(name string) http.Handler {
	g := r.sources[name]
	if g == nil {
		return http.NotFoundHandler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		d := r.begin(g)
		if id := in.Header.Get("X-Correlation-Id"); isCorrelation(id) {
			d.correlation = id
		}
		d.serve(w, in)
	})
}

// serve answers one request.
func (d *delivery) serve(w http.ResponseWriter, in *http.Request) {
	contract := d.gate.Contract
	if in.Method != http.MethodPost && contract.Handshake == nil {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := d.gate.read(in)
	reply := (*source.Reply)(nil)
	if err == nil {
		d.patience = answerWithin
		reply, err = d.exchange(in.Context(), &source.Request{Method: in.Method, URL: in.URL, Header: in.Header, Body: body, At: d.at})
	}
	switch {
	case reply != nil:
		d.sees(Sight{What: "ignored", Source: d.gate.Name, Reason: "handshake"})
		header := w.Header()
		for name, values := range reply.Header {
			header[name] = values
		}
		w.WriteHeader(reply.Status)
		_, _ = w.Write(reply.Body) // whoever asked has gone
		return
	case errors.Is(err, errMethod):
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	d.end(err)
	d.answer(w, err)
}

// errMethod: a request that is no delivery and no handshake.
var errMethod = errors.New("method not allowed")

// exchange is a handshake, and then there is a reply, or a delivery. A handshake
// proves itself: that is its contract's affair.
func (d *delivery) exchange(ctx context.Context, in *source.Request) (*source.Reply, error) {
	config := d.gate.config()
	packed := isPacked(in.Header)
	if packed { // unpacked for authentic senders only
		if err := d.verify(ctx, &config, in); err != nil {
			return nil, err
		}
		if fault, err := d.gate.unpack(in); fault != nil || err != nil {
			return nil, d.keepsPacked(ctx, in, fault, err)
		}
	}
	if reply, err := d.shake(ctx, &config, in); reply != nil || err != nil {
		return reply, err
	}
	if in.Method != http.MethodPost {
		return nil, errMethod
	}
	if !packed {
		if err := d.verify(ctx, &config, in); err != nil {
			return nil, err
		}
	}
	_, err := d.take(ctx, in)
	return nil, err
}

// shake answers a handshake, if the request is one.
func (d *delivery) shake(ctx context.Context, config *source.Config, in *source.Request) (*source.Reply, error) {
	if d.gate.Contract.Handshake == nil {
		return nil, nil
	}
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	reply, err := d.gate.Contract.Handshake(ctx, config, in)
	var fault *source.Fault
	if errors.As(err, &fault) && fault.Reason == source.EmptySecret {
		err = &unconfigured{fault}
	}
	return reply, err
}

// answer is the status that the contract wants. For what is no fault of the
// sender's it is 503: the delivery comes again.
func (d *delivery) answer(w http.ResponseWriter, err error) {
	contract, status := d.gate.Contract, 0
	var fault *source.Fault
	switch {
	case err == nil:
		w.WriteHeader(contract.Success)
		return
	case errors.Is(err, ErrTooLarge):
		status = contract.TooLarge
		w.Header().Set("Connection", "close") // the rest of the body is not waited for
	case errors.As(err, &fault):
		status = contract.Refused
	default:
		status = http.StatusServiceUnavailable
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.WriteHeader(status)
}

// read reads a body whole. The limit is on the bytes that arrive; a length that
// says more is not waited for.
func (g *gate) read(in *http.Request) ([]byte, error) {
	if in.ContentLength > g.BodyLimit {
		return nil, ErrTooLarge
	}
	room := in.ContentLength + 1
	if room <= 0 {
		room = 4 << 10
	}
	body, err := readUpTo(in.Body, make([]byte, 0, room), g.BodyLimit)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		err = fmt.Errorf("%w: %w", errCutOff, err)
	}
	return body, err
}

// readUpTo appends to buf what there is, and fails when that is more than limit
// bytes in all.
func readUpTo(from io.Reader, buf []byte, limit int64) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		free := buf[len(buf):min(int64(cap(buf)), limit+1)]
		n, err := from.Read(free)
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return nil, ErrTooLarge
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		}
	}
}

// isPacked says that a body has a Content-Encoding.
func isPacked(h http.Header) bool {
	codings := h.Values("Content-Encoding")
	return len(codings) > 1 || len(codings) == 1 && codings[0] != "" && !strings.EqualFold(strings.TrimSpace(codings[0]), "identity")
}

// unpack undoes the Content-Encoding of an authentic delivery. A fault is for a
// body that cannot be undone, the error for one that is over the limit.
func (g *gate) unpack(in *source.Request) (*source.Fault, error) {
	if !isPacked(in.Header) || in.Plain != nil {
		return nil, nil
	}
	codings := in.Header.Values("Content-Encoding")
	if name := strings.ToLower(strings.TrimSpace(codings[0])); len(codings) > 1 || name != "gzip" && name != "x-gzip" {
		return &source.Fault{Reason: source.WrongType, Field: "Content-Encoding"}, nil
	}
	plain, err := gunzip(in.Body, g.PlainLimit)
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, err
	case err != nil:
		return &source.Fault{Reason: source.MalformedBody, Field: "Content-Encoding"}, nil
	}
	in.Plain = plain
	return nil, nil
}

// keepsPacked keeps an authentic body that cannot be unpacked: the sender would
// pack it in the same way the next time.
func (d *delivery) keepsPacked(ctx context.Context, in *source.Request, fault *source.Fault, err error) error {
	if err != nil {
		return err
	}
	_, err = d.admit(ctx, []source.Item{{Fault: fault, Raw: in.Body}}, &d.proof)
	return err
}

// gunzip unpacks at most limit bytes, and of a body that is packed more tightly
// than texts are no more than maxRatio times its size.
func gunzip(packed []byte, limit int64) ([]byte, error) {
	limit = min(limit, max(int64(len(packed))*maxRatio, ratioFrom))
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	room := int64(4 << 10)
	if len(packed) >= 18 { // the size that the packer tells: a guess, no promise
		room = min(int64(binary.LittleEndian.Uint32(packed[len(packed)-4:]))+1, limit+1)
	}
	plain, err := readUpTo(z, make([]byte, 0, max(room, 64)), limit)
	if err != nil {
		return nil, err
	}
	return plain, z.Close()
}

// isCorrelation says whether a text of the request may stand in logs.
func isCorrelation(text string) bool {
	for _, c := range []byte(text) {
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return len(text) >= 1 && len(text) <= 128
}
