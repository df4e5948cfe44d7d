package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/memory"
)

// pausedInRun is a worker that stands still in an effect of lease mode for longer
// than its lease, and goes on after another one has completed the operation: what
// it did outside has the same derived key, and it cannot end anything.
func pausedInRun[Tx any](b *bed[Tx]) {
	var mu sync.Mutex
	keys := map[string][]int64{} // fences by derived key
	inside, release := make(chan struct{}), make(chan struct{})
	stuck := firstOnly(func() { close(inside); <-release })
	effect := func(stops bool) Effect[Tx] {
		return Effect[Tx]{
			Name: "send.v1", Unknown: unavez.Retry, Lease: 500 * time.Millisecond, Retry: Retry{First: b.unit(), Longest: b.unit()},
			OrderBy: func(*Event) ([]string, error) { return []string{"key"}, nil },
			Run: func(_ context.Context, a *unavez.Attempt, e *Event) (unavez.Result, error) {
				mu.Lock()
				keys[string(e.Data)+" "+a.DerivedKey()] = append(keys[string(e.Data)+" "+a.DerivedKey()], a.Fence())
				mu.Unlock()
				if stops {
					stuck()
				}
				return unavez.Result{Code: 200, Body: fmt.Appendf(nil, "attempt %d", a.Fence())}, nil
			},
			Finish: func(ctx context.Context, tx Tx, e *Event, result *unavez.Result) error {
				before, err := b.get(ctx, tx, string(e.Data))
				if err != nil {
					return err
				}
				return b.set(ctx, tx, string(e.Data), before+string(result.Body))
			},
		}
	}
	a := b.doomed(b.mortal(b.quick(), effect(true)))
	one, two := queued("send.v1", "one", "key"), queued("send.v1", "two", "key")
	b.append(one, two)
	<-inside
	a.view.pause()
	b.start(b.worker(b.quick(), nil, nil, effect(false)))
	b.eventually("the other worker has completed both", func() bool { return b.state(two).State == store.Completed })
	close(release)
	a.view.resume()
	b.eventually("it has noticed", func() bool { return b.count("lane-lost") > 0 })
	b.comesToRest()
	b.settled()
	if got := b.rows(b.T); got["one"] != "attempt 2" || got["two"] != "attempt 1" {
		b.Errorf("rows %v", got)
	}
	if out := b.state(one).Outcome; out == nil || out.Attempt != 2 || string(out.Result.Body) != "attempt 2" {
		b.Errorf("outcome %+v", out)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 2 {
		b.Errorf("two operations were sent under %d keys: %v", len(keys), keys)
	}
	for key, fences := range keys {
		if strings.HasPrefix(key, "one ") && !slices.Equal(fences, []int64{1, 2}) {
			b.Errorf("attempts %v under %s", fences, key)
		}
	}
}

// A sender whose patience is half a second, and a handler that takes a minute.
func TestASlowHandlerIsNoConcernOfItsSender(t *testing.T) {
	for _, mode := range []string{"transaction", "lease"} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(b *bed[*memory.Tx]) {
				b.patience = time.Hour
				effect := Effect[*memory.Tx]{Name: "slow.v1"}
				var d diary
				slow := func(e *Event) {
					d.note(e)
					b.pass(time.Minute)
				}
				row := func(ctx context.Context, tx *memory.Tx, e *Event) error {
					n, err := b.get(ctx, tx, "effects")
					if err != nil {
						return err
					}
					return b.set(ctx, tx, "effects", n+e.ID[0])
				}
				if mode == "lease" {
					effect.Unknown, effect.Lease = unavez.Retry, 5*time.Second
					effect.Run = func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
						slow(e)
						return unavez.Result{}, nil
					}
					effect.Finish = func(ctx context.Context, tx *memory.Tx, e *Event, _ *unavez.Result) error { return row(ctx, tx, e) }
				} else {
					effect.Limit = 2 * time.Minute
					effect.Handle = func(ctx context.Context, tx *memory.Tx, e *Event) error {
						slow(e)
						return row(ctx, tx, e)
					}
				}
				var members []*member[*memory.Tx]
				for range 2 {
					members = append(members, b.start(b.worker(b.calm(), nil, []Source{gitHub("hub")}, effect)))
				}
				for n := range 4 {
					began := time.Now()
					const body = `{"n":1}`
					if status := members[n%2].deliver(b, "hub", body, signed(gitHubSecret, "1", "push", []byte(body))...); status != 200 {
						b.Errorf("delivery %d was answered %d", n, status)
					}
					if took := time.Since(began); took > 200*time.Millisecond {
						b.Errorf("delivery %d was answered after %v", n, took)
					}
					b.pass(5 * time.Second)
					if b.rows(b.T)["effects"] != "" {
						b.Error("the handler was not slow")
					}
				}
				b.eventually("it took effect", func() bool { return b.rows(b.T)["effects"] == "1" })
				b.pass(2 * time.Minute)
				b.settled()
				if got := b.rows(b.T)["effects"]; got != "1" || len(d.names()) != 1 || b.count("duplicate") != 3 {
					b.Errorf("effects %q, %d runs, %d duplicates", got, len(d.names()), b.count("duplicate"))
				}
			})
		})
	}
}

