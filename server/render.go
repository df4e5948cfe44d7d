package server

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/unavez/unavez/server/internal/admin"
)

// printable keeps what clients and operators wrote from acting on a terminal.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.QuoteToGraphic(s)
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func writeTable(w io.Writer, page admin.Page, unfinished bool) error {
	if len(page.Operations) == 0 {
		text := "no operations"
		if unfinished {
			text = "no unfinished operations (--state completed lists those that ended)"
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// A tabwriter keeps its first error for Flush.
	_, _ = fmt.Fprintln(table, "STATE\tATTEMPT\tCHANGED\tKEY\tNAME\tREASON")
	for _, o := range page.Operations {
		_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\n", o.State, o.Attempt, o.Changed.UTC().Format(time.RFC3339), o.Key, printable(o.Name), printable(o.Reason))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if page.Next != "" {
		_, err := fmt.Fprintln(w, "there are more: raise --limit")
		return err
	}
	return nil
}

func writeOperation(w io.Writer, asJSON bool, o admin.Operation) error {
	if asJSON {
		return writeJSON(w, o)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, value any) {
		// A tabwriter keeps its first error for Flush.
		_, _ = fmt.Fprintf(table, "%s\t%s\n", name, printable(fmt.Sprint(value)))
	}
	row("key", o.Key)
	row("name", o.Name)
	row("tenant", o.Tenant)
	row("state", o.State)
	row("attempt", o.Attempt)
	if o.Origin != "" {
		row("origin", o.Origin)
	}
	if o.DerivedKey != "" {
		row("derived key", o.DerivedKey)
	}
	if o.Code != 0 {
		row("answer", fmt.Sprintf("status %d, %d bytes", o.Code, o.Size))
	}
	if o.Damaged {
		row("damaged", "the stored answer does not match its checksum")
	}
	if o.Reason != "" {
		row("reason", o.Reason)
	}
	row("created", o.Created.UTC().Format(time.RFC3339))
	row("changed", o.Changed.UTC().Format(time.RFC3339))
	if hint := hint(o.State); hint != "" {
		row("next", hint)
	}
	for _, s := range o.Steps {
		row("step", fmt.Sprintf("%s, done: %t, attempt %d", s.Name, s.Done, s.Attempt))
	}
	for _, t := range o.History {
		row("history", fmt.Sprintf("%s  %s → %s  attempt %d  by %s: %s", t.At.UTC().Format(time.RFC3339), t.From, t.To, t.Attempt, t.Actor, t.Reason))
	}
	if last := len(o.History) - 1; last >= 0 && (o.State == "completed" || o.State == "discarded") && o.History[last].To != o.State {
		row("history", fmt.Sprintf("%s  %s  attempt %d", o.Changed.UTC().Format(time.RFC3339), o.State, o.Attempt))
	}
	return table.Flush()
}

// hint says what an operator can do.
func hint(state string) string {
	switch state {
	case "unknown":
		return "with retry or probe the next repeat decides; else find out whether it took effect, then complete (it did), release (it did not: the next repeat runs) or discard"
	case "parked":
		return "release, complete or discard"
	case "dead":
		return "redrive, complete or discard"
	case "retryable":
		return "the next repeat of the request runs"
	}
	return ""
}
