package source

import "fmt"

// Reason is the class of a refusal: a label for metrics and logs.
type Reason string

// The reasons. Those up to UntrustedIssuer are refusals of Verify.
const (
	MissingHeader     Reason = "missing_header"
	MalformedHeader   Reason = "malformed_signature"
	BadSignature      Reason = "bad_signature"
	OutOfTolerance    Reason = "timestamp_out_of_tolerance"
	EmptySecret       Reason = "empty_secret"
	ExpiredSecret     Reason = "expired_secret"
	WrongAudience     Reason = "wrong_audience"
	WrongPrincipal    Reason = "wrong_principal"
	UnsupportedMethod Reason = "unsupported_algorithm"
	UntrustedIssuer   Reason = "untrusted_issuer"

	MalformedBody Reason = "malformed_body"
	MissingField  Reason = "missing_field"
	WrongType     Reason = "unsupported_content"
)

// Fault is why a request or an item is no event. It carries no secret, no
// signature and no content.
type Fault struct {
	Reason Reason // its class
	Field  string // the header, query parameter or member concerned; may be empty
	Cause  error  // may be nil
}

// Error names the field, the class and the cause.
func (f *Fault) Error() string {
	text := string(f.Reason)
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Cause != nil {
		text += ": " + f.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

func refuse(reason Reason, field string) *Fault { return &Fault{Reason: reason, Field: field} }

func refusef(reason Reason, field, format string, args ...any) *Fault {
	return &Fault{Reason: reason, Field: field, Cause: fmt.Errorf(format, args...)}
}
