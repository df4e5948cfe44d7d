package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez/source"
)

// Poll says how the sender's own list of what happened is read, for what was
// never delivered. What it lists goes in as deliveries do; most of it is known
// already. One worker at a time reads a list, from where the last reading ended,
// and the cursor moves after the commit of what was read.
type Poll struct {
	// Name tells several lists of one source apart: up to 64 letters, digits, '-'
	// and '_'; one may be without.
	Name string
	// Listing of the sender. Required.
	Listing *source.Listing
	// Base is the address of the sender's API, as "https://api.stripe.com".
	// Addresses that its answers give must be of the same scheme and host.
	Base string
	// Client makes the calls; required. It must not follow redirects to other
	// hosts with what Authorize writes.
	Client *http.Client
	// Authorize, when not nil, writes the credentials into a request. An error
	// ends the round.
	Authorize func(*http.Request) error
	// Interval is the pause between two readings, shortened at random by up to a
	// fifth; 0 means 5 min. After an error it doubles, up to an hour.
	Interval time.Duration
	// Overlap is how far a reading reaches behind the end of the one before: more
	// than the sender's list may lag behind, and than its clock may be off; 0
	// means 10 min.
	Overlap time.Duration
	// Back is how far back the very first reading goes; 0 means Overlap.
	Back time.Duration
	// Timeout bounds one call; 0 means 30 s.
	Timeout time.Duration
	// AnswerLimit bounds the body of an answer, in bytes; 0 means 16 MiB.
	AnswerLimit int64
}

const (
	defaultInterval = 5 * time.Minute
	defaultOverlap  = 10 * time.Minute
	defaultCall     = 30 * time.Second
	defaultAnswer   = 16 << 20
	longestInterval = time.Hour
	// resumeStable and resumeCounted are how long a reading that was broken off may
	// go on where it stood. Later its pages may be others, and it begins anew.
	resumeStable, resumeCounted = 24 * time.Hour, 15 * time.Minute
	// maxKnown bounds what a worker remembers of a list, to leave it alone.
	maxKnown = 20_000
	// unreadFor is how long a list may be unreadable before that is told.
	unreadFor = time.Hour
)

// poller reads one list of one source.
type poller struct {
	Poll
	*beside
	gate *gate
	base *url.URL

	first   time.Time // when this worker began
	failing time.Time // since when; zero while it works
	told    bool
	failed  int // rounds in a row

	mu    sync.Mutex
	known map[string]bool // what has been committed, to be left alone
}

func newPoller(b *beside, g *gate, p Poll) *poller {
	defaults := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	defaults(&p.Interval, defaultInterval)
	defaults(&p.Overlap, defaultOverlap)
	defaults(&p.Back, p.Overlap)
	defaults(&p.Timeout, defaultCall)
	if p.AnswerLimit == 0 {
		p.AnswerLimit = defaultAnswer
	}
	return &poller{Poll: p, beside: b, gate: g, known: map[string]bool{}, first: time.Now()}
}

func (p *poller) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if p.Name != "" && !isName(p.Name) {
		fault("name: %q; want up to 64 letters, digits, '-' and '_'", p.Name)
	}
	if p.Listing == nil || p.Listing.First == nil || p.Listing.Read == nil {
		fault("listing: none (take one of package source)")
	}
	if p.Client == nil {
		fault("client: none; it decides which addresses may be called")
	}
	var err error
	if p.base, err = url.Parse(strings.TrimSuffix(p.Base, "/")); err != nil || p.base.Scheme != "https" && p.base.Scheme != "http" || p.base.Host == "" || p.base.RawQuery != "" {
		fault("base: %q; want an http or https address without query", p.Base)
	}
	for name, d := range map[string]time.Duration{"interval": p.Interval, "overlap": p.Overlap, "back": p.Back, "timeout": p.Timeout} {
		if d < 0 {
			fault("%s: %v", name, d)
		}
	}
	if p.AnswerLimit < 0 {
		fault("answer limit: %d", p.AnswerLimit)
	}
	return errors.Join(faults...)
}

func (p *poller) position() string { return "list/" + p.gate.Name + "/" + p.Name }

// lease is how long the list stays this worker's own without another call.
func (p *poller) lease() time.Duration { return p.Interval + 2*p.Timeout + time.Minute }

// forget drops what is known: the database may have lost it.
func (p *poller) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

