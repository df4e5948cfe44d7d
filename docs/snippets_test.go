// Package docs_test holds the code of the documentation: every Go block of the
// pages is found here or in an example, compiled and run, or the test fails.
package docs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/internal/testenv"
	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/analyze"
	"github.com/unavez/unavez/statechart/cel"
	"github.com/unavez/unavez/statechart/migrate"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/sqlite"
)

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// shop authenticates; a real one looks at a token.
func shop(*http.Request) (httpkey.Scope, error) {
	return httpkey.Scope{Tenant: "acme", Principal: "shop"}, nil
}

func readme() {
	shop := func(r *http.Request) (httpkey.Scope, error) { // who is calling: your authentication
		return httpkey.Scope{Tenant: "acme", Principal: "shop"}, nil
	}
	db := must(sqlite.OpenDB(&modernc.Driver{}, "shop.db", nil)) // modernc.org/sqlite
	ledger := must(sqlite.New(db, nil))
	engine := must(unavez.New(ledger, nil)) // *unavez.Engine[*sql.Tx], inferred
	layer := must(httpkey.New(engine, shop, nil))
	go unavez.Upkeep(context.Background(), ledger, nil) // forgets what is over its retention

	http.Handle("POST /orders", layer.Handle(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		var id int64
		row := tx.QueryRowContext(r.Context(), `insert into orders(customer) values (?) returning id`, "c-1")
		if err := row.Scan(&id); err != nil {
			return err // rolled back, key free
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, err := fmt.Fprintf(w, `{"id":%d}`, id)
		return err
	}))
}

func pgxShop(ctx context.Context, pool *pgxpool.Pool, shop httpkey.ScopeFunc) http.Handler {
	must(0, postgres.Migrate(ctx, pool, nil)) // once, by a role that may: or unavez migrate
	ledger := must(postgres.New(pool, nil))
	engine := must(unavez.New(ledger, nil)) // *unavez.Engine[pgx.Tx], inferred
	layer := must(httpkey.New(engine, shop, nil))
	return layer.Handle(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		var id int64
		row := tx.QueryRow(r.Context(), `insert into orders(customer) values ($1) returning id`, "c-1")
		if err := row.Scan(&id); err != nil {
			return err // rolled back, key free
		}
		w.WriteHeader(http.StatusCreated)
		_, err := fmt.Fprintf(w, `{"id":%d}`, id)
		return err
	})
}

func wrap(layer *httpkey.Layer[*sql.Tx], router http.Handler) {
	handler := layer.Wrap(router) // chi, gin, oapi-codegen: any http.Handler
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", handler))
}

func wrapped(w http.ResponseWriter, r *http.Request) {
	tx, keyed := httpkey.Tx[*sql.Tx](r.Context())
	if !keyed {
		http.Error(w, "no transaction: not a keyed request", http.StatusInternalServerError)
		return
	}
	if _, err := tx.ExecContext(r.Context(), `insert into orders(customer) values (?)`, "c-1"); err != nil {
		http.Error(w, "not stored", http.StatusInternalServerError) // 5xx: rolled back, key free
		return
	}
	w.WriteHeader(http.StatusCreated) // committed and frozen
}

// PlaceRequest stands for a generated message.
type PlaceRequest struct{ RequestID, Customer string }

// PlaceReply stands for a generated message.
type PlaceReply struct{ OrderID string }

type server struct {
	engine *unavez.Engine[*sql.Tx]
}

func tenantOf(context.Context) string { return "acme" }

func (s *server) Place(ctx context.Context, in *PlaceRequest) (*PlaceReply, error) {
	op := unavez.Operation{
		Tenant: tenantOf(ctx), Effect: "order.place.v1", Key: []string{in.RequestID},
		Payload: []byte(in.Customer), // what makes two requests with one id different
	}
	outcome, err := s.engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
		res, err := tx.ExecContext(ctx, `insert into orders(customer) values (?)`, in.Customer)
		if err != nil {
			return unavez.Result{}, err
		}
		id, err := res.LastInsertId()
		return unavez.Result{Body: fmt.Append(nil, id)}, err
	})
	if err != nil {
		return nil, err // unavez.CodeOf(err) to a status code
	}
	return &PlaceReply{OrderID: string(outcome.Result.Body)}, nil
}

