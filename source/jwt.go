package source

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unavez/unavez/internal/exact"
)

// Bearer is what a delivery's access token must say: who it is for, who issued
// it, and which application asked for it. The fields are described for Microsoft
// Entra ID.
type Bearer struct {
	// Audience is the application ID, or its URI, of the receiving side.
	Audience string

	// Issuers are the accepted issuers, as
	// "https://login.microsoftonline.com/<tenant>/v2.0" and, for tokens of
	// version 1, "https://sts.windows.net/<tenant>/".
	Issuers []string

	// Principals are the accepted client applications.
	Principals []string

	// Claims name the principal, the first one present counts. Empty is azp
	// (tokens of version 2) and appid (version 1).
	Claims []string
}

func (e Bearer) check() error {
	var faults []error
	if e.Audience == "" {
		faults = append(faults, errors.New("audience: empty"))
	}
	if len(e.Issuers) == 0 {
		faults = append(faults, errors.New("issuers: empty; any Entra tenant could sign then"))
	}
	if len(e.Principals) == 0 {
		faults = append(faults, errors.New("principals: empty; any application of the tenant could send then"))
	}
	return errors.Join(faults...)
}

const (
	maxToken = 16 << 10         // bytes of a token
	leeway   = 60 * time.Second // that the issuer's clock may be ahead; an expired token is expired
)

// bearer verifies a token of RFC 7519 with RS256 and nothing else: "none", and
// HMAC under a public key as its secret, are algorithms that a sender would like
// to choose.
func (e Bearer) verify(ctx context.Context, config *Config, r *Request) (Proof, error) {
	const field = "Authorization"
	text, err := line(r.Header, field)
	if err != nil {
		return Proof{}, err
	}
	token, _ := cutPrefixFold(text, "Bearer ") // what is no bearer has no parts
	if len(token) > maxToken {
		return Proof{}, refuse(MalformedHeader, field)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Proof{}, refuse(MalformedHeader, field)
	}
	header, err := segment(parts[0])
	if err != nil {
		return Proof{}, refuse(MalformedHeader, field)
	}
	claims, err := segment(parts[1])
	if err != nil {
		return Proof{}, refuse(MalformedHeader, field)
	}
	digest, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return Proof{}, refuse(MalformedHeader, field)
	}
	if alg := header.Text("alg"); alg != "RS256" || header["crit"] != nil {
		return Proof{}, refuse(UnsupportedMethod, field)
	}
	// The issuer decides where keys come from, so it is looked at before them.
	issuer := claims.Text("iss")
	if !slices.Contains(e.Issuers, issuer) {
		return Proof{}, refuse(UntrustedIssuer, field)
	}
	if config.Keys == nil {
		return Proof{}, refusef(EmptySecret, field, "the source has no keys to verify tokens with")
	}
	key, err := config.Keys(ctx, issuer, header.Text("kid"))
	if err != nil {
		var fault *Fault
		if errors.As(err, &fault) {
			return Proof{}, fault
		}
		return Proof{}, fmt.Errorf("keys of %s: %w", issuer, err)
	}
	public, ok := key.(*rsa.PublicKey)
	if !ok || public.N.BitLen() < 2048 {
		return Proof{}, refusef(UnsupportedMethod, field, "the key is no RSA key of at least 2048 bits")
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], digest) != nil {
		return Proof{}, refuse(BadSignature, field)
	}
	if !audience(claims["aud"], e.Audience) {
		return Proof{}, refuse(WrongAudience, field)
	}
	names, principal := e.Claims, ""
	if len(names) == 0 {
		names = []string{"azp", "appid"}
	}
	for _, name := range names {
		if principal = claims.Text(name); principal != "" {
			break
		}
	}
	if principal == "" || !slices.Contains(e.Principals, principal) {
		return Proof{}, refuse(WrongPrincipal, field)
	}
	expires, ok := claim(claims["exp"])
	if !ok {
		return Proof{}, refusef(MalformedHeader, field, "no exp")
	}
	if !r.At.Before(expires) {
		return Proof{}, refusef(OutOfTolerance, field, "expired")
	}
	if raw := claims["nbf"]; raw != nil {
		from, ok := claim(raw)
		if !ok {
			return Proof{}, refusef(MalformedHeader, field, "nbf is no time")
		}
		if r.At.Add(leeway).Before(from) {
			return Proof{}, refusef(OutOfTolerance, field, "not valid yet")
		}
	}
	return Proof{Method: "jwt", Secret: principal}, nil
}

func segment(text string) (exact.Object, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, err
	}
	return exact.ReadObject(raw)
}

// audience compares the claim, a string or a list of them.
func audience(claim []byte, want string) bool {
	if one, ok := exact.Text(claim); ok {
		return one == want
	}
	var list []string
	return json.Unmarshal(claim, &list) == nil && slices.Contains(list, want)
}

// claim reads a NumericDate, whose fraction is dropped.
func claim(raw []byte) (time.Time, bool) {
	text, err := exact.Part(raw)
	if err != nil || raw[0] == '"' {
		return time.Time{}, false
	}
	whole, _, _ := strings.Cut(text, ".")
	return instant(whole, time.Second)
}
