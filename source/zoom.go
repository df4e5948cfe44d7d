package source

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Zoom signs "v0:timestamp:body" with HMAC-SHA256 in hex under the app's secret
// token, waits three seconds, and repeats within an hour and a half. It gives an
// event no id: the identity is the account, the event, its object, its time in
// milliseconds, and the participant if there is one. endpoint.url_validation
// comes at the configuration and every 72 hours, is signed, and wants the digest
// of its token under the secret that signed it. (developers.zoom.us, "Using
// webhooks"; devsupport.zoom.us, "Webhook retry policy".)
func Zoom() *Contract {
	s := must(Signing{
		Header: "X-Zm-Signature", Prefix: "v0=", Timestamp: "X-Zm-Request-Timestamp", Signed: "v0:{timestamp}:{body}",
	}.ready())
	return &Contract{
		Name: "zoom", Class: Composite,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Timeout: 3 * time.Second, Window: 3 * time.Hour,
		Verify: s.verify, Read: readZoom,
		Handshake: func(ctx context.Context, config *Config, r *Request) (*Reply, error) {
			o, fault := object(r.Text())
			if r.Method != http.MethodPost || fault != nil || o.Text("event") != "endpoint.url_validation" {
				return nil, nil
			}
			proof, err := s.verify(ctx, config, r)
			if err != nil {
				return nil, err
			}
			value, err := exact.Lookup(r.Text(), "payload", "plainToken")
			token, ok := exact.Text(value)
			if err != nil || !ok || token == "" || len(token) > maxChallenge {
				return nil, refuse(MissingField, "payload.plainToken")
			}
			return zoomReply(config, proof.Secret, token)
		},
	}
}

// zoomReply is the token and its digest under the secret of that name.
func zoomReply(config *Config, name, token string) (*Reply, error) {
	for _, secret := range config.Secrets {
		if secret.Name != name {
			continue
		}
		mac := hmac.New(sha256.New, []byte(secret.Reveal()))
		_, _ = mac.Write([]byte(token)) // a hash never fails
		return jsonReply(map[string]string{"plainToken": token, "encryptedToken": hex.EncodeToString(mac.Sum(nil))})
	}
	return nil, refuse(EmptySecret, "")
}

func readZoom(r *Request) ([]Item, error) {
	o, fault := object(r.Text())
	if fault != nil {
		return nil, fault
	}
	item := Item{Raw: r.Text()}
	kind, fault := need(o, "event")
	stamp, missing := need(o, "event_ts")
	if fault == nil {
		fault = missing
	}
	payload, err := exact.ReadObject(o["payload"])
	if fault == nil && err != nil {
		fault = refuse(MissingField, "payload")
	}
	if item.Fault = fault; fault != nil {
		return []Item{item}, nil
	}
	account, err := payload.Part("account_id")
	subject, missingObject := zoomObject(r.Text())
	if err != nil || missingObject != nil {
		item.Fault = refuse(MissingField, "payload.account_id, payload.object")
		return []Item{item}, nil
	}
	e := &Event{
		ID: []string{account, kind, subject, stamp}, Delivery: optional(r.Header, "X-Zm-Trackingid"), Type: kind, Tenant: account,
		Subject: []string{account, subject}, Version: stamp, Data: r.Text(), ContentType: "application/json",
	}
	for _, name := range []string{"participant_uuid", "user_id", "id"} {
		if who, err := exact.PartAt(r.Text(), "payload", "object", "participant", name); err == nil && who != "" {
			e.ID = append(e.ID, who)
			break
		}
	}
	e.Time, _ = instant(stamp, time.Millisecond)
	item.Event = e
	return []Item{item}, nil
}

// zoomObject is what an event is about.
func zoomObject(text []byte) (string, error) {
	id, err := exact.PartAt(text, "payload", "object", "uuid")
	if err != nil || id == "" {
		id, err = exact.PartAt(text, "payload", "object", "id")
	}
	return id, err
}
