package source_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

// members is a JSON object whose values are written as they stand.
type members map[string]string

// but is the object with other values; one that is empty takes its member away.
func (m members) but(pairs ...string) members {
	m = maps.Clone(m)
	for i := 0; i < len(pairs); i += 2 {
		if m[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(m, pairs[i])
		}
	}
	return m
}

func (m members) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%q:%s", name, m[name]))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// encoded is a part of a token.
func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// groups is text in whole groups of base64: what comes behind them does not keep
// a reader from their end.
func groups(text string) string { return encoded(text + strings.Repeat(" ", (3-len(text)%3)%3)) }

// rsaKeys are throw-away keys: two of 2048 bits, and one of 1024.
func rsaKeys(t *testing.T) (one, other, small *rsa.PrivateKey) {
	t.Helper()
	text, err := os.ReadFile("testdata/rsa.pem")
	if err != nil {
		t.Fatal(err)
	}
	var keys [3]*rsa.PrivateKey
	for i, bits := range []int{2048, 2048, 1024} {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			t.Fatalf("%d keys", i)
		}
		if keys[i], err = x509.ParsePKCS1PrivateKey(block.Bytes); err != nil || keys[i].N.BitLen() != bits {
			t.Fatalf("key %d: %v", i, err)
		}
	}
	return keys[0], keys[1], keys[2]
}

// token is two encoded parts and their signature.
func token(t *testing.T, key *rsa.PrivateKey, head, body string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(head + "." + body))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return head + "." + body + "." + encoded(string(signature))
}

const (
	tenant2 = "https://login.microsoftonline.com/t1/v2.0"
	tenant1 = "https://sts.windows.net/t1/"
)

// entra is what the tokens of these tests have to say, and a header and claims
// that say it.
func entra(at time.Time) (source.Bearer, members, members) {
	return source.Bearer{Audience: "api://unavez", Issuers: []string{tenant2, tenant1}, Principals: []string{"app-1", "app-2"}},
		members{"alg": `"RS256"`, "kid": `"k1"`, "typ": `"JWT"`},
		members{"iss": `"` + tenant2 + `"`, "aud": `"api://unavez"`, "azp": `"app-1"`, "exp": fmt.Sprint(at.Unix() + 3600)}
}

