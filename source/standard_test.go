package source_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"testing"

	"github.com/unavez/unavez/source"
)

// Of several signatures one that fits is enough, wherever it stands among the
// first 32; what cannot be read is passed over.
func TestStandardWebhooksTakesOneOfSeveralSignatures(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	shared := source.NewSecret("shared", "whsec_"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 24))))
	pinned := source.NewSecret("pinned", "whpk_"+base64.StdEncoding.EncodeToString(public))
	c := source.StandardWebhooks("")
	r := post(`{"type":"invoice.paid"}`)
	stamp := strconv.FormatInt(r.At.Unix(), 10)
	r.Header.Set("webhook-id", "m1")
	r.Header.Set("webhook-timestamp", stamp)
	v1, err := source.SignStandard(shared, "m1", r.At, r.Body)
	if err != nil {
		t.Fatal(err)
	}
	v1a := "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte("m1."+stamp+"."+string(r.Body))))
	bad, badA, unread := "v1,AAAA", "v1a,AAAA", "v1,***"
	many := func(signature string, n int) string { return strings.Repeat(signature+" ", n) }
	for _, line := range []struct {
		signatures string
		secret     source.Secret
		taken      bool
	}{
		{v1, shared, true},
		{v1 + " " + bad, shared, true},
		{bad + " " + v1, shared, true},
		{v1a + " " + badA, pinned, true},
		{badA + " " + v1a, pinned, true},
		{unread + " " + v1, shared, true},
		{many(unread, 40) + v1, shared, true},
		{many(bad, 31) + v1, shared, true},
		{many(bad, 32) + v1, shared, false},
		{many(badA, 31) + v1, shared, true},
		{many(badA, 20) + many(bad, 12) + v1, shared, false},
		{bad, shared, false},
		{v1a, shared, false},
		{v1, pinned, false},
		{strings.Replace(v1, "v1,", "v2,", 1), shared, false},
		{strings.Replace(v1, "v1,", "", 1), shared, false},
	} {
		r.Header.Set("webhook-signature", line.signatures)
		_, err := c.Verify(t.Context(), &source.Config{Secrets: []source.Secret{line.secret}}, r)
		if taken := err == nil; taken != line.taken {
			t.Errorf("%.60q: %v", line.signatures, err)
		}
	}
	r.Header.Set("webhook-signature", v1)
	for _, bad := range []string{"", "x", stamp + "x", "-1", "1e9"} {
		r.Header.Set("webhook-timestamp", bad)
		if _, err := c.Verify(t.Context(), &source.Config{Secrets: []source.Secret{shared}}, r); err == nil {
			t.Errorf("the timestamp %q is taken", bad)
		}
	}
}

