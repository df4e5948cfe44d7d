package conform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The times of the suite itself.
const (
	caseLimit    = 90 * time.Second // of one case
	requestLimit = 30 * time.Second // of one request
	sideBySide   = 16               // cases at a time
)

// Level says what a service owes.
type Level string

// The levels.
const (
	// Must is what every service that honours the header keeps.
	Must Level = "M"
	// Default is this project's documented choice.
	Default Level = "D"
)

// Case is one case of the suite.
type Case struct {
	// ID is its number in the specification; a letter tells variants apart, and
	// a D in front names one of the specification's defaults.
	ID string
	// Level of what it asks.
	Level Level
	// Title in a few words.
	Title string
	// Alone says that it disturbs workers or measures times, so that no other
	// case may run beside it.
	Alone bool

	needs  need
	routes []string // of the conformance app; checked before the case runs
	run    func(*session)
}

// Result is how a case went.
type Result struct {
	// Case it was.
	Case Case
	// Err is what the service did wrong, nil when it passed or was left out.
	Err error
	// Skipped says why the case was left out, "" when it ran.
	Skipped string
	// Took is how long it ran.
	Took time.Duration
}

// Runner runs cases against one target. Its methods may be called concurrently,
// except for cases that are Alone.
type Runner struct {
	target Target
	about  *About // nil without control endpoints
	client *http.Client
}

// New looks at a target: a service that answers PathAbout is the conformance app.
func New(ctx context.Context, target Target) (*Runner, error) {
	if target.Slack < 1 {
		target.Slack = 1
	}
	if target.Body == nil {
		target.Body = []byte("{}")
	}
	if target.ContentType == "" {
		target.ContentType = "application/json"
	}
	r := &Runner{target: target, client: &http.Client{
		// A connection for each request: net/http sends a request that carries
		// Idempotency-Key again when a reused connection dies under it, and then
		// one call would be two deliveries.
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var faults []error
	for _, base := range []*string{&r.target.P1, &r.target.P2} {
		at, path, err := splitBase(*base)
		if err != nil {
			faults = append(faults, err)
		}
		if r.target.Path == "" {
			r.target.Path = path
		}
		*base = at
	}
	if r.target.P1 == "" {
		faults = append(faults, errors.New("conform: no target (set Target.P1)"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	about, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	r.about = about
	return r, nil
}

// look asks whether the target is the conformance app.
func (r *Runner) look(ctx context.Context) (*About, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	a, err := r.exchange(ctx, request{base: r.target.P1, method: http.MethodGet, path: PathAbout})
	if err != nil {
		return nil, fmt.Errorf("conform: target %s: %w", r.target.P1, err)
	}
	var about About
	if a.status != http.StatusOK || json.Unmarshal(a.body, &about) != nil || about.Conform != 1 {
		return nil, nil // a service like any other
	}
	return &about, nil
}

// Controlled reports whether the target is the conformance app.
func (r *Runner) Controlled() bool { return r.about != nil }

// Run runs one case.
func (r *Runner) Run(ctx context.Context, c Case) Result {
	if why := r.missing(c); why != "" {
		return Result{Case: c, Skipped: why}
	}
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	s := newSession(ctx, r)
	started := time.Now()
	done := make(chan struct{})
	go func() { // a case ends by its own Goexit where it fails
		defer close(done)
		defer s.leave()
		c.run(s)
		s.settle()
	}()
	<-done
	if s.err != nil {
		s.err = fmt.Errorf("case %s: %w", c.ID, s.err)
	}
	return Result{Case: c, Err: s.err, Took: time.Since(started)}
}

// All runs cases, such as those of [Cases]; the ones that may run side by side
// come first. each, when not nil, is told about a result when it is there, one
// at a time.
func (r *Runner) All(ctx context.Context, cases []Case, each func(Result)) Report {
	report := make(Report, len(cases))
	var mu sync.Mutex
	run := func(i int) {
		result := r.Run(ctx, cases[i])
		mu.Lock()
		defer mu.Unlock()
		report[i] = result
		if each != nil {
			each(result)
		}
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	for i, c := range cases {
		if c.Alone {
			continue
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			run(i)
		})
	}
	running.Wait()
	for i, c := range cases {
		if c.Alone {
			run(i)
		}
	}
	return report
}

// Report holds the results in the order of the cases.
type Report []Result

// Failed reports whether a case of the level failed.
func (r Report) Failed(level Level) bool {
	for _, result := range r {
		if result.Err != nil && result.Case.Level == level {
			return true
		}
	}
	return false
}

// WriteTo writes the report as text: a line for each case, and its error below.
func (r Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	passed, failed, skipped := 0, 0, 0
	for _, result := range r {
		word := "ok"
		switch {
		case result.Skipped != "":
			word = "left out"
			skipped++
		case result.Err != nil && result.Case.Level == Default:
			word = "differs"
			failed++
		case result.Err != nil:
			word = "FAILS"
			failed++
		default:
			passed++
		}
		fmt.Fprintf(&b, "%-8s  %-4s %s  %s", word, result.Case.ID, result.Case.Level, result.Case.Title)
		if result.Skipped != "" {
			fmt.Fprintf(&b, " (%s)", result.Skipped)
		} else {
			fmt.Fprintf(&b, " (%.1f s)", result.Took.Seconds())
		}
		b.WriteByte('\n')
		if result.Err != nil {
			b.WriteString("          " + strings.ReplaceAll(result.Err.Error(), "\n", "\n          ") + "\n")
		}
	}
	fmt.Fprintf(&b, "%d cases passed, %d failed, %d left out\n", passed, failed, skipped)
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