// run reads until ctx ends.
func (p *poller) run(ctx context.Context) {
	for pause(ctx, min(p.Interval, 5*time.Second)); ctx.Err() == nil; {
		wait := p.Interval
		if err := p.round(ctx); err != nil && ctx.Err() == nil {
			wait = p.fails(err)
		} else if err == nil {
			p.works()
		}
		pause(ctx, wait)
	}
}

// fails counts a round that failed, and says how long to wait.
func (p *poller) fails(err error) time.Duration {
	now := time.Now()
	if p.failing.IsZero() {
		p.failing = now
	}
	p.failed++
	p.opts.Log.Warn("the sender's list could not be read", "source", p.gate.Name, "list", p.Name, "error", err)
	if !p.told && now.Sub(p.failing) >= unreadFor {
		p.told = true
		p.alert(Condition{Kind: "silent", Source: p.gate.Name, Text: fmt.Sprintf("the sender's list %q could not be read for %v", p.Name, unreadFor)})
	}
	wait := p.Interval << min(p.failed, 16)
	if wait > longestInterval || wait <= 0 {
		wait = max(longestInterval, p.Interval)
	}
	var busy *busyError
	if errors.As(err, &busy) {
		wait = max(wait, busy.after)
	}
	return wait
}

func (p *poller) works() {
	if p.told {
		p.alert(Condition{Kind: "silent", Source: p.gate.Name, Text: fmt.Sprintf("the sender's list %q is read again", p.Name), Over: true})
	}
	p.failing, p.told, p.failed = time.Time{}, false, 0
}

// cursor is how far a list was read, as it is stored.
type cursor struct {
	// Since is the instant up to which everything was read and committed.
	Since time.Time `json:"since"`
	// Next is the call that goes on with a reading that is under way.
	Next *source.Call `json:"next,omitempty"`
	// Began is when that reading began, by the sender's clock where it tells it,
	// and Latest the newest instant it has found.
	Began  time.Time `json:"began,omitzero"`
	Latest time.Time `json:"latest,omitzero"`
	// Saved is when this was stored, by this worker's clock.
	Saved time.Time `json:"saved,omitzero"`
}

