package source_test

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

// vector is one published or derived signature of testdata/signatures.json.
type vector struct {
	ID             string            `json:"id"`
	Scheme         string            `json:"scheme"`
	Secret         json.RawMessage   `json:"secret"`
	Now            int64             `json:"now"`
	URL            string            `json:"url"`
	Headers        map[string]string `json:"headers"`
	Body           string            `json:"body"`
	Valid          bool              `json:"valid"`
	Expect         string            `json:"expect"`
	PublicKey      string            `json:"public_key"`
	Audience       string            `json:"audience"`
	ServiceAccount string            `json:"service_account"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/signatures.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// verify is the verification of a scheme of the vectors: of a built-in contract,
// or of one that a configuration describes.
func verify(t testing.TB, v vector) func(context.Context, *source.Config, *source.Request) (source.Proof, error) {
	t.Helper()
	described := func(s source.Signing) *source.Contract {
		c, err := source.Described{Signing: &s, Type: "'any'"}.Contract()
		if err != nil {
			t.Fatalf("%s: %v", v.Scheme, err)
		}
		return c
	}
	switch v.Scheme {
	case "github-hmac-sha256":
		return source.GitHub().Verify
	case "stripe":
		return source.Stripe().Verify
	case "shopify":
		return source.Shopify().Verify
	case "nuvemshop":
		return source.Nuvemshop().Verify
	case "standard-webhooks":
		return source.StandardWebhooks("").Verify
	case "svix":
		return source.StandardWebhooks("svix").Verify
	case "woocommerce":
		return described(source.Signing{Header: "X-WC-Webhook-Signature", Encoding: "base64"}).Verify
	case "fintoc":
		return described(source.Signing{Header: "Fintoc-Signature", Param: "v1", Timestamp: "t", Signed: "{timestamp}.{body}"}).Verify
	case "slack":
		return source.Slack().Verify
	case "zoom":
		return source.Zoom().Verify
	case "square":
		return described(source.Signing{Header: "x-square-hmacsha256-signature", Encoding: "base64", Signed: "{url}{body}"}).Verify
	case "kushki":
		return described(source.Signing{Header: "X-Kushki-Signature", Timestamp: "X-Kushki-Id", Signed: "{body}.{timestamp}"}).Verify
	case "sanity":
		return described(source.Signing{
			Header: "sanity-webhook-signature", Param: "v1", Timestamp: "t", Milliseconds: true,
			Encoding: "base64url", Signed: "{timestamp}.{body}",
		}).Verify
	case "asaas-token":
		c, err := source.Described{Token: &source.Token{Header: "asaas-access-token"}, Type: "body.event"}.Contract()
		if err != nil {
			t.Fatal(err)
		}
		return c.Verify
	case "pubsub-oidc":
		c, err := source.EventGrid(source.EventGridOptions{Entra: &source.Bearer{
			Audience: v.Audience, Issuers: []string{"https://accounts.google.com"},
			Principals: []string{v.ServiceAccount}, Claims: []string{"email"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return c.Verify
	}
	t.Fatalf("%s: no contract for the scheme %s", v.ID, v.Scheme)
	return nil
}

func (v vector) request() *source.Request {
	h := http.Header{}
	for name, value := range v.Headers {
		h.Set(name, value)
	}
	now := v.Now
	if now == 0 {
		now = 1_700_000_000
	}
	return &source.Request{Method: "POST", URL: &url.URL{Path: "/in"}, Header: h, Body: []byte(v.Body), At: time.Unix(now, 0)}
}

func (v vector) config(t testing.TB) *source.Config {
	t.Helper()
	c := &source.Config{URL: v.URL}
	var one *string
	var several []string
	if json.Unmarshal(v.Secret, &several) != nil {
		if err := json.Unmarshal(v.Secret, &one); err != nil {
			t.Fatal(err)
		}
		if one != nil {
			several = []string{*one}
		}
	}
	for i, text := range several {
		c.Secrets = append(c.Secrets, source.NewSecret(fmt.Sprint("secret", i), text))
	}
	if v.PublicKey != "" {
		block, _ := pem.Decode([]byte(v.PublicKey))
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		c.Keys = func(context.Context, string, string) (crypto.PublicKey, error) { return key.(*rsa.PublicKey), nil }
	}
	return c
}

func TestVectorsGiveTheirVerdictAndReason(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	if len(all) < 80 {
		t.Fatalf("only %d vectors", len(all))
	}
	for _, v := range all {
		t.Run(v.ID, func(t *testing.T) {
			t.Parallel()
			r := v.request()
			proof, err := verify(t, v)(t.Context(), v.config(t), r)
			if v.Valid {
				if err != nil || proof.Method == "" {
					t.Fatalf("got %v, %+v; want it accepted", err, proof)
				}
				return
			}
			var fault *source.Fault
			if !errors.As(err, &fault) || string(fault.Reason) != v.Expect {
				t.Fatalf("got %v, want %s", err, v.Expect)
			}
			for _, secret := range v.config(t).Secrets {
				if s := secret.Reveal(); len(s) > 4 && strings.Contains(err.Error(), s) {
					t.Errorf("the fault shows the secret: %v", err)
				}
			}
		})
	}
}

// reason is the class of a fault, "" for none.
func reason(t testing.TB, err error) source.Reason {
	t.Helper()
	if err == nil {
		return ""
	}
	var fault *source.Fault
	if !errors.As(err, &fault) {
		t.Fatalf("%v is no fault", err)
	}
	return fault.Reason
}

// TestEveryChangeOfASignedRequestIsRefused flips each byte of the body, of the
// signature and of every signed header of the vectors that are valid.
func TestEveryChangeOfASignedRequestIsRefused(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, v := range vectors(t) {
		if !v.Valid || v.Scheme == "pubsub-oidc" || v.Scheme == "asaas-token" {
			continue
		}
		check := verify(t, v)
		config := v.config(t)
		for i := range v.Body {
			r := v.request()
			r.Body[i] ^= 1
			if _, err := check(t.Context(), config, r); err == nil {
				t.Fatalf("%s: accepted with byte %d of the body changed", v.ID, i)
			}
			tried++
		}
		for _, more := range []string{" ", "\n", "\x00", "x"} {
			r := v.request()
			r.Body = append(r.Body, more...)
			if _, err := check(t.Context(), config, r); err == nil {
				t.Fatalf("%s: accepted with %q behind the body", v.ID, more)
			}
			tried++
		}
		for name := range v.Headers {
			r := v.request()
			r.Header.Add(name, r.Header.Get(name))
			_, err := check(t.Context(), config, r)
			if signed := strings.Contains(strings.ToLower(name), "signature") || strings.Contains(strings.ToLower(name), "hmac"); signed && err == nil && !strings.Contains(name, "Simple") {
				t.Fatalf("%s: accepted with %s sent twice", v.ID, name)
			}
			tried++
		}
		none := *config
		none.Secrets = nil
		if _, err := check(t.Context(), &none, v.request()); reason(t, err) != source.EmptySecret {
			t.Fatalf("%s: without a secret: %v", v.ID, err)
		}
		empty := *config
		empty.Secrets = append([]source.Secret{source.NewSecret("empty", "")}, config.Secrets...)
		if _, err := check(t.Context(), &empty, v.request()); reason(t, err) != source.EmptySecret {
			t.Fatalf("%s: with an empty secret: %v", v.ID, err)
		}
	}
	if tried < 1000 {
		t.Fatalf("only %d changes tried", tried)
	}
}

func TestSecretsOverlapWhileTheyAreRotated(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		if v.ID != "stripe-async-stripe" && v.ID != "shopify-go-shopify" && v.ID != "standard-webhooks-v1" {
			continue
		}
		check := verify(t, v)
		config := v.config(t)
		old := source.NewSecret("old", config.Secrets[0].Reveal())
		next := source.NewSecret("new", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
		r := v.request()

		for _, c := range []struct {
			name    string
			secrets []source.Secret
			want    source.Reason
		}{
			{"overlap", []source.Secret{next, old}, ""},
			{"before its end", []source.Secret{next, old.Expiring(r.At.Add(time.Second))}, ""},
			{"at its end", []source.Secret{next, old.Expiring(r.At)}, source.ExpiredSecret},
			{"removed", []source.Secret{next}, source.BadSignature},
		} {
			config.Secrets = c.secrets
			proof, err := check(t.Context(), config, r)
			if reason(t, err) != c.want {
				t.Errorf("%s, %s: %v, want %q", v.ID, c.name, err, c.want)
			}
			if c.want == "" && proof.Secret != "old" {
				t.Errorf("%s, %s: verified with %q", v.ID, c.name, proof.Secret)
			}
		}
	}
}

func TestToleranceHasTwoSides(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		if v.ID != "stripe-async-stripe" && v.ID != "standard-webhooks-v1" {
			continue
		}
		for offset, want := range map[int]source.Reason{
			-301: source.OutOfTolerance, -300: "", -299: "", 0: "", 299: "", 300: "", 301: source.OutOfTolerance,
		} {
			r := v.request()
			r.At = r.At.Add(time.Duration(offset) * time.Second)
			if _, err := verify(t, v)(t.Context(), v.config(t), r); reason(t, err) != want {
				t.Errorf("%s at %+d s: %v, want %q", v.ID, offset, err, want)
			}
		}
	}
}

// What is written down of a sender is what its documentation says: how it is
// answered, how long it waits for that, and how long it may repeat.
func TestContractsSayWhatSendersDocument(t *testing.T) {
	t.Parallel()
	cloud, err := source.CloudEvents(source.Token{Query: "code"})
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	for _, tc := range []struct {
		c                          *source.Contract
		class                      source.Class
		success, refused, tooLarge int
		timeout, window            time.Duration
	}{
		{source.GitHub(), source.PerDelivery, 200, 401, 413, 10 * time.Second, 3 * day},
		{source.Stripe(), source.Logical, 200, 400, 413, 20 * time.Second, 30 * day},
		{source.Shopify(), source.Composite, 200, 401, 413, 5 * time.Second, day},
		{source.Nuvemshop(), source.Hint, 200, 401, 413, 3 * time.Second, 3 * day},
		{source.Slack(), source.Logical, 200, 401, 413, 3 * time.Second, 3 * time.Hour},
		{source.Zoom(), source.Composite, 200, 401, 413, 3 * time.Second, 3 * time.Hour},
		{source.StandardWebhooks(""), source.Logical, 200, 401, 413, 15 * time.Second, 76 * time.Hour},
		{grid(t, source.EventGridOptions{Secret: &source.Token{Query: "code"}}), source.Logical, 200, 401, 503, 30 * time.Second, day},
		{cloud, source.Logical, 204, 401, 413, 0, day},
	} {
		c := tc.c
		if c.Class != tc.class || c.Success != tc.success || c.Refused != tc.refused || c.TooLarge != tc.tooLarge || c.Timeout != tc.timeout || c.Window != tc.window {
			t.Errorf("%s: %v, answered by %d, %d and %d within %s, repeats for %s", c.Name, c.Class, c.Success, c.Refused, c.TooLarge, c.Timeout, c.Window)
		}
	}
}

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	s := source.NewSecret("new", "canary-7Qz")
	encoded, err := json.Marshal(map[string]any{"s": s, "list": []source.Secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s),
		fmt.Sprintf("%+v", source.Config{Secrets: []source.Secret{s}}), string(encoded), s.LogValue().String(),
	} {
		if strings.Contains(text, "canary") || strings.Contains(text, "63616e617279") {
			t.Errorf("the secret shows in %q", text)
		}
		if !strings.Contains(text, "new") {
			t.Errorf("the name is missing in %q", text)
		}
	}
}

// FuzzVerify holds that whatever a verifier accepts is one of the vectors.
func FuzzVerify(f *testing.F) {
	all := vectors(f)
	for i, v := range all {
		if v.Scheme == "pubsub-oidc" {
			continue
		}
		for name, value := range v.Headers {
			f.Add(i, name, value, []byte(v.Body))
		}
	}
	f.Fuzz(func(t *testing.T, i int, name, value string, body []byte) {
		if i < 0 {
			i = -(i + 1)
		}
		v := all[i%len(all)]
		if v.Scheme == "pubsub-oidc" {
			return
		}
		r := v.request()
		r.Header.Set(name, value)
		r.Body = body
		_, err := verify(t, v)(t.Context(), v.config(t), r)
		if err != nil {
			_ = reason(t, err)
			return
		}
		for _, known := range all {
			if known.Valid && known.Body == string(body) {
				return
			}
		}
		if v.Scheme != "asaas-token" {
			t.Fatalf("%s: accepted %s: %q with the body %q", v.ID, name, value, body)
		}
	})
}
