package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// noSleep refuses waiting by the clock. A test that sleeps is slow and still
// fails on a busy machine; it waits for a signal, or runs in a bubble of
// testing/synctest, where the clock is the test's own.
func noSleep() rule {
	// Production code that may sleep: file and function, with the reason.
	allowed := map[string]string{
		"bench/sqlite.go:settle": "no event tells that the runtime has given memory back before it is measured",
	}
	check := func(t *tree) (found []finding) {
		for _, f := range t.files {
			bubbles := f.bubbles()
			for _, decl := range f.ast.Decls {
				fn, _ := decl.(*ast.FuncDecl)
				ast.Inspect(decl, func(n ast.Node) bool {
					if n == nil || !f.sleeps(n) || bubbles.hold(n.Pos()) {
						return true
					}
					if fn != nil && !f.test && allowed[f.path+":"+fn.Name.Name] != "" {
						return true
					}
					found = append(found, t.at(f, n.Pos(), "wait for a signal instead of the clock"))
					return true
				})
			}
		}
		return found
	}
	return rule{
		name: "sleep", check: check,
		bad: []fixture{
			one("a/a_test.go", "package a\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n", "6"),
			one("a/a.go", "package a\n\nimport clock \"time\"\n\nvar wait = clock.Sleep\n", "5"),
			one("a/a.go", "package a\n\nimport . \"time\"\n\nfunc f() {\n\tSleep(1)\n}\n", "6"),
			one("a/a_test.go", "package a\n\nimport \"time\"\n\nfunc f() {\n\t<-time.After(1)\n}\n", "6"),
			one("a/a_test.go", "package a\n\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nfunc f() {\n\tsynctest.Test(nil, g)\n\ttime.Sleep(1)\n}\n", "10"),
			{
				files: map[string]string{
					"bench/go.mod": "module x\n",
					"bench/a.go":   "package a\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n",
				},
				want: []string{"bench/a.go:6"},
			},
		},
		good: []fixture{
			one("a/a_test.go", "package a\n\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nfunc f() {\n\tsynctest.Test(nil, func(any) {\n\t\ttime.Sleep(1)\n\t})\n}\n"),
			one("a/a_test.go", "package a\n\nimport \"time\"\n\nfunc f() {\n\tselect {\n\tcase <-done:\n\tcase <-time.After(1):\n\t}\n}\n"),
			one("a/a_test.go", "package a\n\nfunc f(bed furniture) {\n\tbed.Sleep(1)\n}\n"),
		},
	}
}

// spans are pieces of a file.
type spans [][2]token.Pos

func (s spans) hold(at token.Pos) bool {
	return slices.ContainsFunc(s, func(span [2]token.Pos) bool { return span[0] <= at && at < span[1] })
}

// bubbles are the function literals given to synctest.Test.
func (f *goFile) bubbles() (all spans) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if pkg, name, ok := f.call(c); ok && pkg == "testing/synctest" && name == "Test" {
			for _, arg := range c.Args {
				if _, ok := arg.(*ast.FuncLit); ok {
					all = append(all, [2]token.Pos{arg.Pos(), arg.End()})
				}
			}
		}
		return true
	})
	return all
}

// sleeps tells a mention of time.Sleep, and a statement that only waits for time.After.
func (f *goFile) sleeps(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.SelectorExpr:
		pkg, name, ok := f.selected(x)
		return ok && pkg == "time" && name == "Sleep"
	case *ast.Ident:
		return x.Name == "Sleep" && f.dotted["time"]
	case *ast.ExprStmt:
		receive, ok := x.X.(*ast.UnaryExpr)
		if !ok || receive.Op != token.ARROW || f.commClause(x) {
			return false
		}
		pkg, name, ok := f.call(receive.X)
		return ok && pkg == "time" && (name == "After" || name == "Tick")
	}
	return false
}

// commClause tells whether the statement is the case of a select.
func (f *goFile) commClause(statement ast.Stmt) (is bool) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if c, ok := n.(*ast.CommClause); ok && c.Comm == statement {
			is = true
		}
		return !is
	})
	return is
}

