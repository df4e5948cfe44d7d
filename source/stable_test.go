package source_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/source"
)

func TestACounterOfTheSenderIsNoOtherContent(t *testing.T) {
	t.Parallel()
	event := func(c *source.Contract, body string, header ...string) *source.Event {
		return one(t, c, post(body, header...))
	}
	described, err := source.Described{
		Signing: &source.Signing{Header: "X-Sig"}, ID: []string{"body._id"}, Type: "body.topic", Volatile: []string{"$.attempts", "$.sent"},
	}.Contract()
	if err != nil {
		t.Fatal(err)
	}
	github := []string{"X-GitHub-Delivery", "g1", "X-GitHub-Event", "push"}
	for _, tc := range []struct {
		name string
		c    *source.Contract
		a, b *source.Event
		same bool
	}{
		{
			"stripe, pending_webhooks and white space", source.Stripe(),
			event(source.Stripe(), `{"id":"evt_1","type":"x","pending_webhooks":2,"data":{"object":{"id":"ch_1","amount":100}}}`),
			event(source.Stripe(), "{\n \"id\": \"evt_1\", \"data\": {\"object\": {\"amount\": 100, \"id\": \"ch_1\"}}, \"type\": \"x\", \"pending_webhooks\": 0}"), true,
		},
		{
			"stripe, another amount", source.Stripe(),
			event(source.Stripe(), `{"id":"evt_1","type":"x","pending_webhooks":2,"data":{"object":{"id":"ch_1","amount":100}}}`),
			event(source.Stripe(), `{"id":"evt_1","type":"x","pending_webhooks":2,"data":{"object":{"id":"ch_1","amount":101}}}`), false,
		},
		{
			"stripe, a member of that name deeper", source.Stripe(),
			event(source.Stripe(), `{"id":"evt_1","type":"x","data":{"object":{"pending_webhooks":1}}}`),
			event(source.Stripe(), `{"id":"evt_1","type":"x","data":{"object":{"pending_webhooks":2}}}`), false,
		},
		{
			"github, a form and its JSON", source.GitHub(),
			event(source.GitHub(), "payload=%7B%22a%22%3A+9007199254740993%7D", append(github, "Content-Type", "application/x-www-form-urlencoded")...),
			event(source.GitHub(), `{"a":9007199254740993}`, append(github, "Content-Type", "application/json")...), true,
		},
		{
			"github, bytes that are no JSON", source.GitHub(),
			event(source.GitHub(), "\xef\xbb\xbf{}", github...), event(source.GitHub(), "\xef\xbb\xbf{} ", github...), false,
		},
		{
			"described", described,
			event(described, `{"_id":"1","topic":"orders","attempts":1,"sent":"a","resource":"/orders/1"}`),
			event(described, `{"_id":"1","topic":"orders","attempts":2,"sent":"b","resource":"/orders/1"}`), true,
		},
		{
			"described, another resource", described,
			event(described, `{"_id":"1","topic":"orders","attempts":1,"resource":"/orders/1"}`),
			event(described, `{"_id":"1","topic":"orders","attempts":1,"resource":"/orders/2"}`), false,
		},
	} {
		if same := cmp.Equal(tc.c.Stable(tc.a), tc.c.Stable(tc.b)); same != tc.same {
			t.Errorf("%s: same %v, want %v", tc.name, same, tc.same)
		}
	}
	if _, err := (source.Described{Signing: &source.Signing{Header: "X-Sig"}, Type: "'x'", Volatile: []string{"attempts"}}).Contract(); err == nil {
		t.Error("a path without $ is taken")
	}
	none, err := source.Described{Signing: &source.Signing{Header: "X-Sig"}, Type: "'x'"}.Contract()
	if err != nil || none.Class.String() != "none" || none.Stable != nil {
		t.Errorf("without identity: class %v, %v", none.Class, err)
	}
}

func TestWhatAHintFetchedHasTheIdentityOfItsVersion(t *testing.T) {
	t.Parallel()
	c := source.Nuvemshop()
	hint := one(t, c, post(`{"store_id":123,"event":"order/paid","id":5}`))
	fetched := func(body string) *source.Event {
		t.Helper()
		e, err := c.Fetched(hint, "application/json", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b := fetched(`{"id":5,"updated_at":"2026-01-02T03:04:05+0000"}`), fetched(`{"id":5,"updated_at":"2026-01-02T00:04:05-03:00"}`)
	same(t, "one instant", a.ID, []string{"123", "order", "5", "order/paid", "2026-01-02T03:04:05Z"})
	same(t, "in another offset", b.ID, a.ID)
	same(t, "version", a.Version, "2026-01-02T03:04:05Z")
	if a.Hint || a.Tenant != "123" || a.Type != "order/paid" || len(hint.ID) != 0 || !hint.Hint {
		t.Errorf("got %+v of %+v", a, hint)
	}
	if e := fetched(`{"id":5,"updated_at":"2026-01-02T03:04:06+0000"}`); cmp.Equal(e.ID, a.ID) {
		t.Errorf("two versions are one event: %q", e.ID)
	}
	gone, err := c.Fetched(hint, "", nil)
	if err != nil || gone.Version != "gone" || gone.Data != nil {
		t.Errorf("gone: %+v, %v", gone, err)
	}
	for _, body := range []string{`{}`, `{"updated_at":null}`, `{"updated_at":"a","updated_at":"b"}`, ``, `[`} {
		if e, err := c.Fetched(hint, "application/json", []byte(body)); reason(t, err) == "" {
			t.Errorf("%s: %+v", body, e)
		}
	}
	if _, err := c.Fetched(gone, "", nil); err == nil {
		t.Error("an event that is no hint is fetched")
	}
}
