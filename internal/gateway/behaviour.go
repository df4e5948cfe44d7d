package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// The request headers that set the behaviour of one call.
const (
	// BehaviourHeader holds a [Kind].
	BehaviourHeader = "Sandbox-Behaviour"
	// DelayHeader holds a duration such as 250ms, for [Slow].
	DelayHeader = "Sandbox-Delay"
)

// maxDelay bounds a delay that comes from outside.
const maxDelay = time.Hour

// Kind is a way to behave badly, or [Normal].
type Kind string

// The kinds of behaviour of a call to POST /charges.
const (
	// Normal charges and answers 201.
	Normal Kind = "normal"
	// LostAnswer charges, then drops the connection without an answer.
	LostAnswer Kind = "lost-answer"
	// Slow waits before it charges; the caller may be gone by then, and it
	// charges all the same.
	Slow Kind = "slow"
	// Refuse answers 402 and charges nothing. The key keeps that answer.
	Refuse Kind = "refuse"
	// FailAfter charges, then answers 500.
	FailAfter Kind = "fail-after"
	// FailBefore answers 503 and charges nothing. The key stays unused.
	FailBefore Kind = "fail-before"
)

// Behaviour is how one call goes.
type Behaviour struct {
	// Kind; empty means Normal.
	Kind Kind
	// Delay is how long Slow waits, at most an hour.
	Delay time.Duration
	// Until, when not nil, is what Slow waits for instead of Delay: it charges
	// when the channel is closed.
	Until <-chan struct{}
}

// validate also turns the empty kind into Normal.
func (b *Behaviour) validate() error {
	switch b.Kind {
	case "":
		b.Kind = Normal
	case Normal, LostAnswer, Slow, Refuse, FailAfter, FailBefore:
	default:
		return fmt.Errorf("kind %q: want normal, lost-answer, slow, refuse, fail-after or fail-before", b.Kind)
	}
	if b.Delay < 0 || b.Delay > maxDelay {
		return fmt.Errorf("delay %v: want 0 to %v", b.Delay, maxDelay)
	}
	return nil
}

// UnmarshalJSON reads {"kind":"slow","delay":"250ms"}; both may be left out.
func (b *Behaviour) UnmarshalJSON(data []byte) error {
	var wire struct {
		Kind  Kind
		Delay string
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	return b.parse(wire.Kind, wire.Delay)
}

// parse sets a behaviour from its two texts.
func (b *Behaviour) parse(kind Kind, delay string) error {
	*b = Behaviour{Kind: kind}
	if delay != "" {
		d, err := time.ParseDuration(delay)
		if err != nil {
			return fmt.Errorf("delay %q: %w", delay, err)
		}
		b.Delay = d
	}
	return b.validate()
}

// ofRequest reads the headers of a call; ok is false when it sets nothing.
func ofRequest(r *http.Request) (b Behaviour, ok bool, err error) {
	kind, delay := r.Header.Get(BehaviourHeader), r.Header.Get(DelayHeader)
	if kind == "" && delay == "" {
		return Behaviour{}, false, nil
	}
	err = b.parse(Kind(kind), delay)
	return b, err == nil, err
}