// noInit refuses init functions: what a program wires is visible where it wires it.
func noInit() rule {
	check := func(t *tree) (found []finding) {
		for _, f := range t.released() {
			for _, decl := range f.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					found = append(found, t.at(f, fn.Pos(), "no init functions: wire it in server, or in the constructor"))
				}
			}
		}
		return found
	}
	return rule{
		name: "init", check: check,
		bad: []fixture{
			one("a/a.go", "package a\n\nfunc init() {}\n", "3"),
			one("a/a_test.go", "package a\n\nfunc init() {}\n", "3"),
		},
		good: []fixture{one("a/a.go", "package a\n\ntype t int\n\nfunc (t) init() {}\n")},
	}
}

// noPackageState allows package-level variables only where nobody changes them.
func noPackageState() rule {
	// Variables that may stand: file and name, with the reason.
	allowed := map[string]string{}
	check := func(t *tree) (found []finding) {
		for _, f := range t.production() {
			for _, decl := range f.ast.Decls {
				d, ok := decl.(*ast.GenDecl)
				if !ok || d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					s := spec.(*ast.ValueSpec)
					if f.fixed(s) || embeds(d.Doc) || embeds(s.Doc) {
						continue
					}
					for _, name := range s.Names {
						if allowed[f.path+":"+name.Name] == "" {
							found = append(found, t.at(f, name.Pos(), "%s is package-level state: pass it, or make it a constant or a function", name.Name))
							break
						}
					}
				}
			}
		}
		return found
	}
	return rule{
		name: "package state", check: check,
		bad: []fixture{
			one("a/a.go", "package a\n\nvar count int\n", "3"),
			one("a/a.go", "package a\n\nvar table = map[string]int{}\n", "3"),
			one("a/a.go", "package a\n\nimport \"errors\"\n\nvar (\n\tErrOne = errors.New(\"one\")\n\ttwo, three = errors.New(\"two\"), 3\n)\n", "7"),
			one("a/a.go", "package a\n\nvar ErrOne = Error{}\n\nvar last = &Error{}\n", "5"),
			one("a/a.go", "package a\n\nvar errors fake\n\nvar ErrOne = errors.New(\"one\")\n", "3", "5"),
			one("a/a.go", "package a\n\nimport \"embed\"\n\nvar files *embed.FS\n", "5"),
		},
		good: []fixture{
			one("a/a.go", "package a\n\nimport (\n\t\"embed\"\n\t\"errors\"\n\t\"fmt\"\n\t\"regexp\"\n)\n\nvar (\n\tErrOne = errors.New(\"one\")\n\tErrTwo = fmt.Errorf(\"%w: two\", ErrOne)\n\tErrSix = &Error{Code: 6}\n)\n\nvar _ I = (*T)(nil)\n\n//go:embed *.sql\nvar files embed.FS\n\n//go:embed a.sql\nvar text string\n\nvar word = regexp.MustCompile(`a`)\n"),
			one("a/a.go", "package a\n\nfunc f() { var count int }\n\nconst c = 1\n"),
			one("a/a_test.go", "package a\n\nvar rewrite = false\n"),
		},
	}
}

// fixed tells whether the specification only makes values that stay as they are.
func (f *goFile) fixed(s *ast.ValueSpec) bool {
	if pkg, name, ok := f.selected(s.Type); ok && pkg == "embed" && name == "FS" {
		return true
	}
	for i, name := range s.Names {
		if name.Name == "_" {
			continue
		}
		if len(s.Values) != len(s.Names) {
			return false
		}
		pkg, called, _ := f.call(s.Values[i])
		switch pkg + "." + called {
		case "errors.New", "fmt.Errorf", "regexp.MustCompile":
		default:
			if !isErrorValue(name.Name, s.Values[i]) {
				return false
			}
		}
	}
	return true
}

// isErrorValue tells ErrX = &Error{…}: a sentinel of an error type of one's own.
func isErrorValue(name string, value ast.Expr) bool {
	if address, ok := value.(*ast.UnaryExpr); ok && address.Op == token.AND {
		value = address.X
	}
	literal, ok := value.(*ast.CompositeLit)
	return ok && (strings.HasPrefix(name, "Err") || strings.HasPrefix(name, "err")) &&
		strings.HasSuffix(typeName(literal.Type).Name, "Error")
}

