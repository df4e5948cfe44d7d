package wire

import (
	"net"
	"syscall"
	"time"
	"unsafe"
)

// vanish has the kernel drop what comes to a socket before it is acknowledged, as
// for a host that is gone: the other end's packets, and its questions whether
// anybody is there, have no answer.
func vanish(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil || conn.SetKeepAlive(false) != nil { // nor does it ask
		return false
	}
	// Nor does it send anything again, which the other end would hear: what was
	// passed has to be there first.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(time.Second); unacknowledged(raw) && time.Now().Before(late); {
		<-tick.C
	}
	nothing := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}} // keep 0 bytes of each packet
	//lint:ignore SA1019 it is what the standard library has of this
	if failed := raw.Control(func(fd uintptr) { err = syscall.AttachLsf(int(fd), nothing) }); failed != nil {
		return false
	}
	return err == nil
}

// unacknowledged tells whether what was written is still on its way.
func unacknowledged(raw syscall.RawConn) bool {
	var left int32
	err := raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&left))) // none left where it cannot tell
	})
	return err == nil && left > 0
}
