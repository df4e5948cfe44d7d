package fault_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/internal/fault"
	"github.com/unavez/unavez/source"
)

// post is what the inbox flow has beside its scene.
type post struct {
	*scene[tx]
	rooms map[string]*room
	quit  chan struct{} // closed when nothing is left to do
	began time.Time
	sent  bool     // the sender has ended
	acked []string // events that were acknowledged to it, in this order
}

// room is one worker's inbox.
type room struct {
	*worker[tx]
	inbox  *inbox.Inbox[tx]
	engine *unavez.Engine[tx]
	ended  chan struct{} // of its stopping; nil before
}

// How the inbox runs entries.
type manner string

const (
	singly    manner = "one by one"
	inBatches manner = "in batches"
	byLease   manner = "outside, under a lease"
)

// inboxFlow is a sender of two events of one ordering key, and two workers that
// receive them, share the lanes and make them take effect.
func inboxFlow(how manner) *flow[tx] {
	f := &flow[tx]{name: "inbox, " + string(how), jitter: true}
	var p *post
	f.prepare = func(s *scene[tx]) {
		p = &post{scene: s, rooms: map[string]*room{}, quit: make(chan struct{}), began: time.Now()}
		for _, name := range []string{"one", "two"} {
			p.open(name, how)
		}
		s.watch = p.watch
	}
	works := func(_ *scene[tx], w *worker[tx], _ string) {
		r := p.rooms[w.life.Name()]
		if err := r.inbox.Start(context.Background()); err != nil {
			p.breaks("I16", "start: %v", err)
			return
		}
		<-p.quit
		p.stop(r)
	}
	f.actors = []actor[tx]{
		{"sender", "one", func(*scene[tx], *worker[tx], string) { p.sends() }},
		{"W1", "one", works},
		{"W2", "two", works},
	}
	f.rest = func(*scene[tx]) { p.toRest(how) }
	f.steps = []string{fault.Append, fault.Take, fault.Snapshot, fault.Waiting, fault.Gate, fault.Handler, fault.Commit, fault.HandBack}
	f.wants = []string{"acknowledged", "not acknowledged", "sent again"}
	return f
}

// open makes a worker with an inbox.
func (p *post) open(name string, how manner) *room {
	r := &room{worker: p.start(name)}
	r.life.Lingers()
	q, err := fault.NewQueue(r.life, fault.Inner[tx](p.bed.store))
	if err == nil {
		r.engine, err = unavez.New(q, &unavez.Options{SingleTenant: true})
	}
	if err == nil {
		r.inbox, err = inbox.New(r.engine, q, []inbox.Source{{Name: "shop", Contract: plain(), Types: []string{"*"}}},
			[]inbox.Effect[tx]{p.effect(r, how)}, &inbox.Options{Worker: name, Lease: leaseLength, Poll: leaseLength / 2})
	}
	if err != nil {
		panic(err) // a fault of the flow
	}
	p.rooms[name] = r
	return r
}

// effect is what the events bring about.
func (p *post) effect(r *room, how manner) inbox.Effect[tx] {
	e := inbox.Effect[tx]{Name: "order.v1", OrderBy: func(e *inbox.Event) ([]string, error) { return e.Subject, nil }}
	if how != byLease {
		e.Handle, e.Batch = p.handles(r), how == inBatches
		return e
	}
	e.Lease, e.Unknown = leaseLength, unavez.Retry
	e.Run = func(ctx context.Context, a *unavez.Attempt, e *inbox.Event) (unavez.Result, error) {
		if err := r.life.At(ctx, fault.Run, nil); err != nil {
			return unavez.Result{}, err
		}
		charge, err := p.call(ctx, r.worker, a.Fence(), e.ID[0], a.DerivedKey())
		if errors.Is(err, fault.ErrRefused) {
			err = unavez.NeverStarted(err)
		}
		return result(charge), err
	}
	handle := p.handles(r)
	e.Finish = func(ctx context.Context, tx tx, e *inbox.Event, _ *unavez.Result) error { return handle(ctx, tx, e) }
	return e
}

// plain is a sender that signs nothing: the body is the event's id.
func plain() *source.Contract {
	return &source.Contract{
		Name: "plain", Class: source.Logical, Success: 200, Refused: 401, TooLarge: 413, Window: time.Hour,
		Verify: func(context.Context, *source.Config, *source.Request) (source.Proof, error) {
			return source.Proof{Method: "none", Body: true}, nil
		},
		Read: func(r *source.Request) ([]source.Item, error) {
			return []source.Item{{Event: &source.Event{
				ID: []string{string(r.Body)}, Type: "order/paid", Subject: []string{"4711"}, Data: r.Body, ContentType: "text/plain",
			}, Raw: r.Body}}, nil
		},
	}
}

// handles writes a row for an event, and holds the order: the events that were
// acknowledged before this one was sent have taken effect.
func (p *post) handles(r *room) func(context.Context, tx, *inbox.Event) error {
	return func(ctx context.Context, tx tx, e *inbox.Event) error {
		id := e.ID[0]
		name := p.ran(id, id)
		if err := r.life.At(ctx, fault.Handler, tx); err != nil {
			return err
		}
		rows, err := tx.All()
		if err != nil {
			return err
		}
		for _, before := range p.before(id) {
			if effects(rows, before) == 0 {
				p.breaks("I7", "event %s before %s", id, before)
			}
		}
		return tx.Put("event "+id+"/"+name, id)
	}
}

