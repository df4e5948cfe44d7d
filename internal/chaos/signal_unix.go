//go:build unix

package chaos

import (
	"os/exec"
	"syscall"
)

// canPause tells whether a process can be stopped as it stands.
const canPause = true

func stop(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGSTOP) }

func resume(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGCONT) }

// detach keeps a terminal's signals from a worker: the program that runs it
// ends it, also when it is interrupted.
func detach(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}