func join(ctx context.Context, db *sql.DB, engine *unavez.Engine[*sql.Tx], op unavez.Operation) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := engine.Join(ctx, tx, op, func(ctx context.Context) (unavez.Result, error) {
		_, err := tx.ExecContext(ctx, `insert into orders(customer) values (?)`, "c-1")
		return unavez.Result{Code: 201}, err
	}); err != nil {
		return err // roll back
	}
	if err := tx.Commit(); err == nil {
		return nil
	}
	// The answer of the COMMIT is lost or says no: ask what became of it.
	_, err = engine.Look(ctx, op)
	if unavez.CodeOf(err) == unavez.CodeNotFound {
		return errors.New("rolled back: try again with the same key")
	}
	return err // nil: committed
}

// Gateway stands for a payment API's client.
type Gateway interface {
	Charge(ctx context.Context, key string, cents int64) (receipt string, err error)
	Find(ctx context.Context, key string) (receipt string, found bool, err error)
}

func lease(ctx context.Context, engine *unavez.Engine[*sql.Tx], gateway Gateway, order string, cents int64) (unavez.Outcome, error) {
	op := unavez.Operation{Tenant: "acme", Effect: "order.charge.v1", Key: []string{order}, Unknown: unavez.Steps}
	var receipt string
	return engine.Lease(ctx, op,
		func(ctx context.Context, attempt *unavez.Attempt) (_ unavez.Result, err error) {
			receipt, err = unavez.Step(ctx, attempt, "charge",
				func(ctx context.Context, key string) (string, error) {
					return gateway.Charge(ctx, key, cents)
				},
				func(ctx context.Context, key string) (string, unavez.Verdict, error) {
					receipt, found, err := gateway.Find(ctx, key)
					if found {
						return receipt, unavez.Done, err
					}
					return "", unavez.NotDone, err
				})
			return unavez.Result{Code: 201, Body: []byte(receipt)}, err
		},
		func(ctx context.Context, tx *sql.Tx, result *unavez.Result) error {
			_, err := tx.ExecContext(ctx, `insert into payments(order_id, receipt) values (?, ?)`, order, receipt)
			return err
		})
}

func leasedHandler(layer *httpkey.Layer[*sql.Tx], gateway Gateway) {
	http.Handle("POST /payments", layer.Lease(unavez.Steps, func(r *http.Request, attempt *unavez.Attempt) (httpkey.Finish[*sql.Tx], error) {
		receipt, err := unavez.Step(r.Context(), attempt, "charge", func(ctx context.Context, key string) (string, error) {
			return gateway.Charge(ctx, key, 3000) // no transaction is open; key is the same at every attempt
		}, nil) // nil: the gateway honours the key, so calling again is safe
		if err != nil {
			return nil, err // the operation is unknown; the next request with the key goes on
		}
		return func(ctx context.Context, w http.ResponseWriter, tx *sql.Tx) error { // commits with the outcome
			w.WriteHeader(http.StatusCreated)
			_, err := tx.ExecContext(ctx, `insert into payments(receipt) values (?)`, receipt)
			return err
		}, nil
	}))
}

func client() *http.Client {
	return &http.Client{Transport: &httpkey.Transport{}, Timeout: time.Minute}
}

func order(chart []byte) (*statechart.Definition, error) {
	language, err := cel.New(nil)
	if err != nil {
		return nil, err
	}
	return statechart.Load(chart, &statechart.Options{
		Expressions: language,
		Actions:     map[string]statechart.ActionFunc{"mail": {Kind: statechart.Effect, Keyed: true}},
		Invokes:     []string{"shipping"},
	})
}

func pay(d *statechart.Definition, stored, message []byte) ([]byte, []statechart.EffectCall, error) {
	snapshot, err := statechart.Restore(d, stored)
	if err != nil {
		return nil, nil, err // never write after this: the row stays as it is
	}
	event, err := statechart.ParseEvent(message)
	if err != nil {
		return nil, nil, err
	}
	r, err := statechart.Next(d, snapshot, event)
	if err != nil || r.Kind != statechart.Changed {
		return stored, nil, err // r.Kind says what became of it: not handled, forbidden, guard false …
	}
	text, err := json.Marshal(r.Snapshot) // store it with the effects, and with r.Arm, r.Cancel, r.Invoke and r.Stop
	return text, r.Effects, err
}

