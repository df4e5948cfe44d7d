package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// layer is one row of the import table: what the packages of a pattern may
// import beyond the standard library and their own subfolders.
type layer struct {
	pkg     string   // pattern; the first row that covers a package counts
	module  []string // patterns of packages of this module
	foreign []string // third-party modules; "*" is any
}

// helpers are the folders below internal/ that any package may use, but for
// those that outside names. They stand below the core: see their own row.
const helpers = "internal/..."

// compare is the one third-party package that the conformance suites may use.
const compare = "github.com/google/go-cmp"

// layers is the import table. Arrows point downwards:
//
//	cmd → server → {httpkey, inbox, outbox, statechart/durable, console} → unavez → {store, lease}
//
// An implementation of a seam knows its seam and one client library. It never
// knows the core, and never another implementation.
func layers() []layer {
	return []layer{
		{pkg: ".", module: []string{"store", "lease", helpers}},

		{pkg: "store", module: []string{helpers}},
		{pkg: "store/storetest", module: []string{"store", "store/memory", helpers}, foreign: []string{compare}},
		{pkg: "store/queuetest", module: []string{"store", "store/storetest", helpers}, foreign: []string{compare}},
		{pkg: "store/postgres/...", module: []string{"store", helpers}, foreign: []string{"github.com/jackc/pgx/v5"}},
		{pkg: "store/sqlite/...", module: []string{"store", helpers}}, // the driver comes from the caller
		{pkg: "store/...", module: []string{"store", helpers}},

		{pkg: "lease", module: []string{helpers}},
		{pkg: "lease/leasetest", module: []string{"lease", "lease/memory", helpers}, foreign: []string{compare}},
		{pkg: "lease/redis/...", module: []string{"lease", helpers}, foreign: []string{"github.com/redis/go-redis/v9"}},
		{pkg: "lease/...", module: []string{"lease", helpers}},

		{pkg: "broker", module: []string{helpers}},
		{pkg: "broker/brokertest", module: []string{"broker", helpers}, foreign: []string{compare}},
		{pkg: "broker/nats/...", module: []string{"broker", helpers}, foreign: []string{"github.com/nats-io/nats.go"}},
		{pkg: "broker/rabbitmq/...", module: []string{"broker", helpers}, foreign: []string{"github.com/rabbitmq/amqp091-go"}},
		{pkg: "broker/kafka/...", module: []string{"broker", helpers}, foreign: []string{"github.com/twmb/franz-go"}},
		{pkg: "broker/...", module: []string{"broker", helpers}},

		{pkg: "source/...", module: []string{"source/...", helpers}},
		{pkg: "statechart", module: []string{helpers}},
		{pkg: "statechart/cel", module: []string{"statechart", helpers}, foreign: []string{"cel.dev/cel-go", "github.com/google/cel-go"}},
		{pkg: "statechart/migrate", module: []string{"statechart", helpers}},
		{pkg: "statechart/draw", module: []string{"statechart", helpers}},
		{pkg: "statechart/analyze", module: []string{"statechart", "statechart/draw", helpers}},
		{pkg: "statechart/durable", module: []string{".", "store", "statechart", helpers}},

		{pkg: "httpkey/...", module: []string{".", helpers}, foreign: []string{"github.com/dunglas/httpsfv"}},
		{pkg: "inbox/...", module: []string{".", "store", "broker", "source", helpers}, foreign: []string{"github.com/santhosh-tekuri/jsonschema/v6"}},
		{pkg: "outbox/...", module: []string{".", "store", "broker", helpers}},
		{pkg: "testkit/...", module: []string{".", "store", helpers}},

		{pkg: "console/...", module: []string{".", "store", helpers}, foreign: []string{"*"}},
		{pkg: "server/...", module: []string{
			".", "store/...", "lease/...", "broker/...", "httpkey/...", "inbox/...", "outbox/...",
			"source/...", "statechart/...", "console/...", helpers,
			"internal/conform", "internal/chaos", "internal/gateway", "internal/torture",
		}, foreign: []string{"*"}},
		{pkg: "cmd/...", module: []string{"server"}, foreign: []string{"*"}},

		// The sandbox gateway and the black-box suite stand outside what they try;
		// the suite's app is what it tries.
		{pkg: "internal/gateway/..."},
		{pkg: "internal/conform/app", module: []string{".", "store/...", "httpkey", "internal/conform", helpers}, foreign: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5"}},
		{pkg: "internal/conform/...", module: []string{helpers}},
		// So does what tries to break it, with a store and a lease to do that on.
		{pkg: "internal/torture", module: []string{".", "store", "store/postgres", "lease/redis", helpers}, foreign: []string{"github.com/jackc/pgx/v5"}},
		{pkg: "internal/chaos", module: []string{
			".", "store", "store/postgres", "store/sqlite", "lease/redis", "httpkey", "inbox", "source", helpers, "internal/torture",
		}, foreign: []string{"github.com/jackc/pgx/v5", "github.com/redis/go-redis/v9", "modernc.org/sqlite"}},
		{pkg: "internal/model", foreign: []string{"github.com/anishathalye/porcupine"}}, // judges histories
		{pkg: "internal/testenv", foreign: []string{"github.com/jackc/pgx/v5"}},         // makes databases for tests
		{pkg: "internal/...", module: []string{"store", "lease", helpers}},
	}
}

// outside are the internal packages that helpers does not mean: they stand
// outside the code that they try. A row that wants one names it.
func outside() []string {
	return []string{"internal/archtest/...", "internal/chaos/...", "internal/conform/...", "internal/fault/...", "internal/gateway/...", "internal/torture/..."}
}

func layerOf(pkg string) (layer, bool) {
	for _, l := range layers() {
		if covers(l.pkg, pkg) {
			return l, true
		}
	}
	return layer{}, false
}

// importTable holds each import statement of production code to the table.
func importTable() rule {
	check := func(t *tree) (found []finding) {
		unknown := map[string]bool{}
		for _, f := range t.production() {
			row, ok := layerOf(f.pkg)
			if !ok {
				if !unknown[f.pkg] {
					unknown[f.pkg] = true
					found = append(found, t.at(f, f.ast.Package, "package %s has no row in the import table", f.pkg))
				}
				continue
			}
			for _, spec := range f.ast.Imports {
				p := importPath(spec)
				if text := row.refuses(f.pkg, p); text != "" {
					found = append(found, t.at(f, spec.Pos(), "%s", text))
				}
			}
		}
		return found
	}
	importing := func(from, to string, want ...string) fixture {
		return one(from+"/a.go", "package a\n\nimport _ \""+to+"\"\n", want...)
	}
	return rule{
		name: "import table", check: check,
		bad: []fixture{
			one("root.go", "package unavez\n\nimport (\n\t_ \"context\"\n\t_ \""+module+"/httpkey\"\n)\n", "5"),
			importing("store", module, "3"),
			importing("store/memory", module, "3"),
			importing("store/memory", module+"/store/sqlite", "3"),
			importing("store/sqlite/file", module+"/store/memory", "3"),
			importing("store/sqlite", module+"/store/memory", "3"),
			importing("store/sqlite", "modernc.org/sqlite", "3"),
			importing("store/postgres", "github.com/lib/pq", "3"),
			importing("store/postgres", "github.com/jackc/pgx/v5x", "3"),
			importing("store/storetest", module+"/store/sqlite", "3"),
			importing("lease", module+"/store", "3"),
			importing("lease/redis", module+"/lease/memory", "3"),
			importing("broker/nats", "github.com/twmb/franz-go/pkg/kgo", "3"),
			importing("source/shop", "github.com/cloudevents/sdk-go/v2", "3"),
			importing("statechart", "cel.dev/cel-go/cel", "3"),
			importing("httpkey", module+"/server", "3"),
			importing("httpkey", "github.com/go-chi/chi/v5", "3"),
			importing("testkit", compare+"/cmp", "3"),
			importing("console", module+"/server", "3"),
			importing("server", module+"/cmd/unavez", "3"),
			importing("server", module+"/internal/archtest", "3"),
			importing("cmd/unavez", module+"/store/sqlite", "3"),
			importing("cmd/unavez", module, "3"),
			importing("internal/migrate", module, "3"),
			importing("internal/migrate", module+"/internal/gateway", "3"),
			importing("testkit", module+"/internal/fault", "3"),
			importing("internal/fault", module, "3"),
			importing("internal/gateway", module+"/store", "3"),
			importing("internal/conform", module+"/server", "3"),
			importing("internal/conform", module+"/httpkey", "3"),
			importing("internal/conform/app", module+"/server", "3"),
			importing("store/sqlite", "C", "3"),
			importing("server", "C", "3"),
			importing("surprise", "context", "1"),
		},
		good: []fixture{
			importing("store/postgres", "github.com/jackc/pgx/v5/pgxpool"),
			importing("store/sqlite/internal/writer", module+"/store/sqlite/internal/queue"),
			importing("store/sqlite", module+"/internal/migrate"),
			importing("server/orders", module+"/server/internal/answer"),
			importing("httpkey", "github.com/dunglas/httpsfv"),
			importing("server", "go.example/anything"),
			importing("server", module+"/internal/gateway"),
			importing("cmd/unavez", module+"/server"),
			one("store/memory/a_test.go", "package a\n\nimport _ \""+module+"/store/sqlite\"\n"),
			{files: map[string]string{
				"examples/orders/go.mod":  "module x\n",
				"examples/orders/main.go": "package main\n\nimport _ \"" + module + "/internal/archtest\"\n",
			}},
		},
	}
}

// refuses says why a package of this row may not import p, or "".
func (l layer) refuses(pkg, p string) string {
	if p == "C" {
		return "no cgo: the binary and the library are pure Go"
	}
	if inside := within(p); inside != "" {
		if strings.HasPrefix(inside, pkg+"/") || l.wholes(inside) {
			return ""
		}
		for _, m := range l.module {
			if covers(m, inside) && (m != helpers || !coversAny(outside(), inside)) {
				return ""
			}
		}
		return fmt.Sprintf("%s may not import %s (allowed: %s)", pkg, inside, listed(l.module))
	}
	if isStandard(p) {
		return ""
	}
	for _, m := range l.foreign {
		if m == "*" || p == m || strings.HasPrefix(p, m+"/") {
			return ""
		}
	}
	return fmt.Sprintf("%s may not import %s (allowed: %s)", pkg, p, listed(l.foreign))
}

// wholes tells whether the row is that of one thing with its parts, and inside
// is one of them. Below a seam, and below internal/, each folder is a thing of its own.
func (l layer) wholes(inside string) bool {
	stem, ok := strings.CutSuffix(l.pkg, "/...")
	return ok && stem != "internal" && !slices.Contains(seams(), stem) && covers(l.pkg, inside)
}

func listed(names []string) string {
	if len(names) == 0 {
		return "the standard library only"
	}
	return strings.Join(names, ", ")
}

// standardOnly follows every import to its end: these packages must not reach
// third-party code by any way.
func standardOnly() rule {
	only := []string{".", "store", "store/memory", "store/sqlite/...", "lease", "lease/memory", "broker", "source/...", "statechart", "statechart/analyze", "statechart/draw", "statechart/migrate", "testkit/..."}
	check := func(t *tree) (found []finding) {
		for _, pkg := range t.packages() {
			if coversAny(only, pkg) {
				found = append(found, t.reaches(pkg, func(p string, n *node) bool { return !n.standard && within(p) == "" }, "may reach the standard library only")...)
			}
		}
		return found
	}
	return rule{
		name: "standard library only", check: check,
		bad: []fixture{
			one("lease/a.go", "package lease\n\nimport _ \"go.example/x\"\n", "3"),
			{
				files: map[string]string{
					"root.go":               "package unavez\n\nimport _ \"" + module + "/internal/migrate\"\n",
					"internal/migrate/a.go": "package migrate\n\nimport _ \"go.example/x\"\n",
				},
				want: []string{"root.go:3"},
			},
		},
		good: []fixture{
			one("lease/redis/a.go", "package redis\n\nimport _ \"go.example/x\"\n"),
			one("lease/a_test.go", "package lease\n\nimport _ \"go.example/x\"\n"),
			one("store/a.go", "package store\n\nimport _ \"database/sql/driver\"\n"),
		},
	}
}

// reaches reports the first import of the way from pkg to what accept takes.
func (t *tree) reaches(pkg string, accept func(string, *node) bool, text string) []finding {
	way := t.chain(fullPath(pkg), accept)
	if len(way) < 2 {
		return nil
	}
	f, at := t.importSite(pkg, way[1])
	if f == nil {
		return []finding{{file: pkg, line: 1, text: text + ": " + strings.Join(way, " → ")}}
	}
	return []finding{t.at(f, at, "%s %s: %s", pkg, text, strings.Join(way, " → "))}
}

// linkedModules lists, for programs that a user would write, every third-party
// module that they may link. A new line here is a cost for every user.
func linkedModules() rule {
	programs := []struct {
		imports []string
		modules []string
	}{
		{imports: []string{".", "store", "lease"}},
		{imports: []string{".", "store/memory", "lease/memory"}},
		{imports: []string{".", "store/sqlite", "httpkey"}, modules: []string{"github.com/dunglas/httpsfv"}},
	}
	check := func(t *tree) (found []finding) {
		for _, program := range programs {
			for _, pkg := range program.imports {
				found = append(found, t.reaches(pkg, func(p string, n *node) bool {
					return !n.standard && within(p) == "" && !slices.ContainsFunc(program.modules, func(m string) bool {
						return p == m || strings.HasPrefix(p, m+"/")
					})
				}, fmt.Sprintf("makes a program of %s link more than %s", strings.Join(program.imports, " + "), listed(program.modules)))...)
			}
		}
		return found
	}
	return rule{
		name: "linked modules", check: check,
		bad: []fixture{
			one("httpkey/a.go", "package httpkey\n\nimport (\n\t_ \"github.com/dunglas/httpsfv\"\n\t_ \"go.example/x\"\n)\n", "5"),
			{
				files: map[string]string{
					"store/memory/a.go":   "package memory\n\nimport _ \"" + module + "/store/memory/x\"\n",
					"store/memory/x/a.go": "package x\n\nimport _ \"go.example/x\"\n",
				},
				want: []string{"store/memory/a.go:3"},
			},
		},
		good: []fixture{one("httpkey/a.go", "package httpkey\n\nimport _ \"github.com/dunglas/httpsfv\"\n")},
	}
}

// shippedBinary keeps test support out of the programs under cmd/.
func shippedBinary() rule {
	check := func(t *tree) (found []finding) {
		for _, pkg := range t.packages() {
			if covers("cmd/...", pkg) {
				found = append(found, t.reaches(pkg, func(p string, _ *node) bool { return p == "testing" }, "links package testing")...)
			}
		}
		return found
	}
	return rule{
		name: "shipped binary", check: check,
		bad: []fixture{{
			files: map[string]string{
				"cmd/unavez/main.go":   "package main\n\nimport \"" + module + "/server\"\n",
				"server/a.go":          "package server\n\nimport _ \"" + module + "/store/storetest\"\n",
				"store/storetest/a.go": "package storetest\n\nimport _ \"testing\"\n",
			},
			want: []string{"cmd/unavez/main.go:3"},
		}},
		good: []fixture{{files: map[string]string{
			"cmd/unavez/main.go":   "package main\n\nimport \"" + module + "/server\"\n",
			"server/a.go":          "package server\n",
			"server/a_test.go":     "package server\n\nimport _ \"testing\"\n",
			"store/storetest/a.go": "package storetest\n\nimport _ \"testing\"\n",
		}}},
	}
}
