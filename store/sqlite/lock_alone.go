//go:build !linux

package sqlite

import "os"

// There is one worker; the table of the gate is all that is needed.

func lockByte(*os.File, int64) (bool, error) { return true, nil }

func unlockByte(*os.File, int64) error { return nil }

func byteLocked(*os.File, int64) (bool, error) { return false, nil }
