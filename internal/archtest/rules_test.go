package archtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// rule is one thing the tree must hold.
type rule struct {
	name  string
	check func(*tree) []finding
	// Each of bad breaks the rule at the places it names, and nowhere else. Each
	// of good keeps it though it looks close to breaking it.
	bad, good []fixture
}

// fixture is a small source tree. The files' paths are below the repository root.
type fixture struct {
	files map[string]string
	want  []string // path:line, in order
}

// rules lists every rule. A new one is a new line here.
func rules() []rule {
	return []rule{
		importTable(), standardOnly(), linkedModules(), shippedBinary(),
		vagueNames(), packageComments(), documentedExports(), fileLength(),
		noSleep(), noInit(), noPackageState(), noSkip(),
		conformance(), interfaceSize(),
		cleanText(),
	}
}

func (r rule) findings(t *tree) []finding {
	found := r.check(t)
	for i := range found {
		found[i].rule = r.name
	}
	slices.SortFunc(found, func(a, b finding) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return found
}

func TestRepositoryHoldsTheRules(t *testing.T) {
	t.Parallel()
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	fsys := os.DirFS(root)
	names, err := repositoryFiles(root, fsys)
	if err != nil {
		t.Fatal(err)
	}
	repository, err := load(fsys, names)
	if err != nil {
		t.Fatal(err)
	}
	if repository.graph, err = listGraph(root); err != nil {
		t.Fatal(err)
	}
	// An empty walk would pass every rule.
	if !slices.Contains(repository.packages(), ".") || !slices.Contains(repository.packages(), "internal/archtest") {
		t.Fatalf("the walk of %s found the packages %q, without the root and this one", root, repository.packages())
	}
	if repository.graph[module] == nil {
		t.Fatalf("go list in %s does not know %s", root, module)
	}
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.findings(repository) {
				t.Error(f)
			}
		})
	}
}

func TestEveryRuleReportsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	for _, r := range rules() {
		if len(r.bad) == 0 {
			t.Errorf("%s: no fixture breaks it", r.name)
		}
		for i, fx := range append(slices.Clone(r.bad), r.good...) {
			t.Run(fmt.Sprintf("%s/%d", r.name, i), func(t *testing.T) {
				t.Parallel()
				if broken := i < len(r.bad); broken != (len(fx.want) > 0) {
					t.Fatalf("fixture names %d places", len(fx.want))
				}
				var got []string
				found := r.findings(fx.load(t))
				for _, f := range found {
					got = append(got, fmt.Sprintf("%s:%d", f.file, f.line))
				}
				if !slices.Equal(got, fx.want) {
					t.Errorf("got %q, want %q: %v", got, fx.want, found)
				}
			})
		}
	}
}

func (fx fixture) load(t *testing.T) *tree {
	t.Helper()
	fsys := fstest.MapFS{}
	var names []string
	for name, content := range fx.files {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
		names = append(names, name)
	}
	loaded, err := load(fsys, names)
	if err != nil {
		t.Fatal(err)
	}
	loaded.fixtureGraph()
	return loaded
}

// one is a fixture of a single file.
func one(path, content string, want ...string) fixture {
	for i := range want {
		want[i] = path + ":" + want[i]
	}
	return fixture{files: map[string]string{path: content}, want: want}
}
