package config

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/inbox"
)

func TestEveryFaultOfTheInboxIsReportedAtOnceWithItsLine(t *testing.T) {
	t.Parallel()
	_, err := Parse(read(t, "inbox-faults.yaml"), environment())
	if err == nil {
		t.Fatal("no fault found")
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the faults show a secret: %v", err)
	}
	got := err.Error() + "\n"
	if *rewrite {
		if err := os.WriteFile("testdata/inbox-faults.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(read(t, "inbox-faults.golden")), got); diff != "" {
		t.Errorf("-want +got (go test -rewrite writes it anew):\n%s", diff)
	}
}

func TestAFullInboxIsReadAsWritten(t *testing.T) {
	t.Parallel()
	c, err := Parse(read(t, "inbox.yaml"), environment())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	shop, bank, grid := c.Sources[0], c.Sources[1], c.Sources[2]
	if shop.Made.Name != "nuvemshop" || shop.Secrets[0].Value.Reveal() != "an-admin-token-canary" || shop.Secrets[0].Name != "1" || len(shop.SubjectRule) != 3 {
		t.Errorf("shop: %+v", shop)
	}
	if shop.Fetch.Headers["Authentication"].Reveal() != "bearer a-file-token-canary" || shop.Fetch.Tenants["7"]["Authentication"].Reveal() != "bearer other-canary" {
		t.Error("headers of fetch are not as written")
	}
	if secrets := Ready(bank.Secrets); secrets[1].Name != "old" || !secrets[1].Until.Equal(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)) || secrets[1].Reveal() != "ff00" {
		t.Errorf("secrets: %v", secrets)
	}
	if bank.Made.Success != 202 || bank.Made.Window != 48*time.Hour || bank.Silence != 2*time.Hour || grid.Made.Name != "event-grid" {
		t.Errorf("bank: %+v, silence %v, grid %+v", bank.Made, bank.Silence, grid.Made)
	}
	e := c.Effects[0]
	if !slices.Equal(e.Wants, []string{"shop"}) || e.Retention != 30*24*time.Hour || e.Send.Timeout != 5*time.Second || e.Probe.Settle != 5*time.Second || e.Retry.Attempts != 5 {
		t.Errorf("effect: %+v", e)
	}
	if other := c.Effects[1]; other.Retention != 14*24*time.Hour || other.Tombstone != 30*24*time.Hour || other.GapWait != 10*time.Minute || other.Send.Timeout != DefaultTimeout {
		t.Errorf("effect with defaults: %+v", other)
	}
	holds, err := e.WhenRule.Holds(c.Language().Scope(&inbox.Event{Source: "shop", Type: "order/paid"}))
	if err != nil || !holds {
		t.Errorf("when: %v %v", holds, err)
	}
}

// receiving is the smallest configuration of an inbox without a fault.
const receiving = `
store: sqlite:x.db
outbound: {allow: [127.0.0.1/32]}
sources:
  - {name: shop, contract: stripe, path: /in/shop, tenant: acme, secrets: [a-canary], types: ["*"]}
effects:
  - {name: import, send: {url: "http://127.0.0.1:9000/imports"}, unknown: hold}
`

