package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/outbound"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// An alert is an operation of the engine, whose identity is the condition: every
// worker that notices the condition tells it, and one webhook is sent. It runs
// in lease mode, and where its answer was lost it is sent again under the same
// webhook-id, by which the receiver knows it. What each fault does:
//
//   - The receiver is down: tried again for alertFor, then given up, counted and
//     in the log, where the condition stands anyway.
//   - Killed before or after the call: another worker that notices the condition
//     within alertKept sends it, under the same id; if none does it is not sent.
//   - The same condition again after alertKept: another alert.
//   - More than alertBurst at a time: they are counted, and told in one alert for
//     each kind, effect and owner.

const (
	alertEffect = "unavez.alert.v1"
	// alertKept is how long a condition is one and the same.
	alertKept = 15 * time.Minute
	// alertFor is how long an alert is tried to be sent.
	alertFor = time.Hour
	// alertBurst is how many are told one by one in alertPause.
	alertBurst = 30
	alertPause = time.Minute
	maxAlerts  = 1000 // that wait
)

// alerter tells people of conditions.
type alerter struct {
	parts  *parts
	config *config.Alerts // nil for nobody
	client *http.Client

	mu      sync.Mutex
	waiting []inbox.Condition
	more    map[inbox.Condition]int // those that are told by number
	left    int                     // of the burst
	wake    chan struct{}

	quit chan struct{}   // closed to end it: nothing is tried again
	work context.Context // of what is being sent
	cut  context.CancelFunc
	done sync.WaitGroup
}

func newAlerter(c *config.Config, client *http.Client, p *parts) *alerter {
	a := &alerter{
		parts: p, config: c.Alerts, client: client, more: map[inbox.Condition]int{}, left: alertBurst,
		wake: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	a.work, a.cut = context.WithCancel(context.Background())
	if a.config != nil {
		a.done.Go(a.run)
	}
	return a
}

// tell takes a condition. It returns at once.
func (a *alerter) tell(c inbox.Condition) {
	a.parts.metrics.Condition(c)
	if a.config == nil || !slices.Contains(a.config.Kinds, c.Kind) || strings.HasPrefix(c.Effect, "unavez.alert.") {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == 0 || len(a.waiting) == maxAlerts {
		a.more[inbox.Condition{Kind: c.Kind, Owner: c.Owner, Source: c.Source, Effect: c.Effect, Over: c.Over}]++
		return
	}
	a.left--
	a.waiting = append(a.waiting, c)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run sends until it is to end, and then what waits, once.
func (a *alerter) run() {
	tick := time.NewTicker(alertPause)
	defer tick.Stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	for ended := false; !ended; {
		select {
		case <-a.quit:
			ended = true
			a.refill()
		case <-a.wake:
		case <-tick.C:
			a.refill()
		}
		for _, c := range a.take() {
			sending.Go(func() { a.send(c) })
		}
	}
}

// refill begins a new burst, with a word for each kind of what the one before
// could not tell.
func (a *alerter) refill() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = alertBurst
	for c, n := range a.more {
		c.Text = fmt.Sprintf("and %d more like this within %v: unavez ops list shows them", n, alertPause)
		a.waiting = append(a.waiting, c)
	}
	clear(a.more)
}

func (a *alerter) take() []inbox.Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.waiting
	a.waiting = nil
	return list
}

// stop ends it: what waits is sent, once, until ctx ends. Calling it twice is
// a mistake.
func (a *alerter) stop(ctx context.Context) {
	close(a.quit)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.done.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	a.cut()
	<-ended
}

// send sends one, and tries again for a while.
func (a *alerter) send(c inbox.Condition) {
	until := time.Now().Add(alertFor)
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := a.once(a.work, c)
		if err == nil {
			return
		}
		var never *hopeless
		if errors.As(err, &never) || time.Now().After(until) {
			a.failed(c, err)
			return
		}
		a.parts.log.Warn("an alert could not be sent, and is tried again", "kind", c.Kind, "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-a.quit:
			timer.Stop()
			a.failed(c, err)
			return
		case <-timer.C:
		}
	}
}

// failed gives an alert up: its operation is no longer one that needs a person.
func (a *alerter) failed(c inbox.Condition, cause error) {
	a.parts.metrics.Alerted(false)
	a.parts.log.Error("an alert could not be sent", "kind", c.Kind, "source", c.Source, "effect", c.Effect, "error", cause)
	ctx, cancel := context.WithTimeout(a.work, readyLimit)
	defer cancel()
	// The next one who notices the condition tries again, if this fails.
	_, _ = a.parts.engine.once(ctx, a.operation(ctx, c), func(context.Context, *unavez.Attempt) (unavez.Result, error) {
		return unavez.Result{}, unavez.Discard("it could not be sent")
	})
}

