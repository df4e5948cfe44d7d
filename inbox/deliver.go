package inbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/source"
)

// DeliverOptions say where and how events are delivered by HTTP.
type DeliverOptions struct {
	// URL of the application: http or https, without user and password. Required.
	URL string
	// Client decides which addresses may be called, and by which TLS; required.
	// Deliver takes its Transport and changes what one attempt being one request
	// needs: no redirects, no cookies, HTTP/1.1, and a connection of its own for
	// each attempt, unless Reuse. Where the Transport is not an *http.Transport it
	// has to see to that itself, and must pass on the traces of its context.
	Client *http.Client
	// Reuse keeps connections open. An attempt whose connection dies while it
	// stands idle may then be unknown.
	Reuse bool
	// Secrets sign the request by Standard Webhooks ("whsec_…"): each that has not
	// expired gives a signature, two while one is rotated. None: it is not signed.
	Secrets []source.Secret
	// SecretsFunc, when not nil, is asked for each attempt instead.
	SecretsFunc func() []source.Secret
	// Header has further fields, such as Authorization. Those that Deliver writes
	// are refused.
	Header http.Header
	// Timeout bounds an attempt; 0 means 30 s.
	Timeout time.Duration
	// Done are statuses, beside those of the 200s, that say that the effect has
	// happened.
	Done []int
	// NotDone are statuses that declare that nothing was done and that it may be
	// tried again; nil means 408, 425, 429, and 503 where it comes with
	// Retry-After. Any other status of the 500s leaves the operation unknown.
	NotDone []int
	// Forbidden, when not nil, says that an error means that the address may not
	// be called, so that trying again does not help.
	Forbidden func(error) bool
	// Alert, when not nil, is told when the target is gone, and when it is back.
	Alert func(Condition)
}

const (
	defaultTimeout = 30 * time.Second
	// goneFor is how long a target that answered 410 is left alone.
	goneFor = time.Hour
	// maxDrained is how much of an answer's body is read, so that the application
	// is not cut off in the middle of its last words.
	maxDrained = 64 << 10
)

// Run is the Run of an [Effect].
type Run = func(ctx context.Context, attempt *unavez.Attempt, e *Event) (unavez.Result, error)

// deliverer delivers to one target.
type deliverer struct {
	DeliverOptions
	host   string
	client *http.Client
	traced bool // whether bytes on the wire are counted

	mu   sync.Mutex
	gone time.Time // until when the target is left alone
	told bool
}

// Deliver makes the Run of an effect whose handler is an application in any
// language: a POST of the event's data, in its content type, with headers that
// say what it is:
//
//	Idempotency-Key, Webhook-Id   the derived key, the same at every attempt
//	Webhook-Timestamp, -Signature of this attempt, if there are secrets
//	Unavez-Effect, Unavez-Source, Unavez-Type, Unavez-Tenant
//	Unavez-Event, Unavez-Subject  parts joined by '/', each escaped
//	Unavez-Version, Unavez-Time   of the event, where it has them
//	Unavez-Sequence               its place in the queue
//	Unavez-Attempt                the number of this attempt, from 1
//	Unavez-Unsigned, Unavez-Erased "true" where Event says so
//	X-Correlation-Id              of the delivery that brought it
//
// One attempt is at most one request on the wire. What its end means:
//
//	200–299, Done                  done
//	NotDone                        tried again, after Retry-After if it says so
//	410                            dead; the target is left alone for an hour
//	other 300–499, but 303         dead: it was refused
//	no byte was sent               tried again
//	anything else                  unknown; Effect.Unknown decides
//
// The body of the answer is not kept.
func Deliver(o DeliverOptions) (Run, error) {
	d := &deliverer{DeliverOptions: o}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("deliver: %w", err)
	}
	d.Header = o.Header.Clone()
	d.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	d.client = &http.Client{
		Transport:     d.transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d.run, nil
}

func (d *deliverer) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	u, err := url.Parse(d.URL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		fault("url: want an http or https address")
	case u.User != nil:
		fault("url: user and password stand in Header (Authorization)")
	default:
		d.host = u.Host
	}
	if d.Client == nil {
		fault("client: none; it decides which addresses may be called")
	}
	if d.Timeout < 0 {
		fault("timeout: %v", d.Timeout)
	}
	for _, s := range d.Secrets {
		if _, err := source.SignStandard(s, "id", time.Time{}, nil); err != nil {
			fault("secrets: %v: %w", s, err)
		}
	}
	for name := range d.Header {
		if ours(http.CanonicalHeaderKey(name)) {
			fault("header: %s is written by the delivery itself", name)
		}
	}
	for _, status := range d.Done {
		if status < 300 || status > 599 || slices.Contains(d.NotDone, status) {
			fault("done: status %d", status)
		}
	}
	for _, status := range d.NotDone {
		if status < 400 || status > 599 {
			fault("not done: status %d is no refusal", status)
		}
	}
	return errors.Join(faults...)
}

// ours says that a header is written by the delivery.
func ours(name string) bool {
	switch name {
	case "Idempotency-Key", "Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Host", "X-Correlation-Id":
		return true
	}
	return strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "Unavez-")
}

