package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/source/cloudevents"
)

// EventGridOptions is how a subscription of Azure Event Grid proves itself. At
// least one of Secret and Entra is needed; where both are given both must hold.
type EventGridOptions struct {
	// Secret says where the fixed secret stands: in a query parameter of the
	// endpoint's URL, or in a static delivery header.
	Secret *Token

	// Entra says what the access token must say.
	Entra *Bearer

	// Origins are the senders that may ask for the right to deliver, as they
	// name themselves in WebHook-Request-Origin. Empty is
	// "eventgrid.azure.net"; sovereign clouds have names of their own.
	Origins []string

	// Rate is the most deliveries a minute that the handshake grants, 0 for what
	// was asked.
	Rate int
}

// EventGrid is Azure Event Grid, push delivery, in its own schema and in
// CloudEvents 1.0 (structured, batched or binary), basic topics and namespaces.
//
// Event Grid signs nothing: what authenticates is a secret in the URL, a static
// header, or a token of Microsoft Entra ID, none of which covers the body. It
// gives up an event at 400, 401, 403 and 413, so those are for forged deliveries
// only; whatever is our own trouble is 503, and too large a body too. It takes
// 200 to 204 for success, waits 30 seconds, and repeats for 24 hours or 30
// attempts; an event keeps its id in all of them. (learn.microsoft.com,
// azure/event-grid: delivery-and-retry, end-point-validation-*,
// security-authentication.)
func EventGrid(o EventGridOptions) (*Contract, error) {
	o.Origins = slices.Clone(o.Origins)
	if len(o.Origins) == 0 {
		o.Origins = []string{"eventgrid.azure.net"}
	}
	var faults []error
	if o.Secret == nil && o.Entra == nil {
		faults = append(faults, errors.New("secret, entra: give at least one; Event Grid signs nothing"))
	}
	if o.Secret != nil {
		faults = append(faults, o.Secret.check())
	}
	if o.Entra != nil {
		faults = append(faults, o.Entra.check())
	}
	if o.Rate < 0 {
		faults = append(faults, fmt.Errorf("rate: %d", o.Rate))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	g := &eventGrid{o}
	return &Contract{
		Name: "event-grid", Class: Logical,
		Success: http.StatusOK, Refused: http.StatusUnauthorized, TooLarge: http.StatusServiceUnavailable,
		Timeout: 30 * time.Second, Window: 24 * time.Hour,
		Handshake: g.handshake, Verify: g.verify, Read: g.read,
	}, nil
}

type eventGrid struct{ EventGridOptions }

func (g *eventGrid) verify(ctx context.Context, config *Config, r *Request) (proof Proof, err error) {
	if g.Secret != nil {
		if proof, err = g.Secret.verify(ctx, config, r); err != nil {
			return Proof{}, err
		}
	}
	if g.Entra != nil {
		return g.Entra.verify(ctx, config, r)
	}
	return proof, nil
}

// handshake answers the two ways in which Event Grid asks whether an endpoint
// wants its events. Both need the same proof as a delivery: the URL that carries
// the secret is the one that is asked.
func (g *eventGrid) handshake(ctx context.Context, config *Config, r *Request) (*Reply, error) {
	validation := strings.EqualFold(optional(r.Header, "Aeg-Event-Type"), "SubscriptionValidation")
	if r.Method != http.MethodOptions && !validation {
		return nil, nil
	}
	if r.Method == http.MethodOptions {
		return g.preflight(ctx, config, r)
	}
	if _, err := g.verify(ctx, config, r); err != nil {
		return nil, err
	}
	elements, err := list(r.Text())
	if err != nil {
		return nil, &Fault{Reason: MalformedBody, Cause: err}
	}
	for _, raw := range elements {
		kind, err := exact.Lookup(raw, "eventType")
		if err != nil {
			continue
		}
		if name, _ := exact.Text(kind); name != "Microsoft.EventGrid.SubscriptionValidationEvent" {
			continue
		}
		value, err := exact.Lookup(raw, "data", "validationCode")
		code, ok := exact.Text(value)
		if err != nil || !ok || code == "" || len(code) > 512 {
			return nil, refuse(MissingField, "data.validationCode")
		}
		body, err := json.Marshal(map[string]string{"validationResponse": code})
		if err != nil {
			return nil, err
		}
		return &Reply{
			Status: http.StatusOK, Body: body,
			Header: http.Header{"Content-Type": {"application/json"}},
		}, nil
	}
	return nil, refusef(MalformedBody, "", "no SubscriptionValidationEvent in it")
}

// preflight is the abuse protection of the CloudEvents webhook specification. An
// origin that is not listed gets an answer without the header, which is a no.
func (g *eventGrid) preflight(ctx context.Context, config *Config, r *Request) (*Reply, error) {
	origin, err := line(r.Header, "WebHook-Request-Origin")
	if err != nil {
		return nil, err
	}
	// An Entra token does not come with this request, a secret in the URL does.
	if g.Secret != nil && g.Secret.Query != "" {
		if _, err := g.Secret.verify(ctx, config, r); err != nil {
			return nil, err
		}
	}
	reply := &Reply{Status: http.StatusOK, Header: http.Header{"Allow": {"POST, OPTIONS"}}}
	if !slices.ContainsFunc(g.Origins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		return reply, nil
	}
	reply.Header.Set("WebHook-Allowed-Origin", origin)
	if asked := optional(r.Header, "WebHook-Request-Rate"); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n <= 0 {
			return nil, refuse(MalformedHeader, "WebHook-Request-Rate")
		}
		if g.Rate > 0 {
			n = min(n, g.Rate)
		}
		reply.Header.Set("WebHook-Allowed-Rate", strconv.Itoa(n))
	}
	return reply, nil
}

