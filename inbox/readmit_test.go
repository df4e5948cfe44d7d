package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/unavez/unavez/store"
)

func TestAQuarantinedItemIsReadmittedByTheConfigurationOfToday(t *testing.T) {
	t.Parallel()
	s := gitHub("hub")
	s.Types, s.Mask = []string{"push"}, []string{"$.email", "$.secret"}
	b := between(t, nil, []Source{s}, want{name: "test.v1"})
	body := []byte(`{"n":1,"email":"ana@example.com"}`)
	b.answers(b.post("hub", body, signed(gitHubSecret, "1", "fork", body)...), 200)
	b.answers(b.post("hub", []byte("{"), signed(gitHubSecret, "2", "push", []byte("{"))...), 200)
	masked := []byte(`{"n":2,"secret":"x"}`)
	b.answers(b.post("hub", masked, signed(gitHubSecret, "3", "fork", masked)...), 200)
	action := func(key store.Key) store.Action {
		return store.Action{Key: key, Actor: "ana", Reason: "the type is accepted now"}
	}
	var keys []store.Key
	for _, q := range b.quarantined() {
		keys = append(keys, q.Key)
		_, err := b.Readmit(t.Context(), action(q.Key))
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != q.Reason {
			t.Errorf("as long as nothing has changed: %v, want %s", err, q.Reason)
		}
	}
	if len(keys) != 3 || len(b.entries()) != 0 {
		t.Fatalf("%d in quarantine, %d entries", len(keys), len(b.entries()))
	}

	// The type is accepted now, and one effect takes its key from the payload.
	s.Types = []string{"*"}
	fresh, err := newReceiver(b.store, []Source{s}, []want{
		{name: "test.v1"},
		{name: "second.v1", when: func(e *Event) (bool, error) { return e.ID[0] == "3", nil }, key: func(*Event) ([]string, error) { return []string{"***"}, nil }},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	woken := 0
	fresh.appended = func() { woken++ }
	new, refusals := 0, 0
	for _, key := range keys {
		receipt, err := fresh.Readmit(t.Context(), action(key))
		var refused *RefusedError
		switch {
		case err == nil:
			new += receipt.New
		case errors.As(err, &refused) && refused.Reason == reasonMask:
			refusals++
		default:
			t.Errorf("%v", err)
		}
		if _, err := fresh.Readmit(t.Context(), store.Action{Key: key}); err == nil {
			t.Error("without who and why")
		}
	}
	if new != 1 || refusals != 2 || woken != 1 || len(b.quarantined()) != 2 {
		t.Errorf("%d new entries, %d refusals, woken %d times, %d in quarantine", new, refusals, woken, len(b.quarantined()))
	}
	entries := b.entries()
	if last := entries[len(entries)-1]; string(last.Payload) != `{"n":1,"email":"***"}` || last.Note.ID[0] != "1" || last.Note.Delivery != "1" {
		t.Errorf("entry %+v, payload %s", last.Note, last.Payload)
	}
	if _, err := fresh.Readmit(t.Context(), action(store.Key{1})); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an item that is not there: %v", err)
	}
	if err := fresh.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// readmitted is an item in quarantine that is taken under the configuration of
// today, and takes effect once, whoever asks for it again and however late its
// sender repeats it.
func readmitted[Tx any](b *bed[Tx]) {
	narrow, wide := gitHub("hub"), gitHub("hub")
	narrow.Types, wide.Types = []string{"push"}, []string{"*"}
	effect := Effect[Tx]{Name: "import.v1", Handle: func(ctx context.Context, tx Tx, e *Event) error {
		n, err := b.get(ctx, tx, e.ID[0])
		if err != nil {
			return err
		}
		return b.set(ctx, tx, e.ID[0], n+string(e.Data))
	}}
	const body = `{"n":1}`
	send := func(m *member[Tx]) {
		b.Helper()
		if status := m.deliver(b, "hub", body, signed(gitHubSecret, "one", "fork", []byte(body))...); status != 200 {
			b.Fatalf("answered %d", status)
		}
	}
	first := b.start(b.worker(b.quick(), nil, []Source{narrow}, effect))
	send(first)
	kept, err := b.queue.Quarantined(b.Context(), "hub", store.Key{}, 10)
	if err != nil || len(kept) != 1 || kept[0].Reason != reasonType {
		b.Fatalf("in quarantine: %+v, %v", kept, err)
	}
	second := b.start(b.worker(b.quick(), nil, []Source{wide}, effect))
	action := store.Action{Key: kept[0].Key, Actor: "ana", Reason: "the type is accepted now"}
	if receipt, err := second.Receiver().Readmit(b.Context(), action); err != nil || receipt.New != 1 {
		b.Fatalf("readmitted: %+v, %v", receipt, err)
	}
	b.eventually("it takes effect", func() bool { return b.rows(b.T)["one"] == body })
	if _, err := second.Receiver().Readmit(b.Context(), action); !errors.Is(err, store.ErrNotFound) {
		b.Errorf("readmitted twice: %v", err)
	}
	send(second)
	b.eventually("the sender's repetition was told", func() bool { return b.count("duplicate") == 1 })
	b.settled()
	if got := b.rows(b.T)["one"]; got != body {
		b.Errorf("it took effect as %s", got)
	}
}
