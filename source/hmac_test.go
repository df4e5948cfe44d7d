package source_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unavez/unavez/source"
)

// mac is the digest of a text under a key.
func mac(by func() hash.Hash, key []byte, text string) []byte {
	m := hmac.New(by, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func described(t *testing.T, s source.Signing) *source.Contract {
	t.Helper()
	c, err := source.Described{Signing: &s, Type: "'any'"}.Contract()
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return c
}

func only(secret string) *source.Config {
	return &source.Config{Secrets: []source.Secret{source.NewSecret("s", secret)}}
}

// Every hash, every form of the key and every encoding is verified as it is
// described, and as nothing else.
func TestSignaturesAreVerifiedAsTheyAreDescribed(t *testing.T) {
	t.Parallel()
	const body, raw = `{"a":1}`, "a key of more than sixteen bytes"
	hashes := map[string]func() hash.Hash{"": sha256.New, "sha256": sha256.New, "sha512": sha512.New, "sha1": sha1.New}
	keys := map[string]string{"": raw, "text": raw, "hex": hex.EncodeToString([]byte(raw)), "base64": base64.StdEncoding.EncodeToString([]byte(raw))}
	encodings := map[string]func([]byte) string{
		"": hex.EncodeToString, "hex": hex.EncodeToString,
		"base64": base64.StdEncoding.EncodeToString, "base64url": base64.RawURLEncoding.EncodeToString,
	}
	for name, by := range hashes {
		for form, secret := range keys {
			for encoding, encode := range encodings {
				c := described(t, source.Signing{Header: "X-Sig", Hash: name, Key: form, Encoding: encoding})
				proof, err := c.Verify(t.Context(), only(secret), post(body, "X-Sig", encode(mac(by, []byte(raw), body))))
				method := name
				if name == "" {
					method = "sha256"
				}
				if want := (source.Proof{Method: "hmac-" + method, Secret: "s", Body: true}); err != nil || proof != want {
					t.Errorf("%q %q %q: %+v, %v", name, form, encoding, proof, err)
				}
				for other, by := range hashes {
					sum := mac(by, []byte(raw), body)
					if len(sum) == len(mac(hashes[name], nil, "")) {
						sum[0] ^= 1
					}
					if _, err := c.Verify(t.Context(), only(secret), post(body, "X-Sig", encode(sum))); err == nil {
						t.Errorf("%q %q %q: a digest of %q that is another is accepted", name, form, encoding, other)
					}
				}
			}
		}
	}
}

// A refusal of a described signature has its class and the header that it is
// about; a digest is as it was described or it is none.
func TestRefusalsOfADescribedSignatureHaveTheirClass(t *testing.T) {
	t.Parallel()
	const body, secret, url = `{"a":1}`, "s3cret", "https://in.example/hook"
	at := post("").At
	now := fmt.Sprint(at.Unix())
	sum := func(text string) string { return hex.EncodeToString(mac(sha256.New, []byte(secret), text)) }
	coded := func(text string) string {
		return base64.StdEncoding.EncodeToString(mac(sha256.New, []byte(secret), text))
	}
	bad := strings.Repeat("00", 32)
	many := func(part string, n int) string { return strings.Repeat(part+",", n) }
	plain := source.Signing{Header: "X-Sig"}
	front := source.Signing{Header: "X-Sig", Prefix: "sha256="}
	front64 := source.Signing{Header: "X-Sig", Prefix: "sha256=", Encoding: "base64"}
	ident := source.Signing{Header: "X-Sig", ID: "X-Id", Signed: "{id}"}
	timed := source.Signing{Header: "X-Sig", Timestamp: "X-Time", Signed: "{timestamp}.{body}"}
	millis := source.Signing{Header: "X-Sig", Timestamp: "X-Time", Signed: "{timestamp}.{body}", Milliseconds: true}
	listed := source.Signing{Header: "X-Sig", Param: "v1"}
	listed64 := source.Signing{Header: "X-Sig", Param: "v1", Encoding: "base64"}
	both := source.Signing{Header: "X-Sig", Param: "v1", Timestamp: "t", Signed: "{timestamp}.{body}"}
	odd := source.Signing{Header: "X-Sig", Param: "v1", Timestamp: "sent@", Signed: "{timestamp}.{body}"}
	all := source.Signing{Header: "X-Sig", Timestamp: "X-Time", ID: "X-Id", Signed: "v0:{url}|{id}|{timestamp}|{body}."}
	for _, tc := range []struct {
		name   string
		how    source.Signing
		header []string
		want   source.Reason
		field  string
	}{
		{"plain", plain, []string{"X-Sig", " " + sum(body) + " "}, "", ""},
		{"plain, in capitals", plain, []string{"X-Sig", strings.ToUpper(sum(body))}, "", ""},
		{"absent", plain, nil, source.MissingHeader, "X-Sig"},
		{"empty", plain, []string{"X-Sig", " "}, source.MissingHeader, "X-Sig"},
		{"twice", plain, []string{"X-Sig", sum(body), "X-Sig", sum(body)}, source.MalformedHeader, "X-Sig"},
		{"empty, and once more", plain, []string{"X-Sig", "", "X-Sig", sum(body)}, source.MalformedHeader, "X-Sig"},
		{"another digest", plain, []string{"X-Sig", bad}, source.BadSignature, "X-Sig"},
		{"a digit short", plain, []string{"X-Sig", sum(body)[1:]}, source.MalformedHeader, "X-Sig"},
		{"a byte short", plain, []string{"X-Sig", sum(body)[2:]}, source.MalformedHeader, "X-Sig"},
		{"a byte long", plain, []string{"X-Sig", sum(body) + "00"}, source.MalformedHeader, "X-Sig"},
		{"no digits", plain, []string{"X-Sig", strings.Repeat("z", 64)}, source.MalformedHeader, "X-Sig"},

		{"behind its prefix", front, []string{"X-Sig", "sha256=" + sum(body)}, "", ""},
		{"without its prefix", front, []string{"X-Sig", sum(body)}, source.MalformedHeader, "X-Sig"},
		{"behind another prefix", front, []string{"X-Sig", "sha1=" + sum(body)}, source.MalformedHeader, "X-Sig"},
		{"the prefix alone", front, []string{"X-Sig", "sha256="}, source.MalformedHeader, "X-Sig"},
		{"the prefix alone, in base64", front64, []string{"X-Sig", "sha256="}, source.MalformedHeader, "X-Sig"},
		{"base64", front64, []string{"X-Sig", "sha256=" + coded(body)}, "", ""},
		{"base64 and more", front64, []string{"X-Sig", "sha256=" + coded(body) + "A"}, source.MalformedHeader, "X-Sig"},
		{"a part of it in base64", front64, []string{"X-Sig", "sha256=AAAA"}, source.BadSignature, "X-Sig"},

		{"an id is signed", ident, []string{"X-Sig", sum("m1"), "X-Id", "m1"}, "", ""},
		{"another id", ident, []string{"X-Sig", sum("m1"), "X-Id", "m2"}, source.BadSignature, "X-Sig"},
		{"no id", ident, []string{"X-Sig", sum("")}, source.MissingHeader, "X-Id"},
		{"two ids", ident, []string{"X-Sig", sum("m1"), "X-Id", "m1", "X-Id", "m1"}, source.MalformedHeader, "X-Id"},
		{"all that there is", all, []string{"X-Sig", sum("v0:" + url + "|m1|" + now + "|" + body + "."), "X-Time", now, "X-Id", "m1"}, "", ""},
		{"text between is left out", all, []string{"X-Sig", sum(url + "m1" + now + body), "X-Time", now, "X-Id", "m1"}, source.BadSignature, "X-Sig"},

		{"a time", timed, []string{"X-Sig", sum(now + "." + body), "X-Time", now}, "", ""},
		{"no time", timed, []string{"X-Sig", sum("." + body)}, source.MissingHeader, "X-Time"},
		{"two times", timed, []string{"X-Sig", sum(now + "." + body), "X-Time", now, "X-Time", now}, source.MalformedHeader, "X-Time"},
		{"no time in digits", timed, []string{"X-Sig", sum("now." + body), "X-Time", "now"}, source.MalformedHeader, "X-Time"},
		{"a time with a plus", timed, []string{"X-Sig", sum("+" + now + "." + body), "X-Time", "+" + now}, source.MalformedHeader, "X-Time"},
		{"a time before 1970", timed, []string{"X-Sig", sum("-1." + body), "X-Time", "-1"}, source.MalformedHeader, "X-Time"},
		{"a time with a fraction", timed, []string{"X-Sig", sum(now + ".0." + body), "X-Time", now + ".0"}, source.MalformedHeader, "X-Time"},
		{"a time in 15 digits", timed, []string{"X-Sig", sum("00000" + now + "." + body), "X-Time", "00000" + now}, "", ""},
		{"a time in 16 digits", timed, []string{"X-Sig", sum("000000" + now + "." + body), "X-Time", "000000" + now}, source.MalformedHeader, "X-Time"},
		{"a time in 20 digits", timed, []string{"X-Sig", sum("99999999999999999999." + body), "X-Time", "99999999999999999999"}, source.MalformedHeader, "X-Time"},
		{"the end of time", timed, []string{"X-Sig", sum("999999999999999." + body), "X-Time", "999999999999999"}, source.OutOfTolerance, "X-Time"},
		{"1970", timed, []string{"X-Sig", sum("0." + body), "X-Time", "0"}, source.OutOfTolerance, "X-Time"},
		{"the time of another digest", timed, []string{"X-Sig", sum("0." + body), "X-Time", now}, source.BadSignature, "X-Sig"},
		{"a forged time tells nothing", timed, []string{"X-Sig", bad, "X-Time", "0"}, source.BadSignature, "X-Sig"},
		{"milliseconds", millis, []string{"X-Sig", sum(now + "999." + body), "X-Time", now + "999"}, "", ""},
		{"seconds for milliseconds", millis, []string{"X-Sig", sum(now + "." + body), "X-Time", now}, source.OutOfTolerance, "X-Time"},
		{"milliseconds for seconds", timed, []string{"X-Sig", sum(now + "000." + body), "X-Time", now + "000"}, source.OutOfTolerance, "X-Time"},

		{"a list", listed, []string{"X-Sig", "v0=" + bad + ", v1=" + sum(body) + ",v2=" + bad}, "", ""},
		{"a list with empty parts", listed, []string{"X-Sig", ",,v1=" + sum(body) + ",=,="}, "", ""},
		{"two of which one fits", listed, []string{"X-Sig", "v1=" + bad + ",v1=" + sum(body) + ",v1=" + bad}, "", ""},
		{"fifteen, and one that fits", listed, []string{"X-Sig", many("v1="+bad, 15) + "v1=" + sum(body)}, "", ""},
		{"sixteen, and one that fits", listed, []string{"X-Sig", many("v1="+bad, 16) + "v1=" + sum(body)}, source.BadSignature, "X-Sig"},
		{"what cannot be read does not count", listed, []string{"X-Sig", many("v1=z,v1=", 20) + "v1=" + sum(body)}, "", ""},
		{"a list without it", listed, []string{"X-Sig", "v0=" + sum(body)}, source.MalformedHeader, "X-Sig"},
		{"a list with it empty", listed, []string{"X-Sig", "v1=,v1"}, source.MalformedHeader, "X-Sig"},
		{"a list of what cannot be read", listed, []string{"X-Sig", "v1=" + sum(body)[1:] + ",v1=" + strings.Repeat("z", 64)}, source.MalformedHeader, "X-Sig"},
		{"no list", listed, []string{"X-Sig", sum(body)}, source.MalformedHeader, "X-Sig"},
		{"a list of base64", listed64, []string{"X-Sig", "v1=" + coded(body)}, "", ""},
		{"base64 and more in a list", listed64, []string{"X-Sig", "v1=" + coded(body) + "A"}, source.MalformedHeader, "X-Sig"},

		{"a time in the list", both, []string{"X-Sig", "t=" + now + ",v1=" + sum(now+"."+body)}, "", ""},
		{"a time behind", both, []string{"X-Sig", "v1=" + sum(now+"."+body) + ", t=" + now}, "", ""},
		{"no time in the list", both, []string{"X-Sig", "v1=" + sum("."+body)}, source.MalformedHeader, "X-Sig"},
		{"an empty time in the list", both, []string{"X-Sig", "t=,v1=" + sum("."+body)}, source.MalformedHeader, "X-Sig"},
		{"two times in the list", both, []string{"X-Sig", "t=" + now + ",v1=" + sum(now+"."+body) + ",t=" + now}, source.MalformedHeader, "X-Sig"},
		{"two times, another first", both, []string{"X-Sig", "t=1,t=" + now + ",v1=" + sum(now+"."+body)}, source.MalformedHeader, "X-Sig"},
		{"a time in the list and no digest", both, []string{"X-Sig", "t=" + now}, source.MalformedHeader, "X-Sig"},
		{"a time in the list that is none", both, []string{"X-Sig", "t=now,v1=" + sum("now."+body)}, source.MalformedHeader, "t"},
		{"an old time in the list", both, []string{"X-Sig", "t=1,v1=" + sum("1."+body)}, source.OutOfTolerance, "t"},
		{"a parameter that is no header's name", odd, []string{"X-Sig", "sent@=" + now + ",v1=" + sum(now+"."+body)}, "", ""},
	} {
		config := only(secret)
		config.URL = url
		proof, err := described(t, tc.how).Verify(t.Context(), config, post(body, tc.header...))
		if tc.want != "" {
			if refused(t, tc.name, err, tc.want, tc.field); proof != (source.Proof{}) {
				t.Errorf("%s: %+v", tc.name, proof)
			}
			continue
		}
		want := source.Proof{Method: "hmac-sha256", Secret: "s", Body: tc.how.Signed == "" || strings.Contains(tc.how.Signed, "{body}")}
		if err != nil || proof != want {
			t.Errorf("%s: %+v, %v", tc.name, proof, err)
		}
	}
	for _, secrets := range [][]source.Secret{nil, {source.NewSecret("e", "")}, {source.NewSecret("s", secret), source.NewSecret("e", "")}} {
		_, err := described(t, plain).Verify(t.Context(), &source.Config{Secrets: secrets}, post(body, "X-Sig", hex.EncodeToString(mac(sha256.New, nil, body))))
		refused(t, fmt.Sprint(secrets), err, source.EmptySecret, "")
	}
}

// A secret that gives no key, or only the beginning of one, verifies nothing, and
// what is made with an empty key or with that beginning least of all.
func TestSecretThatIsNoKeyVerifiesNothing(t *testing.T) {
	t.Parallel()
	const body = `{"a":1}`
	for _, tc := range []struct {
		form, secret string
		key          string // what a reader has before it fails
		sound        bool
	}{
		{"", "s", "s", true},
		{"text", "\n", "\n", true},
		{"hex", "6162", "ab", true},
		{"hex", "616", "a", false},
		{"hex", "6162zz", "ab", false},
		{"hex", "zz", "", false},
		{"hex", "z", "", false},
		{"base64", "YWJj", "abc", true},
		{"base64", "YWJj\n", "abc", true},
		{"base64", "YWJj*", "abc", false},
		{"base64", "YWJjYQ", "abc", false},
		{"base64", "*", "", false},
		{"base64", "\n", "", false},
		{"base64", "\r\n", "", false},
	} {
		c := described(t, source.Signing{Header: "X-Sig", Key: tc.form})
		if err := c.Secret(tc.secret); (err == nil) != tc.sound {
			t.Errorf("%s %q: %v", tc.form, tc.secret, err)
		}
		for _, key := range []string{tc.key, ""} {
			_, err := c.Verify(t.Context(), only(tc.secret), post(body, "X-Sig", hex.EncodeToString(mac(sha256.New, []byte(key), body))))
			if tc.sound && key != "" {
				if err != nil {
					t.Errorf("%s %q: %v", tc.form, tc.secret, err)
				}
				continue
			}
			refused(t, fmt.Sprintf("%s %q under %q", tc.form, tc.secret, key), err, source.BadSignature, "X-Sig")
		}
	}
	// Of two secrets the one that can be read counts.
	c := described(t, source.Signing{Header: "X-Sig", Key: "hex"})
	config := &source.Config{Secrets: []source.Secret{source.NewSecret("broken", "zz"), source.NewSecret("sound", "6162")}}
	if proof, err := c.Verify(t.Context(), config, post(body, "X-Sig", hex.EncodeToString(mac(sha256.New, []byte("ab"), body)))); err != nil || proof.Secret != "sound" {
		t.Errorf("beside a broken secret: %+v, %v", proof, err)
	}
}

// Each fault of a description is reported by itself: one fault, one line.
func TestEachFaultOfADescriptionIsOneLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		how  source.Signing
		want []string
	}{
		{source.Signing{Header: "X-Sig"}, nil},
		{source.Signing{Header: "X-Sig", Signed: "{id}", ID: "X-Id"}, nil},
		{source.Signing{Header: "X-Sig", Signed: "{id}{body}", ID: "X-Id"}, nil},
		{source.Signing{Header: "X-Sig", Signed: "}{body}}{url}"}, nil},
		{source.Signing{Header: "X-Sig", Signed: "{timestamp}{body}", Timestamp: "X-Time"}, nil},
		{source.Signing{Header: "X-Sig", Signed: "{timestamp}{body}", Timestamp: "(t)", Param: "v1"}, nil},
		{source.Signing{Header: "X-Sig", Prefix: "v0="}, nil},
		{source.Signing{}, []string{`header: "" is no header name: name the one that the signature stands in`}},
		{source.Signing{Header: "X Sig"}, []string{`header: "X Sig" is no header name: name the one that the signature stands in`}},
		{source.Signing{Header: "X-Sig", Hash: "SHA256"}, []string{`hash: "SHA256" is none of sha256, sha512, sha1`}},
		{source.Signing{Header: "X-Sig", Encoding: "base32"}, []string{`encoding: "base32" is none of hex, base64, base64url`}},
		{source.Signing{Header: "X-Sig", Key: "base64url"}, []string{`key: "base64url" is none of text, hex, base64`}},
		{source.Signing{Header: "X-Sig", Signed: "{url}"}, []string{`signed: "{url}" signs neither {body} nor {id}`}},
		{source.Signing{Header: "X-Sig", Signed: "body"}, []string{`signed: "body" signs neither {body} nor {id}`}},
		{source.Signing{Header: "X-Sig", Signed: "{timestamp}", Timestamp: "X-Time"}, []string{`signed: "{timestamp}" signs neither {body} nor {id}`}},
		{source.Signing{Header: "X-Sig", Signed: "{nonce}"}, []string{`signed: {nonce} is none of {body}, {timestamp}, {id}, {url}`}},
		{source.Signing{Header: "X-Sig", Signed: "{body}{nonce}"}, []string{`signed: {nonce} is none of {body}, {timestamp}, {id}, {url}`}},
		{source.Signing{Header: "X-Sig", Signed: "{body}{}"}, []string{`signed: {} is none of {body}, {timestamp}, {id}, {url}`}},
		{source.Signing{Header: "X-Sig", Signed: "{body}{body"}, []string{`signed: "{body" is not closed`}},
		{source.Signing{Header: "X-Sig", Signed: "{body}{"}, []string{`signed: "{" is not closed`}},
		{source.Signing{Header: "X-Sig", Signed: "{timestamp}{body}"}, []string{`timestamp: name it here and in signed, or in neither: a time that is not signed proves nothing`}},
		{source.Signing{Header: "X-Sig", Timestamp: "X-Time"}, []string{`timestamp: name it here and in signed, or in neither: a time that is not signed proves nothing`}},
		{source.Signing{Header: "X-Sig", Timestamp: "(t)", Signed: "{timestamp}{body}"}, []string{`timestamp: "(t)" is no header name`}},
		{source.Signing{Header: "X-Sig", ID: "X-Id"}, []string{`id: name its header here and {id} in signed, or neither`}},
		{source.Signing{Header: "X-Sig", Signed: "{id}{body}"}, []string{`id: name its header here and {id} in signed, or neither`}},
		{source.Signing{Header: "X-Sig", Prefix: "v0=", Param: "v1"}, []string{`prefix: not together with param`}},
	} {
		var got []string
		if _, err := (source.Described{Signing: &tc.how, Type: "'any'"}).Contract(); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.how, diff)
		}
	}
}

// A header's name is made of the characters of RFC 9110, section 5.6.2.
func TestHeaderNamesAreTokens(t *testing.T) {
	t.Parallel()
	const token = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for c := range 256 {
		for _, name := range []string{string([]byte{byte(c)}), string([]byte{'X', byte(c)}), string([]byte{byte(c), 'X'})} {
			_, err := source.Described{Token: &source.Token{Header: name}, Type: "'any'"}.Contract()
			if sound := strings.IndexByte(token, byte(c)) >= 0; (err == nil) != sound {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	if _, err := (source.Described{Token: &source.Token{Header: "Größe"}, Type: "'any'"}).Contract(); err == nil {
		t.Error("a letter that is not ASCII is taken")
	}
}
