package sqlite

import (
	"errors"
	"fmt"
	"time"
)

// Synchronous is how hard a commit presses the disk.
type Synchronous int

const (
	// Full syncs the log at every commit: what was answered is on the disk.
	Full Synchronous = iota
	// Normal syncs at checkpoints only. A power cut may lose the last commits,
	// and an operation that was answered may then take effect again: for this
	// package a broken promise, so it must be asked for.
	Normal
)

// Options of a database. The zero value of a field means its default.
type Options struct {
	// HandlerLimit is how long a handler may hold the writer, from its first
	// statement to its return. Default 100 ms.
	HandlerLimit time.Duration
	// TransactionLimit is the same for a transaction the application opens
	// itself with BeginTx. Default 10 s.
	TransactionLimit time.Duration
	// BusyTimeout is how long a unit waits, at the head of the queue, for the
	// writer of another worker on the file before it fails with
	// store.ErrUnavailable; and how long readers wait for a recovery. Default 5 s.
	BusyTimeout time.Duration
	// GroupSize is the most units one COMMIT makes durable. Default 512.
	GroupSize int
	// GroupTime is how long a group takes in further units, from its start;
	// it bounds how long the worker keeps the file's writer. Default 20 ms.
	GroupTime time.Duration
	// MaxReaders is the most connections that serve the application's reads at
	// a time; further reads wait. The store's own reads have others. Default 32.
	MaxReaders int
	// Synchronous is Full unless Normal is asked for.
	Synchronous Synchronous
	// NoForeignKeys leaves foreign keys unenforced, as SQLite does by itself.
	NoForeignKeys bool
	// Parameters are further parameters for the driver, in the form of a URI's
	// query, such as "_time_format=sqlite". What this package sets wins.
	Parameters string
}

// withDefaults returns a copy of o, complete and checked.
func (o *Options) withDefaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	var faults []error
	duration := func(name string, d *time.Duration, value, most time.Duration) {
		if *d == 0 {
			*d = value
		}
		if *d < time.Millisecond || *d > most {
			faults = append(faults, fmt.Errorf("%s: %v, want 1ms to %v", name, *d, most))
		}
	}
	number := func(name string, n *int, value, most int) {
		if *n == 0 {
			*n = value
		}
		if *n < 1 || *n > most {
			faults = append(faults, fmt.Errorf("%s: %d, want 1 to %d", name, *n, most))
		}
	}
	duration("HandlerLimit", &out.HandlerLimit, 100*time.Millisecond, time.Minute)
	duration("TransactionLimit", &out.TransactionLimit, 10*time.Second, time.Hour)
	duration("BusyTimeout", &out.BusyTimeout, 5*time.Second, 10*time.Minute)
	duration("GroupTime", &out.GroupTime, 20*time.Millisecond, time.Second)
	number("GroupSize", &out.GroupSize, 512, 1<<16)
	number("MaxReaders", &out.MaxReaders, 32, 1<<10)
	if out.Synchronous != Full && out.Synchronous != Normal {
		faults = append(faults, fmt.Errorf("Synchronous: %d, want Full or Normal", out.Synchronous))
	}
	return out, errors.Join(faults...)
}