// round is one reading, if no other worker reads.
func (p *poller) round(ctx context.Context) error {
	text, mine, err := p.positions.Position(ctx, p.position(), p.worker, p.lease())
	if err != nil || !mine {
		return err
	}
	var at cursor
	if text == "" {
		// Stored before anything is read: else a first reading that fails would
		// leave what happened before the next one to nobody.
		at.Since = p.first.Add(p.Overlap - p.Back)
		if err := p.save(ctx, at); err != nil {
			return err
		}
	} else if err := json.Unmarshal([]byte(text), &at); err != nil {
		return fmt.Errorf("stored position %q: %w", p.position(), err)
	}
	within := resumeCounted
	if p.Listing.Stable {
		within = resumeStable
	}
	resumed := at.Next != nil && time.Since(at.Saved) < within
	if !resumed {
		at = p.begins(at)
	}
	for at.Next != nil {
		next, err := p.page(ctx, at)
		var fault *source.Fault
		if resumed && errors.As(err, &fault) {
			at, resumed = p.begins(at), false // its place may be gone
			continue
		}
		if err != nil {
			return err
		}
		at, resumed = next, false
		if err := p.save(ctx, at); err != nil {
			return err
		}
		if at.Next != nil && !pause(ctx, max(p.Listing.Pause, time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// begins is a reading at its beginning.
func (p *poller) begins(at cursor) cursor {
	first := p.Listing.First(at.Since.Add(-p.Overlap))
	return cursor{Since: at.Since, Next: &first}
}

func (p *poller) save(ctx context.Context, at cursor) error {
	at.Saved = time.Now()
	text, err := json.Marshal(at)
	if err != nil {
		return err
	}
	return p.positions.SavePosition(ctx, p.position(), p.worker, string(text), p.lease())
}

// page makes one call, commits what it lists, and returns where to go on. At the
// end of the list the cursor moves to the newest instant that was found, but not
// beyond the beginning of the reading: what changed meanwhile may have stood on a
// page that was read before.
func (p *poller) page(ctx context.Context, at cursor) (cursor, error) {
	answer, page, err := p.call(ctx, *at.Next)
	if err != nil {
		return at, err
	}
	if at.Began.IsZero() {
		at.Began = time.Now()
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			at.Began = date
		}
	}
	if page.Latest.After(at.Latest) {
		at.Latest = page.Latest
	}
	if err := p.take(ctx, page.Items); err != nil {
		return at, err
	}
	for _, detail := range page.Details {
		if p.knows(detail.URL) {
			continue
		}
		if !pause(ctx, max(p.Listing.Pause, time.Millisecond)) {
			return at, context.Cause(ctx)
		}
		_, found, err := p.call(ctx, detail)
		var fault *source.Fault
		switch {
		case errors.As(err, &fault): // gone meanwhile, or of a form that nobody can read
			p.opts.Log.Warn("a listed delivery cannot be read", "source", p.gate.Name, "list", p.Name, "reason", fault.Reason)
			continue
		case err != nil:
			return at, err
		}
		if err := p.take(ctx, found.Items); err != nil {
			return at, err
		}
		p.learn(detail.URL)
		if err := p.save(ctx, at); err != nil { // many of them outlive a lease
			return at, err
		}
	}
	return at.after(page.Next, p.Listing.Ascending), nil
}

// after is the cursor once a page is committed.
func (c cursor) after(next *source.Call, ascending bool) cursor {
	c.Next = next
	if next != nil && !ascending {
		return c
	}
	end := c.Latest
	if end.After(c.Began) {
		end = c.Began
	}
	if end.After(c.Since) {
		c.Since = end
	}
	if next == nil {
		c.Began, c.Latest = time.Time{}, time.Time{}
	}
	return c
}

// take commits what was listed, and remembers it so that the overlap of the next
// reading costs nothing.
func (p *poller) take(ctx context.Context, items []source.Item) error {
	var fresh []source.Item
	var names []string
	for _, item := range items {
		name := ""
		if item.Event != nil && len(item.Event.ID) > 0 {
			name = strings.Join(item.Event.ID, "\x00")
		}
		if name != "" && p.knows(name) {
			continue
		}
		fresh, names = append(fresh, item), append(names, name)
	}
	if len(fresh) == 0 {
		return nil
	}
	receipt, err := p.Admit(ctx, p.gate.Name, fresh...)
	if err != nil {
		return err
	}
	if receipt.New > 0 {
		p.opts.Log.Warn("found in the sender's list what was not delivered", "source", p.gate.Name, "list", p.Name, "operations", receipt.New)
	}
	for _, name := range names {
		p.learn(name)
	}
	return nil
}

func (p *poller) knows(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[name]
}

func (p *poller) learn(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	if name != "" {
		p.known[name] = true
	}
}

// busyError: the sender wants to be left alone for a time.
type busyError struct {
	status int
	after  time.Duration
}

func (b *busyError) Error() string { return fmt.Sprintf("the sender answered %d", b.status) }

// call makes one call and reads its answer.
func (p *poller) call(ctx context.Context, c source.Call) (source.Answer, source.Page, error) {
	address, err := p.address(c.URL)
	if err != nil {
		return source.Answer{}, source.Page{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return source.Answer{}, source.Page{}, errors.New("the address of the list is none")
	}
	request.Header.Set("Accept", "application/json")
	if p.Authorize != nil {
		if err := p.Authorize(request); err != nil {
			return source.Answer{}, source.Page{}, fmt.Errorf("authorize: %w", err)
		}
	}
	response, err := p.Client.Do(request)
	if err != nil {
		return source.Answer{}, source.Page{}, withoutURL(err)
	}
	defer response.Body.Close()
	body, err := readUpTo(response.Body, make([]byte, 0, 4<<10), p.AnswerLimit)
	if err != nil {
		return source.Answer{}, source.Page{}, fmt.Errorf("answer of the list: %w", err)
	}
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests, status >= 500:
		return source.Answer{}, source.Page{}, &busyError{status, retryAfterOf(response.Header, time.Now())}
	case status == http.StatusUnauthorized, status == http.StatusForbidden, 300 <= status && status < 400:
		return source.Answer{}, source.Page{}, &busyError{status, 0}
	}
	answer := source.Answer{Status: response.StatusCode, Header: response.Header, Body: body}
	page, err := p.Listing.Read(c, answer)
	return answer, page, err
}

// address is where a call goes: below the base, or at an address of the same
// host. Any other would get the credentials.
func (p *poller) address(text string) (string, error) {
	if strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//") {
		return p.base.String() + text, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != p.base.Scheme || u.Host != p.base.Host || u.User != nil {
		return "", errors.New("the list goes on at another host than its base")
	}
	return u.String(), nil
}

// withoutURL is an error of a call without its address, whose query may hold
// what belongs to nobody else.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// retryAfterOf is what an answer asks for: seconds, or an instant. 0 for nothing.
func retryAfterOf(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