// A token has to say everything that is asked of it. Whatever it says else is
// refused, with the class of the refusal, though its issuer has signed it.
func TestTokensAreHeldToAllTheyHaveToSay(t *testing.T) {
	t.Parallel()
	key, _, _ := rsaKeys(t)
	at := post("").At
	bearer, head, claims := entra(at)
	says := func(pairs ...string) string {
		return token(t, key, encoded(head.String()), encoded(claims.but(pairs...).String()))
	}
	headed := func(pairs ...string) string {
		return token(t, key, encoded(head.but(pairs...).String()), encoded(claims.String()))
	}
	after := func(seconds int64) string { return fmt.Sprint(at.Unix() + seconds) }
	good := says()
	parts := strings.Split(good, ".")
	// long is a token of so many bytes.
	long := func(bytes int) string {
		for spaces := range 3 {
			for pad := (bytes-len(good))*3/4 - 20; ; pad++ {
				h, b := encoded(head.String()+strings.Repeat(" ", spaces)), encoded(claims.but("pad", `"`+strings.Repeat("x", pad)+`"`).String())
				if n := len(h) + len(b) + len(parts[2]) + 2; n == bytes {
					return token(t, key, h, b)
				} else if n > bytes {
					break
				}
			}
		}
		t.Fatalf("no token of %d bytes", bytes)
		return ""
	}
	email, nobody := bearer, bearer
	email.Claims = []string{"email", "sub"}
	nobody.Principals = []string{""}

	for _, tc := range []struct {
		name   string
		bearer source.Bearer
		tokens []string
		want   source.Reason
		secret string
	}{
		{"version 2", bearer, []string{
			good, says("azp", `"app-1"`, "appid", `"other"`), says("azp", "", "appid", `"app-1"`), says("azp", `""`, "appid", `"app-1"`), says("azp", "7", "appid", `"app-1"`),
		}, "", "app-1"},
		{"version 1", bearer, []string{says("iss", `"`+tenant1+`"`, "azp", "", "appid", `"app-2"`)}, "", "app-2"},
		{"claims that are named", email, []string{says("azp", "", "email", `"app-2"`), says("sub", `"app-2"`), says("email", `"app-2"`, "sub", `"other"`)}, "", "app-2"},
		{"several audiences", bearer, []string{
			says("aud", `["api://unavez"]`), says("aud", `["api://other","api://unavez"]`), says("aud", ` [ "api://unavez" , "x" ] `),
		}, "", "app-1"},
		{"times at their borders", bearer, []string{
			says("exp", after(1)), says("exp", after(1)+".9"), says("exp", "1e10"), says("nbf", after(0)), says("nbf", after(60)), says("nbf", after(60)+".5"),
		}, "", "app-1"},
		{"as long as it may be", bearer, []string{long(16 << 10)}, "", "app-1"},

		{"too long", bearer, []string{long(16<<10 + 1), long(20 << 10)}, source.MalformedHeader, ""},
		{"not three parts", bearer, []string{
			"x", parts[0], parts[0] + "." + parts[1], good + ".", "." + good, good + "." + parts[2], parts[0] + "." + good, parts[0] + "..", "..",
		}, source.MalformedHeader, ""},
		{"a header that cannot be read", bearer, []string{
			token(t, key, "*", parts[1]), token(t, key, encoded("[]"), parts[1]), token(t, key, encoded(`"RS256"`), parts[1]), token(t, key, encoded("{"), parts[1]),
			token(t, key, groups(head.String())+"*", parts[1]), token(t, key, groups(head.String())+"=", parts[1]),
			token(t, key, encoded(`{"alg":"none","alg":"RS256"}`), parts[1]),
		}, source.MalformedHeader, ""},
		{"claims that cannot be read", bearer, []string{
			token(t, key, parts[0], "*"), token(t, key, parts[0], ""), token(t, key, parts[0], encoded("[]")), token(t, key, parts[0], encoded(claims.String()+"x")),
			token(t, key, parts[0], groups(claims.String())+"*"), token(t, key, parts[0], groups(claims.String())+"="),
			token(t, key, parts[0], encoded(strings.Replace(claims.String(), "{", `{"iss":"`+tenant1+`",`, 1))),
		}, source.MalformedHeader, ""},
		{"a signature that cannot be read", bearer, []string{good + "*", good + "=", good[:len(good)-1] + "+", good[:len(good)-1] + "B"}, source.MalformedHeader, ""},
		{"another algorithm", bearer, []string{
			headed("alg", `"none"`), headed("alg", `"HS256"`), headed("alg", `"RS384"`), headed("alg", `"PS256"`), headed("alg", `"ES256"`),
			headed("alg", `"rs256"`), headed("alg", `""`), headed("alg", ""), headed("alg", `["RS256"]`),
		}, source.UnsupportedMethod, ""},
		{"an extension that has to be understood", bearer, []string{headed("crit", `["exp"]`), headed("crit", `[]`), headed("crit", `null`)}, source.UnsupportedMethod, ""},
		{"another audience", bearer, []string{
			says("aud", `"api://other"`), says("aud", `"api://unavez/"`), says("aud", `"api"`), says("aud", `""`), says("aud", ""), says("aud", "null"), says("aud", "1"),
			says("aud", `{"api://unavez":"api://unavez"}`), says("aud", `[]`), says("aud", `["api://other"]`), says("aud", `["api://unavez",1]`), says("aud", `[["api://unavez"]]`),
		}, source.WrongAudience, ""},
		{"another application", bearer, []string{
			says("azp", `"other"`), says("azp", `"other"`, "appid", `"app-1"`), says("azp", `"app-1 "`), says("azp", `"APP-1"`), says("azp", ""), says("azp", `["app-1"]`),
			says("azp", "", "email", `"app-1"`),
		}, source.WrongPrincipal, ""},
		{"an application by a claim that is not named", email, []string{good, says("azp", "", "appid", `"app-1"`), says("email", `"other"`, "sub", `"app-1"`)}, source.WrongPrincipal, ""},
		{"no application, where an empty one is accepted", nobody, []string{says("azp", ""), says("azp", `""`), says("azp", "null"), good}, source.WrongPrincipal, ""},
		{"no end", bearer, []string{
			says("exp", ""), says("exp", "null"), says("exp", "true"), says("exp", `"`+after(3600)+`"`), says("exp", `""`), says("exp", "["+after(3600)+"]"), says("exp", "-"+after(3600)),
			says("exp", "1e15"), says("exp", "1e300"),
		}, source.MalformedHeader, ""},
		{"over", bearer, []string{says("exp", after(0)), says("exp", after(0)+".9"), says("exp", after(-1)), says("exp", "0"), says("exp", "7"), says("exp", "0.5")}, source.OutOfTolerance, ""},
		{"a beginning that is no time", bearer, []string{says("nbf", "null"), says("nbf", `"`+after(0)+`"`), says("nbf", "false"), says("nbf", "-1")}, source.MalformedHeader, ""},
		{"not begun", bearer, []string{says("nbf", after(61)), says("nbf", after(3600)), says("nbf", "1e14")}, source.OutOfTolerance, ""},
	} {
		c := grid(t, source.EventGridOptions{Entra: &tc.bearer})
		config := &source.Config{Keys: func(_ context.Context, issuer, id string) (crypto.PublicKey, error) {
			if issuer != tenant2 && issuer != tenant1 || id != "k1" {
				t.Errorf("%s: the key %q of %q is asked for", tc.name, id, issuer)
			}
			return key.Public(), nil
		}}
		for i, text := range tc.tokens {
			proof, err := c.Verify(t.Context(), config, post("", "Authorization", "Bearer "+text))
			want := source.Proof{Method: "jwt", Secret: tc.secret} // which covers no body
			if tc.want != "" {
				want = source.Proof{}
				refused(t, fmt.Sprint(tc.name, " ", i), err, tc.want, "Authorization")
			}
			if tc.want == "" && err != nil || proof != want {
				t.Errorf("%s %d: %+v, %v", tc.name, i, proof, err)
			}
		}
	}
}

