package unavez_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// What is exactly as long as it may be is taken, and what is longer is named.
func TestEachFaultOfAnOperationIsNamedAtItsBound(t *testing.T) {
	t.Parallel()
	sum := func(n, version int) func(*unavez.Operation) {
		return func(op *unavez.Operation) {
			op.Fingerprint = unavez.Fingerprint{Version: version, Sum: make([]byte, n)}
		}
	}
	lasts := func(field func(*unavez.Operation) *time.Duration, d time.Duration) func(*unavez.Operation) {
		return func(op *unavez.Operation) { *field(op) = d }
	}
	retention := func(op *unavez.Operation) *time.Duration { return &op.Retention }
	tombstone := func(op *unavez.Operation) *time.Duration { return &op.Tombstone }
	limit := func(op *unavez.Operation) *time.Duration { return &op.Limit }
	lease := func(op *unavez.Operation) *time.Duration { return &op.Lease }
	wait := func(op *unavez.Operation) *time.Duration { return &op.Wait }
	cases := []struct {
		name   string
		change func(*unavez.Operation)
		fault  string // "" for none
	}{
		{"no tenant", func(op *unavez.Operation) { op.Tenant = "" }, "tenant: empty"},
		{"no key", func(op *unavez.Operation) { op.Key = nil }, "key"},
		{"payload", func(op *unavez.Operation) { op.Payload = []byte("x") }, ""},
		{"payload and fingerprint", func(op *unavez.Operation) {
			op.Payload, op.Fingerprint.Sum = []byte("x"), []byte("y")
		}, "payload: set either"},
		{"repeatable", func(op *unavez.Operation) { op.Unknown = unavez.Retry }, ""},
		{"repeatable by the lease", func(op *unavez.Operation) { op.Unknown, op.ClaimByLease = unavez.Retry, true }, ""},
		{"by the lease alone", func(op *unavez.Operation) { op.ClaimByLease = true }, "claim by lease: only"},
		{"origin", func(op *unavez.Operation) { op.Origin = strings.Repeat("x", store.MaxPartSize) }, ""},
		{"long origin", func(op *unavez.Operation) { op.Origin = strings.Repeat("x", store.MaxPartSize+1) }, "origin: "},
		{"fingerprint", sum(64, 0), ""},
		{"long fingerprint", sum(65, 0), "fingerprint: "},
		{"last version", sum(1, 32767), ""},
		{"version after that", sum(1, 32768), "fingerprint: "},
		{"version before the first", sum(1, -1), "fingerprint: "},
		{"shortest retention", lasts(retention, unavez.MinRetention), ""},
		{"short retention", lasts(retention, unavez.MinRetention-1), "retention: "},
		{"longest retention", lasts(retention, unavez.MaxRetention), ""},
		{"long retention", lasts(retention, unavez.MaxRetention+1), "retention: "},
		{"no tombstone", lasts(tombstone, -1), ""},
		{"longest tombstone", lasts(tombstone, unavez.MaxRetention), ""},
		{"long tombstone", lasts(tombstone, unavez.MaxRetention+1), "tombstone: "},
		{"shortest limit", lasts(limit, time.Millisecond), ""},
		{"short limit", lasts(limit, time.Millisecond-1), "limit: "},
		{"longest limit", lasts(limit, unavez.MaxLimit), ""},
		{"long limit", lasts(limit, unavez.MaxLimit+1), "limit: "},
		{"shortest lease", lasts(lease, 10*time.Millisecond), ""},
		{"short lease", lasts(lease, 10*time.Millisecond-1), "lease: "},
		{"longest lease", lasts(lease, unavez.MaxLease), ""},
		{"long lease", lasts(lease, unavez.MaxLease+1), "lease: "},
		{"longest wait", lasts(wait, unavez.MaxWait), ""},
		{"long wait", lasts(wait, unavez.MaxWait+1), "wait: "},
		{"wait of less than nothing", lasts(wait, -1), "wait: "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where no time passes within the shortest limit
				op := operation("4711")
				c.change(&op)
				engine := newEngine(t, newStore(), nil)
				_, err := engine.Do(t.Context(), op, writes("order", &counter{}))
				if c.fault == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if e := wantCode(t, err, unavez.CodeInvalid); !strings.Contains(e.Error(), c.fault) || strings.Count(e.Err.Error(), "\n") != 0 {
					t.Errorf("%v, want %q and nothing else", e, c.fault)
				}
				if _, err := engine.Look(t.Context(), op); unavez.CodeOf(err) != unavez.CodeInvalid {
					t.Errorf("looked for: %v", err)
				}
			})
		})
	}
	single := newEngine(t, newStore(), &unavez.Options{SingleTenant: true})
	op := operation("4711")
	op.Tenant = ""
	if _, err := single.Do(t.Context(), op, writes("order", &counter{})); err != nil {
		t.Errorf("no tenant where there is one: %v", err)
	}
}

