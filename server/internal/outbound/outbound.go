// Package outbound opens every connection that the binary makes by itself: to
// upstreams, for authentication and for probes.
//
// Addresses that are not on the public internet are refused unless a policy
// lists them. The check is made on the address that is about to be connected
// to, after resolving: a name that answers differently a second later changes
// nothing. Redirects are never followed, proxies of the environment are never
// used, and nothing is decompressed.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// ErrRefused is the cause when the policy forbids a connection. Nothing was sent.
var ErrRefused = errors.New("address is private and outbound.allow does not list it")

// Policy says which addresses may be connected to.
type Policy struct {
	// Allow lists ranges that are allowed although they are private.
	Allow []netip.Prefix
	// Resolver of names; nil means that of the system.
	Resolver *net.Resolver
}

// refused are the ranges that lead somewhere else than to a public host: to
// this machine, its network, its cloud's metadata, many hosts at once, or, by
// one of the ways IPv6 carries IPv4, to any of those.
func refused() []string {
	return []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"168.63.129.16/32", // a cloud's metadata on a public address
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16",
		"3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	}
}

// Allows reports whether a connection to the address may be opened.
func (p Policy) Allows(ip netip.Addr) bool {
	if !ip.IsValid() {
		return false
	}
	ip = ip.Unmap().WithZone("")
	for _, prefix := range p.Allow {
		if prefix.Contains(ip) {
			return true
		}
	}
	for _, text := range refused() {
		if netip.MustParsePrefix(text).Contains(ip) {
			return false
		}
	}
	return true
}

// control is called with the address of each attempt to connect, just before it.
func (p Policy) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%s %s: %w", network, address, ErrRefused)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: %w", address, ErrRefused)
	}
	if !p.Allows(at.Addr()) {
		return fmt.Errorf("%s: %w", at.Addr(), ErrRefused)
	}
	return nil
}

// Transport makes a transport under the policy. It has no timeout for the whole
// call: that is the caller's context. Close its idle connections when done.
func Transport(p Policy) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, ControlContext: p.control, Resolver: p.Resolver}
	return &http.Transport{
		Proxy:                  nil, // a proxy would connect for us, past the check
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    64,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // a small answer could become a large one
	}
}

// Client makes a client over a transport that follows no redirects.
func Client(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
