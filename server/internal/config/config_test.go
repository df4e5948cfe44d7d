package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func environment() Environment {
	return Environment{
		Getenv: func(name string) (string, bool) {
			value, ok := map[string]string{"ADMIN_TOKEN": "an-admin-token-canary", "STORE": "sqlite:x.db", "NESTED": "${ADMIN_TOKEN}", "YAML": "a: [b"}[name]
			return value, ok
		},
		ReadFile: func(path string) ([]byte, error) {
			if path == "token" {
				return []byte("a-file-token-canary\n"), nil
			}
			return nil, os.ErrNotExist
		},
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// minimal is the smallest configuration without a fault; a case adds to it.
const minimal = `
store: sqlite:x.db
auth: {mode: single_tenant}
outbound: {allow: [127.0.0.1/32]}
http:
  - route: POST /orders
    upstream: http://127.0.0.1:9000
    unknown: hold
`

func TestEveryFaultIsReportedAtOnceWithItsLine(t *testing.T) {
	t.Parallel()
	_, err := Parse(read(t, "faults.yaml"), environment())
	if err == nil {
		t.Fatal("no fault found")
	}
	if strings.Contains(err.Error(), "canary") {
		t.Error("the faults show a secret")
	}
	got := err.Error() + "\n"
	if *rewrite {
		if err := os.WriteFile("testdata/faults.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(read(t, "faults.golden")), got); diff != "" {
		t.Errorf("-want +got (go test -rewrite writes it anew):\n%s", diff)
	}
}

func TestAFullConfigurationIsReadAsWritten(t *testing.T) {
	t.Parallel()
	c, err := Parse(read(t, "full.yaml"), environment())
	if err != nil {
		t.Fatal(err)
	}
	if c.Place.Path != "unavez.db" || c.Admin.Token.Reveal() != "an-admin-token-canary" || len(c.Outbound.Prefixes) != 2 {
		t.Errorf("store %q, admin token %d bytes, %d ranges", c.Place.Path, len(c.Admin.Token.Reveal()), len(c.Outbound.Prefixes))
	}
	r := c.HTTP[1]
	if r.Retention != 7*24*time.Hour || r.RequestLimit != 64<<10 || r.Methods[0] != "POST" || r.CORS.MaxAge != time.Hour {
		t.Errorf("route read as %+v", r)
	}
	if got := r.Probe.Headers["Authorization"].Reveal(); got != "Bearer a-file-token-canary" {
		t.Errorf("file in a header: %q", got)
	}
	if got, err := environment().expand("$${NAME}, ${STORE}"); got != "${NAME}, sqlite:x.db" || err != nil {
		t.Errorf("expanded to %q, %v", got, err)
	}
	if r.Probe.Done[0].Is[1] != "1" || c.HTTP[0].Timeout != DefaultTimeout || c.HTTP[0].Key != "required" {
		t.Errorf("probe %+v, defaults %+v", r.Probe, c.HTTP[0])
	}
}

func TestFaultsOfSingleFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want string }{
		{"store missing", "store: sqlite:x.db\n", "", "store: missing"},
		{"store without a path", "sqlite:x.db", `"sqlite:"`, "needs the path"},
		{"store in memory", "sqlite:x.db", `"sqlite::memory:"`, "needs the path"},
		{"store of another kind", "sqlite:x.db", "mysql://x", "not a store of this version"},
		{"PostgreSQL", "sqlite:x.db", "postgres://app:canary@db.internal:5433/shop?sslmode=require&pool_max_conns=8", ""},
		{"PostgreSQL on a socket", "sqlite:x.db", "postgres:///shop?host=/run/postgresql", ""},
		{"PostgreSQL on several hosts", "sqlite:x.db", "postgres://app:canary@a:5432,b:5432/shop?target_session_attrs=read-write", ""},
		{"PostgreSQL without slashes", "sqlite:x.db", `"postgres:shop"`, "not a PostgreSQL URL (write postgres://"},
		{"PostgreSQL without a database", "sqlite:x.db", "postgres://app:canary@db", "store: no database"},
		{"PostgreSQL without a host", "sqlite:x.db", "postgres:///shop", "store: no host"},
		{"PostgreSQL, @ in the password", "sqlite:x.db", "postgres://app:can@ary@db/shop", "percent-encode"},
		{"PostgreSQL, / in the password", "sqlite:x.db", "postgres://app:12/canary@db/shop", "percent-encode"},
		{"PostgreSQL, ? in the password", "sqlite:x.db", "postgres://app:12?canary@db/shop", "percent-encode"},
		{"PostgreSQL, # in the password", "sqlite:x.db", `'postgres://app:12#canary@db/shop'`, "percent-encode"},
		{"PostgreSQL, no port", "sqlite:x.db", "postgres://app:canary@db:x/shop", "not a PostgreSQL URL"},
		{"PostgreSQL, sslmode", "sqlite:x.db", "postgres://app:canary@db/shop?sslmode=on", "sslmode"},
		{"PostgreSQL, misspelt parameter", "sqlite:x.db", "postgres://app:canary@db/shop?sslmod=require", "did you mean sslmode?"},
		{"PostgreSQL, a name for its connections", "sqlite:x.db", "postgres://app:canary@db/shop?application_name=shop", ""},
		{"PostgreSQL, a number", "sqlite:x.db", "postgres://app:canary@db/shop?pool_max_conns=many", "pool_max_conns"},
		{"PostgreSQL, too many connections", "sqlite:x.db", "postgres://app:canary@db/shop?pool_max_conns=5000", "want 1 to 1000"},
		{"Redis", "store:", "lease: redis://:canary@x:6380/2\nstore:", ""},
		{"Redis with TLS", "store:", "lease: rediss://user:canary@x\nstore:", ""},
		{"Redis behind Sentinel", "store:", "lease: redis://a:26379?master_name=m&addr=b:26379\nstore:", ""},
		{"Redis Cluster", "store:", "lease: redis://a:6379?addr=b:6379\nstore:", ""},
		{"Redis without its scheme", "store:", "lease: localhost:6379\nstore:", "lease: not a Redis"},
		{"Redis without a host", "store:", "lease: redis://\nstore:", "lease: no host"},
		{"Redis, / in the password", "store:", "lease: redis://:12/canary@x\nstore:", "lease: no host"},
		{"Redis, ? in the password", "store:", "lease: redis://a:12?canary@x\nstore:", "percent-encode"},
		{"Redis, no database number", "store:", "lease: redis://:canary@x/shop\nstore:", "invalid database number"},
		{"Redis, a limit that is ours", "store:", "lease: redis://:canary@x?read_timeout=1s\nstore:", "read_timeout: not taken"},
		{"a variable fills in", "sqlite:x.db", "${STORE}", ""},
		{"a variable cannot name another", "sqlite:x.db", "${NESTED}", "not a store"},
		{"a variable cannot change the structure", "POST /orders", `"${YAML}"`, "http[0].route"},
		{"an unset variable", "sqlite:x.db", "${NOPE}", "${NOPE} is not set"},
		{"a missing file", "sqlite:x.db", "${file:nope}", "cannot be read"},
		{"an open brace", "sqlite:x.db", "${STORE", "never closed"},
		{"auth missing", "auth: {mode: single_tenant}\n", "", "auth: missing"},
		{"jwt", "single_tenant", "jwt", "not in this version"},
		{"header", "single_tenant", "header", "not in this version"},
		{"tokens missing", "single_tenant", "token", "auth.tokens: missing"},
		{"token instead of its hash", "{mode: single_tenant}", "{mode: token, tokens: [{sha256: secretcanary, tenant: a, principal: b}]}", "never the token itself"},
		{"token without tenant", "{mode: single_tenant}", "{mode: token, tokens: [{sha256: " + strings.Repeat("a", 64) + ", principal: b}]}", "tokens[0].tenant: missing"},
		{"credential without tenant", "single_tenant", "credential", "auth.tenant: missing"},
		{"credential", "{mode: single_tenant}", "{mode: credential, tenant: shop, cookie: sid}", ""},
		{"field of another mode", "{mode: single_tenant}", "{mode: single_tenant, url: http://a}", "auth.url: not a field of mode single_tenant"},
		{"private upstream", "outbound: {allow: [127.0.0.1/32]}\n", "", "outbound.allow does not list"},
		{"localhost upstream", "//127.0.0.1:9000", "//localhost:9000", ""},
		{"mapped upstream", "//127.0.0.1:9000", "\"//[::ffff:10.0.0.1]:9000\"", "http[0].upstream"},
		{"unknown missing", "    unknown: hold\n", "", "http[0].unknown: missing"},
		{"probe missing", "unknown: hold", "unknown: probe", "http[0].probe: missing"},
		{"PUT is said aloud", "POST /orders", "PUT /orders", "keyed only when said so"},
		{"pattern", "POST /orders", "POST /{a}/{a}", "http[0].route"},
		{"admin beyond loopback", "store:", "admin: {listen: ':8081'}\nstore:", "admin.token: missing"},
		{"admin on a name", "store:", "admin: {listen: 'myhost:8081'}\nstore:", "admin.token: missing"},
		{"short token", "store:", "admin: {token: short}\nstore:", "shorter than 16"},
		{"one address for both", "store:", "listen: 127.0.0.1:8081\nstore:", "the same address"},
		{"merge key", "store:", "<<: {a: b}\nstore:", "merge keys"},
		{"tag", "sqlite:x.db", "!!str sqlite:x.db", "tags are not used"},
		{"second document", "store:", "a: b\n---\nstore:", "a second document"},
		{"fault in front of a second document", "store:", "a: b\n---\nstore:", "a: unknown field"},
		{"null", "sqlite:x.db", "", "no value"},
		{"list for a value", "sqlite:x.db", "[a]", "want one value, not a list"},
		{"value for a list", "{mode: single_tenant}", "{mode: token, tokens: x}", "want a list"},
		{"value for fields", "{mode: single_tenant}", "x", "want fields"},
		{"alias without anchor", "sqlite:x.db", "*nope", "nope"},
		{"lease shorter than the upstream's timeout", "unknown: hold", "unknown: retry\n    lease: 2s\n    timeout: 3s", "http[0].lease"},
		{"the same under hold", "unknown: hold", "unknown: hold\n    lease: 2s\n    timeout: 3s", ""},
		{"retention under the limits", "unknown: hold", "unknown: hold\n    retention: 30s", "http[0].retention"},
		{"no tombstone", "unknown: hold", "unknown: hold\n    tombstone: 0s", ""},
		{"docs", "store:", "docs_url: nothing\nstore:", "docs_url: not an http"},
		{"misspelt field", "unknown: hold", "unknown: hold\n    upstraem: x", "did you mean upstream?"},
		{"syntax", "sqlite:x.db", "[a", "YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(minimal, c.old) {
				t.Fatalf("%q is not in the minimal configuration", c.old)
			}
			_, err := Parse([]byte(strings.Replace(minimal, c.old, c.new, 1)), environment())
			switch {
			case c.want == "" && err != nil:
				t.Errorf("fault: %v", err)
			case c.want != "" && err == nil:
				t.Error("no fault")
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("shows a secret: %v", err)
			}
		})
	}
}

func TestAnEmptyFileSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := Parse(nil, environment())
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 3 {
		t.Errorf("got %v, want store, auth and http", err)
	}
}

func TestASecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	s := struct {
		S Secret
		P *Secret
	}{S: NewSecret("canary")}
	s.P = &s.S
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s.S, "in", s)
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(s.S, s), fmt.Sprintf("%s %q %x %d %v %+v %#v", s.S, s.S, s.S, s.S, s, s, s),
		fmt.Sprintf("%#v", s.P), log.String(), string(encoded),
	} {
		if strings.Contains(text, "canary") || strings.Contains(text, "63616e617279") {
			t.Errorf("printed: %s", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(read(f, "faults.yaml"))
	f.Add(read(f, "full.yaml"))
	f.Add([]byte(minimal))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {a: b}\n: c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, environment())
		var faults Faults
		if err != nil && (!errors.As(err, &faults) || len(faults) == 0) {
			t.Fatalf("an error without faults: %v", err)
		}
		if err == nil && (c.Place.Path == "" && c.Place.URL.Empty() || len(c.HTTP)+len(c.Sources) == 0) {
			t.Fatalf("accepted: %+v", c)
		}
	})
}

func TestTheLeaseTakesTheClaimsPlaceWithALeaseAndRetryOnly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"    claim: lease\n": "needs unknown: retry",
		"    claim: store\n": "",
		"":                   "",
	} {
		c, err := Parse([]byte(minimal+text), environment())
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err == nil && c.HTTP[0].Claim != "store" {
			t.Errorf("%q: claim %q", text, c.HTTP[0].Claim)
		}
	}
	retry := strings.Replace(minimal, "unknown: hold", "unknown: retry\n    claim: lease", 1)
	if _, err := Parse([]byte(retry), environment()); err == nil || !strings.Contains(err.Error(), "http[0].claim: lease, but no lease is configured") {
		t.Errorf("without Redis: %v", err)
	}
	if c, err := Parse([]byte("lease: redis://127.0.0.1:6379\n"+retry), environment()); err != nil || c.HTTP[0].Claim != "lease" {
		t.Errorf("with Redis: %v", err)
	}
}
