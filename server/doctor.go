package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

// DoctorOptions say what is looked at: what a configuration names, or a store
// and a lease by themselves.
type DoctorOptions struct {
	// File is the configuration. Empty means ./unavez.yaml, and the example's
	// store when there is none.
	File string
	// Store, when not empty, is looked at in the place of a configuration's: a
	// file of SQLite, or the URL of a PostgreSQL database.
	Store string
	// Lease, when not empty, is the URL of the Redis in front of Store.
	Lease string
	// JSON writes JSON and not text.
	JSON bool
	// Out gets the report.
	Out io.Writer
}

// Diagnosis counts what a doctor found.
type Diagnosis struct {
	// Refused is how many checks were refused.
	Refused int `json:"refused"`
	// Accepted is how many would be refused, and the configuration names them.
	Accepted int `json:"accepted"`
	// Warnings is how many were warned of.
	Warnings int `json:"warnings"`
	// Unreachable says that the store could not be looked at.
	Unreachable bool `json:"unreachable"`
}

// patient is what is looked at, and what is known of how it is used.
type patient struct {
	place     config.Place
	lease     config.Secret
	retention time.Duration // the longest configured; 0 where none is
	limit     time.Duration // the longest of a transaction
	file      string        // the configuration, where there is one
	unsafe    []string      // the checks that it names
}

// accept marks what is refused and named by the configuration.
func (w *patient) accept(all []store.Check) {
	for i, c := range all {
		if c.Level == store.Refused && slices.Contains(w.unsafe, c.Name) {
			all[i].Level = store.Accepted
		}
	}
}

// accepts says where the configuration names a check.
func (w *patient) accepts(name string) string { return w.file + " names it: unsafe: [" + name + "]" }

// find gives what options name.
func (o *DoctorOptions) find() (patient, error) {
	if o.Store == "" {
		if o.Lease != "" {
			return patient{}, UsageError{errors.New("--lease: name the --store that it stands in front of, too")}
		}
		l, err := load(&Options{File: o.File})
		if err != nil {
			return patient{}, err
		}
		return patientOf(l), nil
	}
	if o.File != "" {
		return patient{}, UsageError{errors.New("--store and a configuration name two stores: give one")}
	}
	at, _, err := (&OpsOptions{Store: o.Store}).place()
	return patient{place: at, lease: config.NewSecret(o.Lease)}, err
}

func patientOf(l *loaded) patient {
	c := l.config
	w := patient{place: c.Place, lease: c.Lease, file: l.name, unsafe: c.Unsafe}
	for _, r := range c.HTTP {
		w.retention, w.limit = max(w.retention, r.Retention), max(w.limit, r.Limit)
	}
	return w
}

// Doctor looks at the live settings of what the options name, writes what it
// saw and changes nothing. An error means that it could not be carried out; of
// a store that cannot be reached the report says so, and Diagnosis.Unreachable.
func Doctor(ctx context.Context, o DoctorOptions) (Diagnosis, error) {
	w, err := o.find()
	if err != nil {
		return Diagnosis{}, err
	}
	name, all, err := lookAtStore(ctx, w, false)
	if err != nil {
		return Diagnosis{}, err
	}
	if !w.lease.Empty() {
		redis, err := lookAtRedis(ctx, w.lease)
		if err != nil {
			return Diagnosis{}, err
		}
		all = append(all, redis...)
	}
	var d Diagnosis
	checks := make([]checked, 0, len(all))
	for _, c := range all {
		one := checked{Check: c}
		switch c.Level {
		case store.Refused:
			d.Refused++
			d.Unreachable = d.Unreachable || c.Name == checkReachable
		case store.Accepted:
			d.Accepted++
			one.Accepted = w.accepts(c.Name)
		case store.Warning:
			d.Warnings++
		}
		checks = append(checks, one)
	}
	if o.JSON {
		return d, writeJSON(o.Out, struct {
			Store string `json:"store"`
			Diagnosis
			Checks []checked `json:"checks"`
		}{name, d, checks})
	}
	return d, writeDiagnosis(o.Out, name, checks, d)
}

// checked is one check in the report.
type checked struct {
	store.Check
	// Accepted says where the configuration accepts it.
	Accepted string `json:"accepted,omitempty"`
}

