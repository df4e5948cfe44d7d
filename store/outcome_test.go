package store_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/unavez/unavez/store"
)

type outcomeVector struct {
	Key                string      `json:"key"`
	State              store.State `json:"state"`
	FingerprintVersion int         `json:"fingerprint_version"`
	Fingerprint        string      `json:"fingerprint"`
	Code               int         `json:"code"`
	NotReplayable      bool        `json:"not_replayable"`
	Header             [][2]string `json:"header"`
	Body               string      `json:"body"`
	StoredHeader       string      `json:"stored_header"`
	Checksum           string      `json:"checksum"`
}

func bytesOf(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome is the vector as a store has it.
func (v outcomeVector) outcome(t *testing.T) (store.Key, *store.Outcome) {
	t.Helper()
	o := &store.Outcome{
		State:       v.State,
		Fingerprint: store.Fingerprint{Version: v.FingerprintVersion, Sum: bytesOf(t, v.Fingerprint)},
		Result:      store.Result{Code: v.Code, Body: bytesOf(t, v.Body), NotReplayable: v.NotReplayable},
	}
	for _, f := range v.Header {
		o.Result.Header = append(o.Result.Header, store.Field{Name: string(bytesOf(t, f[0])), Value: string(bytesOf(t, f[1]))})
	}
	return store.Key(bytesOf(t, v.Key)), o
}

func TestStoredFormIsTheProtocolToTheByte(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for i, v := range vectors[outcomeVector](t, "outcome.json") {
		key, o := v.outcome(t)
		stored := store.AppendHeader(nil, o.Result.Header)
		if got := hex.EncodeToString(stored); got != v.StoredHeader {
			t.Errorf("vector %d: stored header %s, want %s", i, got, v.StoredHeader)
		}
		if got := hex.EncodeToString(o.Checksum(key)); got != v.Checksum {
			t.Errorf("vector %d: checksum %s, want %s", i, got, v.Checksum)
		}
		header, err := store.ParseHeader(stored)
		if err != nil {
			t.Fatalf("vector %d: %v", i, err)
		}
		if diff := cmp.Diff(o.Result.Header, header); diff != "" {
			t.Errorf("vector %d: header (-written +read):\n%s", i, diff)
		}
		if seen[v.Checksum] {
			t.Errorf("vector %d: checksum of another one", i)
		}
		seen[v.Checksum] = true
	}
}

func TestChecksumShowsEveryChange(t *testing.T) {
	t.Parallel()
	v := vectors[outcomeVector](t, "outcome.json")[1]
	key, o := v.outcome(t)
	want := o.Checksum(key)
	for name, change := range map[string]func(key *store.Key, o *store.Outcome){
		"key":            func(key *store.Key, _ *store.Outcome) { key[15] ^= 1 },
		"state":          func(_ *store.Key, o *store.Outcome) { o.State = store.Discarded },
		"version":        func(_ *store.Key, o *store.Outcome) { o.Fingerprint.Version++ },
		"fingerprint":    func(_ *store.Key, o *store.Outcome) { o.Fingerprint.Sum[31] ^= 0x80 },
		"code":           func(_ *store.Key, o *store.Outcome) { o.Result.Code++ },
		"not replayable": func(_ *store.Key, o *store.Outcome) { o.Result.NotReplayable = true },
		"header name":    func(_ *store.Key, o *store.Outcome) { o.Result.Header[0].Name += "x" },
		"header value":   func(_ *store.Key, o *store.Outcome) { o.Result.Header[1].Value = "/orders/1002" },
		"header order": func(_ *store.Key, o *store.Outcome) {
			o.Result.Header[0], o.Result.Header[1] = o.Result.Header[1], o.Result.Header[0]
		},
		"header gone": func(_ *store.Key, o *store.Outcome) { o.Result.Header = o.Result.Header[:1] },
		"body":        func(_ *store.Key, o *store.Outcome) { o.Result.Body[3] ^= 4 },
		"body gone":   func(_ *store.Key, o *store.Outcome) { o.Result.Body = nil },
	} {
		k, changed := v.outcome(t)
		change(&k, changed)
		if bytes.Equal(changed.Checksum(k), want) {
			t.Errorf("%s: the checksum is the same", name)
		}
	}
	// When it was read, and by whom, is no part of what is frozen.
	o.Attempt, o.Left, o.Replayed = 7, 1, true
	if !bytes.Equal(o.Checksum(key), want) {
		t.Error("the checksum covers what is not frozen")
	}
}

func TestBytesThatEndInsideAFieldAreRefused(t *testing.T) {
	t.Parallel()
	whole := store.AppendHeader(nil, []store.Field{{Name: "A", Value: "1"}, {Name: "", Value: ""}})
	ends := map[int]bool{0: true, 10: true, len(whole): true}
	for n := range len(whole) + 1 {
		header, err := store.ParseHeader(whole[:n])
		if (err == nil) != ends[n] {
			t.Errorf("%d of %d bytes: %+v, %v", n, len(whole), header, err)
		}
	}
	for _, bad := range [][]byte{
		{0xff, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, {0x80, 0, 0, 0, 'x'}, {0, 0, 0, 0, 0, 0, 0},
	} {
		if header, err := store.ParseHeader(bad); err == nil {
			t.Errorf("%x: %+v, want an error", bad, header)
		}
	}
}

// FuzzParseHeader holds: bytes are refused, or come back exactly.
func FuzzParseHeader(f *testing.F) {
	f.Add([]byte{})
	f.Add(store.AppendHeader(nil, []store.Field{{Name: "Location", Value: "/orders/1"}, {Name: "", Value: "\x00"}}))
	f.Add([]byte{0, 0, 0, 1, 'a'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, stored []byte) {
		header, err := store.ParseHeader(stored)
		if err != nil {
			return
		}
		if again := store.AppendHeader(nil, header); !bytes.Equal(again, stored) {
			t.Errorf("%x is %+v, which is stored as %x", stored, header, again)
		}
	})
}

func TestFingerprintsOfOneAlgorithmAreCompared(t *testing.T) {
	t.Parallel()
	a := store.Fingerprint{Version: 1, Sum: []byte("0123456789")}
	for _, c := range []struct {
		a, b store.Fingerprint
		want bool
	}{
		{a, store.Fingerprint{Version: 1, Sum: []byte("0123456789")}, true},
		{a, store.Fingerprint{Version: 2, Sum: []byte("0123456789")}, false},
		{a, store.Fingerprint{Version: 1, Sum: []byte("0123456780")}, false},
		{a, store.Fingerprint{Version: 1, Sum: []byte("01234567")}, false},
		{store.Fingerprint{}, store.Fingerprint{Sum: []byte{}}, true},
	} {
		if got := c.a.Equal(c.b); got != c.want {
			t.Errorf("%+v and %+v are one: %v", c.a, c.b, got)
		}
	}
	if got := string(a.Short()); got != "01234567" {
		t.Errorf("front %q", got)
	}
	if got := (store.Fingerprint{Sum: []byte("abc")}).Short(); string(got) != "abc" {
		t.Errorf("front of a short one %q", got)
	}
}

func TestStatesHaveOneWordEach(t *testing.T) {
	t.Parallel()
	words := map[string]bool{}
	for s := store.Free; s <= store.Expired; s++ {
		words[s.String()] = true
		if back, err := store.ParseState(s.String()); err != nil || back != s {
			t.Errorf("%v comes back as %v, %v", s, back, err)
		}
		if s.Final() != (s == store.Completed || s == store.Discarded) {
			t.Errorf("%v final: %v", s, s.Final())
		}
	}
	// As SQL, API, metrics and console have them.
	for _, word := range []string{"free", "processing", "retryable", "parked", "unknown", "dead", "completed", "discarded", "expired"} {
		if !words[word] {
			t.Errorf("no state is called %s: %v", word, words)
		}
	}
	for _, bad := range []string{"", "Free", "state(9)", "done"} {
		if s, err := store.ParseState(bad); err == nil {
			t.Errorf("ParseState(%q) = %v", bad, s)
		}
	}
	if got := store.State(9).String(); got != "state(9)" {
		t.Errorf("unknown state is called %q", got)
	}
}
