package storetest

import "testing"

func random[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {}
