package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/unavez/unavez/server/internal/admin"
	"github.com/unavez/unavez/store"
)

// Blocked writes the ordering keys that wait, at most limit entries.
func (o *Ops) Blocked(ctx context.Context, w io.Writer, asJSON bool, limit int) error {
	all := admin.BlockedPage{Blocked: []admin.Blocked{}}
	query := url.Values{}
	for len(all.Blocked) < limit {
		query.Set("limit", fmt.Sprint(min(limit-len(all.Blocked), store.MaxPage)))
		var page admin.BlockedPage
		if err := o.call(ctx, http.MethodGet, "/api/blocked?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		all.Blocked, all.Next = append(all.Blocked, page.Blocked...), page.Next
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if asJSON {
		return writeJSON(w, all)
	}
	if len(all.Blocked) == 0 {
		_, err := fmt.Fprintln(w, "no ordering key waits")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// A tabwriter keeps its first error for Flush.
	_, _ = fmt.Fprintln(table, "STATE\tATTEMPT\tSEQUENCE\tLANE\tORDER\tOPERATION")
	for _, b := range all.Blocked {
		state := b.State
		if b.Gap {
			state += " (gap)"
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\n", state, b.Attempt, b.Sequence, b.Lane, b.Order, b.Operation)
	}
	return finish(table, w, all.Next != "")
}

// finish ends a table.
func finish(table *tabwriter.Writer, w io.Writer, more bool) error {
	if err := table.Flush(); err != nil || !more {
		return err
	}
	_, err := fmt.Fprintln(w, "there are more: raise --limit")
	return err
}

// Quarantine writes the items in quarantine, of one source if it is not empty,
// at most limit.
func (o *Ops) Quarantine(ctx context.Context, w io.Writer, asJSON bool, source string, limit int) error {
	all := admin.QuarantinePage{Items: []admin.Quarantined{}}
	query := url.Values{}
	if source != "" {
		query.Set("source", source)
	}
	for len(all.Items) < limit {
		query.Set("limit", fmt.Sprint(min(limit-len(all.Items), store.MaxPage)))
		var page admin.QuarantinePage
		if err := o.call(ctx, http.MethodGet, "/api/quarantine?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		all.Items, all.Next = append(all.Items, page.Items...), page.Next
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if asJSON {
		return writeJSON(w, all)
	}
	if len(all.Items) == 0 {
		_, err := fmt.Fprintln(w, "nothing is in quarantine")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "REASON\tARRIVED\tKEY\tSOURCE\tTYPE\tDETAIL")
	for _, q := range all.Items {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", printable(q.Reason), q.Arrived.UTC().Format(time.RFC3339), q.Key, q.Source, printable(q.Type), printable(q.Detail))
	}
	return finish(table, w, all.Next != "")
}

// Quarantined writes one item in quarantine, with its content as it is kept if
// payload is true.
func (o *Ops) Quarantined(ctx context.Context, w io.Writer, asJSON bool, key string, payload bool) error {
	if _, err := store.ParseKey(key); err != nil {
		return fmt.Errorf("%q is no key (32 hexadecimal digits), as unavez ops quarantine list shows them", key)
	}
	path := "/api/quarantine/" + key
	if payload {
		path += "?payload=true"
	}
	var q admin.Quarantined
	if err := o.call(ctx, http.MethodGet, path, nil, &q); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, q)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := rower(table)
	row("key", q.Key)
	row("source", q.Source)
	row("type", q.Type)
	row("tenant", q.Tenant)
	row("reason", q.Reason)
	row("detail", q.Detail)
	row("event", strings.Join(q.ID, " / "))
	row("subject", strings.Join(q.Subject, " / "))
	row("delivery", q.Delivery)
	row("correlation", q.Correlation)
	row("arrived", q.Arrived.UTC().Format(time.RFC3339))
	row("next", "mend the configuration and readmit it, or discard it")
	return writeContent(table, w, q.Payload, q.Erased)
}

// rower writes rows of two columns, leaving out what is empty.
func rower(table *tabwriter.Writer) func(name string, value any) {
	return func(name string, value any) {
		if text := printable(fmt.Sprint(value)); text != "" {
			_, _ = fmt.Fprintf(table, "%s\t%s\n", name, text) // a tabwriter keeps its first error for Flush
		}
	}
}

// writeContent ends a table and writes content behind it.
func writeContent(table *tabwriter.Writer, w io.Writer, payload []byte, erased bool) error {
	if erased {
		rower(table)("content", "erased on a person's demand")
	}
	if err := table.Flush(); err != nil || payload == nil {
		return err
	}
	text := string(payload)
	if !json.Valid(payload) {
		text = printable(text)
	} else {
		var indented bytes.Buffer
		if json.Indent(&indented, payload, "", "  ") == nil {
			text = indented.String()
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", text)
	return err
}

// Sort carries a decision about an item in quarantine out: readmit or discard.
func (o *Ops) Sort(ctx context.Context, w io.Writer, asJSON bool, key, action, by, reason string) error {
	if _, err := store.ParseKey(key); err != nil {
		return fmt.Errorf("%q is no key (32 hexadecimal digits), as unavez ops quarantine list shows them", key)
	}
	var done admin.Readmitted
	if err := o.call(ctx, http.MethodPost, "/api/quarantine/"+key+"/"+action, admin.Decision{By: by, Reason: reason}, &done); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, done)
	}
	text := "discarded"
	if action == "readmit" {
		text = fmt.Sprintf("readmitted: %d new, %d there already, %d there with another content", done.New, done.Duplicates, done.Conflicts)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// RedriveOptions select dead operations to run again.
type RedriveOptions struct {
	// By is who decides, Reason why.
	By, Reason string
	// Tenant, Source, Effect and Owner, when not empty, select by those; Contains
	// by a part of the reason of their death.
	Tenant, Source, Effect, Owner, Contains string
	// Since and Until select by the time of their death. Until is required.
	Since, Until time.Time
	// Rate is how many a second; 0 means 50.
	Rate float64
	// Resume is the command that goes on, for people.
	Resume string
}

// RedriveMany lets dead operations run again and writes how far it has come. Cut
// off, the same options go on.
func (o *Ops) RedriveMany(ctx context.Context, w io.Writer, asJSON bool, r RedriveOptions) error {
	in := admin.Redrive{
		By: r.By, Reason: r.Reason, Source: r.Source, Effect: r.Effect, Owner: r.Owner, Contains: r.Contains, Since: r.Since, Until: r.Until, Rate: r.Rate,
	}
	if r.Tenant != "" {
		in.Tenant = &r.Tenant
	}
	if !asJSON {
		if _, err := fmt.Fprintf(w, "to go on after an interruption: %s\n", r.Resume); err != nil {
			return err
		}
	}
	resp, err := o.patient().send(ctx, http.MethodPost, "/api/redrive", in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return err
		}
		return problemOf(resp.StatusCode, answer)
	}
	var last admin.Progress
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			return fmt.Errorf("the answer cannot be read: %w", err)
		}
		if asJSON || last.Done || last.Error != "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%d redriven\n", last.Redriven); err != nil {
			return err
		}
	}
	switch {
	case last.Error != "":
		return errors.New(last.Error)
	case !last.Done:
		return errors.New("cut off: the same command again goes on")
	case asJSON:
		return writeJSON(w, last)
	}
	moved := ""
	if last.Moved > 0 {
		moved = fmt.Sprintf(", %d had moved on meanwhile", last.Moved)
	}
	_, err = fmt.Fprintf(w, "done: %s redriven%s\n", counted(last.Redriven, "operation"), moved)
	return err
}

// EraseOptions say whose data is erased.
type EraseOptions struct {
	// By is who decides, Reason why.
	By, Reason string
	// Tenant of the person or the account, "" with one tenant.
	Tenant string
	// Subject are the parts that name a person, as the sources give them. Without
	// them it is all that belongs to the tenant.
	Subject []string
	// Source and Account, when not empty, leave of that what this source has
	// brought, and of the account or store that its messages name.
	Source, Account string
}

// Erase removes the content that is kept of a person or an account and writes of
// how many entries and items.
func (o *Ops) Erase(ctx context.Context, w io.Writer, asJSON bool, e EraseOptions) error {
	var done admin.Erased
	in := admin.Erasure{By: e.By, Reason: e.Reason, Tenant: e.Tenant, Subject: e.Subject, Source: e.Source, Account: e.Account}
	if err := o.patient().call(ctx, http.MethodPost, "/api/erase", in, &done); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, done)
	}
	_, err := fmt.Fprintf(w, "%s erased; identities are kept\n", counted(done.Payloads, "payload"))
	return err
}

// patient is for what may take long.
func (o *Ops) patient() *Ops {
	p := *o
	if client, ok := p.client.Transport.(*http.Transport); ok {
		p.client = &http.Client{Transport: client, CheckRedirect: o.client.CheckRedirect}
	}
	return &p
}

// writeEntry shows a queue entry with what arrived besides.
func writeEntry(w io.Writer, e admin.Entry) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := rower(table)
	row("entry", e.Key)
	if e.Operation != e.Key {
		row("of operation", e.OperationName+"  "+e.Operation)
	}
	row("source", e.Source)
	row("type", e.Type)
	row("event", strings.Join(e.ID, " / "))
	row("subject", strings.Join(e.Subject, " / "))
	row("version", e.Version)
	row("ordered by", strings.Join(e.Ordering, " / "))
	row("place", e.Sequence)
	row("content", fmt.Sprintf("%d bytes %s", e.Size, e.ContentType))
	if e.Unsigned {
		row("unsigned", "the sender's proof does not cover the content")
	}
	row("delivery", e.Delivery)
	row("correlation", e.Correlation)
	row("arrived", e.Arrived.UTC().Format(time.RFC3339))
	for _, d := range e.Deliveries {
		text := d.What
		if d.What == "conflict" {
			text += ": with another content"
		}
		row("again", d.At.UTC().Format(time.RFC3339)+"  "+text)
	}
	return writeContent(table, w, e.Payload, e.Erased)
}
