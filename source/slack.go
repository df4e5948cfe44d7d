package source

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Slack is its Events API. It signs "v0:timestamp:body" with HMAC-SHA256 in hex
// under the app's signing secret, waits three seconds, and repeats at once, after
// a minute and after five; events may be an hour or two late. event_id is the
// same in all of them; a repetition may be the first one that arrives, so
// X-Slack-Retry-Num decides nothing. The challenge of url_verification is
// answered to a signed request only. Slash commands and interactions want an
// answer with content, which a durable delivery has not: they are not read.
// (docs.slack.dev, "The Events API", "Verifying requests from Slack".)
func Slack() *Contract {
	s := must(Signing{
		Header: "X-Slack-Signature", Prefix: "v0=", Timestamp: "X-Slack-Request-Timestamp", Signed: "v0:{timestamp}:{body}",
	}.ready())
	return &Contract{
		Name: "slack", Class: Logical,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 3 * time.Second, Window: 3 * time.Hour,
		Verify: s.verify, Read: readSlack,
		Handshake: func(ctx context.Context, config *Config, r *Request) (*Reply, error) {
			o, fault := object(r.Text())
			if r.Method != http.MethodPost || fault != nil || o.Text("type") != "url_verification" {
				return nil, nil
			}
			if _, err := s.verify(ctx, config, r); err != nil {
				return nil, err
			}
			challenge := o.Text("challenge")
			if challenge == "" || len(challenge) > maxChallenge {
				return nil, refuse(MissingField, "challenge")
			}
			return jsonReply(map[string]string{"challenge": challenge})
		},
	}
}

// maxChallenge bounds what a handshake is answered with, in bytes.
const maxChallenge = 512

// jsonReply is the answer to a handshake.
func jsonReply(members map[string]string) (*Reply, error) {
	body, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	return &Reply{Status: http.StatusOK, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func readSlack(r *Request) ([]Item, error) {
	o, fault := object(r.Text())
	if fault != nil {
		return nil, fault
	}
	item := Item{Raw: r.Text()}
	id, fault := need(o, "event_id")
	team, missing := need(o, "team_id")
	if fault == nil {
		fault = missing
	}
	inner, err := exact.ReadObject(o["event"])
	if fault == nil && (err != nil || inner.Text("type") == "") {
		fault = refuse(MissingField, "event.type")
	}
	if item.Fault = fault; fault != nil {
		return []Item{item}, nil
	}
	e := &Event{
		ID: []string{team, id}, Delivery: optional(r.Header, "X-Slack-Retry-Num"), Type: inner.Text("type"), Tenant: team,
		Data: r.Text(), ContentType: "application/json", Version: inner.Text("event_ts"),
	}
	if channel := inner.Text("channel"); channel != "" {
		e.Subject = []string{team, channel}
	}
	if at, err := o.Part("event_time"); err == nil {
		e.Time, _ = instant(at, time.Second)
	}
	item.Event = e
	return []Item{item}, nil
}
