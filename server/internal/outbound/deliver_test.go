package outbound

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/store/memory"
)

// delivered is one attempt to deliver an event under a policy.
func delivered(t *testing.T, url string, p Policy) error {
	t.Helper()
	transport := Transport(p)
	t.Cleanup(transport.CloseIdleConnections)
	run, err := inbox.Deliver(inbox.DeliverOptions{
		URL: url, Client: Client(transport), Forbidden: func(err error) bool { return errors.Is(err, ErrRefused) },
	})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := unavez.New(memory.New(nil), &unavez.Options{SingleTenant: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	var failed error
	op := unavez.Operation{Effect: "send.v1", Key: []string{url}}
	_, _ = engine.Lease(t.Context(), op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
		var result unavez.Result
		result, failed = run(ctx, a, &inbox.Event{Data: []byte("x")})
		return result, failed
	}, nil)
	return failed
}

// A delivery to an address that is not public is dead at once: nothing is
// connected to, however the address is written and whatever a name leads to.
func TestDeliveriesToPrivateAddressesAreDeadAndSayWhy(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- struct{}{} }))
	defer srv.Close()
	_, port, _ := cut(srv.URL)
	for _, host := range []string{"127.0.0.1", "localhost", "169.254.169.254", "[::ffff:10.0.0.1]", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "10.0.0.1"} {
		err := delivered(t, "http://"+host+":"+port+"/", Policy{})
		if !unavez.IsDead(err) || !strings.Contains(fmt.Sprint(err), ErrRefused.Error()) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(arrived) != 0 {
		t.Errorf("%d requests arrived", len(arrived))
	}
	allowed := Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	if err := delivered(t, srv.URL, allowed); err != nil || len(arrived) != 1 {
		t.Errorf("an address that is listed: %v, %d requests", err, len(arrived))
	}
	redirects := httptest.NewServer(http.RedirectHandler(srv.URL, http.StatusTemporaryRedirect))
	defer redirects.Close()
	if err := delivered(t, redirects.URL, allowed); !unavez.IsDead(err) || len(arrived) != 1 {
		t.Errorf("a redirect: %v, %d requests", err, len(arrived))
	}
}
