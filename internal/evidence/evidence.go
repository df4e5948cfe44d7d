// Package evidence writes down what a run of a test has tried, for the page that
// lists it: how many steps, faults, schedules, cuts or images, and what was found.
package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Variable names the folder that runs are written to. Where it is empty nothing
// is written.
const Variable = "UNAVEZ_EVIDENCE"

// LongVariable, set to 1, has the long form of a run instead of the one that CI
// has time for.
const LongVariable = "UNAVEZ_LONG"

// Long reports whether the long form is wanted.
func Long() bool { return os.Getenv(LongVariable) == "1" }

// Run is what one run has tried. A count that a run does not have is left zero.
type Run struct {
	// Name of the run, such as wire-cuts; also that of its file.
	Name string `json:"name"`
	// Long says that it was the long form.
	Long bool `json:"long,omitempty"`
	// Seed of what was random.
	Seed uint64 `json:"seed,omitempty"`
	// Steps of the protocols that faults were put at.
	Steps int `json:"steps,omitempty"`
	// Faults that were made to happen.
	Faults int `json:"faults,omitempty"`
	// Schedules are orders of events that were tried.
	Schedules int `json:"schedules,omitempty"`
	// Pairs of faults that were drawn at random, beside those schedules.
	Pairs int `json:"pairs,omitempty"`
	// Cuts are connections that were broken at a message.
	Cuts int `json:"cuts,omitempty"`
	// Images are states of a disk after a power cut that were opened.
	Images int `json:"images,omitempty"`
	// Operations that were asked for, and Deliveries of them.
	Operations int `json:"operations,omitempty"`
	Deliveries int `json:"deliveries,omitempty"`
	// Seeded are mistakes that were put into the code on purpose, Caught those that
	// a test noticed, and Equivalent those that change nothing anybody can see, each
	// with its reason beside the test.
	Seeded     int `json:"seeded,omitempty"`
	Caught     int `json:"caught,omitempty"`
	Equivalent int `json:"equivalent,omitempty"`
	// Transcript is a digest of all answers of a run whose lists have one right
	// transcript; runs of the same lists over other stores have the same.
	Transcript string `json:"transcript,omitempty"`
	// Found tells by what each of them was noticed, by their names; what was not
	// has no word.
	Found map[string]string `json:"found,omitempty"`
	// Violations of a promise that were found, or mistakes that nothing noticed.
	Violations int `json:"violations"`
	// Sometimes counts what must happen in some run for the run to mean
	// anything; see [Run.Never].
	Sometimes map[string]int `json:"sometimes,omitempty"`
}

// Sees counts something that must happen sometimes.
func (r *Run) Sees(what string, n int) {
	if r.Sometimes == nil {
		r.Sometimes = map[string]int{}
	}
	r.Sometimes[what] += n
}

// Never lists what was to happen sometimes and has not.
func (r *Run) Never() (all []string) {
	for what, n := range r.Sometimes {
		if n == 0 {
			all = append(all, what)
		}
	}
	slices.Sort(all)
	return all
}

// Resume takes in what an earlier run of that name has found, so that the parts of
// a long run can be run apart. It does nothing where there is none.
func (r *Run) Resume() error {
	dir := os.Getenv(Variable)
	if dir == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, r.Name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var earlier Run
	if err == nil {
		err = json.Unmarshal(text, &earlier)
	}
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	r.Found = earlier.Found
	return nil
}

// Finds notes by what a mistake was noticed, "" for by nothing.
func (r *Run) Finds(mistake, by string) {
	if r.Found == nil {
		r.Found = map[string]string{}
	}
	r.Found[mistake] = by
}

// Write writes the run to its file in the folder that [Variable] names.
func (r *Run) Write() error {
	dir := os.Getenv(Variable)
	if dir == "" {
		return nil
	}
	if r.Name == "" || strings.ContainsAny(r.Name, "/\\. ") {
		return fmt.Errorf("evidence: name %q, want letters, digits and hyphens", r.Name)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, r.Name+".json"), append(text, '\n'), 0o644))
	}
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	return nil
}

// SeedVariable, when it is a number, is the seed of the random lists of operations,
// so that runs over several stores have the same lists.
const SeedVariable = "UNAVEZ_SEED"

// Seed is the seed of the further random lists: a new one each time, unless
// [SeedVariable] says which.
func Seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// ListsVariable, when it is a number, is how many further random lists of
// operations each store is tried with; see [Lists].
const ListsVariable = "UNAVEZ_LISTS"

// Lists is how many random lists of operations a store is tried with beside
// those that every run has: 20 in the long form, unless [ListsVariable] says
// otherwise.
func Lists() int {
	if n, err := strconv.Atoi(os.Getenv(ListsVariable)); err == nil {
		return n
	}
	if Long() {
		return 20
	}
	return 0
}
