package unavez_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store"
)

// asked is a store that counts gates and reads.
type asked struct {
	*faulty
	begins, looks int
}

func (a *asked) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	a.begins++
	return a.faulty.Begin(ctx, gate)
}

func (a *asked) Look(ctx context.Context, key store.Key) (store.Verdict, error) {
	a.looks++
	if err := a.at("before look"); err != nil {
		return store.Verdict{}, err
	}
	return a.faulty.Look(ctx, key)
}

func TestWhereReplaysComeInARowEachIsOneRead(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	engine := newEngine(t, s, &unavez.Options{CacheSize: -1})
	var runs counter
	do := func(n int, want string) {
		t.Helper()
		out, err := engine.Do(t.Context(), operation(fmt.Sprint(n)), writes(fmt.Sprint(n), &runs))
		if err != nil || string(out.Result.Body) != want || runs.get(fmt.Sprint(n)) != 1 {
			t.Errorf("operation %d: %s, %v, run %d times", n, out.Result.Body, err, runs.get(fmt.Sprint(n)))
		}
	}
	const operations, learning = 100, 8
	for n := range operations {
		do(n, `{"run":1}`)
	}
	if s.looks != 0 {
		t.Errorf("%d reads ahead of gates of new operations", s.looks)
	}
	s.begins = 0
	for n := range operations {
		do(n, `{"run":1}`)
	}
	if s.begins > learning || s.begins+s.looks != operations {
		t.Errorf("%d gates and %d reads for %d replays", s.begins, s.looks, operations)
	}
	s.set(failing("before look", 1, store.ErrUnavailable)) // a read that fails decides nothing
	do(0, `{"run":1}`)
	s.looks = 0
	for n := operations; n < 2*operations; n++ {
		do(n, `{"run":1}`)
	}
	if s.looks > learning {
		t.Errorf("%d reads ahead of gates of new operations", s.looks)
	}
}

func TestAReadAheadOfTheGateComparesThePayload(t *testing.T) {
	t.Parallel()
	s := &asked{faulty: newStore()}
	engine := newEngine(t, s, &unavez.Options{CacheSize: -1})
	op := operation("4711")
	op.Payload = []byte("10 EUR")
	var runs counter
	for range 20 {
		if _, err := engine.Do(t.Context(), op, writes("order", &runs)); err != nil {
			t.Fatal(err)
		}
	}
	op.Payload = []byte("99 EUR")
	looks := s.looks
	_, err := engine.Do(t.Context(), op, writes("order", &runs))
	if wantCode(t, err, unavez.CodeMismatch); s.looks != looks+1 || runs.get("order") != 1 {
		t.Errorf("%d reads, run %d times", s.looks-looks, runs.get("order"))
	}
}
