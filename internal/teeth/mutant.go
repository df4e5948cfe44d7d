package teeth

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Mutant is one small change of a Go file, which is there in the program and
// switched on by a variable of the environment.
type Mutant struct {
	// ID is the number that switches it on.
	ID int
	// File is where it is, from the root of the repository, and Line the line.
	File string
	Line int
	// Was and Is are the text before and after, on one line each.
	Was, Is string
}

// String is the mutant without its number, as it is named in lists.
func (m Mutant) String() string { return fmt.Sprintf("%s: %s → %s", m.File, m.Was, m.Is) }

// MutantVariable switches one mutant on, and ReachedVariable names a file that
// the numbers of those are appended to that a run comes by.
const (
	MutantVariable  = "UNAVEZ_TEETH_MUTANT"
	ReachedVariable = "UNAVEZ_TEETH_REACHED"
)

// Garden is a package whose mutants are all compiled into one program, each
// behind a question whether it is on: one compilation serves for all.
type Garden struct {
	root, pkg string
	sources   []*planted
	mutants   []Mutant
	dropped   map[int]bool // what does not compile
}

// planted is one file of a garden.
type planted struct {
	file   string
	source []byte
	edits  []edit
}

// edit is one place of a file.
type edit struct {
	span Span
	id   int
	make func(inner string) string
}

// planter collects the edits of one file.
type planter struct {
	g       *Garden
	p       *planted
	fset    *token.FileSet
	visited map[ast.Node]bool // what is part of something that was planted
}

// Decisions plants mutants of code that decides: comparisons are turned round and
// shifted, parts of conditions left out, statements dropped, sums and numbers
// changed. files are names in the folder pkg.
func Decisions(root, pkg string, files ...string) (*Garden, error) {
	return plant(root, pkg, files, (*planter).decision)
}

// Statements plants mutants of the SQL in strings: each term that AND joins is
// made true. Constants become variables for that, also in the package's other files.
func Statements(root, pkg string, files ...string) (*Garden, error) {
	g, err := plant(root, pkg, files, (*planter).statement)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(pkg)))
	if err != nil {
		return nil, fmt.Errorf("teeth: %w", err)
	}
	var others []string
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !slices.Contains(files, name) {
			others = append(others, name)
		}
	}
	more, err := plant(root, pkg, others, (*planter).vary)
	if err != nil {
		return nil, err
	}
	for _, p := range more.sources {
		if len(p.edits) > 0 {
			g.sources = append(g.sources, p)
		}
	}
	return g, nil
}

func plant(root, pkg string, files []string, kind func(*planter, ast.Node, []ast.Node)) (*Garden, error) {
	g := &Garden{root: root, pkg: pkg, dropped: map[int]bool{}}
	for _, name := range files {
		file := path.Join(pkg, name)
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return nil, fmt.Errorf("teeth: %w", err)
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("teeth: %w", err)
		}
		p := &planted{file: file, source: source}
		g.sources = append(g.sources, p)
		at := &planter{g: g, p: p, fset: fset, visited: map[ast.Node]bool{}}
		ast.PreorderStack(tree, nil, func(n ast.Node, stack []ast.Node) bool {
			if !at.visited[n] {
				kind(at, n, stack)
			}
			return true
		})
	}
	return g, nil
}

// Mutants are those that compile.
func (g *Garden) Mutants() []Mutant {
	return slices.DeleteFunc(slices.Clone(g.mutants), func(m Mutant) bool { return g.dropped[m.ID] })
}

// offset of a position in its file.
func (at *planter) offset(p token.Pos) int { return at.fset.Position(p).Offset }

// text of a node as it stands.
func (at *planter) text(n ast.Node) string {
	return string(at.p.source[at.offset(n.Pos()):at.offset(n.End())])
}

// add plants one mutant.
func (at *planter) add(n ast.Node, is string, make func(id int, inner string) string) {
	id := len(at.g.mutants) + 1
	line := func(s string) string {
		s = strings.Join(strings.Fields(s), " ")
		return s
	}
	at.g.mutants = append(at.g.mutants, Mutant{ID: id, File: at.p.file, Line: at.fset.Position(n.Pos()).Line, Was: line(at.text(n)), Is: line(is)})
	at.p.edits = append(at.p.edits, edit{
		span: Span{at.offset(n.Pos()), at.offset(n.End())}, id: id,
		make: func(inner string) string { return make(id, inner) },
	})
}

// instead plants another condition.
func (at *planter) instead(n ast.Node, is string) {
	at.add(n, is, func(id int, inner string) string {
		return fmt.Sprintf("(teethOn(%d) && (%s) || !teethOn(%d) && (%s))", id, is, id, inner)
	})
}

// pick plants another value; both are worked out.
func (at *planter) pick(n ast.Node, is string) {
	at.add(n, is, func(id int, inner string) string { return fmt.Sprintf("teethPick(%d, %s, %s)", id, inner, is) })
}

// drop plants the loss of a statement.
func (at *planter) drop(n ast.Node) {
	at.add(n, "nothing", func(id int, inner string) string { return fmt.Sprintf("if !teethOn(%d) { %s }", id, inner) })
}

// turned are the operators that take another's place, the second one where the
// border moves.
func turned(op token.Token) []string {
	switch op {
	case token.EQL:
		return []string{"!="}
	case token.NEQ:
		return []string{"=="}
	case token.LSS:
		return []string{">=", "<="}
	case token.LEQ:
		return []string{">", "<"}
	case token.GTR:
		return []string{"<=", ">="}
	case token.GEQ:
		return []string{"<", ">"}
	}
	return nil
}

