package server

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/store"
)

var rewrite = flag.Bool("rewrite", false, "write what is generated anew")

const operationsPage = "../docs/operations.md"

// TestThePageOfOperationsIsThatOfTheCode keeps the tables of docs/operations.md
// what the code says, word by word.
func TestThePageOfOperationsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(operationsPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	escape := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace
	checks := "| check | at worst | why it matters | way out |\n|---|---|---|---|\n"
	for _, c := range Checks() {
		checks += fmt.Sprintf("| `%s` | %s | %s | %s |\n", c.Name, c.Level, escape(c.Why), escape(c.Way))
	}
	invariants := "| code | what holds | what a violation means | way out |\n|---|---|---|---|\n"
	for _, i := range store.Invariants() {
		invariants += fmt.Sprintf("| %s | %s | %s | %s |\n", i.Code, escape(i.Name), escape(i.Means), escape(i.Way))
	}
	for name, want := range map[string]string{"checks": checks, "invariants": invariants} {
		part := regexp.MustCompile(`(?s)(<!-- ` + name + `:[^\n]*\n)(.*?)(<!-- /` + name + ` -->)`)
		found := part.FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("%s has no part %s", operationsPage, name)
		}
		if found[2] != want && !*rewrite {
			t.Errorf("%s: the table of %s is not the code's (go test ./server -run Page -rewrite writes it anew)", operationsPage, name)
		}
		page = part.ReplaceAllLiteralString(page, found[1]+want+found[3])
	}
	if *rewrite {
		if err := os.WriteFile(operationsPage, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range config.Unsafe() {
		if !strings.Contains(page, "`"+name+"`, ") && !strings.Contains(page, "`"+name+"` and") && !strings.Contains(page, "and `"+name+"`") {
			t.Errorf("%s does not name %s as one that may be waived", operationsPage, name)
		}
	}
}

func TestNamesAndCodesAreUniqueAndInOrder(t *testing.T) {
	t.Parallel()
	var names, refusable []string
	for _, c := range Checks() {
		if c.Why == "" || c.Way == "" || c.Level == store.Sound || !regexp.MustCompile(`^(postgres|sqlite|redis)\.[a-z_]+$`).MatchString(c.Name) {
			t.Errorf("%+v", c)
		}
		if slices.Contains(names, c.Name) {
			t.Errorf("%s is there twice", c.Name)
		}
		names = append(names, c.Name)
		if c.Level == store.Refused {
			refusable = append(refusable, c.Name)
		}
	}
	for _, name := range append(config.Unsafe(), losses()...) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no check", name)
		}
	}
	for _, name := range config.Unsafe() {
		if !slices.Contains(refusable, name) {
			t.Errorf("%s is never refused: why name it?", name)
		}
	}
	for i, one := range store.Invariants() {
		if one.Code != fmt.Sprintf("AUD%03d", i+1) || one.Name == "" || one.Means == "" || one.Way == "" {
			t.Errorf("%d: %+v", i+1, one)
		}
	}
}