// effects counts the rows of an event.
func effects(rows map[string]string, id string) (n int) {
	for row := range rows {
		if strings.HasPrefix(row, "event "+id+"/") {
			n++
		}
	}
	return n
}

// before are the events that were acknowledged before an event was sent first.
func (p *post) before(id string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, acked := range p.acked {
		if acked < id {
			all = append(all, acked)
		}
	}
	return all
}

// sends is the sender: one event after another, each again until it is
// acknowledged, and the last once more although it was.
func (p *post) sends() {
	for _, id := range []string{"1", "2"} {
		for try := range 4 {
			to := p.rooms["one"]
			if to.life.Dead() {
				to = p.rooms["two"]
			}
			if try > 0 {
				p.saw("sent again")
			}
			ok := p.delivers(to, id)
			p.mu.Lock()
			known := slices.Contains(p.acked, id)
			if ok && !known {
				p.acked = append(p.acked, id)
			}
			p.mu.Unlock()
			if ok && (known || id == "1") {
				break
			}
			p.director.wait(time.Second)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = true
}

// delivers sends an event once, and reports whether it was acknowledged.
func (p *post) delivers(to *room, id string) bool {
	ctx, cancel := to.life.Context(context.Background())
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := to.inbox.Receiver().Receive(ctx, "shop", &source.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/in/shop"}, Header: http.Header{}, Body: []byte(id), At: time.Now(),
	})
	if err != nil || to.life.Dead() {
		p.saw("not acknowledged")
		return false
	}
	p.saw("acknowledged")
	return true
}

// all are the committed business rows.
func (p *post) all() map[string]string {
	return p.bed.store.(interface{ All() map[string]string }).All()
}

// alone reports whether nobody lives any more.
func (p *post) alone() bool {
	for _, r := range p.rooms {
		if !r.life.Dead() {
			return false
		}
	}
	return true
}

// done reports whether everything that was acknowledged has taken effect.
func (p *post) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := p.all()
	return p.sent && !slices.ContainsFunc(p.acked, func(id string) bool { return effects(rows, id) == 0 })
}

// watch lets the workers end when they have done what there is.
func (p *post) watch() {
	select {
	case <-p.quit:
		return
	default:
	}
	if late := time.Since(p.began) > time.Hour; late || p.done() || p.alone() {
		if late {
			p.breaks("I16", "an acknowledged event does not take effect")
		}
		close(p.quit)
	}
}

// stop stops an inbox, or leaves it when its worker is dead.
func (p *post) stop(r *room) {
	alive, cancel := r.life.Context(context.Background())
	defer cancel()
	select {
	case <-r.stops():
	case <-alive.Done():
	}
}

// stops stops an inbox, once; the channel is closed when it has ended.
func (r *room) stops() chan struct{} {
	if r.ended != nil {
		return r.ended
	}
	r.ended = make(chan struct{})
	go func() {
		defer close(r.ended)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.inbox.Stop(ctx) // what could not be handed back runs out
	}()
	return r.ended
}

// bury ends the goroutines of an inbox whose worker is dead.
func (p *post) bury(r *room) {
	ended := r.stops()
	p.director.wait(10 * time.Second) // nothing begins any more
	r.life.Bury()
	<-ended
}

// toRest starts one more worker, lets it do what is left, and audits: nothing that
// was acknowledged is lost, and nothing has taken effect twice.
func (p *post) toRest(how manner) {
	last := p.open("rest", how)
	if err := last.inbox.Start(context.Background()); err != nil {
		p.breaks("I16", "start: %v", err)
	}
	for range 20 {
		if p.done() {
			break
		}
		p.director.pass(leaseLength)
	}
	for _, r := range p.rooms {
		if r.life.Dead() {
			p.bury(r)
		}
		p.stop(r)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := r.engine.Close(ctx); err != nil {
			p.breaks("I16", "worker %s does not come to its end: %v", r.life.Name(), err)
		}
		cancel()
	}
	rows := p.all()
	for _, id := range []string{"1", "2"} {
		switch n := effects(rows, id); {
		case n > 1:
			p.breaks("I1", "event %s took effect %d times", id, n)
		case n == 0 && slices.Contains(p.acked, id):
			p.breaks("I4", "event %s was acknowledged and did not take effect", id)
		}
	}
	if n := p.outside.effects(); n > 2 {
		p.breaks("I10", "the other system has charged %d times, under more keys than there are events", n)
	}
	p.rowless = true
}

func TestInboxUnderEveryFault(t *testing.T) {
	t.Parallel()
	outside := inboxFlow(byLease)
	outside.steps = append(outside.steps, fault.Claim, fault.Call, fault.Finish)
	outside.steps = slices.DeleteFunc(outside.steps, func(step string) bool { return step == fault.Gate })
	exploreAll(t, []plan{
		{inboxFlow(singly), bounds{faults: 1}, []bounds{single(1)}},
		{inboxFlow(inBatches), bounds{faults: 1}, []bounds{single(1)}},
		{outside, bounds{faults: 1}, []bounds{{faults: 1}}},
	})
}
