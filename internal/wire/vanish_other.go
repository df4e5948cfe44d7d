//go:build !linux

package wire

import "net"

// vanish is what this system cannot do: the connection only stalls.
func vanish(*net.TCPConn) bool { return false }
