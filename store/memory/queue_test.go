package memory

import (
	"testing"
	"time"

	"github.com/unavez/unavez/store/queuetest"
)

func TestQueueKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queueHarness)
}

const payloads = 30 * 24 * time.Hour

func queueHarness(t *testing.T) queuetest.Harness[*Tx] {
	clock := newManual()
	s := New(&Options{Now: clock.now, Lanes: 16, Payloads: payloads})
	set := func(limit int) func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		before := s.limit
		s.limit = limit
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.limit = before
		}
	}
	return queuetest.Harness[*Tx]{
		Harness:  harnessOf(s, clock),
		Payloads: payloads,
		NewIncarnation: func(*testing.T) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.queue.incarnation++
		},
		Fill: func(*testing.T) func() { return set(1) },
		// A commit has no middle here; it fails after everything was looked at.
		Break: func(*testing.T) func() { return set(0) },
	}
}