// hopeless is an answer that trying again does not mend.
type hopeless struct{ error }

// once is one try: the condition's operation, if it has no outcome yet.
func (a *alerter) once(ctx context.Context, c inbox.Condition) error {
	var refused error
	sent := false
	_, err := a.parts.engine.once(ctx, a.operation(ctx, c), func(ctx context.Context, attempt *unavez.Attempt) (unavez.Result, error) {
		status, err := a.call(ctx, attempt.DerivedKey(), c)
		refused, sent = err, err == nil
		return unavez.Result{Code: status}, err
	})
	switch {
	case err == nil && sent:
		a.parts.metrics.Alerted(true)
		return nil
	case err == nil, unavez.CodeOf(err) == unavez.CodeInFlight:
		return nil // another worker has sent it, or is about to
	case refused != nil:
		return refused
	}
	return err
}

// operation is that of a condition.
func (a *alerter) operation(ctx context.Context, c inbox.Condition) unavez.Operation {
	return unavez.Operation{
		Effect: alertEffect, Key: a.identity(ctx, c), Retention: alertKept, Tombstone: -1,
		Lease: a.config.Timeout + 10*time.Second, Unknown: unavez.Retry,
	}
}

// identity is what makes two conditions one.
func (a *alerter) identity(ctx context.Context, c inbox.Condition) []string {
	key, attempt := "-", "-"
	if c.Key != (store.Key{}) {
		key = c.Key.String()
		// One that was redriven and died again is another condition.
		if record, _, _, err := a.parts.operations.Show(ctx, c.Key); err == nil {
			attempt = strconv.FormatInt(record.Attempt, 10)
		}
	}
	text := "-"
	if c.Key == (store.Key{}) && c.Text != "" {
		text = c.Text[:min(len(c.Text), 200)]
	}
	return []string{c.Kind, strconv.FormatBool(c.Over), cmp.Or(c.Owner, "-"), cmp.Or(c.Source, "-"), cmp.Or(c.Effect, "-"), key, attempt, strings.ToValidUTF8(text, "")}
}

// alert is what is sent.
type alert struct {
	// Type is "unavez.dead" and so on, with ".over" behind it for one that ended.
	Type string `json:"type"`
	// Timestamp is when it is sent.
	Timestamp time.Time `json:"timestamp"`
	// Data of the condition.
	Data alertData `json:"data"`
}

type alertData struct {
	Kind   string `json:"kind"`
	Over   bool   `json:"over"`
	Owner  string `json:"owner,omitempty"`
	Source string `json:"source,omitempty"`
	Effect string `json:"effect,omitempty"`
	Key    string `json:"key,omitempty"`
	Text   string `json:"text"`
}

// call sends the webhook.
func (a *alerter) call(ctx context.Context, id string, c inbox.Condition) (status int, err error) {
	now := time.Now()
	out := alert{Type: "unavez." + c.Kind, Timestamp: now.UTC(), Data: alertData{
		Kind: c.Kind, Over: c.Over, Owner: c.Owner, Source: c.Source, Effect: c.Effect, Text: c.Text,
	}}
	if c.Over {
		out.Type += ".over"
	}
	if c.Key != (store.Key{}) {
		out.Data.Key = c.Key.String()
	}
	body, err := json.Marshal(out)
	if err != nil {
		return 0, unavez.NeverStarted(&hopeless{err})
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.config.URL, bytes.NewReader(body))
	if err != nil {
		return 0, unavez.NeverStarted(&hopeless{errors.New("alerts.url: no address")})
	}
	request.Header = headerOf(a.config.Headers)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	var signatures []string
	for _, secret := range signing(a.config.Secrets) {
		signature, err := source.SignStandard(secret, id, now, body)
		if err != nil {
			return 0, unavez.NeverStarted(&hopeless{fmt.Errorf("alerts.secrets: %w", err)})
		}
		signatures = append(signatures, signature)
	}
	request.Header.Set("Webhook-Signature", strings.Join(signatures, " "))
	response, err := a.client.Do(request)
	var dial *net.OpError
	switch {
	case errors.Is(err, outbound.ErrRefused):
		return 0, unavez.NeverStarted(&hopeless{plainError(err)})
	case errors.As(err, &dial) && dial.Op == "dial":
		return 0, unavez.NeverStarted(plainError(err))
	case err != nil:
		return 0, plainError(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // its head has said it
	status = response.StatusCode
	switch {
	case status >= 200 && status < 300:
		return status, nil
	case status == http.StatusGone, status >= 300 && status < 400:
		return status, unavez.NeverStarted(&hopeless{fmt.Errorf("the receiver of alerts answered %d", status)})
	}
	return status, unavez.NeverStarted(fmt.Errorf("the receiver of alerts answered %d", status)) // it has not taken it
}
