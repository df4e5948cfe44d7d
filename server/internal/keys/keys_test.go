package keys

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unavez/unavez/source"
)

func jwk(t testing.TB, id string, bits int) (string, *rsa.PublicKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	n := base64.RawURLEncoding.EncodeToString(key.N.Bytes())
	e := base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())
	return fmt.Sprintf(`{"kty":"RSA","use":"sig","kid":%q,"n":%q,"e":%q}`, id, n, e), &key.PublicKey
}

// issuer publishes a set, counts how often it is asked, and can fail.
type issuer struct {
	*httptest.Server
	asked atomic.Int64
	mu    sync.Mutex
	body  string
	code  int
}

func (i *issuer) set(code int, body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.code, i.body = code, body
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{code: 200}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		w.WriteHeader(i.code)
		_, _ = w.Write([]byte(i.body))
	}))
	t.Cleanup(i.Close)
	return i
}

// clock is set by hand.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time         { return time.Unix(1_800_000_000, 0).Add(time.Duration(c.at.Load())) }
func (c *clock) add(d time.Duration)    { c.at.Add(int64(d)) }
func fault(err error) (f *source.Fault) { _ = errors.As(err, &f); return f }

func TestAKeyIsFetchedOnceAndKeptForAnHour(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), &clock{}
	text, want := jwk(t, "a", 2048)
	i.set(200, `{"keys":[`+text+`]}`)
	cache := New(i.Client(), map[string]string{"iss": i.URL, "iss-v1": i.URL}, c.now)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			got, err := cache.Key(t.Context(), "iss", "a")
			if err != nil || !want.Equal(got) {
				t.Errorf("%v %v", got, err)
			}
		})
	}
	group.Wait()
	if _, err := cache.Key(t.Context(), "iss-v1", "a"); err != nil || i.asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, i.asked.Load())
	}
	c.add(Fresh)
	if _, err := cache.Key(t.Context(), "iss", "a"); err != nil || i.asked.Load() != 2 {
		t.Errorf("after an hour: %v, asked %d times", err, i.asked.Load())
	}
	i.set(500, "")
	c.add(Stale - time.Second)
	if _, err := cache.Key(t.Context(), "iss", "a"); err != nil || i.asked.Load() != 3 {
		t.Errorf("while the issuer is down: %v, asked %d times", err, i.asked.Load())
	}
	c.add(time.Second + Pause)
	if _, err := cache.Key(t.Context(), "iss", "a"); err == nil || fault(err) != nil {
		t.Errorf("after a day without the issuer: %v, want our own trouble", err)
	}
}

func TestAnUnknownKeyIsAskedForOnceInAWhile(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), &clock{}
	old, _ := jwk(t, "old", 2048)
	fresh, _ := jwk(t, "new", 2048)
	i.set(200, `{"keys":[`+old+`]}`)
	cache := New(i.Client(), map[string]string{"iss": i.URL}, c.now)
	for range 50 {
		if _, err := cache.Key(t.Context(), "iss", "new"); fault(err) == nil || fault(err).Reason != source.BadSignature {
			t.Fatalf("%v", err)
		}
	}
	if i.asked.Load() != 1 {
		t.Errorf("asked %d times", i.asked.Load())
	}
	i.set(200, `{"keys":[`+old+`,`+fresh+`]}`)
	c.add(Pause)
	if _, err := cache.Key(t.Context(), "iss", "new"); err != nil || i.asked.Load() != 2 {
		t.Errorf("a rotated key: %v, asked %d times", err, i.asked.Load())
	}
}

func TestWhatATokenSaysDoesNotDecideWhereKeysComeFrom(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), &clock{}
	cache := New(i.Client(), map[string]string{"iss": i.URL}, c.now)
	for _, name := range []string{"", "http://evil.example", i.URL} {
		if _, err := cache.Key(t.Context(), name, "a"); fault(err) == nil || fault(err).Reason != source.UntrustedIssuer {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", maxID+1)} {
		if _, err := cache.Key(t.Context(), "iss", id); fault(err) == nil {
			t.Errorf("%.10q: %v", id, err)
		}
	}
	if i.asked.Load() != 0 {
		t.Errorf("asked %d times", i.asked.Load())
	}
}

func TestASetThatCannotBeUsedIsOurOwnTrouble(t *testing.T) {
	t.Parallel()
	weak, _ := jwk(t, "weak", 1024)
	for name, body := range map[string]string{
		"no JSON": "<html>", "empty": `{"keys":[]}`, "weak": `{"keys":[` + weak + `]}`, "of another kind": `{"keys":[{"kty":"EC","kid":"a"}]}`,
		"even exponent": `{"keys":[{"kty":"RSA","kid":"a","n":"` + strings.Repeat("w", 400) + `","e":"Ag"}]}`,
		"too large":     `{"keys":[]}` + strings.Repeat(" ", maxSet),
	} {
		i, c := newIssuer(t), &clock{}
		i.set(200, body)
		if _, err := New(i.Client(), map[string]string{"iss": i.URL}, c.now).Key(t.Context(), "iss", "a"); err == nil || fault(err) != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, _ := jwk(f, "a", 2048)
	f.Add([]byte(`{"keys":[` + text + `]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if keys, err := parse(body); err == nil && len(keys) == 0 {
			t.Error("no key and no error")
		}
	})
}