func upgrade(old, new *statechart.Definition, text []byte, reachable iter.Seq[*statechart.Snapshot]) (*migrate.Migration, error) {
	plan, err := migrate.ParsePlan(text)
	if err != nil {
		return nil, err
	}
	language, err := cel.New(nil)
	if err != nil {
		return nil, err
	}
	m, err := migrate.New(old, new, plan, language)
	if err != nil {
		return nil, err // every name that is not there
	}
	if report := m.Check(reachable); len(report.Faults) > 0 {
		return nil, fmt.Errorf("%d configurations are not covered: %s", len(report.Faults), report.Faults[0])
	}
	return m, nil // m.Apply(snapshot) takes one process over
}

func checked(ctx context.Context, old, new *statechart.Definition, m *migrate.Migration) (migrate.Report, []analyze.Change, error) {
	before, err := analyze.Analyze(ctx, old, nil)
	if err != nil {
		return migrate.Report{}, nil, err
	}
	after, err := analyze.Analyze(ctx, new, nil)
	if err != nil {
		return migrate.Report{}, nil, err
	}
	var reachable []*statechart.Snapshot
	for s, err := range before.Snapshots(old) {
		if err != nil {
			return migrate.Report{}, nil, err
		}
		reachable = append(reachable, s)
	}
	// A change is an event that the shape protected and no longer does, where the plan takes a process.
	return m.Check(slices.Values(reachable)), after.Migrated(before, old, m.Place), nil
}

// counted is a gateway that counts.
type counted struct{ charges int }

func (g *counted) Charge(_ context.Context, key string, _ int64) (string, error) {
	g.charges++
	return "receipt of " + key, nil
}

func (g *counted) Find(context.Context, string) (string, bool, error) { return "", false, nil }

func TestTheExamplesOfTheDocsDoWhatTheySay(t *testing.T) {
	db := must(sqlite.OpenDB(&modernc.Driver{}, filepath.Join(t.TempDir(), "shop.db"), nil))
	defer db.Close()
	must(db.Exec(`create table orders(id integer primary key, customer text); create table payments(order_id text, receipt text)`))
	engine := must(unavez.New(must(sqlite.New(db, nil)), nil))
	layer := must(httpkey.New(engine, shop, nil))
	count := func(table string) (n int) {
		must(0, db.QueryRow(`select count(*) from `+table).Scan(&n))
		return n
	}
	gateway := &counted{}
	leasedHandler(layer, gateway)
	http.HandleFunc("POST /wrapped", wrapped)
	web := httptest.NewServer(layer.Wrap(http.DefaultServeMux))
	defer web.Close()
	leased := httptest.NewServer(http.DefaultServeMux)
	defer leased.Close()
	ctx := httpkey.WithKey(t.Context(), "k-1")
	for _, url := range []string{leased.URL + "/payments", web.URL + "/wrapped"} {
		for range 2 {
			response := must(client().Do(must(http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("x")))))
			if response.Body.Close(); response.StatusCode != http.StatusCreated {
				t.Errorf("%s: %s", url, response.Status)
			}
		}
		ctx = httpkey.WithKey(t.Context(), "k-2")
	}
	if gateway.charges != 1 || count("payments") != 1 || count("orders") != 1 {
		t.Errorf("%d charges, %d payments, %d orders", gateway.charges, count("payments"), count("orders"))
	}
	for range 2 {
		must(0, join(t.Context(), db, engine, unavez.Operation{Tenant: "acme", Effect: "order.import.v1", Key: []string{"1"}}))
		must((&server{engine}).Place(t.Context(), &PlaceRequest{RequestID: "1", Customer: "c-1"}))
		must(lease(t.Context(), engine, gateway, "order-1", 3000))
	}
	if gateway.charges != 2 || count("payments") != 2 || count("orders") != 3 {
		t.Errorf("%d charges, %d payments, %d orders", gateway.charges, count("payments"), count("orders"))
	}
}

func TestTheShopOnPostgreSQLMakesOneOrder(t *testing.T) {
	pool := must(pgxpool.New(t.Context(), testenv.NewDatabase(t)))
	defer pool.Close()
	must(pool.Exec(t.Context(), `create table orders(id bigserial primary key, customer text)`))
	web := httptest.NewServer(pgxShop(t.Context(), pool, shop))
	defer web.Close()
	ctx := httpkey.WithKey(t.Context(), "k-1")
	for range 2 {
		response := must(client().Do(must(http.NewRequestWithContext(ctx, http.MethodPost, web.URL, strings.NewReader("x")))))
		if response.Body.Close(); response.StatusCode != http.StatusCreated {
			t.Error(response.Status)
		}
	}
	var orders int
	if must(0, pool.QueryRow(t.Context(), `select count(*) from orders`).Scan(&orders)); orders != 1 {
		t.Errorf("%d orders", orders)
	}
}

