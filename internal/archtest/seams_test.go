package archtest

import (
	"go/ast"
	"go/build"
	"go/parser"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// seams are the packages whose interfaces others implement.
func seams() []string { return []string{"store", "lease", "broker"} }

// conformance wants every implementation of a seam to run the seam's suite, and
// one that has a queue to run that of the queue.
func conformance() rule {
	check := func(t *tree) (found []finding) {
		for _, pkg := range t.packages() {
			seam, below, _ := strings.Cut(pkg, "/")
			suite := seam + "test"
			if !slices.Contains(seams(), seam) || below == "" || below == suite || below == "queuetest" || slices.Contains(strings.Split(below, "/"), "internal") {
				continue
			}
			var first *goFile
			queue := false
			runs := map[string]bool{}
			for _, f := range t.released() {
				if f.pkg != pkg {
					continue
				}
				if !f.test && first == nil {
					first = f
				}
				queue = queue || !f.test && seam == "store" && f.appends()
				for _, s := range []string{suite, "queuetest"} {
					runs[s] = runs[s] || f.test && f.calls(fullPath(seam+"/"+s), "Run")
				}
			}
			if first == nil {
				continue
			}
			if !runs[suite] {
				found = append(found, t.at(first, first.ast.Package, "%s has no test that calls %s.Run", pkg, suite))
			}
			if queue && !runs["queuetest"] {
				found = append(found, t.at(first, first.ast.Package, "%s has a queue and no test that calls queuetest.Run", pkg))
			}
		}
		return found
	}
	queue := "package memory\n\nimport \"" + module + "/store\"\n\ntype Store struct{}\n\nfunc (Store) Append(store.Arrival) {}\n"
	suite := "package memory\n\nimport \"" + module + "/store/storetest\"\n\nfunc f() {\n\tstoretest.Run(nil, nil)\n}\n"
	generic := strings.Replace(suite, ".Run(", ".Run[int](", 1)
	return rule{
		name: "conformance", check: check,
		bad: []fixture{
			one("store/memory/a.go", "package memory\n", "1"),
			one("lease/redis/a.go", "package redis\n", "1"),
			one("broker/nats/a.go", "package nats\n", "1"),
			{
				files: map[string]string{
					"store/memory/a.go":      "package memory\n",
					"store/memory/a_test.go": strings.Replace(suite, ".Run(", ".Describe(", 1),
				},
				want: []string{"store/memory/a.go:1"},
			},
			{
				files: map[string]string{"store/memory/a.go": suite},
				want:  []string{"store/memory/a.go:1"},
			},
			{
				files: map[string]string{"store/memory/a.go": queue, "store/memory/a_test.go": suite},
				want:  []string{"store/memory/a.go:1"},
			},
			{
				files: map[string]string{
					"lease/memory/a.go":      "package memory\n",
					"lease/memory/a_test.go": suite, // of another seam
				},
				want: []string{"lease/memory/a.go:1"},
			},
		},
		good: []fixture{
			{files: map[string]string{"store/memory/a.go": "package memory\n", "store/memory/a_test.go": suite}},
			{files: map[string]string{"store/memory/a.go": "package memory\n", "store/memory/a_test.go": generic}},
			{files: map[string]string{
				"store/memory/a.go": queue, "store/memory/a_test.go": suite,
				"store/memory/queue_test.go": strings.ReplaceAll(suite, "storetest", "queuetest"),
			}},
			{files: map[string]string{
				"store/a.go":                   "package store\n",
				"store/storetest/a.go":         "package storetest\n",
				"store/memory/internal/x/a.go": "package x\n",
				"store/soon/a_test.go":         "package soon\n",
			}},
		},
	}
}

// appends tells whether the file has a method Append that takes an Arrival of
// package store.
func (f *goFile) appends() bool {
	return slices.ContainsFunc(f.ast.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv != nil && fn.Name.Name == "Append" && slices.ContainsFunc(fn.Type.Params.List, func(p *ast.Field) bool {
			pkg, name, ok := f.selected(p.Type)
			return ok && pkg == fullPath("store") && name == "Arrival"
		})
	})
}

// calls tells whether the file calls a function of a package, with or without type arguments.
func (f *goFile) calls(pkg, name string) (does bool) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fun := call.Fun
			switch x := fun.(type) {
			case *ast.IndexExpr:
				fun = x.X
			case *ast.IndexListExpr:
				fun = x.X
			}
			p, called, ok := f.selected(fun)
			does = does || ok && p == pkg && called == name
		}
		return !does
	})
	return does
}