// tenTimes is an effect that fails until its attempts are used up, and one that
// says that another attempt will not help.
func tenTimes[Tx any](b *bed[Tx]) {
	fails := func(e *Event) error {
		if strings.HasPrefix(string(e.Data), "permanent") {
			return Permanent(errors.New("no such product"))
		}
		return RetryAfter(fmt.Errorf("busy for the %dth time", e.Attempt), b.unit())
	}
	retry := Retry{First: b.unit(), Longest: b.unit(), Attempts: 10}
	b.start(b.worker(b.quick(), nil, nil,
		Effect[Tx]{Name: "transaction.v1", Retry: retry, Handle: func(_ context.Context, _ Tx, e *Event) error { return fails(e) }},
		Effect[Tx]{Name: "lease.v1", Retry: retry, Run: func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
			return unavez.Result{}, fails(e)
		}}))
	for _, name := range []string{"transaction.v1", "lease.v1"} {
		transient, permanent := queued(name, "transient "+name, "a"), queued(name, "permanent "+name, "b")
		b.append(transient, permanent)
		for e, want := range map[*store.Entry]int64{&transient: 10, &permanent: 1} {
			b.eventually(string(e.Payload)+" is dead", func() bool { return b.state(*e).State == store.Dead })
			record, history, _, err := b.queue.Show(b.Context(), e.Operation)
			if err != nil || record.Attempt != want {
				b.Fatalf("%s: %+v, %v", e.Payload, record, err)
			}
			seen := map[int64]string{}
			for _, step := range history {
				if step.To == store.Retryable || step.To == store.Dead {
					seen[step.Attempt] = step.Reason
				}
			}
			for n := int64(1); n <= want; n++ {
				text := "no such product"
				if want > 1 {
					text = fmt.Sprintf("busy for the %dth time", n)
				}
				if !strings.Contains(seen[n], text) {
					b.Errorf("%s: attempt %d is told as %q", e.Payload, n, seen[n])
				}
			}
			if int64(len(seen)) != want {
				b.Errorf("%s: %d attempts are listed, want %d", e.Payload, len(seen), want)
			}
		}
	}
}

// anotherHistory is a database that says, in the middle of the work, that its
// history is another one.
func anotherHistory[Tx any](b *bed[Tx]) {
	chain := b.chain("chain.v1")
	link := chain.Handle
	inside, release := make(chan struct{}, 1), make(chan struct{})
	stuck := firstOnly(func() { inside <- struct{}{}; <-release })
	chain.Handle = func(ctx context.Context, tx Tx, e *Event) error {
		if string(e.Data) == "key 3" {
			stuck()
		}
		return link(ctx, tx, e)
	}
	for range 2 {
		b.start(b.worker(b.quick(), nil, nil, chain))
	}
	b.append(links("chain.v1", "key", 1, 6)...)
	<-inside
	if _, err := any(b.queue).(store.Incarnations).NewIncarnation(b.Context()); err != nil {
		b.Fatal(err)
	}
	close(release)
	b.append(links("chain.v1", "key", 7, 9)...)
	b.append(links("chain.v1", "other", 1, 3)...)
	b.linked(map[string]int{"key": 9, "other": 3})
	b.eventually("the lanes were taken anew", func() bool { return b.count("lane-lost") >= b.queue.Lanes() })
	b.settled()
}

// The engine asks its callers to wait a second at least; a retry of the inbox has
// its own pause.
func TestARetryInLeaseModeHasItsOwnPause(t *testing.T) {
	inBubble(t, func(b *bed[*memory.Tx]) {
		var d diary
		b.start(b.worker(b.quick(), nil, nil, Effect[*memory.Tx]{
			Name: "send.v1", Retry: Retry{First: 20 * time.Millisecond, Longest: 20 * time.Millisecond, Attempts: 10},
			Run: func(_ context.Context, _ *unavez.Attempt, e *Event) (unavez.Result, error) {
				d.note(e)
				return unavez.Result{}, unavez.NeverStarted(errors.New("connection refused"))
			},
		}))
		e := queued("send.v1", "one", "key")
		began := time.Now()
		b.append(e)
		b.eventually("it is given up", func() bool { return b.state(e).State == store.Dead })
		if took := time.Since(began); took > time.Second || len(d.names()) != 10 {
			t.Errorf("%d runs took %v", len(d.names()), took)
		}
	})
}
