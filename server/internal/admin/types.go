// Package admin is the listener for operators: a JSON API for operations,
// metrics and health.
//
// It shows what an operation is and never what it carried: no body, and no
// header of a stored answer. Reading is by GET; every change is by POST, is
// refused from pages of other origins, and names who decided and why. With a
// token, everything but health needs it. Without one the listener is loopback
// only, and only requests to a loopback name are answered, so that a page whose
// name was rebound to 127.0.0.1 gets nothing.
package admin

import (
	"time"

	"github.com/unavez/unavez/store"
)

// Operation is one operation as the API shows it.
type Operation struct {
	// Key is the database key, 32 hexadecimal digits.
	Key string `json:"key"`
	// Name is the identity in readable form: tenant/effect/part/….
	Name string `json:"name"`
	// Tenant it belongs to.
	Tenant string `json:"tenant"`
	// Effect is the effect name.
	Effect string `json:"effect"`
	// Parts of the key; for requests principal and Idempotency-Key.
	Parts []string `json:"parts"`
	// State in the words of the store.
	State string `json:"state"`
	// Attempt is the number of the last one: the fence.
	Attempt int64 `json:"attempt"`
	// Owner is the team that it belongs to.
	Owner string `json:"owner,omitempty"`
	// Origin is where it came from: its route, or its source.
	Origin string `json:"origin,omitempty"`
	// DerivedKey that outside calls carry.
	DerivedKey string `json:"derived_key,omitempty"`
	// LeaseLeft in seconds, for processing.
	LeaseLeft float64 `json:"lease_left,omitempty"`
	// DueIn in seconds, for retryable.
	DueIn float64 `json:"due_in,omitempty"`
	// Reason of the last transition.
	Reason string `json:"reason,omitempty"`
	// Created and Changed by the database's clock.
	Created time.Time `json:"created"`
	// Changed is when the state changed last.
	Changed time.Time `json:"changed"`
	// Code is the status of the frozen answer.
	Code int `json:"code,omitempty"`
	// Size is the bytes of its body.
	Size int `json:"size,omitempty"`
	// Damaged says that the stored answer does not match its checksum.
	Damaged bool `json:"damaged,omitempty"`
	// History and Steps, when one operation is shown.
	History []Transition `json:"history,omitempty"`
	// Steps of an unfinished operation, without their results.
	Steps []Step `json:"steps,omitempty"`
}

// Transition is one step of an operation's history.
type Transition struct {
	// At by the database's clock.
	At time.Time `json:"at"`
	// From is the state before.
	From string `json:"from"`
	// To is the state after.
	To string `json:"to"`
	// Attempt it concerns.
	Attempt int64 `json:"attempt"`
	// Actor who acted.
	Actor string `json:"actor"`
	// Reason given.
	Reason string `json:"reason"`
}

// Step is one outside call of an operation.
type Step struct {
	// Name of the step.
	Name string `json:"name"`
	// Done says that its result is stored.
	Done bool `json:"done"`
	// Attempt that started or ended it.
	Attempt int64 `json:"attempt"`
}

// Page is one page of a list.
type Page struct {
	// Operations of the page, those at rest longest first.
	Operations []Operation `json:"operations"`
	// Next continues behind this page; empty at the end.
	Next string `json:"next,omitempty"`
}

// Decision is what a person decides about an operation at rest.
type Decision struct {
	// By is the name of who decides.
	By string `json:"by"`
	// Reason for it.
	Reason string `json:"reason"`
	// Attempt, when not 0, is the one that was looked at.
	Attempt int64 `json:"attempt,omitempty"`
	// Result is what duplicates then get, for complete.
	Result *Result `json:"result,omitempty"`
}

// Result is the answer that a completed operation gets.
type Result struct {
	// Status of the answer, 200 to 499.
	Status int `json:"status"`
	// Header lines, in order.
	Header [][2]string `json:"header,omitempty"`
	// Body, in base64 as JSON has it.
	Body []byte `json:"body,omitempty"`
}

// operationOf shows a record.
func operationOf(r store.Record) Operation {
	return Operation{
		Key: r.Key.String(), Name: r.Identity.Text(), Tenant: r.Identity.Tenant, Effect: r.Identity.Effect, Parts: r.Identity.Parts,
		State: r.State.String(), Attempt: r.Attempt, Origin: r.Origin, DerivedKey: r.DerivedKey,
		LeaseLeft: r.LeaseLeft.Seconds(), DueIn: r.DueIn.Seconds(), Reason: r.Reason,
		Created: r.Created, Changed: r.Changed, Code: r.Code, Size: r.Size, Damaged: r.Damaged,
	}
}
