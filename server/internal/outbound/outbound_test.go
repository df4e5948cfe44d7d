package outbound

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
)

func TestAddressesThatAreNotPublicAreRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"127.0.0.1", "127.255.0.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.7",
		"203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::a00:1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1",
		"fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00::1", "fd00:ec2::254", "ff02::1", "100::1",
	} {
		if (Policy{}).Allows(netip.MustParseAddr(address)) {
			t.Errorf("%s is allowed", address)
		}
	}
	for _, address := range []string{"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "::ffff:8.8.8.8", "2606:4700::1111", "2a00:1450::1"} {
		if !(Policy{}).Allows(netip.MustParseAddr(address)) {
			t.Errorf("%s is refused", address)
		}
	}
	if (Policy{}).Allows(netip.Addr{}) {
		t.Error("the zero address is allowed")
	}
}

func TestAnAllowedRangeIsAllowedAndNothingBesideIt(t *testing.T) {
	t.Parallel()
	p := Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fd00::/64")}}
	for address, want := range map[string]bool{
		"127.0.0.1": true, "::ffff:127.0.0.1": true, "127.0.0.2": false, "::1": false,
		"fd00::5": true, "fd00:0:0:1::5": false, "10.0.0.1": false,
	} {
		if got := p.Allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

// The check is made when connecting, so every spelling and every name that
// leads to a refused address is caught.
func TestConnectionsAreRefusedWhateverTheNameSays(t *testing.T) {
	t.Parallel()
	served := make(chan struct{}, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- struct{}{} }))
	defer srv.Close()
	_, port, _ := cut(srv.URL)
	transport := Transport(Policy{})
	defer transport.CloseIdleConnections()
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "[::1]", "[::]"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+":"+port, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := Client(transport).Do(req)
		if err == nil {
			_ = resp.Body.Close() // the test has failed already
			t.Errorf("%s: connected", host)
		} else if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want a refusal", host, err)
		}
	}
	if len(served) > 0 {
		t.Errorf("%d requests arrived", len(served))
	}
}

func TestRedirectsAreNotFollowedAndTheEnvironmentsProxyIsNotUsed(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	t.Setenv("http_proxy", "http://192.0.2.1:1")
	arrived := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived++
		http.Redirect(w, r, "/again", http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	transport := Transport(Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := Client(transport).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect || arrived != 1 {
		t.Errorf("status %d after %d requests, want the redirect itself after one", resp.StatusCode, arrived)
	}
}

func cut(url string) (host, port string, ok bool) {
	u, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", "", false
	}
	return u.URL.Hostname(), u.URL.Port(), true
}

// A name that leads to an allowed address when it is looked at, and to another
// one when it is connected to, is refused at the connection.
func TestANameThatChangesItsAddressIsRefusedAtTheConnection(t *testing.T) {
	t.Parallel()
	served := make(chan struct{}, 16)
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- struct{}{} })
	public, err := net.Listen("tcp", "127.0.0.2:0") // stands for a public one
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: public, Config: &http.Server{Handler: handler}}
	srv.Start()
	defer srv.Close()
	port := netip.MustParseAddrPort(public.Addr().String()).Port()
	private, err := net.Listen("tcp", fmt.Sprintf("127.0.0.3:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	inner := &httptest.Server{Listener: private, Config: &http.Server{Handler: handler}}
	inner.Start()
	defer inner.Close()
	for _, second := range []string{"127.0.0.3", "169.254.169.254", "10.0.0.1"} {
		p := Policy{
			Allow:    []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")},
			Resolver: testenv.Names(t, netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr(second)),
		}
		transport := Transport(p)
		transport.DisableKeepAlives = true
		client := Client(transport)
		at := fmt.Sprintf("http://rebind.test:%d/", port)
		first, err := client.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Body.Close()
		<-served
		again, err := client.Get(at)
		if err == nil {
			_ = again.Body.Close()
		}
		if !errors.Is(err, ErrRefused) || len(served) != 0 {
			t.Errorf("%s: %v, %d served", second, err, len(served))
		}
	}
}
