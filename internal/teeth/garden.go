package teeth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Fate is what became of a mutant.
type Fate struct {
	Mutant
	// Reached says that a test comes by it.
	Reached bool
	// Caught is by which test it was noticed.
	Caught Caught
}

// Survived reports whether no test has noticed it.
func (f Fate) Survived() bool { return f.Caught.Test == "" }

var (
	compileError = regexp.MustCompile(`(?m)^(?:\./)?([^\s:]+\.go):(\d+)(?::\d+)?: (?:missing return)?`)
	asked        = regexp.MustCompile(`teeth(?:On|Pick)\((\d+)`)
)

// Build compiles the garden into dir; what does not compile is left out.
func (g *Garden) Build(ctx context.Context, dir string) (program string, err error) {
	for {
		files := g.files()
		program, err = Build(ctx, g.root, g.pkg, dir, files)
		if !errors.Is(err, ErrCompile) {
			return program, err
		}
		before := len(g.dropped)
		for _, m := range compileError.FindAllStringSubmatch(err.Error(), -1) {
			text, line := g.laid(files, m[1]), 0
			if line, err = strconv.Atoi(m[2]); err != nil {
				return "", err
			}
			lines := strings.Split(text, "\n")
			if line > len(lines) {
				continue
			}
			// A return that is missing is missed at the end of its function.
			for missing := strings.HasSuffix(m[0], "missing return"); missing && line > 1 && !strings.Contains(lines[line-1], "if !teethOn("); line-- {
			}
			for _, id := range asked.FindAllStringSubmatch(lines[line-1], -1) {
				n, _ := strconv.Atoi(id[1]) // digits, by the pattern
				g.dropped[n] = true
			}
		}
		if len(g.dropped) == before {
			_, err = Build(ctx, g.root, g.pkg, dir, files)
			return "", err
		}
	}
}

// laid is the text of the changed file that the compiler calls by a name.
func (g *Garden) laid(files map[string]string, name string) string {
	for file, text := range files {
		if filepath.Base(file) == filepath.Base(name) {
			return text
		}
	}
	return ""
}

// Try switches on one mutant after another. Those that no test comes by are not
// run, and survive. Those that skip names, if not nil, are left out. each is called
// with every fate, if not nil.
func (g *Garden) Try(ctx context.Context, program string, suite Suite, skip func(Mutant) bool, each func(Fate)) ([]Fate, error) {
	suite.Program, suite.Dir = program, filepath.Join(g.root, filepath.FromSlash(g.pkg))
	reached := filepath.Join(filepath.Dir(program), "reached")
	if err := suite.Pace(ctx, ReachedVariable+"="+reached); err != nil {
		return nil, fmt.Errorf("%s: %w", g.pkg, err)
	}
	text, err := os.ReadFile(reached)
	if err != nil {
		return nil, fmt.Errorf("teeth: %s: no mutant is reached: %w", g.pkg, err)
	}
	met := strings.Fields(string(text))
	var fates []Fate
	for _, m := range g.Mutants() {
		if skip != nil && skip(m) {
			continue
		}
		f := Fate{Mutant: m, Reached: slices.Contains(met, strconv.Itoa(m.ID))}
		if f.Reached {
			if f.Caught, err = suite.Catches(ctx, []string{MutantVariable + "=" + strconv.Itoa(m.ID)}, nil); err != nil {
				return fates, err
			}
		}
		fates = append(fates, f)
		if each != nil {
			each(f)
		}
	}
	return fates, nil
}