func TestTheChartOfTheDocsRuns(t *testing.T) {
	t.Parallel()
	page := string(must(os.ReadFile("statecharts.md")))
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(page, -1)
	d := must(order([]byte(blocks[0][1])))
	first := must(statechart.Start(d, nil))
	stored := must(json.Marshal(first.Snapshot))
	stored, effects, err := pay(d, stored, []byte(`{"type":"PAY","id":"e1","amount":9.90,"customer":"c@example.com"}`))
	if err != nil || len(effects) != 1 || !strings.Contains(string(stored), `"paid":9.9`) {
		t.Errorf("%s, %v, %v", stored, effects, err)
	}
	if _, err := migrate.ParsePlan([]byte(blocks[1][1])); err != nil {
		t.Error(err)
	}
	reachable := func(yield func(*statechart.Snapshot) bool) { yield(first.Snapshot) }
	m, err := upgrade(d, d, []byte(`{}`), reachable)
	if err != nil {
		t.Fatal(err)
	}
	if report, worse, err := checked(t.Context(), d, d, m); err != nil || report.Checked == 0 || len(report.Faults) > 0 || len(worse) > 0 {
		t.Errorf("%+v, %+v, %v", report, worse, err)
	}
}

func TestEveryGoBlockOfTheDocsIsCompiledSomewhere(t *testing.T) {
	t.Parallel()
	source := squeeze(string(must(os.ReadFile("snippets_test.go"))))
	for _, example := range must(filepath.Glob("../examples/*/*/*.go")) { // modules of their own, with tests of their own
		source += squeeze(string(must(os.ReadFile(example))))
	}
	pages := append(must(filepath.Glob("*.md")), "../README.md")
	blocks := 0
	for _, page := range pages {
		for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(must(os.ReadFile(page))), -1) {
			blocks++
			if !strings.Contains(source, squeeze(block[1])) {
				t.Errorf("%s: this block is neither in snippets_test.go nor in an example:\n%s", page, block[1])
			}
		}
	}
	if blocks < 5 {
		t.Errorf("only %d blocks found", blocks)
	}
}

func TestEveryLinkBetweenPagesLeadsSomewhere(t *testing.T) {
	t.Parallel()
	pages := append(append(must(filepath.Glob("*.md")), must(filepath.Glob("adr/*.md"))...), must(filepath.Glob("../*.md"))...)
	for _, page := range pages {
		prose := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(must(os.ReadFile(page))), "")
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose, -1) {
			target, fragment, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := page
			if target != "" {
				to = filepath.Join(filepath.Dir(page), target)
			}
			text, err := os.ReadFile(to)
			if info, statErr := os.Stat(to); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s: link to %s: %v", page, link[1], err)
				continue
			}
			if fragment != "" && !anchors(string(text))[fragment] {
				t.Errorf("%s: link to %s: no such heading", page, link[1])
			}
		}
	}
}

func TestEveryTypeOfProblemHasItsParagraph(t *testing.T) {
	t.Parallel()
	page := anchors(string(must(os.ReadFile("http-api.md"))))
	types := 0
	for file, pattern := range map[string]string{
		"../httpkey/problem.go": `(?m)^\tType\w+ += "([a-z-]+)"`,
		"../errors.go":          `(?m)^\tCode\w+ +Code = "([a-z-]+)"`,
	} {
		for _, kind := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(must(os.ReadFile(file))), -1) {
			if kind[1] == string(unavez.CodeNotFound) || kind[1] == string(unavez.CodeInvalid) {
				continue // of the library; HTTP answers have neither
			}
			types++
			if !page[kind[1]] {
				t.Errorf("http-api.md has no heading %q", kind[1])
			}
		}
	}
	if types < 30 {
		t.Errorf("only %d types found", types)
	}
}

// anchors are the names that a page's headings get.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(heading[1], ""))
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// squeeze drops indentation and alignment, which differ between page and file.
func squeeze(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// These are compiled and not called: they end the process.
var _ = []any{readme, wrap}
