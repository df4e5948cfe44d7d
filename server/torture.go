package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/chaos"
	"github.com/unavez/unavez/internal/torture"
)

// TortureOptions say where the product is tried, and for how long.
type TortureOptions struct {
	// Database is a URL of PostgreSQL, or sqlite: and a file that does not exist.
	Database string
	// Redis is the URL of one Redis, redis://…; empty for none.
	Redis string
	// Operations is how many are sent at least, in each part that sends some.
	Operations int
	// Duration is how long there are faults at least, in each such part.
	Duration time.Duration
	// Cuts is how many connections are cut at a message of their own; negative
	// means each message of each protocol. PostgreSQL only.
	Cuts int
	// Seed of what is drawn; 0 draws one.
	Seed uint64
	// JSON writes the report as JSON; progress then goes to Log.
	JSON bool
	// Out gets the report, and Log what goes on.
	Out, Log io.Writer
	// Worker makes the command of a worker process, which calls [TortureWorker].
	Worker func() *exec.Cmd
}

// Verdict is what a torture comes to.
type Verdict string

// The verdicts.
const (
	// Held: nothing was found, and every fault met somebody.
	Held Verdict = "held"
	// Violated: a promise was broken.
	Violated Verdict = "violated"
	// Inconclusive: nothing was found, but something that was to happen has not.
	Inconclusive Verdict = "inconclusive"
)

// tortured is the report.
type tortured struct {
	Store   string         `json:"store"`
	Seed    uint64         `json:"seed"`
	Verdict Verdict        `json:"verdict"`
	Parts   []torturedPart `json:"parts"`
}

// torturedPart is what came of one part.
type torturedPart struct {
	Name       string                `json:"name"`
	Operations int                   `json:"operations,omitempty"`
	Deliveries int                   `json:"deliveries,omitempty"`
	Effects    int                   `json:"effects,omitempty"`
	Messages   int                   `json:"messages,omitempty"`
	Cuts       int                   `json:"cuts,omitempty"`
	Faults     map[string]chaos.Hits `json:"faults,omitempty"`
	Sometimes  map[string]int        `json:"sometimes,omitempty"`
	Violations []string              `json:"violations"`
	Never      []string              `json:"never"`
}