func (g *eventGrid) read(r *Request) ([]Item, error) {
	delivery := optional(r.Header, "Aeg-Delivery-Count")
	if cloudevents.ModeOf(r.Header) != cloudevents.None {
		events, err := cloudevents.Read(r.Header, r.Text())
		if err != nil {
			return nil, &Fault{Reason: MalformedBody, Cause: err}
		}
		items := make([]Item, len(events))
		for i, in := range events {
			items[i] = FromCloudEvent(in)
			if e := items[i].Event; e != nil {
				e.Delivery = delivery
			}
		}
		return items, nil
	}
	elements, err := list(r.Text())
	if err != nil {
		return nil, &Fault{Reason: MalformedBody, Cause: err}
	}
	items := make([]Item, len(elements))
	for i, raw := range elements {
		items[i] = gridEvent(raw)
		if e := items[i].Event; e != nil {
			e.Delivery = delivery
		}
	}
	return items, nil
}

// list takes an array apart, and a single object for an array of one.
func list(text []byte) ([][]byte, error) {
	if !json.Valid(text) {
		return nil, errors.New("not JSON")
	}
	if trimmed := strings.TrimLeft(string(text[:min(len(text), 64)]), " \t\r\n"); strings.HasPrefix(trimmed, "{") {
		return [][]byte{text}, nil
	}
	elements, err := exact.Elements(text)
	if err == nil && len(elements) > cloudevents.MaxBatch {
		err = fmt.Errorf("%d events, more than %d", len(elements), cloudevents.MaxBatch)
	}
	return elements, err
}

// gridEvent reads one event of the Event Grid schema.
func gridEvent(raw []byte) Item {
	item := Item{Raw: raw}
	o, fault := object(raw)
	if item.Fault = fault; fault != nil {
		return item
	}
	var values [3]string
	for i, name := range []string{"topic", "id", "eventType"} {
		values[i] = o.Text(name)
		if values[i] == "" {
			item.Fault = refuse(MissingField, name)
			return item
		}
	}
	e := &Event{
		ID: []string{values[0], values[1]}, Type: values[2],
		Data: raw, ContentType: "application/json",
		Attributes: map[string]string{"topic": values[0], "dataversion": o.Text("dataVersion")},
	}
	if subject := o.Text("subject"); subject != "" {
		e.Subject = []string{values[0], subject}
	}
	e.Time, _ = time.Parse(time.RFC3339Nano, o.Text("eventTime")) // zero if it does not say
	if value, err := exact.Lookup(raw, "data", "sequencer"); err == nil {
		e.Version, _ = exact.Text(value) // storage events: compared as text, per blob
	}
	item.Event = e
	return item
}

// FromCloudEvent is an event whose identity is its source and id, as the
// CloudEvents specification has it.
func FromCloudEvent(in cloudevents.Item) Item {
	item := Item{Raw: in.Raw}
	if in.Err != nil {
		item.Fault = &Fault{Reason: MalformedBody, Cause: in.Err}
		return item
	}
	ce := in.Event
	e := &Event{
		ID: []string{ce.Source, ce.ID}, Type: ce.Type, Time: ce.Time,
		Version: ce.Extensions["sequence"], Data: ce.Data, ContentType: ce.ContentType,
		Attributes: map[string]string{"source": ce.Source},
	}
	if e.ContentType == "" && ce.Data != nil {
		e.ContentType = "application/json"
	}
	for name, value := range ce.Extensions {
		e.Attributes[name] = value
	}
	if ce.Subject != "" {
		e.Subject = []string{ce.Source, ce.Subject}
	}
	item.Event = e
	return item
}
