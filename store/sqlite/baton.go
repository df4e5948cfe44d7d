package sqlite

import "context"

// baton is a mutex that can be waited for within a context: whoever puts
// something into the channel, of one place, has it.
type baton chan struct{}

func (b baton) lock() { b <- struct{}{} }

// try reports whether it has locked without waiting.
func (b baton) try() bool {
	select {
	case b <- struct{}{}:
		return true
	default:
		return false
	}
}

// lockIn reports whether it has locked before ctx ended.
func (b baton) lockIn(ctx context.Context) bool {
	if b.try() {
		return true
	}
	select {
	case b <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b baton) unlock() { <-b }
