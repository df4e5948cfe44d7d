package config

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// auth checks who is calling. Fields of another mode are faults: they would be
// believed and do nothing.
func (c *checker) auth() {
	a := &c.config.Auth
	if a.Mode == "" && len(c.config.HTTP) == 0 && len(c.config.Sources) > 0 && !c.given("auth") {
		return // senders prove themselves
	}
	if a.Mode == "" {
		c.fault("auth", "missing: say who is calling (write auth: {mode: forward, url: …}; with one trusted caller, auth: {mode: single_tenant})")
		return
	}
	if a.Mode == "jwt" || a.Mode == "header" {
		c.fault("auth.mode", "%s is not in this version (use forward, token, credential or single_tenant)", a.Mode)
		return
	}
	if !c.word("auth.mode", a.Mode, "forward", "token", "credential", "single_tenant") {
		return
	}
	allowed := map[string][]string{
		"forward":       {"url", "timeout", "tenant_header", "principal_header", "headers", "single_tenant"},
		"token":         {"tokens", "single_tenant"},
		"credential":    {"cookie", "tenant", "single_tenant"},
		"single_tenant": {"single_tenant"},
	}[a.Mode]
	for _, field := range []string{"url", "timeout", "tenant_header", "principal_header", "headers", "tokens", "cookie", "tenant"} {
		if c.given("auth."+field) && !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+field+" ") {
			c.fault("auth."+field, "not a field of mode %s", a.Mode)
		}
	}
	if a.Mode == "single_tenant" && (a.Identify.Tenant != "" || a.Identify.Principal != "") {
		c.fault("auth.identify", "given, but single_tenant names nobody (remove it, or choose another mode)")
	}
	for field, name := range map[string]string{"tenant": a.Identify.Tenant, "principal": a.Identify.Principal} {
		if name != "" && !IsHeader(name) {
			c.fault("auth.identify."+field, "%q is not the name of a header", name)
		}
	}
	if a.Identify.Tenant != "" && strings.EqualFold(a.Identify.Tenant, a.Identify.Principal) {
		c.fault("auth.identify.principal", "the same header as auth.identify.tenant")
	}
	switch a.Mode {
	case "forward":
		c.forward(a)
	case "token":
		c.tokens(a)
	case "credential":
		c.credential(a)
	case "single_tenant":
		a.SingleTenant = true
	}
}

func (c *checker) forward(a *Auth) {
	if a.URL == "" {
		c.fault("auth.url", "missing (write url: http://127.0.0.1:9000/whoami)")
	} else {
		c.target("auth.url", a.URL)
	}
	set(&a.Timeout, DefaultAuthTimeout)
	within(c, "auth.timeout", a.Timeout, 10*time.Millisecond, time.Minute)
	set(&a.TenantHeader, "X-Tenant")
	set(&a.PrincipalHeader, "X-Principal")
	for field, name := range map[string]string{"tenant_header": a.TenantHeader, "principal_header": a.PrincipalHeader} {
		if !IsHeader(name) {
			c.fault("auth."+field, "%q is not the name of a header", name)
		}
	}
	for i, name := range a.Headers {
		if !IsHeader(name) {
			c.fault(fmt.Sprintf("auth.headers[%d]", i), "%q is not the name of a header", name)
		}
	}
	if len(a.Headers) == 0 {
		a.Headers = []string{"Authorization", "Cookie"}
	}
	if strings.EqualFold(a.TenantHeader, a.PrincipalHeader) {
		c.fault("auth.principal_header", "the same header as auth.tenant_header")
	}
}

func (c *checker) tokens(a *Auth) {
	if len(a.Tokens) == 0 {
		c.fault("auth.tokens", "missing (write tokens: [{sha256: …, tenant: shop, principal: checkout}]; printf %%s TOKEN | sha256sum gives the hash)")
	}
	first := map[string]int{}
	for i := range a.Tokens {
		t := &a.Tokens[i]
		path := fmt.Sprintf("auth.tokens[%d]", i)
		t.SHA256 = strings.ToLower(t.SHA256)
		if b, err := hex.DecodeString(t.SHA256); err != nil || len(b) != 32 {
			c.fault(path+".sha256", "want the 64 hexadecimal digits of the token's SHA-256 (printf %%s TOKEN | sha256sum), never the token itself")
		} else if other, ok := first[t.SHA256]; ok {
			c.fault(path+".sha256", "the token of auth.tokens[%d] again", other)
		} else {
			first[t.SHA256] = i
		}
		if t.Tenant == "" && !a.SingleTenant {
			c.fault(path+".tenant", "missing (name the tenant, or write auth.single_tenant: true)")
		}
		if t.Principal == "" {
			c.fault(path+".principal", "missing: who holds this token")
		}
	}
}

func (c *checker) credential(a *Auth) {
	if a.Tenant == "" && !a.SingleTenant {
		c.fault("auth.tenant", "missing (name the tenant, or write auth.single_tenant: true)")
	}
	if strings.ContainsAny(a.Cookie, " \t;,=\"") {
		c.fault("auth.cookie", "not the name of a cookie")
	}
}
