package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/unavez/unavez/store"
)

// gate excludes deliveries of one operation from each other: between workers by
// locks on the bytes of a file, within this one by a table.
//
// The order matters. A lock is entered in the table before its byte is locked
// and leaves it after its byte is free: the byte belongs to the open file, so
// whoever of this worker unlocks it unlocks it for all of them.
type gate struct {
	file *os.File

	mu   sync.Mutex
	held map[int64]*lock
}

// lock is one operation's lock, held until release.
type lock struct {
	gate   *gate
	offset int64
	owner  any           // who holds it
	free   chan struct{} // closed at the release; made by the first who waits
}

// turnstile is the byte held by the worker that waits for the file's writer.
const turnstile = math.MaxInt64

func openGate(path string, mode fs.FileMode) (*gate, error) {
	file, err := openLockFile(path, mode)
	if err != nil {
		return nil, unavailable(fmt.Sprintf("gate file %s cannot be opened: this user must be able to write it and its folder, and where locks on bytes do not exist only one worker may use the file", path), err)
	}
	return &gate{file: file, held: map[int64]*lock{}}, nil
}

func offset(key store.Key) int64 { return key.Hash64() & math.MaxInt64 }

// try takes the lock of an operation, or returns nil when someone has it.
func (g *gate) try(key store.Key, owner any) (*lock, error) {
	l := &lock{gate: g, offset: offset(key), owner: owner}
	g.mu.Lock()
	if g.held[l.offset] != nil {
		g.mu.Unlock()
		return nil, nil
	}
	g.held[l.offset] = l
	g.mu.Unlock()
	granted, err := lockByte(g.file, l.offset)
	if granted && err == nil {
		return l, nil
	}
	l.leave()
	if err != nil {
		err = unavailable("gate file cannot be locked", err)
	}
	return nil, err
}

// wait takes the lock of an operation as soon as it is free.
func (g *gate) wait(ctx context.Context, key store.Key, owner any) (*lock, error) {
	pause := time.Millisecond
	for {
		l, err := g.try(key, owner)
		if l != nil || err != nil {
			return l, err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-g.freed(offset(key)):
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// freed is closed when this worker gives the lock back; nil when another has it.
func (g *gate) freed(offset int64) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.held[offset]
	if l == nil {
		return nil
	}
	if l.free == nil {
		l.free = make(chan struct{})
	}
	return l.free
}

// owns reports whether owner holds the operation's lock.
func (g *gate) owns(key store.Key, owner any) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.held[offset(key)]
	return l != nil && l.owner == owner
}

// peek reports whether anyone holds the lock of an operation.
func (g *gate) peek(key store.Key) (bool, error) {
	g.mu.Lock()
	held := g.held[offset(key)] != nil
	g.mu.Unlock()
	if held {
		return true, nil
	}
	held, err := byteLocked(g.file, offset(key))
	if err != nil {
		return false, unavailable("gate file cannot be looked at", err)
	}
	return held, nil
}

// release gives the lock back. Releasing nothing does nothing.
func (l *lock) release() {
	if l == nil {
		return
	}
	// An error means the file is closed, and then the lock is gone with it.
	_ = unlockByte(l.gate.file, l.offset)
	l.leave()
}

func (l *lock) leave() {
	g := l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, l.offset)
	if l.free != nil {
		close(l.free)
	}
}

// enterTurnstile reports whether this worker is now first in line for the
// file's writer. Errors are taken for "yes": the turnstile only orders.
func (g *gate) enterTurnstile() bool {
	granted, err := lockByte(g.file, turnstile)
	return granted || err != nil
}

func (g *gate) leaveTurnstile() {
	_ = unlockByte(g.file, turnstile) // as in release
}

func (g *gate) close() error {
	if g == nil {
		return nil
	}
	if err := g.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("sqlite store: gate file: %w", err)
	}
	return nil
}