// embeds tells a //go:embed directive.
func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// noSkip refuses a test that can pass without having run. Two ways remain: a
// long test under testing.Short, which CI does not set, and a function that
// looks for what the test needs and fails instead where CI is set.
func noSkip() rule {
	check := func(t *tree) (found []finding) {
		for _, f := range t.released() {
			var open []ast.Node
			ast.PreorderStack(f.ast, nil, func(n ast.Node, stack []ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				open = append(open[:0], stack...)
				if isSkip(f, call, open) && !excused(f, open) {
					found = append(found, t.at(f, n.Pos(), "a skipped test passes without running: use testing.Short, or fail where CI is set"))
				}
				return true
			})
		}
		return found
	}
	file := func(body string) string {
		return "package a\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n" + body
	}
	return rule{
		name: "skip", check: check,
		bad: []fixture{
			one("a/a_test.go", file("func TestA(t *testing.T) {\n\tt.Skip()\n}\n"), "9"),
			one("a/a_test.go", file("func TestA(t *testing.T) {\n\tif os.Getenv(\"DSN\") == \"\" {\n\t\tt.Skipf(\"no server\")\n\t}\n}\n"), "10"),
			one("a/a_test.go", file("func TestA(t *testing.T) {\n\tif !testing.Short() {\n\t\tt.SkipNow()\n\t}\n}\n"), "10"),
			one("a/a_test.go", file("func TestA(t *testing.T) {\n\tif testing.Short() {\n\t\tt.Log()\n\t} else {\n\t\tt.SkipNow()\n\t}\n}\n"), "12"),
			one("a/a_test.go", file("func need(tb testing.TB) {\n\ttb.Helper()\n\tif os.Getenv(\"CI\") != \"\" {\n\t\ttb.Log()\n\t}\n\ttb.Skip()\n}\n"), "13"),
			one("a/atest/a.go", file("func Run(t *testing.T) {\n\tt.Run(\"x\", func(t *testing.T) {\n\t\tt.Skip()\n\t})\n}\n"), "10"),
			one("a/a_test.go", file("type bed struct{ t *testing.T }\n\nfunc (b bed) f() {\n\tb.t.Skip()\n}\n"), "11"),
		},
		good: []fixture{
			one("a/a_test.go", file("func TestA(t *testing.T) {\n\tif testing.Short() {\n\t\tt.Skip()\n\t}\n}\n")),
			one("a/a_test.go", file("func need(tb testing.TB) {\n\tif os.Getenv(\"CI\") != \"\" {\n\t\ttb.Fatal()\n\t}\n\ttb.Skip()\n}\n")),
			one("a/a_test.go", file("func f(d *decoder) {\n\td.Skip()\n}\n")),
		},
	}
}

// isSkip tells a call of Skip, Skipf or SkipNow on a test: on a parameter of a
// testing type, or on a field called t or tb.
func isSkip(f *goFile, call *ast.CallExpr, open []ast.Node) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
		return false
	}
	switch x := s.X.(type) {
	case *ast.SelectorExpr:
		return slices.Contains([]string{"t", "tb", "T", "TB"}, x.Sel.Name)
	case *ast.Ident:
		return slices.ContainsFunc(open, func(n ast.Node) bool {
			var params *ast.FieldList
			switch fn := n.(type) {
			case *ast.FuncDecl:
				params = fn.Type.Params
			case *ast.FuncLit:
				params = fn.Type.Params
			default:
				return false
			}
			return slices.ContainsFunc(params.List, func(p *ast.Field) bool {
				e := p.Type
				if star, ok := e.(*ast.StarExpr); ok {
					e = star.X
				}
				pkg, _, ok := f.selected(e)
				return ok && pkg == "testing" && slices.ContainsFunc(p.Names, func(name *ast.Ident) bool { return name.Name == x.Name })
			})
		})
	}
	return false
}

// excused tells whether the skip stands under testing.Short, or in a function
// that asks for CI and can fail.
func excused(f *goFile, open []ast.Node) bool {
	for i, n := range open {
		switch x := n.(type) {
		case *ast.IfStmt:
			pkg, name, ok := f.call(x.Cond)
			if ok && pkg == "testing" && name == "Short" && i+1 < len(open) && open[i+1] == ast.Node(x.Body) {
				return true
			}
		case *ast.FuncDecl:
			if f.failsInCI(x) {
				return true
			}
		}
	}
	return false
}

func (f *goFile) failsInCI(fn *ast.FuncDecl) bool {
	asks, fails := false, false
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if pkg, name, ok := f.call(call); ok && pkg == "os" && (name == "Getenv" || name == "LookupEnv") {
			literal, ok := call.Args[0].(*ast.BasicLit)
			asks = asks || ok && literal.Value == `"CI"`
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Fatal" || s.Sel.Name == "Fatalf") {
			fails = true
		}
		return true
	})
	return asks && fails
}