// checkReachable is the check of a database that nothing else is known of.
const checkReachable = "postgres.reachable"

// lookAtStore looks at a store; start is the short form before serving.
func lookAtStore(ctx context.Context, w patient, start bool) (name string, all []store.Check, err error) {
	defer func() { w.accept(all) }()
	if w.place.Path != "" {
		all, err = sqlite.Doctor(ctx, &modernc.Driver{}, w.place.Path, &sqlite.DoctorOptions{Start: start})
		return "sqlite:" + w.place.Path, all, err
	}
	pool, name, err := connect(ctx, w.place.URL, nil)
	switch {
	case err != nil && name == "": // the URL itself
		return "", nil, err
	case err != nil:
		look := store.NewCheckup(postgres.Checks())
		look.See(checkReachable, store.Refused, true, "%s", strings.TrimPrefix(err.Error(), "store "+name+": "))
		return name, look.All(), nil
	}
	all, err = postgres.Doctor(ctx, pool, &postgres.DoctorOptions{Start: start, Retention: w.retention, Limit: max(w.limit, unavez.DefaultLimit)})
	return name, all, errors.Join(err, disconnect(pool))
}

// examine looks at a store before it is served from. What the promises do not
// hold on keeps the server from starting, unless the configuration names it.
// What is to be told all the same is noted.
func examine(ctx context.Context, l *loaded) (noted []store.Check, err error) {
	name, all, err := lookAtStore(ctx, patientOf(l), true)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	// What opening the store says better.
	said := []string{checkReachable, "postgres.schema", "sqlite.file"}
	if slices.ContainsFunc(all, func(c store.Check) bool { return c.Name == "postgres.schema" && c.Level == store.Refused }) {
		said = append(said, "postgres.grants") // an older schema is granted otherwise
	}
	var faults []error
	for _, c := range all {
		switch {
		case c.Level == store.Sound || slices.Contains(said, c.Name):
		case c.Level == store.Refused && !l.example:
			text := fmt.Sprintf("store %s: %s is %s: %s (%s", name, c.Name, c.Value, c.Why, c.Way)
			if slices.Contains(config.Unsafe(), c.Name) {
				text += "; or write unsafe: [" + c.Name + "] where losing that is accepted"
			}
			faults = append(faults, errors.New(text+")"))
		case c.Level == store.Refused, c.Level == store.Accepted, slices.Contains(losses(), c.Name):
			noted = append(noted, c)
		}
	}
	return noted, errors.Join(faults...)
}

// losses are the warnings about what may be lost, which a start tells too.
func losses() []string {
	return []string{"postgres.standbys", "postgres.synchronous_commit", "postgres.incarnation", "sqlite.file_system", "sqlite.disk"}
}

// writeDiagnosis is the report for people.
func writeDiagnosis(w io.Writer, name string, all []checked, d Diagnosis) error {
	wide := 0
	for _, c := range all {
		wide = max(wide, len(c.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", printable(name))
	for _, c := range all {
		level := c.Level.String()
		if c.Level == store.Refused {
			level = strings.ToUpper(level)
		}
		fmt.Fprintf(&b, "%-8s %-*s  %s\n", level, wide, c.Name, printable(c.Value))
		if c.Level != store.Sound {
			paragraph(&b, "why: "+c.Why)
			if c.Accepted != "" {
				paragraph(&b, "accepted: "+printable(c.Accepted))
			}
			paragraph(&b, "way out: "+c.Way)
		}
	}
	accepted := ""
	if d.Accepted > 0 {
		accepted = fmt.Sprintf("%d accepted, ", d.Accepted)
	}
	fmt.Fprintf(&b, "\n%s: %d refused, %s%s\n", counted(len(all), "check"), d.Refused, accepted, counted(d.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// paragraph writes indented lines of about a terminal's width.
func paragraph(b *strings.Builder, text string) {
	const indent, width = "         ", 100
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width && line != indent {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// counted is a number of things.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// Checks are all that Doctor looks at, each with the worst level it may have.
func Checks() []store.Check {
	return slices.Concat(postgres.Checks(), sqlite.Checks(), redisChecks())
}
