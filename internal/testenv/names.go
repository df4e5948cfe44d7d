package testenv

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
)

// Names is a resolver for which every name has the given addresses of IPv4, one
// after the other: another one each time it is asked, and in the end the last.
func Names(t testing.TB, addresses ...netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = conn.Close() // ends the loop
		serving.Wait()
	})
	serving.Go(func() {
		asked := 0
		for buffer := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			answer, ofName := reply(buffer[:n], addresses[min(asked, len(addresses)-1)])
			if ofName {
				asked++
			}
			_, _ = conn.WriteTo(answer, from) // the one who asks times out
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// reply is the answer to a question (RFC 1035, section 4), with the address if it
// asks for one of IPv4, and with none if not.
func reply(question []byte, address netip.Addr) (answer []byte, ofName bool) {
	end := 12
	for end < len(question) && question[end] != 0 {
		end += int(question[end]) + 1
	}
	if end += 5; end > len(question) {
		return nil, false
	}
	answer = append([]byte{question[0], question[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question[12:end]...)
	if question[end-3] != 1 { // of type A
		return answer, false
	}
	ip := address.As4()
	answer[7] = 1
	answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
	return append(answer, ip[:]...), true
}
