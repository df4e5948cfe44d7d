package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
)

// maxAnswer bounds an answer of the gateway, in bytes.
const maxAnswer = 1 << 20

// payment is what the gateway is asked for.
type payment struct {
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reference string `json:"reference"`
}

// charged is what the gateway answers.
type charged struct {
	ID string `json:"id"`
	payment
}

// gateway is the client of the payment API.
type gateway struct {
	url    string
	settle time.Duration
	client http.Client
}

// charge makes the one outside call and gives the charge's id. What its error
// says decides what becomes of the operation: NeverStarted frees the key, a 402
// is a "no" for good and frozen, anything else is unknown.
func (g *gateway) charge(ctx context.Context, key string, want payment) (string, error) {
	body, err := json.Marshal(want)
	if err != nil {
		return "", unavez.NeverStarted(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return "", unavez.NeverStarted(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	var got charged
	status, err := g.do(request, &got)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return "", unavez.NeverStarted(err) // nothing was sent
	case err != nil:
		return "", err
	case status == http.StatusCreated && got.ID != "" && got.payment == want:
		return got.ID, nil
	case status == http.StatusPaymentRequired:
		return "", httpkey.Errorf(http.StatusPaymentRequired, "declined")
	case status == http.StatusServiceUnavailable:
		return "", unavez.NeverStarted(errors.New("gateway: busy")) // its contract: nothing was charged
	}
	return "", fmt.Errorf("gateway: answered %d", status)
}

// find asks for a charge with our reference. Nothing found is no proof while
// the call that left before may still be on its way, or reads may lag behind:
// it waits for that long and asks again.
func (g *gateway) find(ctx context.Context, want payment) (string, unavez.Verdict, error) {
	for try := range 2 {
		if try > 0 {
			timer := time.NewTimer(g.settle)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return "", unavez.CannotTell, context.Cause(ctx)
			}
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/charges?reference="+url.QueryEscape(want.Reference), nil)
		if err != nil {
			return "", unavez.CannotTell, err
		}
		var found struct{ Charges []charged }
		status, err := g.do(request, &found)
		switch {
		case err != nil:
			return "", unavez.CannotTell, err
		case status != http.StatusOK:
			return "", unavez.CannotTell, fmt.Errorf("gateway: answered %d", status)
		case len(found.Charges) == 1 && found.Charges[0].payment == want:
			return found.Charges[0].ID, unavez.Done, nil
		case len(found.Charges) > 0:
			return "", unavez.CannotTell, fmt.Errorf("gateway: %d charges with our reference, or other money", len(found.Charges))
		}
	}
	return "", unavez.NotDone, nil
}

// do sends a request and reads the JSON of a 2xx answer.
func (g *gateway) do(request *http.Request, into any) (status int, err error) {
	response, err := g.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return response.StatusCode, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	return response.StatusCode, err
}
