package source_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

// versioned signs as Slack and Zoom do.
func versioned(secret string, front string, body string) *source.Request {
	r := post(body)
	stamp := fmt.Sprint(r.At.Unix())
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "v0:%s:%s", stamp, body)
	r.Header.Set(front+"Signature", "v0="+hex.EncodeToString(mac.Sum(nil)))
	r.Header.Set(front+"Request-Timestamp", stamp)
	return r
}

func TestChallengesAreAnsweredToSignedRequestsOnly(t *testing.T) {
	t.Parallel()
	config := &source.Config{Secrets: []source.Secret{source.NewSecret("new", "other"), source.NewSecret("old", "zoom-secret-token-123")}}
	for _, tc := range []struct {
		c                 *source.Contract
		front, body, want string
	}{
		{source.Slack(), "X-Slack-", `{"token":"x","challenge":"3eZbrw1a","type":"url_verification"}`, `{"challenge":"3eZbrw1a"}`},
		{
			source.Zoom(), "X-Zm-", `{"event":"endpoint.url_validation","event_ts":1654503849680,"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}}`,
			`{"encryptedToken":"` + digest("zoom-secret-token-123", "qgg8vlvZRS6UYooatFL8Aw") + `","plainToken":"qgg8vlvZRS6UYooatFL8Aw"}`,
		},
	} {
		r := versioned("zoom-secret-token-123", tc.front, tc.body)
		for range 2 { // and again after 72 hours
			reply, err := tc.c.Handshake(t.Context(), config, r)
			if err != nil || reply == nil || reply.Status != 200 || string(reply.Body) != tc.want {
				t.Fatalf("%s: %+v, %v", tc.c.Name, reply, err)
			}
			r.At = r.At.Add(time.Minute)
		}
		forged := versioned("a guess", tc.front, tc.body)
		if reply, err := tc.c.Handshake(t.Context(), config, forged); reply != nil || reason(t, err) != source.BadSignature {
			t.Errorf("%s, forged: %+v, %v", tc.c.Name, reply, err)
		}
		if reply, err := tc.c.Handshake(t.Context(), config, post(tc.body)); reply != nil || reason(t, err) != source.MissingHeader {
			t.Errorf("%s, unsigned: %+v, %v", tc.c.Name, reply, err)
		}
		for _, body := range []string{`{"type":"event_callback","event":"meeting.started"}`, `no json`, ``, `[]`} {
			if reply, err := tc.c.Handshake(t.Context(), config, versioned("a guess", tc.front, body)); reply != nil || err != nil {
				t.Errorf("%s, %s is taken for a handshake: %+v, %v", tc.c.Name, body, reply, err)
			}
		}
		long := strings.Replace(strings.Replace(tc.body, "3eZbrw1a", strings.Repeat("x", 600), 1), "qgg8vlvZRS6UYooatFL8Aw", strings.Repeat("x", 600), 1)
		if reply, err := tc.c.Handshake(t.Context(), config, versioned("other", tc.front, long)); reply != nil || reason(t, err) != source.MissingField {
			t.Errorf("%s, a long one: %+v, %v", tc.c.Name, reply, err)
		}
	}
}

func digest(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func TestSlackAndZoomEventsHaveTheirIdentity(t *testing.T) {
	t.Parallel()
	slack := `{"team_id":"T1","event_id":"Ev1","event_time":1234567890,"type":"event_callback","event":{"type":"message","channel":"C1","event_ts":"1234567890.000100"}}`
	e := one(t, source.Slack(), post(slack, "X-Slack-Retry-Num", "1"))
	same(t, "slack", e.ID, []string{"T1", "Ev1"})
	same(t, "its repetition", one(t, source.Slack(), post(slack)).ID, e.ID)
	same(t, "subject", e.Subject, []string{"T1", "C1"})
	if e.Type != "message" || e.Tenant != "T1" || e.Time.Unix() != 1234567890 || e.Delivery != "1" {
		t.Errorf("slack: %+v", e)
	}
	zoom := func(uuid, participant string, stamp int) *source.Event {
		return one(t, source.Zoom(), post(fmt.Sprintf(
			`{"event":"meeting.participant_joined","event_ts":%d,"payload":{"account_id":"A","object":{"id":"1","uuid":%q,"participant":{"user_id":%q}}}}`, stamp, uuid, participant)))
	}
	e = zoom("u==", "p1", 1739923528546)
	same(t, "zoom", e.ID, []string{"A", "meeting.participant_joined", "u==", "1739923528546", "p1"})
	for _, other := range []*source.Event{zoom("v==", "p1", 1739923528546), zoom("u==", "p2", 1739923528546), zoom("u==", "p1", 1739923528547)} {
		if strings.Join(other.ID, " ") == strings.Join(e.ID, " ") {
			t.Errorf("another event has the identity %q", e.ID)
		}
	}
	if e.Time.UnixMilli() != 1739923528546 || e.Tenant != "A" {
		t.Errorf("zoom: %+v", e)
	}
	for c, bodies := range map[*source.Contract][]string{
		source.Slack(): {`{}`, `{"team_id":"T","event_id":"E"}`, `{"team_id":"T","event":{"type":"x"}}`},
		source.Zoom():  {`{}`, `{"event":"x","event_ts":1}`, `{"event":"x","event_ts":1,"payload":{"account_id":"A","object":{}}}`},
	} {
		for _, body := range bodies {
			if items, err := c.Read(post(body)); err != nil || items[0].Fault == nil {
				t.Errorf("%s %s: %+v, %v", c.Name, body, items, err)
			}
		}
	}
}
