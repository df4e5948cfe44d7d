package postgres_test

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/unavez/unavez/store"
)

// Lanes and locks of ordering keys are the same in Go and in SQL.
func TestLanesAndOrderLocksAreTheSameInSQL(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for n := range 500 {
		var key store.Key
		binary.BigEndian.PutUint64(key[:8], random.Uint64())
		lanes := 1 + random.IntN(1<<16)
		switch n {
		case 0:
			copy(key[:], strings.Repeat("\xff", 16))
			lanes = 1 << 16
		case 1:
			key = store.Key{}
		case 2:
			lanes = 256
		}
		if got, want := ask[int](t, d, "SELECT unavez.lane_of($1, $2)", [16]byte(key), lanes), store.LaneOf(key, lanes); got != want {
			t.Fatalf("lane of %s among %d: %d, want %d", key, lanes, got, want)
		}
		if got, want := ask[int64](t, d, "SELECT unavez.order_lock($1)", [16]byte(key)), key.OrderLock(); got != want {
			t.Fatalf("lock of %s: %d, want %d", key, got, want)
		}
		if got, want := ask[int64](t, d, "SELECT unavez.lane_lock($1)", lanes), store.LaneLock(lanes); got != want {
			t.Fatalf("lock of lane %d: %d, want %d", lanes, got, want)
		}
	}
}

// What a program in another language appends is what the Go library would have.
func TestEntriesEnqueuedBySQLAreThoseOfGo(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	payload := []byte(`{"order":"1"}`)
	sum := sha256.Sum256(payload)
	id := store.Identity{Tenant: "acme", Effect: "order.ship.v1", Parts: []string{"1", "ümlaut/2"}}
	want := store.Entry{
		Key: id.Key(), Operation: id.Key(), Subject: store.SubjectKey("acme", []string{"customer", "7"}),
		Fingerprint: store.Fingerprint{Sum: sum[:]}, Payload: payload, Size: len(payload),
		Note: store.Note{
			Event: id, Identity: id, Ordering: []string{"1"}, Version: "3", Source: "shop", Type: "order/paid",
			ContentType: "application/json", Attributes: map[string]string{"a": "b"},
		},
	}
	want.Order = want.Note.Order()
	const text = `SELECT unavez.enqueue('acme', 'order.ship.v1', ARRAY['1', 'ümlaut/2'], ARRAY['1'], $1, type => 'order/paid', source => 'shop', version => '3',
		subject => ARRAY['customer', '7'], attributes => '{"a": "b"}')`
	if said := ask[string](t, d, text, payload); said != "new" {
		t.Fatalf("said %s", said)
	}
	got, err := w.Load(t.Context(), id.Key())
	must(t, "Load", err)
	want.Sequence, want.Arrived = got.Sequence, got.Arrived
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if n := ask[int](t, d, "SELECT lane FROM unavez.queue"); n != store.LaneOf(want.Order, 256) {
		t.Errorf("lane %d", n)
	}
	if said := w.append(t, want); said[0] != store.Duplicate {
		t.Errorf("appended by Go: %v", said)
	}
	if said := ask[string](t, d, text, []byte("other")); said != "conflict" {
		t.Errorf("another payload: %s", said)
	}
	// Without an ordering key: its own.
	alone := store.Identity{Tenant: "", Effect: "mail.v1", Parts: []string{"x"}}
	if said := ask[string](t, d, "SELECT unavez.enqueue('', 'mail.v1', ARRAY['x'], '{}', NULL, 'text/plain')"); said != "new" {
		t.Errorf("said %s", said)
	}
	if got, err := w.Load(t.Context(), alone.Key()); err != nil || got.Order != alone.Key() || got.Size != 0 || got.Note.ContentType != "text/plain" {
		t.Errorf("got %+v: %v", got, err)
	}
	for name, text := range map[string]string{
		"no tenant":       "SELECT unavez.enqueue(NULL, 'e', ARRAY['x'], '{}', '')",
		"no effect":       "SELECT unavez.enqueue('t', '', ARRAY['x'], '{}', '')",
		"no parts":        "SELECT unavez.enqueue('t', 'e', '{}', '{}', '')",
		"a null part":     "SELECT unavez.enqueue('t', 'e', ARRAY['x', NULL], '{}', '')",
		"a null order":    "SELECT unavez.enqueue('t', 'e', ARRAY['x'], ARRAY[NULL::text], '')",
		"a long part":     "SELECT unavez.enqueue('t', 'e', ARRAY[repeat('x', 1025)], '{}', '')",
		"attributes":      "SELECT unavez.enqueue('t', 'e', ARRAY['x'], '{}', '', attributes => '{\"a\": 1}')",
		"a long note":     "SELECT unavez.enqueue('t', 'e', ARRAY['x'], '{}', '', attributes => jsonb_build_object('a', repeat('x', 65536)))",
		"a long print":    "SELECT unavez.enqueue('t', 'e', ARRAY['x'], '{}', '', fingerprint => decode(repeat('00', 65), 'hex'))",
		"a wrong version": "SELECT unavez.enqueue('t', 'e', ARRAY['x'], '{}', '', fingerprint_version => -1)",
	} {
		if _, err := d.admin.Exec(t.Context(), text); err == nil || !strings.Contains(err.Error(), "22023") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
