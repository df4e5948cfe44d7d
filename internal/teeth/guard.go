package teeth

import (
	"regexp"
	"slices"
	"strings"
)

// Span is a part of a text.
type Span struct {
	// From is its first byte and To the one behind its last.
	From, To int
}

var (
	word = regexp.MustCompile(`(?i)[a-z_][a-z0-9_.]*|[();,]|'(?:[^']|'')*'|--[^\n]*|:=|[^\sa-z_();,']+`)
	// ends are the words behind which a condition does not go on.
	ends = regexp.MustCompile(`(?i)^(and|or|then|loop|returning|order|group|limit|for|on|where|when|else|end|if|elsif|union|into|set|as|perform|return|select|from|join|using|not|exists|[;,])$`)
)

// Conjuncts finds the terms that AND joins in a text of SQL, outside of BETWEEN,
// in the order of their places. Terms may stand inside others.
func Conjuncts(source string) (terms []Span) {
	tokens := slices.DeleteFunc(word.FindAllStringIndex(source, -1), func(at []int) bool { return strings.HasPrefix(source[at[0]:at[1]], "--") })
	text := func(i int) string { return source[tokens[i][0]:tokens[i][1]] }
	// reach goes from i in a direction to the end of the term there.
	reach := func(i, step int) int {
		depth, open, shut := 0, "(", ")"
		if step < 0 {
			open, shut = shut, open
		}
		last := i
		for i += step; i >= 0 && i < len(tokens); i += step {
			switch w := text(i); {
			case w == open:
				depth++
			case w == shut:
				if depth == 0 {
					return last
				}
				depth--
			case depth == 0 && ends.MatchString(w) && !(step > 0 && strings.EqualFold(w, "not")) && !(step > 0 && strings.EqualFold(w, "exists")):
				if step < 0 && (strings.EqualFold(w, "not") || strings.EqualFold(w, "exists")) {
					last = i
					continue
				}
				return last
			}
			last = i
		}
		return last
	}
	seen := map[Span]bool{}
	add := func(a, b int) {
		if a > b {
			return
		}
		s := Span{tokens[a][0], tokens[b][1]}
		if !seen[s] {
			seen[s] = true
			terms = append(terms, s)
		}
	}
	for i := range tokens {
		if !strings.EqualFold(text(i), "and") || i == 0 || i == len(tokens)-1 {
			continue
		}
		before := reach(i, -1)
		if between(text, before, i) {
			continue
		}
		add(before, i-1)
		add(i+1, reach(i, 1))
	}
	slices.SortFunc(terms, func(a, b Span) int { return a.From - b.From })
	return terms
}

// between reports whether a BETWEEN stands among the tokens.
func between(text func(int) string, from, to int) bool {
	for i := from; i < to; i++ {
		if strings.EqualFold(text(i), "between") {
			return true
		}
	}
	return false
}