func TestSecretsOfStandardWebhooksAreHeldToTheirLength(t *testing.T) {
	t.Parallel()
	check := source.StandardWebhooks("").Secret
	for n, sound := range map[int]bool{0: false, 23: false, 24: true, 32: true, 64: true, 65: false} {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", n)))
		for _, prefix := range []string{"", "whsec_"} {
			if err := check(prefix + text); (err == nil) != sound {
				t.Errorf("%d bytes with %q before: %v", n, prefix, err)
			}
		}
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, sound := range map[string]bool{
		"whpk_" + base64.StdEncoding.EncodeToString(public):            true,
		"whpk_" + base64.StdEncoding.EncodeToString(public[:31]):       false,
		"whpk_" + base64.StdEncoding.EncodeToString(append(public, 0)): false,
		"whpk_" + base64.StdEncoding.EncodeToString(public)[:42] + "*": false,
		"whpk_" + base64.StdEncoding.EncodeToString(public) + "A":      false,
		"whsec_***":                              false,
		"whsec_" + strings.Repeat("A", 32) + "*": false,
		"whsec_" + strings.Repeat("A", 32):       true,
	} {
		if err := check(text); (err == nil) != sound {
			t.Errorf("%q: %v", text, err)
		}
	}
	at := post("").At
	for secret, id := range map[string]string{
		"whsec_" + strings.Repeat("A", 32): "", "whsec_" + strings.Repeat("B", 32): "a.b",
		"whsec_AA": "m1", "whpk_" + base64.StdEncoding.EncodeToString(public): "m1",
	} {
		if signature, err := source.SignStandard(source.NewSecret("s", secret), id, at, nil); err == nil {
			t.Errorf("signed the id %q by %q: %s", id, secret, signature)
		}
	}
}

// A refusal of Standard Webhooks has its class and the header that it is about.
func TestRefusalsOfStandardWebhooksHaveTheirClass(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	const secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"type":"invoice.paid"}`
	pinned := "whpk_" + base64.StdEncoding.EncodeToString(public)
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	under := func(key []byte, id, stamp, body string) string {
		return "v1," + base64.StdEncoding.EncodeToString(mac(sha256.New, key, id+"."+stamp+"."+body))
	}
	now := strconv.FormatInt(post("").At.Unix(), 10)
	good := under(raw, "m1", now, body)
	ed := "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte("m1."+now+"."+body)))
	for _, tc := range []struct {
		name                string
		secret              string
		id, time, signature []string
		want                source.Reason
		field               string
	}{
		{"as it should be", secret, []string{"m1"}, []string{now}, []string{good}, "", ""},
		{"no id", secret, nil, []string{now}, []string{under(raw, "", now, body)}, source.MissingHeader, "webhook-id"},
		{"two ids", secret, []string{"m1", "m1"}, []string{now}, []string{good}, source.MalformedHeader, "webhook-id"},
		{"a dot in the id", secret, []string{"m1.2"}, []string{now}, []string{under(raw, "m1.2", now, body)}, source.MalformedHeader, "webhook-id"},
		{"another id", secret, []string{"m2"}, []string{now}, []string{good}, source.BadSignature, "webhook-signature"},
		{"no time", secret, []string{"m1"}, nil, []string{under(raw, "m1", "", body)}, source.MissingHeader, "webhook-timestamp"},
		{"two times", secret, []string{"m1"}, []string{now, now}, []string{good}, source.MalformedHeader, "webhook-timestamp"},
		{"a time that is none", secret, []string{"m1"}, []string{"now"}, []string{under(raw, "m1", "now", body)}, source.MalformedHeader, "webhook-timestamp"},
		{"a time with a sign", secret, []string{"m1"}, []string{"+" + now}, []string{under(raw, "m1", "+"+now, body)}, source.MalformedHeader, "webhook-timestamp"},
		{"another time", secret, []string{"m1"}, []string{"0"}, []string{good}, source.BadSignature, "webhook-signature"},
		{"an old time", secret, []string{"m1"}, []string{"0"}, []string{under(raw, "m1", "0", body)}, source.OutOfTolerance, "webhook-timestamp"},
		{"no signature", secret, []string{"m1"}, []string{now}, nil, source.MissingHeader, "webhook-signature"},
		{"two signatures in two lines", secret, []string{"m1"}, []string{now}, []string{good, good}, source.MalformedHeader, "webhook-signature"},
		{"of no known version", secret, []string{"m1"}, []string{now}, []string{"v9" + good}, source.BadSignature, "webhook-signature"},

		// A key that everybody knows signs nothing: the empty one, and the public one.
		{"a public key", pinned, []string{"m1"}, []string{now}, []string{ed}, "", ""},
		{"HMAC under nothing", secret, []string{"m1"}, []string{now}, []string{under(nil, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under nothing, for a public key", pinned, []string{"m1"}, []string{now}, []string{under(nil, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under the public key", pinned, []string{"m1"}, []string{now}, []string{under(public, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under the public key's text", pinned, []string{"m1"}, []string{now}, []string{under([]byte(pinned), "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under nothing, for no secret", "whsec_***", []string{"m1"}, []string{now}, []string{under(nil, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under nothing, for a short secret", "whsec_AAAA", []string{"m1"}, []string{now}, []string{under(nil, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under a short secret", "whsec_AAAA", []string{"m1"}, []string{now}, []string{under([]byte{0, 0, 0}, "m1", now, body)}, source.BadSignature, "webhook-signature"},
		{"HMAC under nothing, for no public key", "whpk_AAAA", []string{"m1"}, []string{now}, []string{under(nil, "m1", now, body)}, source.BadSignature, "webhook-signature"},
	} {
		r := post(body)
		for name, lines := range map[string][]string{"webhook-id": tc.id, "webhook-timestamp": tc.time, "webhook-signature": tc.signature} {
			for _, line := range lines {
				r.Header.Add(name, line)
			}
		}
		if _, err := source.StandardWebhooks("").Verify(t.Context(), only(tc.secret), r); tc.want == "" && err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if tc.want != "" {
			refused(t, tc.name, err, tc.want, tc.field)
		}
	}
	// An event whose id is not there, or there twice, is none: no other one has its identity.
	for _, ids := range [][]string{nil, {""}, {"m1", "m2"}} {
		r := post(body)
		for _, id := range ids {
			r.Header.Add("webhook-id", id)
		}
		if items, err := source.StandardWebhooks("").Read(r); reason(t, err) == "" || items != nil {
			t.Errorf("the ids %q: %+v, %v", ids, items, err)
		}
	}
}