// Torture tries to break the product on a database of the user's, in schemas of
// its own that it removes, also when ctx ends, and writes what it found. An error
// means that it could not be carried out; what the user asked wrongly is a
// UsageError, and a database that is not empty is that, too.
func Torture(ctx context.Context, o TortureOptions) (verdict Verdict, err error) {
	for o.Seed == 0 {
		o.Seed = mathrand.Uint64()
	}
	if err := o.checkRedis(); err != nil {
		return "", err
	}
	at, _, err := (&OpsOptions{Store: o.Database}).place()
	if err != nil {
		return "", UsageError{errors.New(strings.Replace(err.Error(), "--store", "--dsn", 1))}
	}
	progress := o.Out
	if o.JSON {
		progress = o.Log
	}
	say := func(format string, arguments ...any) {
		_, _ = fmt.Fprintln(progress, printable(fmt.Sprintf(format, arguments...))) // who does not listen does without
	}
	t := &torturing{o: o, say: say, name: "unavez torture " + strings.ToLower(rand.Text()[:8])}
	t.prefix = strings.ReplaceAll(t.name, " ", ":") + ":"
	folder, err := os.MkdirTemp("", "unavez-torture-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	t.folder = folder
	t.report = tortured{Seed: o.Seed, Parts: []torturedPart{}}
	say("seed %d", o.Seed)
	if at.Path != "" {
		t.report.Store = "sqlite:" + at.Path
		err = t.file(ctx, at.Path)
	} else {
		pool, name, refused := connect(ctx, at.URL, nil)
		if refused != nil {
			return "", refused
		}
		t.report.Store = name
		if err := disconnect(pool); err != nil {
			return "", err
		}
		err = t.database(ctx, at.URL.Reveal())
	}
	if err != nil {
		return "", err
	}
	t.report.Verdict = Held
	for _, part := range t.report.Parts {
		if len(part.Violations) > 0 {
			t.report.Verdict = Violated
		} else if len(part.Never) > 0 && t.report.Verdict == Held {
			t.report.Verdict = Inconclusive
		}
	}
	if o.JSON {
		return t.report.Verdict, writeJSON(o.Out, t.report)
	}
	return t.report.Verdict, t.report.write(o.Out)
}

// checkRedis refuses what cannot be stood in front of.
func (o *TortureOptions) checkRedis() error {
	if o.Redis == "" {
		return nil
	}
	at, err := url.Parse(o.Redis)
	if err != nil || at.Scheme != "redis" || at.Host == "" || at.RawQuery != "" {
		return UsageError{errors.New("--redis: want the URL of one server without TLS, redis://:PASSWORD@HOST:6379")}
	}
	if at.Port() == "" {
		at.Host += ":6379"
		o.Redis = at.String()
	}
	return nil
}

// torturing is one call of Torture.
type torturing struct {
	o      TortureOptions
	say    func(format string, arguments ...any)
	name   string // of the connections of this run
	prefix string // of its keys in Redis
	folder string
	report tortured
}

// file tries SQLite, in a file of its own.
func (t *torturing) file(ctx context.Context, path string) (err error) {
	companions := []string{path, path + "-wal", path + "-shm", path + "-gate", path + "-journal"}
	for _, name := range companions {
		if _, err := os.Lstat(name); err == nil {
			return UsageError{fmt.Errorf("--dsn: %s exists: name a file that does not, in the folder that is to be tried", name)}
		}
	}
	defer func() {
		for _, name := range companions {
			if gone := os.Remove(name); gone != nil && !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if err := t.chaos(ctx, "the library", path, ""); err != nil {
		return err
	}
	return t.chaos(ctx, "unavez serve", path, t.folder)
}

// database tries PostgreSQL, in schemas of its own.
func (t *torturing) database(ctx context.Context, database string) (err error) {
	scratch, err := torture.NewScratch(ctx, database, t.name)
	if errors.Is(err, torture.ErrTaken) {
		return UsageError{fmt.Errorf("--dsn: %w", err)}
	}
	if err != nil {
		return explained(err)
	}
	t.say("made the schemas %s in %s", torture.Schemas, t.report.Store)
	defer func() {
		late := context.WithoutCancel(ctx)
		if gone := scratch.Drop(late); gone != nil {
			err = errors.Join(err, fmt.Errorf("the schemas %s are left: %w", torture.Schemas, explained(gone)))
		} else {
			t.say("removed the schemas %s", torture.Schemas)
		}
		if t.o.Redis == "" {
			return
		}
		late, cancel := context.WithTimeout(late, time.Minute)
		defer cancel()
		if _, gone := chaos.Forget(late, t.o.Redis, t.prefix); gone != nil {
			err = errors.Join(err, fmt.Errorf("keys in Redis under %s are left: %w", t.prefix, gone))
		}
	}()
	if t.o.Cuts != 0 {
		if err := t.cuts(ctx, scratch.URL); err != nil {
			return err
		}
	}
	if err := t.chaos(ctx, "the library", scratch.URL, ""); err != nil {
		return err
	}
	return t.chaos(ctx, "unavez serve", scratch.URL, t.folder)
}

// cuts has connections end at messages.
func (t *torturing) cuts(ctx context.Context, database string) error {
	t.say("== connections cut at a message")
	bed, err := torture.NewBed(ctx, database, t.o.Redis, t.prefix)
	if err != nil {
		return explained(err)
	}
	defer bed.Close()
	o := torture.CutOptions{Seed: t.o.Seed, Workers: 3, Log: t.say}
	if t.o.Cuts > 0 {
		o.Most, o.Slow = t.o.Cuts, max(1, t.o.Cuts/10)
	}
	found, err := bed.Cut(ctx, o)
	if err != nil {
		return fmt.Errorf("cuts: %w", err)
	}
	part := torturedPart{
		Name: "connections cut at a message", Messages: found.Messages, Cuts: found.Total(), Violations: found.Violations,
		Sometimes: map[string]int{
			"the answer of a COMMIT was lost":                                found.LostCommits,
			"an operation had taken effect and its client had no answer":     found.InDoubt,
			"a second effect of a client without unavez, which has to occur": found.Bare,
		},
	}
	if found.LostCommits == 0 {
		part.Never = append(part.Never, "never: the answer of a COMMIT was lost")
	}
	t.end(part)
	return nil
}

// chaos has processes and connections end under load.
func (t *torturing) chaos(ctx context.Context, kind, database, folder string) error {
	t.say("== workers of %s, killed and stopped under load", kind)
	o := chaos.Options{
		Database: database, Serve: folder, Command: t.o.Worker, Operations: t.o.Operations, Duration: t.o.Duration,
		Seed: t.o.Seed, Log: t.say,
	}
	if folder == "" { // those of the binary would leave keys of their own
		o.Redis, o.Prefix = t.o.Redis, t.prefix
	}
	found, err := chaos.Run(ctx, o)
	if err != nil {
		return fmt.Errorf("workers of %s: %w", kind, err)
	}
	t.end(torturedPart{
		Name: "workers of " + kind, Operations: found.Operations, Deliveries: found.Deliveries, Effects: found.Effects,
		Faults: found.Faults, Sometimes: found.Sometimes, Violations: found.Violations, Never: found.Never(),
	})
	return nil
}

func (t *torturing) end(part torturedPart) {
	if part.Violations == nil {
		part.Violations = []string{}
	}
	if part.Never == nil {
		part.Never = []string{}
	}
	t.report.Parts = append(t.report.Parts, part)
}

// write is the report for people.
func (r *tortured) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, seed %d\n", printable(r.Store), r.Seed)
	operations, faults := 0, 0
	for _, part := range r.Parts {
		fmt.Fprintf(&b, "\n%s\n", part.Name)
		if part.Cuts > 0 {
			fmt.Fprintf(&b, "  %s at %s\n", counted(part.Cuts, "cut"), counted(part.Messages, "message"))
		} else {
			fmt.Fprintf(&b, "  %s in %d deliveries, %d effects counted\n", counted(part.Operations, "operation"), part.Deliveries, part.Effects)
		}
		for _, name := range slices.Sorted(maps.Keys(part.Faults)) {
			hits := part.Faults[name]
			fmt.Fprintf(&b, "  %9d  %s (met %d)\n", hits.Times, name, hits.Met)
			faults += hits.Times
		}
		for _, what := range slices.Sorted(maps.Keys(part.Sometimes)) {
			fmt.Fprintf(&b, "  %9d  %s\n", part.Sometimes[what], what)
		}
		for _, violation := range part.Violations {
			fmt.Fprintf(&b, "  VIOLATED  %s\n", printable(violation))
		}
		for _, never := range part.Never {
			fmt.Fprintf(&b, "  %s\n", never)
		}
		operations, faults = operations+part.Operations, faults+part.Cuts
	}
	switch r.Verdict {
	case Held:
		fmt.Fprintf(&b, "\nHELD: %s under %s, each took effect once and had one answer\n", counted(operations, "operation"), counted(faults, "fault"))
	case Violated:
		fmt.Fprintf(&b, "\nVIOLATED: --seed %d draws the same again\n", r.Seed)
	case Inconclusive:
		b.WriteString("\nINCONCLUSIVE: nothing was violated, but not all of it happened; try a longer --duration, or more --operations\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// TortureWorker is a worker process of Torture.
func TortureWorker(ctx context.Context, in io.Reader, out, log io.Writer) error {
	return chaos.Work(ctx, in, out, func(ctx context.Context, file string, started func(string)) error {
		return Serve(ctx, Options{File: file, Out: io.Discard, Log: log, Started: func(requests, _ string) { started(requests) }})
	})
}
