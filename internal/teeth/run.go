package teeth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/evidence"
)

// Suite is a test program and the tests of it that are to notice a mistake.
type Suite struct {
	// Program is the path of the test program; Dir is where it runs, the folder of
	// its package.
	Program, Dir string
	// Run are patterns as -test.run has them, tried one after another until one
	// fails.
	Run []string
	// Flags are further flags of the test program.
	Flags []string
	// Limit ends a run that hangs, which is a failure too. Default 3 minutes.
	Limit time.Duration

	paces map[string]time.Duration // what each pattern of Run takes without a mistake
}

// Pace runs the tests without a mistake, which have to pass, and holds later runs
// to a small multiple of what they took, up to the limit: a mistake that makes a
// quick test hang is noticed sooner. The variables, such as NAME=value, are for these
// runs.
func (s *Suite) Pace(ctx context.Context, variables ...string) error {
	s.paces = nil
	paces := map[string]time.Duration{}
	for _, pattern := range s.Run {
		began := time.Now()
		r, err := s.run(ctx, pattern, variables, false)
		if err != nil {
			return err
		}
		if !r.passed {
			return fmt.Errorf("teeth: -run %s fails without a mistake: %s", pattern, r.output)
		}
		paces[pattern] = time.Since(began)
	}
	s.paces = paces
	return nil
}

// limit is the time for a run of the pattern, or of one test of it.
func (s *Suite) limit(pattern string) time.Duration {
	limit := s.Limit
	if limit == 0 {
		limit = 3 * time.Minute
	}
	if pace, known := s.paces[pattern]; known {
		limit = min(limit, max(20*time.Second, 8*pace))
	}
	return limit
}

// Caught is how a mistake was noticed.
type Caught struct {
	// Test is the name of the test that failed, failed again by itself, and passed
	// by itself without the mistake; empty where no test did.
	Test string
	// Doubts are failures that were not confirmed, each with the reason.
	Doubts []string
	// Output of the run that failed.
	Output string
}

// wholeRun stands before the pattern of a run of which no test can be named.
const wholeRun = "-run "

// rounds is how often a failure that is not confirmed is looked for again.
const rounds = 3

// Catches runs the tests with a mistake and then, for the first that fails, that
// one again, with and without the mistake. mistake are variables of the
// environment, such as NAME=value, or empty where the program itself holds it;
// then sound is a program that does not, and else nil.
func (s *Suite) Catches(ctx context.Context, mistake []string, sound *Suite) (Caught, error) {
	if sound == nil {
		sound = s
	}
	var c Caught
	for range rounds {
		name, pattern, output, err := s.first(ctx, mistake)
		if err != nil || name == "" {
			return c, err
		}
		c.Output = output
		why, err := s.confirm(ctx, sound, name, pattern, mistake)
		if err != nil {
			return c, err
		}
		if why == "" {
			c.Test = name
			return c, nil
		}
		c.Doubts = append(c.Doubts, name+" "+why)
	}
	return c, nil
}

// first finds a test that fails with the mistake, and by which pattern.
func (s *Suite) first(ctx context.Context, mistake []string) (name, pattern, output string, err error) {
	for _, pattern := range s.Run {
		r, err := s.run(ctx, pattern, mistake, false)
		if err != nil {
			return "", "", "", err
		}
		if !r.passed {
			if name = r.failed(); name == "" { // the program ended without saying of which test
				name = wholeRun + pattern
			}
			return name, pattern, r.output, nil
		}
	}
	return "", "", "", nil
}

// confirm returns why the test does not show the mistake, empty if it does.
func (s *Suite) confirm(ctx context.Context, sound *Suite, name, pattern string, mistake []string) (string, error) {
	again := false
	for range rounds { // a race is not lost every time
		r, err := s.alone(ctx, name, pattern, mistake)
		if err != nil {
			return "", err
		}
		if again = !r.passed; again {
			break
		}
	}
	if !again {
		return "did not fail again by itself", nil
	}
	r, err := sound.alone(ctx, name, pattern, nil)
	if err != nil {
		return "", err
	}
	if !r.passed {
		return "fails without the mistake too: " + r.output, nil
	}
	return "", nil
}

// alone runs one test of the pattern, or the nearest one around it whose name does
// not change from run to run.
func (s *Suite) alone(ctx context.Context, name, pattern string, mistake []string) (r result, err error) {
	if strings.HasPrefix(name, wholeRun) {
		return s.run(ctx, pattern, mistake, false)
	}
	for {
		r, err = s.within(ctx, s.limit(pattern), exactly(name), mistake, true)
		if err != nil || !r.passed || strings.Contains(r.output, "=== RUN   "+name+"\n") {
			return r, err
		}
		at := strings.LastIndexByte(name, '/')
		if at < 0 {
			return r, fmt.Errorf("teeth: %s is not there: %s", name, r.output)
		}
		name = name[:at]
	}
}

// exactly is the pattern of one test.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// result is what became of one run.
type result struct {
	passed bool
	output string
}

func (s *Suite) run(ctx context.Context, pattern string, mistake []string, verbose bool) (result, error) {
	return s.within(ctx, s.limit(pattern), pattern, mistake, verbose)
}

func (s *Suite) within(ctx context.Context, limit time.Duration, pattern string, mistake []string, verbose bool) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	args := []string{"-test.run=" + pattern, "-test.failfast", "-test.short", "-test.timeout=" + limit.String()}
	if verbose {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(ctx, s.Program, append(args, s.Flags...)...)
	cmd.Dir = s.Dir
	// What a run with a mistake has tried is no evidence, and it is not the long form.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, evidence.Variable+"=") || strings.HasPrefix(v, evidence.LongVariable+"=")
	})
	cmd.Env = append(cmd.Env, mistake...)
	cmd.WaitDelay = 5 * time.Second
	output, err := cmd.CombinedOutput()
	r := result{passed: err == nil, output: string(output)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
	case err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return r, fmt.Errorf("teeth: %w", err)
	}
	if r.passed && !verbose && strings.Contains(r.output, "testing: warning: no tests to run") {
		return r, fmt.Errorf("teeth: %s has no test %s", s.Program, pattern)
	}
	return r, nil
}

var (
	failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	hanging = regexp.MustCompile(`(?m)^\s+(Test\S*) \(\S+\)$`)
)

// failed is the innermost test that failed first.
func (r result) failed() string {
	all := failure.FindAllStringSubmatch(r.output, -1)
	if len(all) == 0 { // it hung, or ended by itself
		all = hanging.FindAllStringSubmatch(r.output, -1)
	}
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m[1]
	}
	for _, name := range names {
		if !slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") }) {
			return name
		}
	}
	return ""
}
