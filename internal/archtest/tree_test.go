package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// module is the path of the one released module.
const module = "github.com/unavez/unavez"

// finding is one broken rule at one line.
type finding struct {
	file string
	line int
	rule string
	text string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.file, f.line, f.rule, f.text)
}

// goFile is one parsed Go file of the repository.
type goFile struct {
	path    string // slash path below the repository root
	pkg     string // folder: "." for the root package, "store/sqlite", …
	test    bool   // a _test.go file
	nested  bool   // it belongs to a module of its own
	foreign string // import path, of a file outside the repository
	ast     *ast.File
	imports map[string]string // local name to import path; "." and "_" left out
	dotted  map[string]bool   // import paths imported with a dot
}

// node is one package of the import graph.
type node struct {
	imports  []string
	standard bool
	dir      string
}

// tree is the repository, or a fixture that stands for it.
type tree struct {
	fset  *token.FileSet
	texts map[string][]byte // every text file
	files []*goFile         // every Go file, in order of path
	graph map[string]*node  // packages of the module and all they import
}

// load parses the named files of fsys. A file that does not parse is an error:
// what cannot be read cannot be held to a rule.
func load(fsys fs.FS, names []string) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), texts: map[string][]byte{}, graph: map[string]*node{}}
	nested := []string{}
	for _, name := range names {
		if path.Base(name) == "go.mod" && name != "go.mod" {
			nested = append(nested, path.Dir(name)+"/")
		}
	}
	names = slices.Sorted(slices.Values(names))
	for _, name := range names {
		content, err := fs.ReadFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the working tree, or replaced while this test reads
		}
		if err != nil {
			return nil, err
		}
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			continue // binary
		}
		t.texts[name] = content
		if path.Ext(name) != ".go" || slices.Contains(strings.Split(name, "/"), "testdata") {
			continue
		}
		file, err := parser.ParseFile(t.fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		f := &goFile{
			path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			nested:  slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(name, dir) }),
			ast:     file,
			imports: map[string]string{}, dotted: map[string]bool{},
		}
		for _, spec := range file.Imports {
			p := importPath(spec)
			switch {
			case spec.Name == nil:
				f.imports[defaultName(p)] = p
			case spec.Name.Name == ".":
				f.dotted[p] = true
			case spec.Name.Name != "_":
				f.imports[spec.Name.Name] = p
			}
		}
		t.files = append(t.files, f)
	}
	return t, nil
}

// repositoryFiles lists what is in the working tree and not ignored. Without
// git it lists everything.
func repositoryFiles(root string, fsys fs.FS) ([]string, error) {
	kept := map[string]bool{}
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, gitErr := list.Output()
	for name := range strings.SplitSeq(string(out), "\x00") {
		kept[name] = true
	}
	var names []string
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone since its folder was read
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.Type().IsRegular() && (gitErr != nil || kept[name]):
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// listGraph asks the go command for the packages of the module and everything
// they import, tests left out.
func listGraph(root string) (map[string]*node, error) {
	var stderr bytes.Buffer
	list := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Standard,Imports,Dir", "./...")
	list.Dir, list.Stderr = root, &stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	graph := map[string]*node{}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p struct {
			ImportPath, Dir string
			Standard        bool
			Imports         []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return graph, nil
		} else if err != nil {
			return nil, err
		}
		graph[p.ImportPath] = &node{imports: p.Imports, standard: p.Standard, dir: p.Dir}
	}
}

// fixtureGraph builds the import graph of a fixture from its own files.
func (t *tree) fixtureGraph() {
	for _, f := range t.production() {
		n := t.graph[fullPath(f.pkg)]
		if n == nil {
			n = &node{}
			t.graph[fullPath(f.pkg)] = n
		}
		for _, spec := range f.ast.Imports {
			p := importPath(spec)
			n.imports = append(n.imports, p)
			if t.graph[p] == nil && within(p) == "" {
				t.graph[p] = &node{standard: isStandard(p)}
			}
		}
	}
}

// production gives the files of the released module that are not tests.
func (t *tree) production() []*goFile {
	return slices.DeleteFunc(slices.Clone(t.files), func(f *goFile) bool { return f.test || f.nested })
}

// released gives all files of the released module, tests among them.
func (t *tree) released() []*goFile {
	return slices.DeleteFunc(slices.Clone(t.files), func(f *goFile) bool { return f.nested })
}

// packages gives the folders of the released module that hold Go files.
func (t *tree) packages() []string {
	var all []string
	for _, f := range t.released() {
		all = append(all, f.pkg)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (t *tree) line(at token.Pos) int { return t.fset.Position(at).Line }

// at makes a finding for a place in a Go file; the rule's name is set by the caller's rule.
func (t *tree) at(f *goFile, at token.Pos, format string, args ...any) finding {
	return finding{file: f.path, line: t.line(at), text: fmt.Sprintf(format, args...)}
}

// chain is the shortest way of imports from one package to another that accept
// takes, both ends included, or nil.
func (t *tree) chain(from string, accept func(string, *node) bool) []string {
	before := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		n := t.graph[queue[0]]
		if n == nil {
			continue
		}
		if accept(queue[0], n) {
			var way []string
			for p := queue[0]; p != ""; p = before[p] {
				way = append(way, p)
			}
			slices.Reverse(way)
			return way
		}
		for _, p := range n.imports {
			if _, seen := before[p]; !seen {
				before[p] = queue[0]
				queue = append(queue, p)
			}
		}
	}
	return nil
}

// importSite finds the line where a package of the module imports target.
func (t *tree) importSite(pkg, target string) (*goFile, token.Pos) {
	for _, f := range t.production() {
		if f.pkg != pkg {
			continue
		}
		for _, spec := range f.ast.Imports {
			if importPath(spec) == target {
				return f, spec.Pos()
			}
		}
	}
	return nil, token.NoPos
}

func (f *goFile) importPath() string {
	if f.foreign != "" {
		return f.foreign
	}
	return fullPath(f.pkg)
}

// call reports whether e calls a function of an imported package, and which.
func (f *goFile) call(e ast.Expr) (pkg, name string, ok bool) {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return "", "", false
	}
	return f.selected(c.Fun)
}

// selected resolves pkg.Name by the file's imports.
func (f *goFile) selected(e ast.Expr) (pkg, name string, ok bool) {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", "", false
	}
	x, ok := s.X.(*ast.Ident)
	if !ok || f.imports[x.Name] == "" {
		return "", "", false
	}
	return f.imports[x.Name], s.Sel.Name, true
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // the parser takes no such literal
	}
	return p
}

// defaultName guesses the name of a package from its path: the last element
// that is no major version, without a gopkg-style suffix.
func defaultName(p string) string {
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" && path.Dir(p) != "." {
		base = path.Base(path.Dir(p))
	}
	base, _, _ = strings.Cut(base, ".")
	return strings.TrimPrefix(base, "go-")
}

// within gives the folder of a package of the module, "" for any other.
func within(p string) string {
	if p == module {
		return "."
	}
	if rest, ok := strings.CutPrefix(p, module+"/"); ok {
		return rest
	}
	return ""
}

func fullPath(pkg string) string { return path.Join(module, pkg) }

// isStandard tells the standard library by the missing dot in the first element.
func isStandard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// covers matches a package against a pattern: "store", "store/...", "internal/...".
func covers(pattern, pkg string) bool {
	if stem, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == stem || strings.HasPrefix(pkg, stem+"/")
	}
	return pattern == pkg
}

func coversAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, pkg) })
}

// repositoryRoot is two folders up: go test runs in the package's own folder.
func repositoryRoot() (string, error) { return filepath.Abs("../..") }