// swapped is the operator of sums that takes another's place.
func swapped(op token.Token) string {
	return map[token.Token]string{token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*", token.AND: "|", token.OR: "&", token.SHL: ">>", token.SHR: "<<"}[op]
}

// decision plants what can be wrong at a node of a function.
func (at *planter) decision(n ast.Node, stack []ast.Node) {
	if !slices.ContainsFunc(stack, func(s ast.Node) bool { _, is := s.(*ast.FuncDecl); return is }) ||
		slices.ContainsFunc(append(stack, n), constant) {
		return
	}
	parent := stack[len(stack)-1]
	switch x := n.(type) {
	case *ast.BinaryExpr:
		left, right := at.text(x.X), at.text(x.Y)
		for _, op := range turned(x.Op) {
			at.instead(x, left+" "+op+" "+right)
		}
		switch x.Op {
		case token.LAND, token.LOR:
			at.instead(x, left)
			at.instead(x, right)
		}
		if op := swapped(x.Op); op != "" && !calls(x) && !strings.ContainsAny(left+right, "\"`") {
			at.pick(x, left+" "+op+" "+right)
		}
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			at.instead(x, at.text(x.X))
		}
	case *ast.IfStmt:
		switch x.Cond.(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr:
		default:
			at.visited[x.Cond] = false
			at.instead(x.Cond, "!("+at.text(x.Cond)+")")
		}
	case *ast.BasicLit:
		if _, is := parent.(*ast.BinaryExpr); !is && x.Kind == token.INT {
			if v, err := strconv.Atoi(x.Value); err == nil {
				at.pick(x, strconv.Itoa(v+1))
			}
		}
	case *ast.ExprStmt, *ast.IncDecStmt:
		if listed(parent) {
			at.drop(x)
		}
	case *ast.AssignStmt:
		if listed(parent) && x.Tok != token.DEFINE {
			at.drop(x)
		}
	case *ast.ReturnStmt:
		if listed(parent) && len(stack) > 2 {
			if _, is := stack[len(stack)-2].(*ast.FuncDecl); !is {
				at.drop(x)
			}
		}
	case *ast.BranchStmt:
		if listed(parent) && x.Tok == token.CONTINUE {
			at.drop(x)
		}
	}
}

// constant tells what has to be a constant, and what is no code.
func constant(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.GenDecl:
		return x.Tok == token.CONST || x.Tok == token.TYPE
	case *ast.ArrayType, *ast.StructType, *ast.FuncType:
		return true
	}
	return false
}

// listed tells a node that holds statements, one after another.
func listed(n ast.Node) bool {
	switch n.(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

// calls reports whether an expression calls anything, which may not happen twice.
func calls(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.CallExpr:
			if name, is := x.Fun.(*ast.Ident); !is || !slices.Contains([]string{"len", "min", "max", "int", "int64", "cap"}, name.Name) {
				found = true
			}
		case *ast.UnaryExpr:
			found = found || x.Op == token.ARROW
		}
		return !found
	})
	return found
}

// files renders the changed files, and the one that answers whether a mutant is on.
func (g *Garden) files() map[string]string {
	files := map[string]string{}
	for _, p := range g.sources {
		edits := slices.DeleteFunc(slices.Clone(p.edits), func(e edit) bool { return g.dropped[e.id] })
		// Around comes before within; of those on one place the first is innermost.
		slices.SortStableFunc(edits, func(a, b edit) int {
			if a.span != b.span {
				if a.span.From != b.span.From {
					return a.span.From - b.span.From
				}
				return b.span.To - a.span.To
			}
			return 0
		})
		files[p.file] = render(p.source, Span{0, len(p.source)}, edits)
	}
	name, _, _ := strings.Cut(string(packageClause(g.sources[0].source)), "\n")
	files[g.pkg+"/zz_teeth.go"] = name + "\n" + fmt.Sprintf(answers, len(g.mutants)+1)
	return files
}

// packageClause is the source from its package clause on.
func packageClause(source []byte) []byte {
	if bytes.HasPrefix(source, []byte("package ")) {
		return source
	}
	return source[bytes.Index(source, []byte("\npackage "))+1:]
}

// render is the text of a span with its edits, which are sorted.
func render(source []byte, span Span, edits []edit) string {
	var b strings.Builder
	at := span.From
	for len(edits) > 0 {
		first := edits[0].span
		same, within := 1, 1
		for same < len(edits) && edits[same].span == first {
			same++
		}
		for within = same; within < len(edits) && edits[within].span.To <= first.To; within++ {
		}
		inner := render(source, first, edits[same:within])
		for _, e := range edits[:same] {
			inner = e.make(inner)
		}
		b.Write(source[at:first.From])
		b.WriteString(inner)
		at = first.To
		edits = edits[within:]
	}
	b.Write(source[at:span.To])
	return b.String()
}

// answers is the file that answers whether a mutant is on.
const answers = `
import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

var (
	teethMutant, _ = strconv.Atoi(os.Getenv("` + MutantVariable + `"))
	teethReached   = os.Getenv("` + ReachedVariable + `")
	teethSeen      [%d]atomic.Bool
)

func teethOn(id int) bool {
	if teethReached != "" && !teethSeen[id].Swap(true) {
		file, err := os.OpenFile(teethReached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(file, id)
		file.Close()
	}
	return id == teethMutant
}

func teethPick[T any](id int, was, is T) T {
	if teethOn(id) {
		return is
	}
	return was
}
`
