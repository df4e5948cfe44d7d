package target

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/unavez/unavez/server/internal/outbound"
)

// Verdict is what an answer says of the effect.
type Verdict int

// The verdicts.
const (
	// Unknown: whether it happened cannot be told.
	Unknown Verdict = iota
	// Done: it has happened.
	Done
	// NotDone: it has not, and may be tried again.
	NotDone
	// Refused: it has not, and trying again does not mend that.
	Refused
	// Gone: refused, and the target wants no further calls.
	Gone
)

// Answer is what became of a call.
type Answer struct {
	// Verdict of it.
	Verdict Verdict
	// Status of the answer, 0 where there was none.
	Status int
	// RetryAfter is when the target wants to be asked again, 0 if it does not say.
	RetryAfter time.Duration
	// Err says why, for people; nil where it is done. It holds no content.
	Err error
}

// MaxRetryAfter bounds what is believed of a Retry-After.
const MaxRetryAfter = 24 * time.Hour

// Read says what the head of an answer means:
//
//	2xx, or in Done                            done
//	408, 425, 429, or in NotDone               not done
//	503 with Retry-After                       not done: it asks to be called again
//	410                                        gone (Standard Webhooks: disable the endpoint)
//	any other below 500                        refused; redirects are not followed
//	any other                                  unknown
func (t *Target) Read(status int, header http.Header) Answer {
	after, asked := retryAfter(header.Get("Retry-After"), t.o.Now())
	a := Answer{Status: status, RetryAfter: after}
	switch {
	case status >= 200 && status < 300, slices.Contains(t.o.Done, status):
		return Answer{Verdict: Done, Status: status}
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, slices.Contains(t.o.NotDone, status):
		a.Verdict = NotDone
	case status == http.StatusServiceUnavailable && asked:
		a.Verdict = NotDone
	case status == http.StatusGone:
		a.Verdict = Gone
	case status >= 300 && status < 400:
		a.Verdict = Refused
		a.Err = fmt.Errorf("answered %d: redirects are not followed", status)
		return a
	case status < 500:
		a.Verdict = Refused
	}
	a.Err = fmt.Errorf("answered %d %s", status, http.StatusText(status))
	return a
}

// failed reads an error of the connection.
func failed(err error, unsent bool) Answer {
	switch {
	case errors.Is(err, outbound.ErrRefused):
		// Nothing is sent there, today and tomorrow.
		return Answer{Verdict: Refused, Err: err}
	case unsent:
		return Answer{Verdict: NotDone, Err: fmt.Errorf("nothing was sent: %w", err)}
	}
	return Answer{Verdict: Unknown, Err: fmt.Errorf("no answer: %w", err)}
}

// retryAfter reads seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(text string, now time.Time) (time.Duration, bool) {
	if text == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, MaxRetryAfter), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), MaxRetryAfter), true
	}
	return 0, false
}
