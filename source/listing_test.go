package source_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

var since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// answered reads an answer to a call.
func answered(t *testing.T, l *source.Listing, call source.Call, body string, header ...string) source.Page {
	t.Helper()
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	p, err := l.Read(call, source.Answer{Status: 200, Header: h, Body: []byte(body)})
	if err != nil {
		t.Fatalf("%s: %v", call.URL, err)
	}
	return p
}

func parameters(t *testing.T, call source.Call) url.Values {
	t.Helper()
	u, err := url.Parse(call.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}

func TestStripeListIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	l := source.StripeListing{Types: []string{"charge.succeeded", "charge.failed"}, Undelivered: true}.Listing()
	first := l.First(since)
	same(t, "first call", parameters(t, first), url.Values{
		"limit": {"100"}, "created[gte]": {"1767323045"}, "types[]": {"charge.succeeded", "charge.failed"}, "delivery_success": {"false"},
	})
	p := answered(t, l, first, `{"object":"list","has_more":true,"data":[
		{"id":"evt_3","type":"charge.succeeded","created":1767323050,"pending_webhooks":1,"data":{"object":{"id":"ch_3"}}},
		{"id":"evt_2","type":"charge.succeeded","created":1767323049,"data":{"object":{"id":"ch_2"}}},{"no":"event"}]}`)
	if len(p.Items) != 3 || p.Items[2].Fault == nil || p.Next == nil || p.Latest.Unix() != 1767323050 {
		t.Fatalf("got %+v", p)
	}
	same(t, "goes on behind the last event", parameters(t, *p.Next)["starting_after"], []string{"evt_2"})
	same(t, "with what was asked for", parameters(t, *p.Next)["created[gte]"], []string{"1767323045"})
	delivered := one(t, source.Stripe(), post(`{"id":"evt_3","type":"charge.succeeded","created":1767323050,"pending_webhooks":2,"data":{"object":{"id":"ch_3"}}}`))
	same(t, "identity of the delivery", p.Items[0].Event.ID, delivered.ID)
	same(t, "content of the delivery", string(source.Stripe().Stable(p.Items[0].Event)), string(source.Stripe().Stable(delivered)))
	if p := answered(t, l, *p.Next, `{"has_more":false,"data":[]}`); p.Next != nil || len(p.Items) != 0 {
		t.Errorf("the end: %+v", p)
	}
	for _, body := range []string{``, `[]`, `{"data":{}}`, `{"has_more":true,"data":[]}`} {
		if p, err := l.Read(first, source.Answer{Status: 200, Body: []byte(body)}); reason(t, err) == "" {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if _, err := l.Read(first, source.Answer{Status: 400, Body: []byte(`{}`)}); reason(t, err) == "" {
		t.Error("400 is a list")
	}
}

func TestGitHubIsAskedForWhatWasNotTaken(t *testing.T) {
	t.Parallel()
	l := source.GitHubDeliveries("/repos/o/r/hooks/1")
	first := l.First(since)
	p := answered(t, l, first, `[
		{"id":12345678901234567890,"guid":"a","delivered_at":"2026-01-02T04:00:00Z","status_code":200,"event":"push"},
		{"id":2,"guid":"b","delivered_at":"2026-01-02T03:30:00Z","status_code":502,"event":"push"},
		{"id":3,"guid":"c","delivered_at":"2026-01-02T03:20:00Z","status_code":0,"status":"failed to connect","event":"issues"}]`,
		"Link", `<https://api.github.com/repos/o/r/hooks/1/deliveries?per_page=100&cursor=v1_2>; rel="next", <https://x>; rel="prev"`)
	if len(p.Items) != 0 || len(p.Details) != 2 || p.Details[0].URL != "/repos/o/r/hooks/1/deliveries/2" || !p.Details[1].Detail {
		t.Fatalf("got %+v", p)
	}
	if p.Next == nil || !strings.HasSuffix(p.Next.URL, "cursor=v1_2") || !p.Latest.Equal(since.Add(55*time.Minute+55*time.Second)) {
		t.Errorf("next %+v, latest %v", p.Next, p.Latest)
	}
	old := answered(t, l, *p.Next, `[{"id":1,"guid":"z","delivered_at":"2026-01-02T03:00:00Z","status_code":500,"event":"push"}]`, "Link", `<https://x/y>; rel=next`)
	if old.Next != nil || len(old.Details) != 0 {
		t.Errorf("what is older is asked for: %+v", old)
	}
	found := answered(t, l, p.Details[0], `{"id":2,"guid":"b","event":"push","request":{"headers":{"X-GitHub-Delivery":"b"},"payload":{"n":9007199254740993, "repository":{"id":7}}}}`)
	delivered := one(t, source.GitHub(), post(`{"n":9007199254740993,"repository":{"id":7}}`, "X-GitHub-Delivery", "b", "X-GitHub-Event", "push"))
	if len(found.Items) != 1 || found.Items[0].Event == nil {
		t.Fatalf("got %+v", found)
	}
	same(t, "identity of the delivery", found.Items[0].Event.ID, delivered.ID)
	same(t, "content of the delivery", string(source.GitHub().Stable(found.Items[0].Event)), string(source.GitHub().Stable(delivered)))
	for _, body := range []string{`{}`, `[{}]`, `[1]`, `[{"id":"../x","delivered_at":"2026-01-02T03:30:00Z"}]`, `[{"id":1}]`} {
		if p, err := l.Read(first, source.Answer{Status: 200, Body: []byte(body)}); reason(t, err) == "" {
			t.Errorf("%s: %+v", body, p)
		}
	}
	for _, a := range []source.Answer{{Status: 404}, {Status: 200, Body: []byte(`{"guid":"b"}`)}, {Status: 200, Body: []byte(`[]`)}} {
		if p, err := l.Read(p.Details[0], a); reason(t, err) == "" {
			t.Errorf("%d %s: %+v", a.Status, a.Body, p)
		}
	}
}

func TestNuvemshopOrdersAreTheEventsThatHintsFetch(t *testing.T) {
	t.Parallel()
	l := source.NuvemshopOrders("123")
	first := l.First(since)
	if !strings.HasPrefix(first.URL, "/v1/123/orders?") {
		t.Errorf("first call %s", first.URL)
	}
	same(t, "parameters", parameters(t, first), url.Values{"updated_at_min": {"2026-01-02T03:04:05Z"}, "per_page": {"200"}, "page": {"1"}})
	p := answered(t, l, first, `[
		{"id":9007199254740993,"created_at":"2026-01-01T00:00:00+0000","paid_at":"2026-01-02T05:00:00+0000","updated_at":"2026-01-02T02:00:01-0300","cancelled_at":null},
		{"id":2,"created_at":"2026-01-02T04:00:00+0000","updated_at":"2026-01-02T04:00:00+0000"},
		{"id":3}]`, "Link", `<https://api.nuvemshop.com.br/v1/123/orders?page=2>; rel="next"`)
	var got []string
	for _, item := range p.Items {
		if item.Event != nil {
			got = append(got, strings.Join(item.Event.ID, " "))
		}
	}
	same(t, "events", got, []string{
		"123 order 9007199254740993 order/paid 2026-01-02T02:00:01-0300",
		"123 order 9007199254740993 order/updated 2026-01-02T02:00:01-0300",
		"123 order 2 order/created 2026-01-02T04:00:00+0000",
		"123 order 2 order/updated 2026-01-02T04:00:00+0000",
	})
	if last := p.Items[len(p.Items)-1]; last.Fault == nil || p.Next == nil || p.Next.URL != "https://api.nuvemshop.com.br/v1/123/orders?page=2" {
		t.Errorf("got %+v", p)
	}
	if e := p.Items[0].Event; e.Hint || e.Tenant != "123" || e.Type != "order/paid" || e.Version != "2026-01-02T02:00:01-0300" || e.Time.IsZero() {
		t.Errorf("event %+v", e)
	}
	if !p.Latest.Equal(time.Date(2026, 1, 2, 5, 0, 1, 0, time.UTC)) {
		t.Errorf("latest %v", p.Latest)
	}
	if p, err := l.Read(first, source.Answer{Status: 404, Body: []byte(`{"description":"Last page is 0"}`)}); err != nil || p.Next != nil {
		t.Errorf("an empty list: %+v, %v", p, err)
	}
}

func TestADescribedListGoesOnAsItSays(t *testing.T) {
	t.Parallel()
	d := source.DescribedListing{
		Path: "/events?from={since}&limit=2", Items: "data.events", ID: []string{"body.id"}, Type: "body.kind",
		Subject: []string{"body.order"}, Version: "body.v", Time: "body.at",
	}
	const body = `{"data":{"events":[{"id":1e0,"kind":"paid","order":7,"v":2,"at":"2026-01-02T04:00:00Z"},{"id":2,"kind":"paid","order":7,"v":3,"at":1767330000}]},"next":{"cursor":"c2","url":"https://h/p?x=1"}}`
	for name, tc := range map[string]struct {
		set  func(*source.DescribedListing)
		want string
	}{
		"one page":   {func(*source.DescribedListing) {}, ""},
		"a cursor":   {func(d *source.DescribedListing) { d.Next, d.Parameter = "body.next.cursor", "cursor" }, "/events?cursor=c2&from=2026-01-02T03%3A04%3A05Z&limit=2"},
		"an address": {func(d *source.DescribedListing) { d.Next = "body.next.url" }, "https://h/p?x=1"},
		"absent":     {func(d *source.DescribedListing) { d.Next = "body.next.none" }, ""},
		"a link":     {func(d *source.DescribedListing) { d.Next = "link" }, "https://h/2"},
		"numbers":    {func(d *source.DescribedListing) { d.Next, d.Parameter = "number", "page" }, "/events?from=2026-01-02T03%3A04%3A05Z&limit=2&page=2"},
	} {
		d := d
		tc.set(&d)
		l, err := d.Listing()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p := answered(t, l, l.First(since), body, "Link", "<https://h/2>; rel=next")
		next := ""
		if p.Next != nil {
			next = p.Next.URL
		}
		if next != tc.want || len(p.Items) != 2 || p.Latest.Unix() != 1767330000 {
			t.Errorf("%s: %q, want %q; %+v", name, next, tc.want, p)
		}
		e := p.Items[0].Event
		if e == nil || e.ID[0] != "1" || e.Type != "paid" || e.Subject[0] != "7" || e.Version != "2" || string(e.Data) != `{"id":1e0,"kind":"paid","order":7,"v":2,"at":"2026-01-02T04:00:00Z"}` {
			t.Errorf("%s: event %+v", name, e)
		}
		if empty := answered(t, l, l.First(since), `{"data":{"events":[]}}`); empty.Next != nil {
			t.Errorf("%s: behind an empty page comes %+v", name, empty.Next)
		}
	}
	for unit, want := range map[string]string{"unix": "1767323045", "unix_ms": "1767323045000", "": "2026-01-02T03:04:05Z"} {
		d := d
		d.Since = unit
		l, err := d.Listing()
		if err != nil {
			t.Fatal(err)
		}
		same(t, unit, parameters(t, l.First(since))["from"], []string{want})
	}
	d.Empty = []int{404}
	l, err := d.Listing()
	if err != nil {
		t.Fatal(err)
	}
	if p, err := l.Read(l.First(since), source.Answer{Status: 404}); err != nil || len(p.Items) != 0 {
		t.Errorf("empty by status: %+v, %v", p, err)
	}
	p := answered(t, l, l.First(since), `{"data":{"events":[{"id":1,"kind":"paid","order":7,"v":1},{"kind":"paid","order":7,"v":1,"at":1}]}}`)
	if len(p.Items) != 2 || p.Items[0].Fault == nil || p.Items[1].Fault == nil {
		t.Errorf("without time, without id: %+v", p.Items)
	}
	_, err = source.DescribedListing{Path: "events", Since: "x", ID: []string{"header.X"}, Next: "number", Pause: -1}.Listing()
	for _, want := range []string{"path", "since", "id[0]", "type, time", "parameter", "pause"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nsays nothing of %s", err, want)
		}
	}
}

func ExampleDescribedListing() {
	l, err := source.DescribedListing{
		Path: "/v1/invoices?changed_after={since}&per_page=50", Items: "invoices",
		ID: []string{"body.id", "body.updated_at"}, Type: "'invoice.updated'", Time: "body.updated_at",
		Next: "number", Parameter: "page",
	}.Listing()
	if err != nil {
		panic(err)
	}
	fmt.Println(l.First(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)).URL)
	// Output: /v1/invoices?changed_after=2026-01-02T03%3A04%3A05Z&page=1&per_page=50
}
