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
