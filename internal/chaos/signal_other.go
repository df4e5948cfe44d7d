//go:build !unix

package chaos

import (
	"errors"
	"os/exec"
)

// canPause tells whether a process can be stopped as it stands.
const canPause = false

func stop(*exec.Cmd) error { return errors.ErrUnsupported }

func resume(*exec.Cmd) error { return errors.ErrUnsupported }

func detach(*exec.Cmd) {}
