// Package keys fetches the public keys that issuers of access tokens publish
// (RFC 7517), from fixed addresses and with bounds: what a token says of itself
// never decides where keys come from, and a sender cannot make the server fetch
// more than once in a while.
package keys

import (
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"sync"
	"time"

	"github.com/unavez/unavez/source"
)

// Bounds of a set of keys.
const (
	// Fresh is how long a fetched set is used without asking again.
	Fresh = time.Hour
	// Stale is how long it is used when it cannot be fetched anew.
	Stale = 24 * time.Hour
	// Pause is the least time between two fetches.
	Pause = 10 * time.Second

	fetchLimit = 10 * time.Second
	maxSet     = 1 << 20 // bytes
	maxKeys    = 100
	minBits    = 2048
	maxBits    = 8192
	maxID      = 256
)

// Cache has the keys of issuers. It is safe for concurrent use.
type Cache struct {
	client *http.Client
	now    func() time.Time

	mu   sync.Mutex
	sets map[string]*set
}

// set is what one address publishes.
type set struct {
	url string

	mu      sync.Mutex // held while fetching: the others wait for it
	keys    map[string]crypto.PublicKey
	fetched time.Time // when keys were had
	tried   time.Time // when they were asked for last
	failed  error     // why not
}

// New makes a cache; addresses are those of the key sets by issuer, and no other
// issuer has keys.
func New(client *http.Client, addresses map[string]string, now func() time.Time) *Cache {
	c := &Cache{client: client, now: now, sets: map[string]*set{}}
	byURL := map[string]*set{}
	for issuer, url := range addresses {
		if byURL[url] == nil {
			byURL[url] = &set{url: url}
		}
		c.sets[issuer] = byURL[url]
	}
	return c
}

// Key is the key that an issuer publishes under an id, for source.Config.Keys. A
// key that is not published is a *source.Fault; any other error means that it
// cannot be had now.
func (c *Cache) Key(ctx context.Context, issuer, id string) (crypto.PublicKey, error) {
	c.mu.Lock()
	s := c.sets[issuer]
	c.mu.Unlock()
	if s == nil {
		return nil, &source.Fault{Reason: source.UntrustedIssuer, Field: "Authorization"}
	}
	if id == "" || len(id) > maxID {
		return nil, &source.Fault{Reason: source.MalformedHeader, Field: "Authorization"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.now()
	key, known := s.keys[id]
	if known && now.Sub(s.fetched) < Fresh {
		return key, nil
	}
	if s.tried.IsZero() || now.Sub(s.tried) >= Pause {
		s.tried = now
		keys, err := c.fetch(ctx, s.url)
		if s.failed = err; err == nil {
			s.keys, s.fetched = keys, now
			key, known = keys[id]
		}
	}
	switch {
	case known && now.Sub(s.fetched) < Stale:
		return key, nil
	case s.failed != nil:
		return nil, s.failed
	case s.fetched.IsZero() || now.Sub(s.fetched) >= Stale:
		return nil, errors.New("not fetched again yet")
	}
	return nil, &source.Fault{Reason: source.BadSignature, Field: "Authorization", Cause: errors.New("the issuer publishes no such key")}
}

// fetch reads a set. Keys of kinds that are not used are passed over.
func (c *Cache) fetch(ctx context.Context, url string) (map[string]crypto.PublicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "unavez")
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", url, response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxSet+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxSet {
		return nil, fmt.Errorf("%s: over %d bytes", url, maxSet)
	}
	return parse(body)
}

// parse reads a JSON Web Key set.
func parse(body []byte) (map[string]crypto.PublicKey, error) {
	var published struct {
		Keys []struct {
			Kind string `json:"kty"`
			Use  string `json:"use"`
			ID   string `json:"kid"`
			N    string `json:"n"`
			E    string `json:"e"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(body, &published); err != nil {
		return nil, errors.New("the issuer's keys cannot be read")
	}
	keys := map[string]crypto.PublicKey{}
	for _, k := range published.Keys {
		if k.Kind != "RSA" || k.Use != "" && k.Use != "sig" || k.ID == "" || len(keys) == maxKeys {
			continue
		}
		n, errN := base64.RawURLEncoding.DecodeString(k.N)
		e, errE := base64.RawURLEncoding.DecodeString(k.E)
		if errN != nil || errE != nil || len(e) == 0 || len(e) > 4 || len(n) > maxBits/8 {
			continue
		}
		key := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
		if bits := key.N.BitLen(); bits < minBits || bits > maxBits || key.E < 3 || key.E%2 == 0 {
			continue
		}
		keys[k.ID] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("the issuer publishes no key that can be used")
	}
	return keys, nil
}