// refused holds an error to the class and the field of the refusal.
func refused(t *testing.T, name string, err error, want source.Reason, field string) {
	t.Helper()
	fault, is := err.(*source.Fault) // and nothing around it
	if !is || fault.Reason != want || fault.Field != field {
		t.Errorf("%s: got %v, want %s: %s", name, err, field, want)
	}
}

// What anybody can make is no signature of the issuer: one by another key, one
// under the published key as if it were a secret, one of another token.
func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	key, other, _ := rsaKeys(t)
	at := post("").At
	bearer, head, claims := entra(at)
	body := encoded(claims.String())
	good := token(t, key, encoded(head.String()), body)
	parts := strings.Split(good, ".")
	under := func(head string, secret []byte) string {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(head + "." + body))
		return head + "." + body + "." + encoded(string(mac.Sum(nil)))
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum256, sum512 := sha256.Sum256([]byte(parts[0]+"."+body)), sha512.Sum512([]byte(parts[0]+"."+body))
	pss, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, sum256[:], nil)
	if err != nil {
		t.Fatal(err)
	}
	longer, err := rsa.SignPKCS1v15(nil, key, crypto.SHA512, sum512[:])
	if err != nil {
		t.Fatal(err)
	}
	front := parts[0] + "." + body + "."
	c := grid(t, source.EventGridOptions{Entra: &bearer})
	config := &source.Config{Keys: func(context.Context, string, string) (crypto.PublicKey, error) { return key.Public(), nil }}
	for _, tc := range []struct {
		name, token string
		want        source.Reason
	}{
		{"by another key", token(t, other, parts[0], body), source.BadSignature},
		{"without a signature", front, source.BadSignature},
		{"a shorter signature", front + parts[2][:len(parts[2])-4] + "AA", source.BadSignature},
		{"zeros", front + encoded(strings.Repeat("\x00", 256)), source.BadSignature},
		{"other claims", parts[0] + "." + encoded(claims.but("azp", `"app-2"`).String()) + "." + parts[2], source.BadSignature},
		{"claims with a space more", parts[0] + "." + encoded(claims.String()+" ") + "." + parts[2], source.BadSignature},
		{"another header", encoded(head.but("kid", `"k2"`).String()) + "." + body + "." + parts[2], source.BadSignature},
		{"PSS", front + encoded(string(pss)), source.BadSignature},
		{"SHA-512", front + encoded(string(longer)), source.BadSignature},
		{"HMAC under the public key", under(parts[0], der), source.BadSignature},
		{"HMAC under the public key, and says so", under(encoded(head.but("alg", `"HS256"`).String()), der), source.UnsupportedMethod},
		{"none", encoded(head.but("alg", `"none"`).String()) + "." + body + ".", source.UnsupportedMethod},
	} {
		_, err := c.Verify(t.Context(), config, post("", "Authorization", "Bearer "+tc.token))
		refused(t, tc.name, err, tc.want, "Authorization")
	}
	for i := range parts[2] {
		flipped := []byte(good)
		if flipped[len(front)+i]++; i == len(parts[2])-1 {
			flipped[len(front)+i] = 'B' // bits that are left over
		}
		if _, err := c.Verify(t.Context(), config, post("", "Authorization", "Bearer "+string(flipped))); err == nil {
			t.Errorf("accepted with character %d of the signature changed", i)
		}
	}

	for _, tc := range []struct {
		name  string
		lines []string
		want  source.Reason
	}{
		{"one line", []string{"Bearer " + good}, ""},
		{"in other letters", []string{" bEARER   " + good + " "}, ""},
		{"none", nil, source.MissingHeader},
		{"an empty one", []string{" "}, source.MissingHeader},
		{"two", []string{"Bearer " + good, "Bearer " + good}, source.MalformedHeader},
		{"an empty one and another", []string{"", "Bearer " + good}, source.MalformedHeader},
		{"without the scheme", []string{good}, source.MalformedHeader},
		{"another scheme", []string{"Basic " + good}, source.MalformedHeader},
		{"the scheme alone", []string{"Bearer"}, source.MalformedHeader},
		{"the scheme and no space", []string{"Bearer" + good}, source.MalformedHeader},
	} {
		r := post("")
		for _, line := range tc.lines {
			r.Header.Add("Authorization", line)
		}
		if _, err := c.Verify(t.Context(), config, r); tc.want == "" && err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if tc.want != "" {
			refused(t, tc.name, err, tc.want, "Authorization")
		}
	}
}

