package source

import (
	"net/http"
	"time"

	"github.com/unavez/unavez/source/cloudevents"
)

// CloudEvents is any sender of CloudEvents 1.0 over HTTP that shows a fixed
// token: the specification itself has no signature. For one that signs by
// Standard Webhooks or an HMAC, use those contracts.
func CloudEvents(token Token) (*Contract, error) {
	if err := token.check(); err != nil {
		return nil, err
	}
	return &Contract{
		Name: "cloudevents", Class: Logical,
		Success: http.StatusNoContent, Refused: http.StatusUnauthorized, TooLarge: http.StatusRequestEntityTooLarge,
		Window: 24 * time.Hour,
		Verify: token.verify,
		Read: func(r *Request) ([]Item, error) {
			events, err := cloudevents.Read(r.Header, r.Text())
			if err != nil {
				return nil, &Fault{Reason: MalformedBody, Cause: err}
			}
			items := make([]Item, len(events))
			for i, in := range events {
				items[i] = FromCloudEvent(in)
			}
			return items, nil
		},
	}, nil
}