// interfaceSize keeps an interface small enough to be implemented in an afternoon.
func interfaceSize() rule {
	const limit = 12
	check := func(t *tree) (found []finding) {
		types := newInterfaces(t)
		for _, f := range t.production() {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				s, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if i, ok := s.Type.(*ast.InterfaceType); ok {
					if n := types.methods(f, i, map[string]bool{}); len(n) > limit {
						found = append(found, t.at(f, s.Pos(), "%s has %d methods, embedded ones included; %d are the most", s.Name.Name, len(n), limit))
					}
				}
				return true
			})
		}
		return found
	}
	methods := func(prefix string, n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString("\t" + prefix + string(rune('a'+i)) + "()\n")
		}
		return b.String()
	}
	return rule{
		name: "interface size", check: check,
		bad: []fixture{
			one("a/a.go", "package a\n\ntype I interface {\n"+methods("M", 13)+"}\n", "3"),
			one("a/a.go", "package a\n\ntype J interface {\n"+methods("J", 7)+"}\n\ntype I interface {\n\tJ\n"+methods("M", 6)+"}\n", "13"),
			one("a/a.go", "package a\n\nimport \"io\"\n\ntype I interface {\n\tio.ReadWriteCloser\n"+methods("M", 10)+"}\n", "5"),
			{
				files: map[string]string{
					"store/a.go": "package store\n\ntype L[Tx any] interface {\n" + methods("L", 8) + "}\n",
					"server/a.go": "package server\n\nimport \"" + module + "/store\"\n\ntype I interface {\n\tstore.L[int]\n" +
						methods("M", 5) + "}\n",
				},
				want: []string{"server/a.go:5"},
			},
		},
		good: []fixture{
			one("a/a.go", "package a\n\ntype I interface {\n"+methods("M", 12)+"}\n"),
			// The same method by two ways is one.
			one("a/a.go", "package a\n\nimport \"io\"\n\ntype I interface {\n\tio.ReadCloser\n\tio.WriteCloser\n"+methods("M", 9)+"}\n"),
		},
	}
}

// interfaces finds the declarations of embedded interfaces, also outside the module.
type interfaces struct {
	tree  *tree
	files map[string][]*goFile // by import path
}

func newInterfaces(t *tree) *interfaces {
	all := &interfaces{tree: t, files: map[string][]*goFile{}}
	for _, f := range t.production() {
		all.files[fullPath(f.pkg)] = append(all.files[fullPath(f.pkg)], f)
	}
	return all
}

// methods gives the names of the method set.
func (all *interfaces) methods(f *goFile, i *ast.InterfaceType, into map[string]bool) map[string]bool {
	for _, m := range i.Methods.List {
		for _, name := range m.Names {
			into[name.Name] = true
		}
		if len(m.Names) > 0 {
			continue
		}
		e := m.Type
		switch x := e.(type) {
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		}
		switch x := e.(type) {
		case *ast.InterfaceType:
			all.methods(f, x, into)
		case *ast.Ident:
			if x.Name == "error" {
				into["Error"] = true
			} else {
				all.embedded(f.importPath(), x.Name, into)
			}
		case *ast.SelectorExpr:
			if p, name, ok := f.selected(x); ok {
				all.embedded(p, name, into)
			}
		}
	}
	return into
}

func (all *interfaces) embedded(pkg, name string, into map[string]bool) {
	for _, f := range all.parsed(pkg) {
		for _, decl := range f.ast.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range d.Specs {
				s, ok := spec.(*ast.TypeSpec)
				if !ok || s.Name.Name != name {
					continue
				}
				if i, ok := s.Type.(*ast.InterfaceType); ok {
					all.methods(f, i, into)
				}
			}
		}
	}
}

// parsed gives the files of a package: those of the tree, else those of its
// folder, which go list names, or which lies in the standard library.
func (all *interfaces) parsed(pkg string) []*goFile {
	if files, ok := all.files[pkg]; ok {
		return files
	}
	dir := filepath.Join(build.Default.GOROOT, "src", filepath.FromSlash(pkg))
	if n := all.tree.graph[pkg]; n != nil && n.dir != "" {
		dir = n.dir
	}
	var files []*goFile
	entries, _ := os.ReadDir(dir) // a package that is not here embeds nothing that we can count
	for _, entry := range entries {
		if path.Ext(entry.Name()) != ".go" || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(all.tree.fset, filepath.Join(dir, entry.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		f := &goFile{foreign: pkg, ast: file, imports: map[string]string{}}
		for _, spec := range file.Imports {
			f.imports[defaultName(importPath(spec))] = importPath(spec)
		}
		files = append(files, f)
	}
	all.files[pkg] = files
	return files
}
