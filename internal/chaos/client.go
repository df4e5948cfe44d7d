package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unavez/unavez/source"
)

// The kinds of operations, and the front of their names.
const (
	kindOrder   = "order"
	kindCharge  = "charge"
	kindPayment = "payment"
	kindEvent   = "event"
	kindBare    = "bare"
)

// pathOf is that of a kind at a worker.
func pathOf(kind string) string {
	switch kind {
	case kindEvent:
		return "/in/shop"
	case kindBare:
		return "/bare"
	}
	return "/" + kind + "s"
}

// operation is one thing that a client wants, with everything that it sends.
type operation struct {
	kind, name string
	body       []byte
	header     http.Header // the same for every delivery, but for signatures
	answer     string      // the first final one
}

// clients send operations and write down what they are answered.
type clients struct {
	workers []*worker
	kinds   []string
	front   string // of customers
	client  *http.Client

	deliveries atomic.Int64
	unanswered atomic.Int64 // deliveries without an answer
	hurt       atomic.Int64 // those of them that patience would not have helped
	waited     atomic.Int64 // deliveries that were told to come again
	answered   atomic.Int64 // operations

	mu         sync.Mutex
	random     *rand.Rand
	all        []*operation
	numbers    map[string]int // of a customer's events
	violations []string
}

func newClients(seed uint64, workers []*worker, kinds []string, front string) *clients {
	return &clients{
		workers: workers, kinds: kinds, front: front, random: rand.New(rand.NewPCG(seed, 2)), numbers: map[string]int{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// draw is a number below n.
func (c *clients) draw(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

// violate writes down that a promise was broken. The first hundred are enough.
func (c *clients) violate(format string, arguments ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.violations) < 100 {
		c.violations = append(c.violations, fmt.Sprintf(format, arguments...))
	}
}

// next makes an operation. A customer's events are made by one client, one
// after the other.
func (c *clients) next(customer int) *operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := c.kinds[c.random.IntN(len(c.kinds))]
	n := named{Customer: c.front + strconv.Itoa(customer)}
	o := &operation{kind: kind, header: http.Header{"Content-Type": {"application/json"}}}
	if kind == kindEvent {
		c.numbers[n.Customer]++
		n.Number = c.numbers[n.Customer]
		n.Operation = fmt.Sprintf("event/%s/%d", n.Customer, n.Number)
		o.name = n.Operation
		o.body = []byte(fmt.Sprintf(`{"type":"order.paid","timestamp":%q,"data":{"operation":%q,"customer":%q,"number":%d}}`,
			time.Now().UTC().Format(time.RFC3339), n.Operation, n.Customer, n.Number))
	} else {
		n.Operation = fmt.Sprintf("%s/%d", kind, len(c.all))
		o.name = n.Operation
		o.header.Set("Idempotency-Key", n.Operation)
		o.body, _ = json.Marshal(n) // strings and numbers
	}
	c.all = append(c.all, o)
	return o
}

// run sends operations until enough says so: each several times, by several
// senders at once.
func (c *clients) run(ctx context.Context, customer int, enough func() bool) {
	for !enough() && ctx.Err() == nil {
		o := c.next(customer)
		senders := 1
		if c.draw(2) == 0 {
			senders += 1 + c.draw(2)
		}
		if o.kind == kindOrder && c.draw(5) == 0 { // what a client without the product does, beside
			bare := &operation{kind: kindBare, name: kindBare + "/" + o.name, header: o.header}
			bare.body, _ = json.Marshal(named{Operation: bare.name}) // strings
			_, _ = c.deliver(ctx, bare, barePause*4/5)               // nothing is promised of it
			_ = c.insist(ctx, bare, barePause)
		}
		var running sync.WaitGroup
		for range senders {
			running.Go(func() { c.settle(o, c.insist(ctx, o, 0)) })
		}
		running.Wait()
		if c.draw(3) == 0 { // and once more, when all is over
			c.settle(o, c.insist(ctx, o, 0))
		}
		c.answered.Add(1)
	}
}

// settle compares a final answer with the others of its operation.
func (c *clients) settle(o *operation, answer string) {
	if answer == "" {
		c.violate("%s: no answer until the end", o.name)
		return
	}
	c.mu.Lock()
	first := o.answer
	if first == "" {
		o.answer = answer
	}
	c.mu.Unlock()
	if first != "" && first != answer {
		c.violate("%s: answers %q and %q", o.name, first, answer)
	}
}

// insist sends an operation until it has a final answer, as a client does that
// has no patience: after least, or some more, it asks again, and mostly another
// worker. Empty means that the time was over.
func (c *clients) insist(ctx context.Context, o *operation, least time.Duration) (answer string) {
	for ctx.Err() == nil {
		patience := time.Duration(20+c.draw(1500)) * time.Millisecond
		if c.draw(4) == 0 { // most would be answered in this time
			patience /= 30
		}
		answer, err := c.deliver(ctx, o, least+patience)
		if err != nil {
			c.violate("%s: %v", o.name, err)
			return err.Error()
		}
		if answer != "" {
			return answer
		}
		timer := time.NewTimer(time.Duration(5+c.draw(80)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return ""
}

// patient is a client who waits for longer than anything here takes.
const patient = 700 * time.Millisecond

// deliver sends it once. An answer that is not final is none; an error is an
// answer that nobody should get.
func (c *clients) deliver(ctx context.Context, o *operation, patience time.Duration) (answer string, err error) {
	c.deliveries.Add(1)
	at := c.workers[c.draw(len(c.workers))].at()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+pathOf(o.kind), bytes.NewReader(o.body))
	if err != nil {
		return "", err
	}
	r.Header = o.header.Clone()
	if o.kind == kindEvent {
		now := time.Now()
		id := strings.ReplaceAll(o.name, "/", "-")
		sign, err := source.SignStandard(source.NewSecret("shop", secret), id, now, o.body)
		if err != nil {
			return "", err
		}
		r.Header.Set("Webhook-Id", id)
		r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
		r.Header.Set("Webhook-Signature", sign)
	}
	got, err := send(c.client, r)
	switch {
	case err != nil:
		c.unanswered.Add(1)
		if ctx.Err() == nil || patience >= patient {
			c.hurt.Add(1)
		}
		return "", nil
	case got.status == http.StatusConflict || got.status == http.StatusTooManyRequests || got.status == http.StatusTooEarly:
		c.waited.Add(1)
		return "", nil
	case got.status >= 500:
		c.unanswered.Add(1)
		c.hurt.Add(1)
		return "", nil
	case got.status >= 300:
		return "", fmt.Errorf("an answer that nobody should get: %d %s", got.status, got.body)
	case o.kind == kindEvent:
		return "acknowledged", nil // what a sender reads of it is the status
	}
	return fmt.Sprintf("%d %s %s", got.status, got.kind, got.body), nil
}
