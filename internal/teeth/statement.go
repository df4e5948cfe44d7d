package teeth

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// statement plants the loss of each term that AND joins in a text of SQL, which
// is a string, or strings and names joined by +.
func (at *planter) statement(n ast.Node, stack []ast.Node) {
	at.vary(n, stack)
	e, ok := n.(ast.Expr)
	if !ok {
		return
	}
	var parts []ast.Expr
	if !joined(e, &parts) {
		return
	}
	ast.Inspect(e, func(n ast.Node) bool { at.visited[n] = true; return true })
	// A name stands for its place in the text.
	var text strings.Builder
	for i, p := range parts {
		if l, is := p.(*ast.BasicLit); is {
			s, err := strconv.Unquote(l.Value)
			if err != nil {
				return
			}
			text.WriteString(s)
			continue
		}
		fmt.Fprintf(&text, " part_%d_ ", i)
	}
	whole := text.String()
	if !strings.Contains(whole, " AND ") { // it is no statement, or has one condition
		return
	}
	for _, s := range Conjuncts(whole) {
		flawed := whole[:s.From] + "(1 OR (" + whole[s.From:s.To] + "))" + whole[s.To:]
		is := at.again(flawed, parts)
		id := len(at.g.mutants) + 1
		term := strings.Join(strings.Fields(at.named(whole[s.From:s.To], parts)), " ")
		at.add(e, is, func(id int, inner string) string { return fmt.Sprintf("teethPick(%d, %s, %s)", id, inner, is) })
		at.g.mutants[id-1].Was, at.g.mutants[id-1].Is = term, "true"
	}
}

// vary makes a variable of a constant that is a text.
func (at *planter) vary(n ast.Node, _ []ast.Node) {
	d, ok := n.(*ast.GenDecl)
	if !ok || d.Tok != token.CONST {
		return
	}
	for _, s := range d.Specs {
		v := s.(*ast.ValueSpec)
		if v.Type != nil || len(v.Values) == 0 {
			return
		}
		for _, e := range v.Values {
			if !joined(e, &[]ast.Expr{}) {
				return
			}
		}
	}
	from := at.offset(d.TokPos)
	at.p.edits = append(at.p.edits, edit{span: Span{from, from + len("const")}, make: func(string) string { return "var" }})
}

// joined reports whether an expression is strings and names joined by +, with a
// string among them, and gives its parts.
func joined(e ast.Expr, parts *[]ast.Expr) bool {
	text := false
	var walk func(e ast.Expr) bool
	walk = func(e ast.Expr) bool {
		switch x := e.(type) {
		case *ast.BasicLit:
			text = text || x.Kind == token.STRING
			*parts = append(*parts, x)
			return x.Kind == token.STRING
		case *ast.BinaryExpr:
			return x.Op == token.ADD && walk(x.X) && walk(x.Y)
		case *ast.ParenExpr:
			return walk(x.X)
		}
		*parts = append(*parts, e)
		return true
	}
	return walk(e) && text
}

// again is the Go expression of a text with places.
func (at *planter) again(text string, parts []ast.Expr) string {
	var out []string
	for text != "" {
		before, rest, found := strings.Cut(text, " part_")
		if before != "" {
			out = append(out, strconv.Quote(before))
		}
		if !found {
			break
		}
		number, behind, _ := strings.Cut(rest, "_ ")
		i, _ := strconv.Atoi(number) // it was written by statement
		out = append(out, at.text(parts[i]))
		text = behind
	}
	return strings.Join(out, "+")
}

// named is a part of the text with the names in their places.
func (at *planter) named(text string, parts []ast.Expr) string {
	for i, p := range parts {
		text = strings.ReplaceAll(text, fmt.Sprintf("part_%d_", i), at.text(p))
	}
	return text
}
