package evidence

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Read reads all runs of a folder, by name.
func Read(dir string) ([]Run, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	runs := make([]Run, len(names))
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &runs[i])
		}
		if err != nil {
			return nil, fmt.Errorf("evidence: %s: %w", name, err)
		}
		runs[i].Name = strings.TrimSuffix(filepath.Base(name), ".json")
	}
	return runs, nil
}

// Torn lists the runs of the same random lists whose transcripts are not one: those
// whose names begin alike, of one seed and as many lists.
func Torn(runs []Run) (all []string) {
	type lists struct {
		family          string
		seed            uint64
		schedules, size int
	}
	first := map[lists]Run{}
	for _, r := range runs {
		if r.Transcript == "" {
			continue
		}
		family := strings.Join(strings.SplitN(r.Name, "-", 3)[:2], "-") // lists-ledger of lists-ledger-postgres
		l := lists{family, r.Seed, r.Schedules, r.Operations}
		if other, there := first[l]; !there {
			first[l] = r
		} else if other.Transcript != r.Transcript {
			all = append(all, r.Name+" and "+other.Name)
		}
	}
	return all
}

// Counts is the table of what runs have tried.
func Counts(runs []Run) string {
	b := &strings.Builder{}
	b.WriteString("| run | steps | faults | schedules | pairs of faults | cuts | images | operations | transcript | violations | form |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	sum := Run{}
	for _, r := range runs {
		if r.Seeded > 0 {
			continue
		}
		sum.Schedules, sum.Pairs, sum.Cuts, sum.Images = sum.Schedules+r.Schedules, sum.Pairs+r.Pairs, sum.Cuts+r.Cuts, sum.Images+r.Images
		sum.Operations, sum.Violations = sum.Operations+r.Operations, sum.Violations+r.Violations
		form := "ordinary"
		if r.Long {
			form = "long"
		}
		row(b, r.Name, number(r.Steps), number(r.Faults), number(r.Schedules), number(r.Pairs), number(r.Cuts), number(r.Images), number(r.Operations), r.Transcript, strconv.Itoa(r.Violations), form)
	}
	row(b, "**all**", "", "", number(sum.Schedules), number(sum.Pairs), number(sum.Cuts), number(sum.Images), number(sum.Operations), "", strconv.Itoa(sum.Violations), "")
	return b.String()
}

// Mistakes is the table of mistakes that were put into the code. What a run has
// not come to is told apart from what nothing noticed.
func Mistakes(runs []Run) string {
	b := &strings.Builder{}
	b.WriteString("| run | mistakes | caught | change nothing | survive | not run |\n|---|---|---|---|---|---|\n")
	for _, r := range runs {
		if r.Seeded == 0 {
			continue
		}
		not := r.Seeded - r.Equivalent - r.Caught - r.Violations
		row(b, r.Name, number(r.Seeded), number(r.Caught), number(r.Equivalent), strconv.Itoa(r.Violations), strconv.Itoa(not))
	}
	return b.String()
}

// Escaped stands before a layer of tests that has not noticed a mistake which it
// should have, in what [Run.Finds] is told.
const Escaped = "NOT BY "

// Survivors are the mistakes that nothing has noticed.
func (r *Run) Survivors() (all []string) {
	for mistake, by := range r.Found {
		if by == "" || strings.Contains(by, Escaped) {
			all = append(all, mistake)
		}
	}
	slices.Sort(all)
	return all
}

// Catches is the table of a run's mistakes, and by what each was noticed.
func Catches(r Run) string {
	b := &strings.Builder{}
	b.WriteString("| mistake | caught by |\n|---|---|\n")
	names := make([]string, 0, len(r.Found))
	for name := range r.Found {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		by := r.Found[name]
		if by == "" {
			by = "**nothing**"
		}
		row(b, name, by)
	}
	return b.String()
}

// Table is that of faults, who found each, and which test holds it.
func Table(faults []Fault) string {
	b := &strings.Builder{}
	b.WriteString("| what was wrong | found by | held by |\n|---|---|---|\n")
	for _, f := range faults {
		row(b, f.What, f.Finder, "`"+f.Package+"` "+f.Test)
	}
	return b.String()
}

func row(b *strings.Builder, cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", "\\|")
	}
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// number is empty for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Replace puts a text between the marks of that name in a page.
func Replace(page, name, text string) (string, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	before, rest, found := strings.Cut(page, begin)
	if !found {
		return "", fmt.Errorf("evidence: no %s", begin)
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("evidence: no %s", end)
	}
	return before + begin + text + end + after, nil
}
