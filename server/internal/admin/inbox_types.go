package admin

import (
	"time"

	"github.com/unavez/unavez/store"
)

// Entry is one queue entry as the API shows it.
type Entry struct {
	// Key that duplicates share, and Name in readable form.
	Key  string `json:"key"`
	Name string `json:"name"`
	// Operation that it names, by key and name.
	Operation     string `json:"operation"`
	OperationName string `json:"operation_name"`
	// Order is the ordering key, Ordering its parts.
	Order    string   `json:"order"`
	Ordering []string `json:"ordering,omitempty"`
	// Sequence is its place in the order of arrival.
	Sequence int64 `json:"sequence"`
	// Tenant and Effect it belongs to.
	Tenant string `json:"tenant"`
	Effect string `json:"effect"`
	// Source, Type, ID, Subject, Version and Time of the event.
	Source  string     `json:"source"`
	Type    string     `json:"type"`
	ID      []string   `json:"id,omitempty"`
	Subject []string   `json:"subject,omitempty"`
	Version string     `json:"version,omitempty"`
	Time    *time.Time `json:"time,omitempty"`
	// ContentType and Size of the content, in bytes.
	ContentType string `json:"content_type,omitempty"`
	Size        int    `json:"size"`
	// Erased, Unsigned and Hint as the event has them.
	Erased   bool `json:"erased,omitempty"`
	Unsigned bool `json:"unsigned,omitempty"`
	Hint     bool `json:"hint,omitempty"`
	// Delivery and Correlation, for comparing logs.
	Delivery    string `json:"delivery,omitempty"`
	Correlation string `json:"correlation,omitempty"`
	// Arrived is when it was appended.
	Arrived time.Time `json:"arrived"`
	// Deliveries are those that changed nothing, oldest first, at most 100.
	Deliveries []Delivery `json:"deliveries"`
	// Payload as it is kept (masked), in base64, when it is asked for.
	Payload []byte `json:"payload,omitempty"`
}

// Delivery is one further arrival of an entry.
type Delivery struct {
	// At by the database's clock.
	At time.Time `json:"at"`
	// What is duplicate or conflict.
	What string `json:"what"`
}

// Blocked is an entry that waits.
type Blocked struct {
	// Order is the ordering key.
	Order string `json:"order"`
	// Sequence of the entry.
	Sequence int64 `json:"sequence"`
	// Lane of the ordering key.
	Lane int `json:"lane"`
	// Key of the entry, and its operation.
	Key       string `json:"key"`
	Operation string `json:"operation"`
	// Gap says that it waits for an earlier version.
	Gap bool `json:"gap,omitempty"`
	// Done says that it has ended, and the others go on soon.
	Done bool `json:"done,omitempty"`
	// State of what it waits for, its Attempt, and DueIn seconds.
	State   string  `json:"state"`
	Attempt int64   `json:"attempt,omitempty"`
	DueIn   float64 `json:"due_in,omitempty"`
}

// BlockedPage is one page of a list.
type BlockedPage struct {
	// Blocked entries by ordering key.
	Blocked []Blocked `json:"blocked"`
	// Next continues behind this page; empty at the end.
	Next string `json:"next,omitempty"`
}

// Quarantined is one item that cannot be an operation.
type Quarantined struct {
	// Key of the item.
	Key string `json:"key"`
	// Tenant, Source and Type, as far as they are known.
	Tenant string `json:"tenant,omitempty"`
	Source string `json:"source"`
	Type   string `json:"type,omitempty"`
	// Reason is a class, Detail says more.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
	// ID and Subject of the event, as far as they are known.
	ID      []string `json:"id,omitempty"`
	Subject []string `json:"subject,omitempty"`
	// Delivery and Correlation, for comparing logs.
	Delivery    string `json:"delivery,omitempty"`
	Correlation string `json:"correlation,omitempty"`
	// ContentType of the content, and whether it was erased.
	ContentType string `json:"content_type,omitempty"`
	Erased      bool   `json:"erased,omitempty"`
	// Arrived is when it was first kept.
	Arrived time.Time `json:"arrived"`
	// Payload as it is kept (masked), in base64, when it is asked for.
	Payload []byte `json:"payload,omitempty"`
}

// QuarantinePage is one page of a list.
type QuarantinePage struct {
	// Items by their keys.
	Items []Quarantined `json:"items"`
	// Next continues behind this page; empty at the end.
	Next string `json:"next,omitempty"`
}

func quarantinedOf(q *store.Quarantined) Quarantined {
	return Quarantined{
		Key: q.Key.String(), Tenant: q.Tenant, Source: q.Source, Type: q.Type, Reason: q.Reason, Detail: q.Detail,
		ID: q.Note.ID, Subject: q.Note.Subject, Delivery: q.Note.Delivery, Correlation: q.Note.Correlation,
		ContentType: q.ContentType, Erased: q.Erased, Arrived: q.Arrived,
	}
}

// Readmitted is what a quarantined item became.
type Readmitted struct {
	// New entries, and those that were there already.
	New        int `json:"new"`
	Duplicates int `json:"duplicates"`
	Conflicts  int `json:"conflicts"`
}

// Redrive says which dead operations run again.
type Redrive struct {
	// By is who decides, and Reason why.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Tenant, Source, Effect and Owner select, where they are given.
	Tenant *string `json:"tenant,omitempty"`
	Source string  `json:"source,omitempty"`
	Effect string  `json:"effect,omitempty"`
	Owner  string  `json:"owner,omitempty"`
	// Contains selects by a part of the reason of their death.
	Contains string `json:"contains,omitempty"`
	// Since and Until select by the time of their death.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until"`
	// Rate is how many a second; 0 means 50.
	Rate float64 `json:"rate,omitempty"`
}

// Progress is a line of the answer to a redrive.
type Progress struct {
	// Redriven so far, and those that had Moved.
	Redriven int `json:"redriven"`
	Moved    int `json:"moved"`
	// Done is true in the last line if all are redriven.
	Done bool `json:"done,omitempty"`
	// Error says why it was cut off.
	Error string `json:"error,omitempty"`
}

// Erasure says whose data is erased.
type Erasure struct {
	// By is who decides, and Reason why.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Tenant and Subject name the person, as sources do.
	Tenant  string   `json:"tenant"`
	Subject []string `json:"subject,omitempty"`
	// Without Subject it is all that belongs to the tenant; of that, where they are
	// given, what this source has brought, and of the account that it names.
	Source  string `json:"source,omitempty"`
	Account string `json:"account,omitempty"`
}

// Erased is what an erasure came to.
type Erased struct {
	// Payloads that were removed.
	Payloads int `json:"payloads"`
}
