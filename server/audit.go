package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// AuditOptions say what is audited, and how.
type AuditOptions struct {
	store.AuditOptions
	// File is the configuration whose store is audited. Empty means
	// ./unavez.yaml, and the example's store when there is none.
	File string
	// Store, when not empty, is audited in the place of a configuration's: a
	// file of SQLite, or the URL of a PostgreSQL database.
	Store string
	// JSON writes JSON and not text.
	JSON bool
	// Out gets the report.
	Out io.Writer
}

// Audit proves the invariants over what is stored, beside running workers, and
// writes what it found. It gives how many invariants are violated; an error
// means that it could not be carried out.
func Audit(ctx context.Context, o AuditOptions) (violated int, err error) {
	w, err := (&DoctorOptions{File: o.File, Store: o.Store}).find()
	if err != nil {
		return 0, err
	}
	name, proofs, err := audited(ctx, w, &o.AuditOptions)
	if err != nil {
		return 0, err
	}
	for _, p := range proofs {
		if p.Broken > 0 {
			violated++
		}
	}
	if o.JSON {
		return violated, writeJSON(o.Out, auditReport(name, violated, proofs))
	}
	return violated, writeProofs(o.Out, name, violated, proofs)
}

// audited runs the audit of a store.
func audited(ctx context.Context, w patient, o *store.AuditOptions) (name string, proofs []store.Proof, err error) {
	if w.place.Path != "" {
		name = "sqlite:" + w.place.Path
		proofs, err = sqlite.Audit(ctx, &modernc.Driver{}, w.place.Path, o)
	} else {
		pool, at, refused := connect(ctx, w.place.URL, func(c *pgxpool.Config) {
			// Behind a pooler prepared statements may get lost.
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		})
		if refused != nil {
			return at, nil, refused
		}
		name = at
		proofs, err = postgres.Audit(ctx, pool, o)
		if err != nil {
			err = explained(err)
		}
		err = errors.Join(err, disconnect(pool))
	}
	if err != nil {
		return name, nil, fmt.Errorf("store %s: %w", name, err)
	}
	return name, proofs, nil
}

// proved is one invariant in the report for programs.
type proved struct {
	store.Proof
	Name  string `json:"name"`
	Means string `json:"means,omitempty"`
	Way   string `json:"way,omitempty"`
}

type report struct {
	Store      string   `json:"store"`
	Violated   int      `json:"violated"`
	Invariants []proved `json:"invariants"`
}

func auditReport(name string, violated int, proofs []store.Proof) report {
	r := report{Store: name, Violated: violated, Invariants: []proved{}}
	for _, p := range proofs {
		i := invariant(p.Code)
		one := proved{Proof: p, Name: i.Name}
		if p.Broken > 0 {
			one.Means, one.Way = i.Means, i.Way
		}
		r.Invariants = append(r.Invariants, one)
	}
	return r
}

// invariant finds one by its code.
func invariant(code string) store.Invariant {
	all := store.Invariants()
	return all[slices.IndexFunc(all, func(i store.Invariant) bool { return i.Code == code })]
}

// writeProofs is the report for people.
func writeProofs(w io.Writer, name string, violated int, proofs []store.Proof) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", printable(name))
	for _, p := range proofs {
		i := invariant(p.Code)
		if p.Broken == 0 {
			fmt.Fprintf(&b, "%s  ok        %9d looked at  %s\n", p.Code, p.Looked, i.Name)
		} else {
			fmt.Fprintf(&b, "%s  VIOLATED  %9d of %-6d %s\n", p.Code, p.Broken, p.Looked, i.Name)
		}
		if p.Left != "" {
			fmt.Fprintf(&b, "         %s\n", printable(p.Left))
		}
		for _, first := range p.First {
			fmt.Fprintf(&b, "         %s\n", printable(first))
		}
		if more := p.Broken - int64(len(p.First)); p.Broken > 0 && more > 0 {
			fmt.Fprintf(&b, "         and %d more\n", more)
		}
		if p.Broken > 0 {
			paragraph(&b, "means: "+i.Means)
			paragraph(&b, "way out: "+i.Way)
		}
	}
	fmt.Fprintf(&b, "\n%s: %d hold, %d violated\n", counted(len(proofs), "invariant"), len(proofs)-violated, violated)
	_, err := io.WriteString(w, b.String())
	return err
}