// The issuer is looked at before its keys are: nobody chooses with a token where
// they come from. A key that is too small, or of another kind, is none.
func TestKeysAreThoseOfAListedIssuerAndStrong(t *testing.T) {
	t.Parallel()
	key, _, small := rsaKeys(t)
	at := post("").At
	bearer, head, claims := entra(at)
	edwards, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := grid(t, source.EventGridOptions{Entra: &bearer})
	ask := func(key *rsa.PrivateKey, claims members, published crypto.PublicKey, trouble error) (asked bool, err error) {
		config := &source.Config{Keys: func(context.Context, string, string) (crypto.PublicKey, error) {
			asked = true
			return published, trouble
		}}
		_, err = c.Verify(t.Context(), config, post("", "Authorization", "Bearer "+token(t, key, encoded(head.String()), encoded(claims.String()))))
		return asked, err
	}
	for _, issuer := range []string{``, `"https://login.microsoftonline.com/t2/v2.0"`, `"` + tenant2 + `/"`, `""`, `null`, `["` + tenant2 + `"]`} {
		asked, err := ask(key, claims.but("iss", issuer), key.Public(), nil)
		if refused(t, issuer, err, source.UntrustedIssuer, "Authorization"); asked {
			t.Errorf("the keys of %s are asked for", issuer)
		}
	}
	for name, published := range map[string]crypto.PublicKey{
		"1024 bits": small.Public(), "Ed25519": edwards, "none": nil, "a private one": small, "by value": small.PublicKey, "a text": "key",
	} {
		_, err := ask(small, claims, published, nil)
		refused(t, name, err, source.UnsupportedMethod, "Authorization")
	}
	// What the keys' side says of the token is the refusal, as it is.
	unknown := &source.Fault{Reason: source.BadSignature, Field: "kid"}
	if _, err := ask(key, claims, nil, fmt.Errorf("keys: %w", unknown)); err != error(unknown) { // and nothing around it
		t.Errorf("got %v, want %v", err, unknown)
	}
	_, err = c.Verify(t.Context(), &source.Config{}, post("", "Authorization", "Bearer "+token(t, key, encoded(head.String()), encoded(claims.String()))))
	refused(t, "without keys", err, source.EmptySecret, "Authorization")
}

func TestEntraWithoutOneOfItsNamesIsNoProof(t *testing.T) {
	t.Parallel()
	whole, _, _ := entra(post("").At)
	for field, take := range map[string]func(*source.Bearer){
		"audience":   func(b *source.Bearer) { b.Audience = "" },
		"issuers":    func(b *source.Bearer) { b.Issuers = nil },
		"principals": func(b *source.Bearer) { b.Principals = []string{} },
	} {
		bearer := whole
		take(&bearer)
		_, err := source.EventGrid(source.EventGridOptions{Entra: &bearer, Secret: &source.Token{Query: "code"}})
		if err == nil || !strings.HasPrefix(err.Error(), field+": empty") || strings.Contains(err.Error(), "\n") {
			t.Errorf("without %s: %v", field, err)
		}
	}
}
