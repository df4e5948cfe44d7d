package server

import (
	"net/http"
	"strings"
	"testing"
)

const adminToken = "an-admin-token-of-some-length"

func TestTheAdminListenerWantsItsToken(t *testing.T) {
	t.Parallel()
	b := start(t, "admin: {token: "+adminToken+"}\n"+holding)
	b.post("/orders", "k-1")
	for _, path := range []string{"/", "/api/operations", "/api/operations/" + strings.Repeat("0", 32), "/metrics"} {
		for _, header := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"Authorization", "Basic " + adminToken}, {"Authorization", adminToken}, {"Authorization", "Bearer " + adminToken + "x"}} {
			if got := b.sendTo(b.admin, http.MethodGet, path, "", header...); got.status != 401 || strings.Contains(got.body, "k-1") {
				t.Errorf("%s with %v: %d", path, header, got.status)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := b.sendTo(b.admin, http.MethodGet, path, ""); got.status != 200 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/api/operations?state=completed", "", "Authorization", "Bearer "+adminToken, "Host", "ops.example"); got.status != 200 || !strings.Contains(got.body, "k-1") {
		t.Errorf("with the token: %+v", got)
	}
	ops, err := OpenOps(t.Context(), OpsOptions{Admin: b.admin})
	if err != nil {
		t.Fatal(err)
	}
	if err := ops.Show(t.Context(), &strings.Builder{}, false, "/http//k-1", false); err == nil || !strings.Contains(err.Error(), "UNAVEZ_ADMIN_TOKEN") {
		t.Errorf("ops without a token: %v", err)
	}
}

func TestPagesOfOtherOriginsCannotActOrRead(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.app.set("/orders", dies)
	b.post("/orders", "k-1")
	path, err := operationPath("/http//k-1")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"by":"eve","reason":"because"}`
	for name, header := range map[string][]string{
		"cross-site":     {"Sec-Fetch-Site", "cross-site"},
		"other origin":   {"Origin", "https://evil.example"},
		"rebound name":   {"Host", "evil.example"},
		"form":           {"Content-Type", "text/plain"},
		"rebound origin": {"Host", "evil.example:80", "Origin", "http://evil.example:80"},
	} {
		header = append([]string{}, header...)
		got := b.sendTo(b.admin, http.MethodPost, path+"/discard", body, header...)
		if name == "form" && got.status == 200 || name != "form" && got.status != 403 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if got := b.sendTo(b.admin, method, path+"/discard", ""); got.status == 200 {
			t.Errorf("%s acts", method)
		}
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/api/operations", "", "Host", "evil.example"); got.status != 403 || strings.Contains(got.body, "k-1") {
		t.Errorf("a rebound page reads: %+v", got)
	}
	if op := b.operation("/http//k-1"); op.State != "unknown" {
		t.Errorf("it is %s", op.State)
	}
}

func TestDecisionsNeedANameAReasonAndASensibleAnswer(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.app.set("/orders", dies)
	b.post("/orders", "k-1")
	path, err := operationPath("/http//k-1")
	if err != nil {
		t.Fatal(err)
	}
	who := `"by":"ana","reason":"r"`
	for body, want := range map[string]string{
		`{"reason":"r"}`:                        "by:",
		`{"by":"ana"}`:                          "reason:",
		`{"by":"  ","reason":"r"}`:              "by:",
		`{` + who + `}`:                         "result: missing",
		`{` + who + `,"extra":1}`:               "want one JSON object",
		`[]`:                                    "want one JSON object",
		`{` + who + `}{}`:                       "want one JSON object",
		`{` + who + `,"result":{"status":0}}`:   "result.status",
		`{` + who + `,"result":{"status":503}}`: "result.status",
		`{` + who + `,"result":{"status":204,"body":"YQ=="}}`:                                    "result.body",
		`{` + who + `,"result":{"status":201,"header":[["Set-Cookie","a=b"]]}}`:                  "never part",
		`{` + who + `,"result":{"status":201,"header":[["transfer-encoding","x"]]}}`:             "never part",
		`{` + who + `,"result":{"status":201,"header":[["X A","b"]]}}`:                           "no header line",
		`{` + who + `,"result":{"status":201,"header":[["X-A","b\r\nX-B: c"]]}}`:                 "no header line",
		`{` + who + `,"result":{"status":201,"body":"` + strings.Repeat("YWFh", 400_000) + `"}}`: "result.body",
	} {
		got := b.sendTo(b.admin, http.MethodPost, path+"/complete", body)
		if got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%.80s: %d %s, want %q", body, got.status, got.body, want)
		}
	}
	for _, query := range []string{"state=free", "state=x", "limit=0", "limit=5000", "after=x", "colour=red"} {
		if got := b.sendTo(b.admin, http.MethodGet, "/api/operations?"+query, ""); got.status != 400 {
			t.Errorf("%s: %d", query, got.status)
		}
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/api/operations/xyz", ""); got.status != 400 {
		t.Errorf("no key: %d", got.status)
	}
	if got := b.sendTo(b.admin, http.MethodPost, "/api/operations/"+strings.Repeat("0", 32)+"/release", `{`+who+`}`); got.status != 404 && got.status != 409 {
		t.Errorf("an operation that is not there: %+v", got)
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/", ""); got.status != 200 || !strings.Contains(got.body, "GET  /api/operations") {
		t.Errorf("index: %+v", got)
	}
}

func TestListsGoOnPageByPage(t *testing.T) {
	t.Parallel()
	b := start(t, holding)
	b.app.set("/orders", dies)
	want := map[string]bool{}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		b.post("/orders", key)
		want["/http//"+key] = true
	}
	ops, err := OpenOps(t.Context(), OpsOptions{Admin: b.admin})
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	next := ""
	for range 3 {
		got := b.sendTo(b.admin, http.MethodGet, "/api/operations?limit=2&after="+next, "")
		if next == "" {
			got = b.sendTo(b.admin, http.MethodGet, "/api/operations?limit=2", "")
		}
		page := decodePage(t, got.body)
		for _, o := range page.Operations {
			if !want[o.Name] {
				t.Errorf("%s comes twice", o.Name)
			}
			delete(want, o.Name)
		}
		next = page.Next
	}
	if len(want) > 0 || next != "" {
		t.Errorf("missing %v, next %q", want, next)
	}
	var out strings.Builder
	if err := ops.List(t.Context(), &out, true, ListOptions{Limit: 3}); err != nil || len(decodePage(t, out.String()).Operations) != 3 {
		t.Errorf("list: %v\n%s", err, &out)
	}
}