// run is one attempt.
func (d *deliverer) run(ctx context.Context, attempt *unavez.Attempt, e *Event) (unavez.Result, error) {
	if wait := d.rests(); wait > 0 {
		return unavez.Result{}, unavez.Again(errors.New("the target has answered 410 Gone and is left alone"), wait)
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	request, err := d.request(ctx, attempt.DerivedKey(), attempt.Fence(), e)
	if err != nil {
		return unavez.Result{}, unavez.NeverStarted(err)
	}
	if !attempt.Held() {
		return unavez.Result{}, unavez.NeverStarted(errors.New("the lease of the attempt is over"))
	}
	w := &watched{}
	response, err := d.client.Do(request.WithContext(httptrace.WithClientTrace(ctx, w.trace())))
	if err != nil {
		return unavez.Result{}, d.failed(w, err)
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxDrained) // its head has said it
	_ = response.Body.Close()
	return d.classify(response)
}

// failed says what an attempt without an answer means.
func (d *deliverer) failed(w *watched, err error) error {
	err = withoutURL(err)
	if !w.unsent(d.traced) {
		return fmt.Errorf("delivery to %s: %w", d.host, err)
	}
	err = fmt.Errorf("delivery to %s: nothing was sent: %w", d.host, err)
	if d.Forbidden != nil && d.Forbidden(err) {
		return unavez.Dead(err)
	}
	return unavez.NeverStarted(err)
}

// classify says what an answer means.
func (d *deliverer) classify(response *http.Response) (unavez.Result, error) {
	status := response.StatusCode
	err := fmt.Errorf("%s answered %d", d.host, status)
	after := retryAfterOf(response.Header, time.Now())
	switch {
	case status >= 200 && status <= 299, slices.Contains(d.Done, status):
		d.isBack()
		return unavez.Result{Code: status}, nil
	case d.notDone(status, response.Header.Get("Retry-After") != ""):
		return unavez.Result{}, unavez.Again(err, after)
	case status == http.StatusGone:
		d.isGone()
		return unavez.Result{}, unavez.Dead(err)
	case status == http.StatusSeeOther: // how a form is answered that was taken
		return unavez.Result{}, err
	case status >= 300 && status <= 499:
		return unavez.Result{}, unavez.Dead(err)
	}
	return unavez.Result{}, err
}

// notDone says that a status declares that nothing was done.
func (d *deliverer) notDone(status int, later bool) bool {
	if d.NotDone != nil {
		return slices.Contains(d.NotDone, status)
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status == http.StatusServiceUnavailable && later
}

// rests is how long the target is still to be left alone.
func (d *deliverer) rests() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.gone)
}

func (d *deliverer) isGone() {
	d.mu.Lock()
	d.gone = time.Now().Add(goneFor)
	first := !d.told
	d.told = true
	d.mu.Unlock()
	if first && d.Alert != nil {
		d.Alert(Condition{Kind: "held", Text: fmt.Sprintf("%s answered 410 Gone: nothing is delivered there, but for one event an hour", d.host)})
	}
}

func (d *deliverer) isBack() {
	d.mu.Lock()
	back := d.told
	d.told, d.gone = false, time.Time{}
	d.mu.Unlock()
	if back && d.Alert != nil {
		d.Alert(Condition{Kind: "held", Text: d.host + " takes deliveries again", Over: true})
	}
}

// once is a body that net/http cannot send a second time: it re-sends a POST that
// has an Idempotency-Key on a new connection when a reused one was dead, if the
// body is none or can be had again.
type once struct{ io.Reader }

func (once) Close() error { return nil }

// request is what is sent.
func (d *deliverer) request(ctx context.Context, key string, number int64, e *Event) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, nil)
	if err != nil {
		return nil, errors.New("url: no address")
	}
	r.Body, r.ContentLength = once{bytes.NewReader(e.Data)}, int64(len(e.Data))
	h := r.Header
	for name, values := range d.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	set := func(name, value string) {
		if value != "" {
			h.Set(name, escaped(value, ""))
		}
	}
	set("Content-Type", cmp.Or(e.ContentType, "application/octet-stream"))
	set("Idempotency-Key", key)
	set("Webhook-Id", key)
	set("Unavez-Effect", e.Effect)
	set("Unavez-Source", e.Source)
	set("Unavez-Type", e.Type)
	set("Unavez-Tenant", e.Tenant)
	h.Set("Unavez-Attempt", strconv.FormatInt(number, 10))
	for name, parts := range map[string][]string{"Unavez-Event": e.ID, "Unavez-Subject": e.Subject} {
		if len(parts) > 0 {
			h.Set(name, joined(parts))
		}
	}
	set("Unavez-Version", e.Version)
	if !e.Time.IsZero() {
		h.Set("Unavez-Time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	if e.Sequence > 0 {
		h.Set("Unavez-Sequence", strconv.FormatInt(e.Sequence, 10))
	}
	if e.Unsigned {
		h.Set("Unavez-Unsigned", "true")
	}
	if e.Erased {
		h.Set("Unavez-Erased", "true")
	}
	set("X-Correlation-Id", e.Correlation)
	return r, d.sign(h, key, e.Data)
}

// sign writes the headers of Standard Webhooks.
func (d *deliverer) sign(h http.Header, id string, body []byte) error {
	secrets := d.Secrets
	if d.SecretsFunc != nil {
		secrets = d.SecretsFunc()
	}
	if len(secrets) == 0 {
		h.Del("Webhook-Id")
		return nil
	}
	now := time.Now()
	var signatures []string
	for _, s := range secrets {
		if !s.Until.IsZero() && !now.Before(s.Until) {
			continue
		}
		signature, err := source.SignStandard(s, id, now, body)
		if err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		signatures = append(signatures, signature)
	}
	if len(signatures) == 0 {
		return errors.New("every secret to sign with has expired")
	}
	h.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
	return nil
}

// joined are parts with slashes between them, slashes within them escaped.
func joined(parts []string) string {
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = escaped(part, "/")
	}
	return strings.Join(texts, "/")
}

// escaped is a text as it can stand in a header: '%', what also names, and
// everything that is not a visible ASCII character are percent-encoded; a space
// within stays.
func escaped(text, also string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		edge := i == 0 || i == len(text)-1
		if c > ' ' && c < 0x7f && c != '%' && strings.IndexByte(also, c) < 0 || c == ' ' && !edge {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