func TestFaultsOfTheEngineItselfAreReported(t *testing.T) {
	t.Parallel()
	if _, err := unavez.New[Tx](nil, nil); err == nil || !strings.Contains(err.Error(), "pass a store") {
		t.Errorf("without a store: %v", err)
	}
	_, err := unavez.New(newStore(), &unavez.Options{Retention: time.Nanosecond, Lease: time.Nanosecond})
	if err == nil || !strings.Contains(err.Error(), "retention: ") || !strings.Contains(err.Error(), "lease: ") {
		t.Errorf("two faults: %v", err)
	}
}

func TestPoliciesAndVerdictsHaveTheirWords(t *testing.T) {
	t.Parallel()
	for _, word := range [][2]string{
		{unavez.Hold.String(), "hold"},
		{unavez.Retry.String(), "retry"},
		{unavez.Steps.String(), "steps"},
		{unavez.Policy(9).String(), "policy(9)"},
		{unavez.Done.String(), "done"},
		{unavez.NotDone.String(), "not done"},
		{unavez.CannotTell.String(), "cannot tell"},
	} {
		if word[0] != word[1] {
			t.Errorf("%q, want %q", word[0], word[1])
		}
	}
}

// The engine's tombstone holds where the operation has none of its own.
func TestTombstoneIsTheOperationsTheEnginesOrTheDefault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ engine, operation, want time.Duration }{
		"default":   {0, 0, unavez.DefaultTombstone},
		"engine":    {time.Hour, 0, time.Hour},
		"operation": {time.Hour, time.Minute, time.Minute},
		"none":      {time.Hour, -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := newEngine(t, newStore(), &unavez.Options{Retention: time.Hour, Tombstone: c.engine})
				op := operation("4711")
				op.Tombstone = c.operation
				var runs counter
				do := func() error {
					_, err := engine.Do(t.Context(), op, writes("order", &runs))
					return err
				}
				if err := do(); err != nil {
					t.Fatal(err)
				}
				if c.want > 0 {
					time.Sleep(time.Hour + c.want - time.Second)
					wantCode(t, do(), unavez.CodeExpired)
					time.Sleep(2 * time.Second)
				} else {
					time.Sleep(time.Hour + time.Second)
				}
				if err := do(); err != nil || runs.get("order") != 2 {
					t.Errorf("behind it: %v, %d runs", err, runs.get("order"))
				}
			})
		})
	}
}

// One payload is known again by the algorithm of its own version, and by no other;
// of what is forgotten but for its identity the short form is compared.
func TestAPayloadIsComparedByTheVersionItIsStoredUnder(t *testing.T) {
	t.Parallel()
	form := func(version int, text string) unavez.Fingerprint {
		return unavez.Fingerprint{Version: version, Sum: []byte(text + " of that length")}
	}
	older := func(version int, sum string, knows bool) func(int) (unavez.Fingerprint, bool) {
		return func(v int) (unavez.Fingerprint, bool) {
			if v != version {
				return form(v, "another"), true
			}
			return form(version, sum), knows
		}
	}
	cases := []struct {
		name    string
		stored  unavez.Fingerprint
		mine    unavez.Fingerprint
		at      func(int) (unavez.Fingerprint, bool)
		matches bool
	}{
		{"the same", form(1, "old"), form(1, "old"), nil, true},
		{"another", form(1, "old"), form(1, "new"), nil, false},
		{"the same, and older ones can be had", form(1, "old"), form(1, "old"), older(1, "new", false), true},
		{"another version, and no older one can be had", form(1, "old"), form(2, "new"), nil, false},
		{"an older one", form(1, "old"), form(3, "new"), older(1, "old", true), true},
		{"the oldest", form(0, "old"), form(1, "new"), older(0, "old", true), true},
		{"an older one that differs", form(1, "old"), form(3, "new"), older(1, "else", true), false},
		{"an older one that is not known", form(1, "old"), form(3, "new"), older(1, "old", false), false},
		{"of the version that is compared", form(1, "old"), form(1, "new"), older(1, "old", true), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := newEngine(t, newStore(), nil)
				op := operation("4711")
				op.Fingerprint = c.stored
				if _, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil {
					t.Fatal(err)
				}
				op.Fingerprint = c.mine
				if c.at != nil {
					op.FingerprintAt = func(v int) (unavez.Fingerprint, bool) {
						if v >= c.mine.Version {
							t.Errorf("version %d was asked for, of an operation of version %d", v, c.mine.Version)
						}
						return c.at(v)
					}
				}
				code := func(found unavez.Code) unavez.Code {
					if c.matches {
						return found
					}
					return unavez.CodeMismatch
				}
				_, err := engine.Do(t.Context(), op, writes("order", &counter{}))
				if got := unavez.CodeOf(err); got != code("") {
					t.Errorf("remembered: %v", err)
				}
				time.Sleep(unavez.DefaultRetention + time.Second)
				_, err = engine.Do(t.Context(), op, writes("order", &counter{}))
				if got := unavez.CodeOf(err); got != code(unavez.CodeExpired) {
					t.Errorf("forgotten but for its identity: %v", err)
				}
			})
		})
	}
}