func TestFaultsOfSingleFieldsOfTheInbox(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want, warning string }{
		{name: "as it is"},
		{name: "no auth, but a route", old: "effects:", new: "http: [{route: POST /orders, upstream: \"http://127.0.0.1:9000\", unknown: hold}]\neffects:", want: "auth: missing"},
		{name: "auth without a mode", old: "store:", new: "auth: {single_tenant: true}\nstore:", want: "auth: missing"},
		{name: "no effects", old: "effects:\n  - {name: import, send: {url: \"http://127.0.0.1:9000/imports\"}, unknown: hold}\n", want: "effects: missing: nothing would become"},
		{name: "no sources", old: "sources:\n  - {name: shop, contract: stripe, path: /in/shop, tenant: acme, secrets: [a-canary], types: [\"*\"]}\n", want: "there are no sources for their events"},
		{name: "no tenant", old: "tenant: acme, ", want: "sources[0].tenant: missing: whom do its events belong to"},
		{name: "one tenant", old: "tenant: acme, ", new: "", want: ""},
		{name: "tenant of the signed message", old: "tenant: acme", new: "tenant_from: tenant"},
		{name: "no types", old: ", types: [\"*\"]", want: "sources[0].types: missing"},
		{name: "no secret", old: "secrets: [a-canary], ", want: "without a secret nothing is authentic"},
		{name: "retention under the window", old: "unknown: hold", new: "unknown: hold, retention: 29d", want: "29d"},
		{name: "retention near the window", old: "unknown: hold", new: "unknown: hold, retention: 31d", warning: "under 1.5 times"},
		{name: "retention of the inbox", old: "store:", new: "inbox: {retention: 10d}\nstore:", want: "inbox.retention: 10d is shorter than the 30d for which source shop repeats"},
		{name: "retention over the window", old: "unknown: hold", new: "unknown: hold, retention: 45d"},
		{name: "an effect for nobody", old: "name: import,", new: "name: import, when: source == \"shpo\",", warning: "can hold for no event"},
		{name: "a misspelt contract", old: "stripe", new: "strip", want: "did you mean stripe?"},
		{name: "a misspelt field", old: "types:", new: "tpyes:", want: "did you mean types?"},
		{name: "a name for many effects", old: "effects:", new: "effects:\n  - {name: import, send: {url: \"http://127.0.0.1:9000/x\"}, unknown: hold}", want: "effects[1].name: \"import\" is effects[0] already"},
		{name: "two sources of a path", old: "effects:", new: "  - {name: b, contract: stripe, path: /in/shop, tenant: t, secrets: [a-canary], types: [\"*\"]}\neffects:", want: "\"/in/shop\" is sources[0] already"},
		{name: "a route of the same path", old: "effects:", new: "auth: {mode: single_tenant}\nhttp: [{route: POST /in/shop, upstream: \"http://127.0.0.1:9000\", unknown: hold}]\neffects:", want: "sources[0].path: \"/in/shop\": the route POST /in/shop takes its deliveries"},
		{name: "a field in capitals", old: "types:", new: "TYPES:", want: "did you mean types?"},
		{name: "a route for all", old: "effects:", new: "auth: {mode: single_tenant}\nhttp: [{route: /, upstream: \"http://127.0.0.1:9000\", unknown: hold}]\neffects:"},
		{name: "shopify's header", old: "contract: stripe, path: /in/shop, tenant: acme", new: "contract: shopify, path: /in/shop, tenant_from: tenant", warning: "a header that Shopify does not sign"},
		{name: "no contiguity without a version", old: "unknown: hold", new: "unknown: hold, contiguous: true", want: "needs version"},
		{name: "a lease under the timeout", old: "unknown: hold", new: "unknown: retry, lease: 10s", want: "effects[0].lease"},
		{name: "a private target", old: "outbound: {allow: [127.0.0.1/32]}\n", want: "effects[0].send.url: 127.0.0.1 is a private address"},
		{name: "a body that is too large", old: "types: [", new: "body_limit: 1GiB, types: [", want: "sources[0].body_limit: 1GiB, want 1KiB to 64MiB"},
		{name: "unpacked less than packed", old: "types: [", new: "plain_limit: 1000KiB, types: [", want: "sources[0].plain_limit: 1000KiB, want 1MiB to 256MiB"},
		{name: "alerts without a secret", old: "store:", new: "alerts: {url: \"https://a.example\"}\nstore:", want: "alerts.secrets: missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(receiving, c.old) {
				t.Fatalf("%q is not in the configuration", c.old)
			}
			text := receiving
			if c.old != "" {
				text = strings.Replace(receiving, c.old, c.new, 1)
			}
			if c.name == "one tenant" {
				text += "auth: {mode: single_tenant}\n"
			}
			got, err := Parse([]byte(text), environment())
			switch {
			case c.want == "" && err != nil:
				t.Errorf("fault: %v", err)
			case c.want != "" && err == nil:
				t.Error("no fault")
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil {
				if c.name == "a body that is too large" && strings.Contains(err.Error(), "plain_limit") {
					t.Errorf("of a field that is not there: %v", err)
				}
				if strings.Contains(err.Error(), "canary") {
					t.Errorf("shows a secret: %v", err)
				}
				return
			}
			if warned := got.Warnings.Error(); (warned == "") != (c.warning == "") || !strings.Contains(warned, c.warning) {
				t.Errorf("warned %q, want %q", warned, c.warning)
			}
		})
	}
}

func TestTheKeysOfAnIssuerStandAtEntraOnly(t *testing.T) {
	t.Parallel()
	for issuer, want := range map[string]string{
		"https://login.microsoftonline.com/0a1b-2c/v2.0":        "https://login.microsoftonline.com/0a1b-2c/discovery/v2.0/keys",
		"https://sts.windows.net/0a1b-2c/":                      "https://login.microsoftonline.com/0a1b-2c/discovery/keys",
		"https://login.microsoftonline.com.evil.example/a/v2.0": "",
		"http://login.microsoftonline.com/0a1b/v2.0":            "",
		"https://login.microsoftonline.com/common/v2.0":         "",
		"https://login.microsoftonline.com/..%2f/v2.0":          "",
		"https://sts.windows.net/0a1b/x":                        "",
		"https://a@sts.windows.net/0a1b/":                       "",
		"":                                                      "",
	} {
		if got := KeysOf(issuer); got != want {
			t.Errorf("%s: %q, want %q", issuer, got, want)
		}
	}
}
