package archtest

import (
	"bytes"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

// vagueNames refuses folders and packages whose name says nothing.
func vagueNames() rule {
	vague := []string{"util", "utils", "common", "helper", "helpers", "base", "type", "types", "models", "misc", "shared"}
	check := func(t *tree) (found []finding) {
		seen := map[string]bool{}
		for _, f := range t.released() {
			if seen[f.pkg] {
				continue
			}
			seen[f.pkg] = true
			name := strings.TrimSuffix(f.ast.Name.Name, "_test")
			for _, word := range append(strings.Split(f.pkg, "/"), name) {
				if slices.Contains(vague, word) {
					found = append(found, t.at(f, f.ast.Package, "%q names no thing of the design", word))
					break
				}
			}
		}
		return found
	}
	return rule{
		name: "vague package name", check: check,
		bad: []fixture{
			one("store/util/a.go", "package util\n", "1"),
			one("shared/lock/a.go", "package lock\n", "1"),
			one("lock/a.go", "package common\n", "1"),
			one("lock/a_test.go", "package helpers_test\n", "1"),
		},
		good: []fixture{one("internal/model/a.go", "package model\n")},
	}
}

// packageComments wants one package comment in each folder.
func packageComments() rule {
	check := func(t *tree) (found []finding) {
		first, comments := map[string]*goFile{}, map[string]int{}
		for _, f := range t.production() {
			if first[f.pkg] == nil {
				first[f.pkg] = f
			}
			text := f.ast.Doc.Text()
			if text == "" {
				continue
			}
			comments[f.pkg]++
			if comments[f.pkg] > 1 {
				found = append(found, t.at(f, f.ast.Package, "a second package comment of %s", f.pkg))
			}
			if start := "Package " + f.ast.Name.Name + " "; f.ast.Name.Name != "main" && !strings.HasPrefix(text, start) {
				found = append(found, t.at(f, f.ast.Package, "the package comment must start with %q", start))
			}
		}
		for pkg, f := range first {
			if comments[pkg] == 0 {
				found = append(found, t.at(f, f.ast.Package, "%s has no package comment", pkg))
			}
		}
		return found
	}
	return rule{
		name: "package comment", check: check,
		bad: []fixture{
			one("store/a.go", "package store\n", "1"),
			one("store/a.go", "// A comment further up is none.\n\npackage store\n", "3"),
			one("store/a.go", "//go:generate true\npackage store\n", "2"),
			one("store/a.go", "// Stores rows.\npackage store\n", "2"),
			{
				files: map[string]string{
					"store/a.go": "// Package store stores.\npackage store\n",
					"store/b.go": "// Package store stores again.\npackage store\n",
				},
				want: []string{"store/b.go:2"},
			},
		},
		good: []fixture{
			{files: map[string]string{"store/a.go": "// Package store stores.\npackage store\n", "store/b.go": "package store\n"}},
			one("cmd/unavez/main.go", "// Command unavez serves.\npackage main\n"),
			one("check/a_test.go", "package check\n"),
		},
	}
}

// documentedExports wants a sentence at everything that godoc shows.
func documentedExports() rule {
	check := func(t *tree) (found []finding) {
		for _, f := range t.production() {
			if f.ast.Name.Name == "main" {
				continue
			}
			for _, decl := range f.ast.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && exportedReceiver(d) && d.Doc.Text() == "" {
						found = append(found, t.at(f, d.Name.Pos(), "%s has no comment", d.Name.Name))
					}
				case *ast.GenDecl:
					found = append(found, t.undocumented(f, d)...)
				}
			}
		}
		return found
	}
	return rule{
		name: "undocumented export", check: check,
		bad: []fixture{
			one("a/a.go", "package a\n\nfunc Open() {}\n", "3"),
			one("a/a.go", "package a\n\n//go:noinline\nfunc Open() {}\n", "4"),
			one("a/a.go", "package a\n\n// T is a thing.\ntype T[X any] struct{}\n\nfunc (t *T[X]) Close() {}\n", "6"),
			one("a/a.go", "package a\n\ntype T struct{}\n\ntype u int\n", "3"),
			one("a/a.go", "package a\n\nconst A = 1\n\nvar B, c = 2, 3\n", "3", "5"),
			one("a/a.go", "package a\n\nconst (\n\tA = 1\n\n\t// B is two.\n\tB = 2\n\tC = 3\n\n\tD = 4\n)\n", "4", "10"),
			one("a/a.go", "package a\n\n// T is a thing.\ntype T struct {\n\tA int\n\tB int // is said\n\tc int\n\tD int\n}\n", "5", "8"),
			one("a/a.go", "package a\n\n// T is a thing.\ntype T struct {\n\t// A and B are a pair.\n\tA int\n\tB int\n\n\tC int\n}\n", "9"),
			one("a/a.go", "package a\n\n// T is a thing.\ntype T interface {\n\tClose() error\n}\n", "5"),
		},
		good: []fixture{
			one("a/a.go", "package a\n\n// The sizes.\nconst (\n\tA = 1\n\n\tB = 2\n)\n\ntype t struct{ A int }\n\nfunc (t) Close() {}\n\n// T is a thing.\ntype T struct {\n\t// A and B are a pair.\n\tA int\n\tB int\n}\n"),
			one("a/a.go", "package a\n\nimport \"io\"\n\n// T is a thing.\ntype T struct {\n\tio.Reader\n}\n\n// U is a thing.\ntype U interface {\n\tio.Reader\n}\n"),
			one("a/a_test.go", "package a\n\nfunc Open() {}\n"),
			one("a/main.go", "package main\n\nfunc Open() {}\n"),
		},
	}
}

