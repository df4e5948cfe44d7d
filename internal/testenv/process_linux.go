package testenv

import "syscall"

// attributes end a server with the test program, however that ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