// A payload's own fingerprint is of version 0: later versions are the caller's.
func TestPayloadIsVersionZero(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, newStore(), nil)
	op := operation("4711")
	op.Payload = []byte("10 EUR")
	out, err := engine.Do(t.Context(), op, writes("order", &counter{}))
	if err != nil || out.Fingerprint.Version != 0 || len(out.Fingerprint.Sum) != 32 {
		t.Errorf("%+v, %v", out.Fingerprint, err)
	}
}

// A duplicate of what runs under a lease elsewhere is told when that may be over.
func TestDuplicateOfALeaseElsewhereIsToldWhatRemainsOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		here, elsewhere := newEngine(t, s, nil), newEngine(t, s, nil)
		op := operation("4711")
		op.Lease = time.Minute
		_, err := here.Lease(t.Context(), op, func(context.Context, *unavez.Attempt) (unavez.Result, error) {
			time.Sleep(10 * time.Second)
			_, err := elsewhere.Lease(t.Context(), op, charges(&outside{}), nil)
			if e := wantCode(t, err, unavez.CodeInFlight); e.RetryAfter != 50*time.Second {
				t.Errorf("retry after %v, want what remains of the lease", e.RetryAfter)
			}
			return answer(1), nil
		}, nil)
		if err != nil {
			t.Error(err)
		}
	})
}

// Look asks the worker's memory, then the ledger, and the lock only where there is
// nothing: what it cannot read it does not call absent.
func TestLookAsksNoFurtherThanItMust(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	here, elsewhere := newEngine(t, s, nil), newEngine(t, s, nil)
	op := operation("4711")
	if _, err := here.Do(t.Context(), op, writes("order", &counter{})); err != nil {
		t.Fatal(err)
	}
	s.set(failing("before settle", -1, store.ErrUnavailable))
	for _, engine := range []*unavez.Engine[Tx]{here, elsewhere} {
		if out, err := engine.Look(t.Context(), op); err != nil || !out.Replayed {
			t.Errorf("what is there: %+v, %v", out, err)
		}
	}
	if s.looks != 1 {
		t.Errorf("%d reads, want that of the worker that did not do it", s.looks)
	}
	_, err := elsewhere.Look(t.Context(), operation("4712"))
	wantCode(t, err, unavez.CodeUnavailable)
	s.set(failing("before look", -1, store.ErrUnavailable))
	_, err = elsewhere.Look(t.Context(), operation("4712"))
	wantCode(t, err, unavez.CodeUnavailable)
	s.set(nil)
	_, err = elsewhere.Look(t.Context(), operation("4712"))
	wantCode(t, err, unavez.CodeNotFound)
}

// Whoever repeats a key with another payload is seen, also where the worker's
// memory answers.
func TestAnotherPayloadIsSeen(t *testing.T) {
	t.Parallel()
	var saw []unavez.Observation
	engine := newEngine(t, newStore(), &unavez.Options{Observe: func(o unavez.Observation) { saw = append(saw, o) }})
	op := operation("4711")
	op.Payload = []byte("10 EUR")
	if _, err := engine.Do(t.Context(), op, writes("order", &counter{})); err != nil {
		t.Fatal(err)
	}
	op.Payload = []byte("99 EUR")
	_, err := engine.Do(t.Context(), op, writes("order", &counter{}))
	wantCode(t, err, unavez.CodeMismatch)
	if last := saw[len(saw)-1]; len(saw) != 2 || last.What != string(unavez.CodeMismatch) || !last.Cached || last.Attempt != 1 || last.Err == nil {
		t.Errorf("%d seen, the last %+v", len(saw), last)
	}
}

// What a gate answers that cannot tell whether something was committed is not
// called safe to repeat.
func TestAGateThatCannotTellIsUnresolved(t *testing.T) {
	t.Parallel()
	s := newStore()
	engine := newEngine(t, s, nil)
	s.set(failing("before begin", 1, store.ErrCommitUnknown))
	_, err := engine.Do(t.Context(), operation("4711"), writes("order", &counter{}))
	wantCode(t, err, unavez.CodeUnresolved)
}