// exportedReceiver tells whether godoc shows the method: functions have no receiver.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// lines is one line, or several, of a group: constants, variables or fields.
type lines struct {
	names        []*ast.Ident
	at, end      token.Pos
	doc, comment *ast.CommentGroup
}

// ungrouped gives the exported names that neither a comment of their own nor
// one at the head of their group covers. A blank line ends a group.
func (t *tree) ungrouped(f *goFile, all []lines) (found []finding) {
	covered, last := false, 0
	for _, l := range all {
		begin := t.line(l.at)
		if l.doc != nil {
			begin = t.line(l.doc.Pos())
		}
		if begin > last+1 {
			covered = false
		}
		last = t.line(l.end)
		covered = covered || l.doc.Text() != ""
		for _, name := range l.names {
			if name.IsExported() && !covered && l.comment.Text() == "" {
				found = append(found, t.at(f, name.Pos(), "%s has no comment, nor has its group", name.Name))
				break
			}
		}
	}
	return found
}

func (t *tree) undocumented(f *goFile, d *ast.GenDecl) (found []finding) {
	var values []lines
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			values = append(values, lines{names: s.Names, at: s.Pos(), end: s.End(), doc: s.Doc, comment: s.Comment})
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			if d.Doc.Text() == "" && s.Doc.Text() == "" && s.Comment.Text() == "" {
				found = append(found, t.at(f, s.Name.Pos(), "%s has no comment", s.Name.Name))
			}
			switch x := s.Type.(type) {
			case *ast.StructType:
				found = append(found, t.ungrouped(f, fieldLines(x.Fields))...)
			case *ast.InterfaceType:
				found = append(found, t.ungrouped(f, fieldLines(x.Methods))...)
			}
		}
	}
	if d.Doc.Text() == "" {
		found = append(found, t.ungrouped(f, values)...)
	}
	return found
}

// fieldLines gives the fields of a struct or the methods of an interface. What
// is embedded has no name of its own here; it is documented where it stands.
func fieldLines(fields *ast.FieldList) (all []lines) {
	for _, field := range fields.List {
		all = append(all, lines{names: field.Names, at: field.Pos(), end: field.End(), doc: field.Doc, comment: field.Comment})
	}
	return all
}

// typeName is the last name of a named type, or "_".
func typeName(e ast.Expr) *ast.Ident {
	switch x := e.(type) {
	case *ast.Ident:
		return x
	case *ast.SelectorExpr:
		return x.Sel
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.IndexListExpr:
		return typeName(x.X)
	}
	return ast.NewIdent("_")
}

// fileLength keeps a file short enough to be read at one sitting.
func fileLength() rule {
	const limit = 800
	check := func(t *tree) (found []finding) {
		for name, content := range t.texts {
			if path.Ext(name) != ".go" {
				continue
			}
			if n := bytes.Count(content, []byte("\n")); n > limit && !bytes.HasPrefix(content, []byte("// Code generated ")) {
				found = append(found, finding{file: name, line: n, text: "more than 800 lines: split it by responsibility"})
			}
		}
		return found
	}
	long := strings.Repeat("\n", limit)
	return rule{
		name: "file length", check: check,
		bad: []fixture{
			one("a/a.go", "package a\n"+long, "801"),
			one("a/a_test.go", "package a\n"+long, "801"),
			{
				files: map[string]string{"bench/go.mod": "module x\n", "bench/a.go": "package a\n" + long},
				want:  []string{"bench/a.go:801"},
			},
		},
		good: []fixture{
			one("a/a.go", "package a\n"+long[1:]),
			one("a/a.go", "// Code generated by x. DO NOT EDIT.\n\npackage a\n"+long),
		},
	}
}
