package analyze

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Symbol is one character for a class, for those who see; a word stands beside
// it everywhere.
func (c Class) Symbol() string {
	switch c {
	case Terminal:
		return "■"
	case Protected:
		return "○"
	case ProtectedByData:
		return "◇"
	case ProtectedUntilCycle:
		return "◐"
	case Exposed:
		return "●"
	case Undecided:
		return "?"
	case Late:
		return "·"
	case Early:
		return "‹"
	default:
		return " "
	}
}

// Word is the class in a word or two.
func (c Class) Word() string { return word(c) }

// widthOfTable is where a table is broken into several.
const widthOfTable = 110

// manyRows is from where rows that are alike are written once.
const manyRows = 24

// WriteTable writes the report for people: a row for each configuration, a
// column for each event type, then every finding.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	name := r.Chart.ID
	if r.Chart.Version != "" {
		name += " " + r.Chart.Version
	}
	fmt.Fprintf(&b, "%s: %s, %s\n", name, count(len(r.Configurations), "configuration"), count(len(r.Events), "event type"))
	if len(r.Chart.Final) > 1 {
		fmt.Fprintf(&b, "One configuration is the end: %d final states, %s.\n", len(r.Chart.Final), strings.Join(r.Chart.Final, ", "))
	}
	if !r.Complete {
		fmt.Fprintf(&b, "The budget of %s is spent: UNKNOWN is not protected.\n", r.Budget.Exceeded)
	}
	r.matrix(&b)
	r.classes(&b)
	r.list(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// matrix writes the table itself.
func (r *Report) matrix(b *strings.Builder) {
	if len(r.Events) == 0 {
		return
	}
	cells := map[int]map[string]string{}
	for _, c := range r.Cells {
		if cells[c.Configuration] == nil {
			cells[c.Configuration] = map[string]string{}
		}
		text := c.Class.Symbol() + " " + c.Class.Word()
		if c.Certainty == May && c.Class.rank() >= ProtectedUntilCycle.rank() && c.Class != Undecided {
			text += "?"
		}
		cells[c.Configuration][c.Event] = text
	}
	type row struct {
		label string
		cells map[string]string
		more  int // configurations that are alike
	}
	var rows []*row
	alike := map[string]*row{}
	for _, c := range r.Configurations {
		if c.Done || cells[c.Index] == nil {
			continue
		}
		l := &row{label: c.Label, cells: cells[c.Index]}
		if len(r.Configurations) > manyRows {
			var key strings.Builder
			for _, e := range r.Events {
				key.WriteString(l.cells[e.Type] + "\x00")
			}
			if first := alike[key.String()]; first != nil {
				first.more++
				continue
			}
			alike[key.String()] = l
		}
		rows = append(rows, l)
	}
	left := utf8.RuneCountInString("configuration")
	for _, l := range rows {
		if l.more > 0 {
			l.label += fmt.Sprintf(" (+%d alike)", l.more)
		}
		left = max(left, utf8.RuneCountInString(l.label))
	}
	for rest := r.Events; len(rest) > 0; {
		total, n := left, 0
		widths := []int{left}
		for _, e := range rest {
			w := utf8.RuneCountInString(e.Type)
			for _, l := range rows {
				w = max(w, utf8.RuneCountInString(l.cells[e.Type]))
			}
			if n > 0 && total+2+w > widthOfTable {
				break
			}
			total += 2 + w
			widths = append(widths, w)
			n++
		}
		head := []string{"configuration"}
		for _, e := range rest[:n] {
			head = append(head, e.Type)
		}
		b.WriteByte('\n')
		writeRow(b, head, widths)
		for _, l := range rows {
			line := []string{l.label}
			for _, e := range rest[:n] {
				line = append(line, cmp.Or(l.cells[e.Type], "-"))
			}
			writeRow(b, line, widths)
		}
		rest = rest[n:]
	}
	b.WriteString("\n\"?\" after a class: a guard has to answer so. \"-\": the event cannot come there.\n")
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func writeRow(b *strings.Builder, texts []string, widths []int) {
	parts := make([]string, len(texts))
	for i, text := range texts {
		parts[i] = padded(text, widths[i])
	}
	b.WriteString(strings.TrimRight(strings.Join(parts, "  "), " ") + "\n")
}

// classes writes one line for each event type, with the witness of its worst cell.
func (r *Report) classes(b *strings.Builder) {
	b.WriteByte('\n')
	width := 0
	for _, e := range r.Events {
		width = max(width, utf8.RuneCountInString(e.Type))
	}
	for _, e := range r.Events {
		fmt.Fprintf(b, "%s  %s", padded(e.Type, width), e.Class)
		if e.Certainty == May && e.Class.rank() >= ProtectedUntilCycle.rank() {
			b.WriteString(" (may)")
		}
		for _, c := range r.Cells {
			if c.Event != e.Type || c.Configuration != e.Worst || c.Witness == nil {
				continue
			}
			if c.Class == ProtectedByData {
				fmt.Fprintf(b, "  in %s: %s", r.Configurations[e.Worst].Label, strings.Join(c.By, ", "))
			} else {
				fmt.Fprintf(b, "  in %s: %s", r.Configurations[e.Worst].Label, r.path(c.Witness))
			}
		}
		if e.Declared != "" {
			fmt.Fprintf(b, "  (declared %s)", e.Declared)
		}
		b.WriteByte('\n')
	}
}

// path writes a witness as pending -PAY-> paid -PAY-> again.
func (r *Report) path(w *Witness) string {
	var b strings.Builder
	for i, s := range w.Steps {
		if i == 0 {
			b.WriteString(r.Configurations[s.From].Label)
		}
		to := r.Configurations[s.To].Label
		if i == len(w.Steps)-1 {
			to = "again"
		}
		fmt.Fprintf(&b, " -%s-> %s", s.Event, to)
	}
	return b.String()
}

// list writes the findings.
func (r *Report) list(b *strings.Builder) {
	b.WriteByte('\n')
	if len(r.Findings) == 0 {
		b.WriteString("No findings.\n")
		return
	}
	for i := 0; i < len(r.Findings); {
		n := i + 1
		for n < len(r.Findings) && r.Findings[n].Rule == r.Findings[i].Rule {
			n++
		}
		strict := false
		for _, f := range r.Findings[i:n] {
			strict = strict || f.Level != LevelNote
			r.one(b, f)
		}
		if strict {
			fmt.Fprintf(b, "    ways out: %s\n", strings.Join(r.Findings[i].Ways, "; "))
		}
		i = n
	}
	tally := map[Level]int{}
	for _, f := range r.Findings {
		tally[f.Level]++
	}
	fmt.Fprintf(b, "\n%s, %s, %s\n", count(tally[LevelError], "error"), count(tally[LevelWarning], "warning"), count(tally[LevelNote], "note"))
}

// one writes a finding: a line, and its witness below.
func (r *Report) one(b *strings.Builder, f Finding) {
	fmt.Fprintf(b, "%s %s: %s", f.Rule, f.Level, f.Message)
	if f.Accepted {
		b.WriteString(" (declared)")
	}
	switch {
	case f.Line > 0 && r.Chart.File != "":
		fmt.Fprintf(b, "  %s:%d:%d", r.Chart.File, f.Line, f.Column)
	case f.Line > 0:
		fmt.Fprintf(b, "  line %d, column %d", f.Line, f.Column)
	}
	b.WriteByte('\n')
	if f.Witness == nil {
		return
	}
	fmt.Fprintf(b, "    witness: %s\n", r.path(f.Witness))
	if text := answers(f.Witness); text != "" {
		fmt.Fprintf(b, "    if:      %s\n", text)
	}
	if text := again(f.Witness); text != "" {
		fmt.Fprintf(b, "    again:   %s\n", text)
	}
}

// answers writes what guards have to say, step by step.
func answers(w *Witness) string {
	var parts []string
	for i, s := range w.Steps {
		var each []string
		for _, a := range s.Answers {
			each = append(each, map[bool]string{true: "", false: "not "}[a.Is]+a.Guard)
		}
		if len(each) > 0 {
			parts = append(parts, fmt.Sprintf("at %d. %s: %s", i+1, s.Event, strings.Join(each, " and ")))
		}
	}
	return strings.Join(parts, ", ")
}

func again(w *Witness) string {
	var parts []string
	for _, a := range w.Again {
		text := a.Action + " (" + string(a.Class)
		if a.Role != "transition" {
			text += ", " + a.Role + " of " + a.State
		}
		parts = append(parts, text+")")
	}
	return strings.Join(slices.Compact(parts), ", ")
}
