package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// order is where a version stands beside the last one that took effect.
type order int

const (
	// fresh: it is to take effect.
	fresh order = iota
	// stale: a later one has, or the same with the same content.
	stale
	// early: one before it has not yet.
	early
)

// version is what was found out about the version of an entry.
type version struct {
	is      order
	missing string // of an early one: the version that it waits for
}

// errEarly takes back the transaction of an entry that came early.
var errEarly = errors.New("an earlier version has not taken effect yet")

// staleReason is the reason of the outcome of a stale entry.
const staleReason = "stale: a later version, or this one, has taken effect"

// end is how a transaction ends without its effect for the version's sake.
func (v version) end() error {
	switch v.is {
	case stale:
		return unavez.Discard(staleReason)
	case early:
		return errEarly
	}
	return nil
}

// place compares a version with the last one that took effect, "" if none has.
// same says that both carried the same content.
func place(number, last string, same, contiguous bool) (version, error) {
	if contiguous {
		return placeInRow(number, last, same)
	}
	if last == "" {
		return version{}, nil
	}
	after, err := compareVersions(number, last)
	switch {
	case err != nil:
		return version{}, err
	case after < 0, after == 0 && same:
		return version{is: stale}, nil
	}
	return version{}, nil
}

// placeInRow does the same for integers without gaps. The first is 0 or 1.
func placeInRow(number, last string, same bool) (version, error) {
	n, ok := new(big.Int).SetString(number, 10)
	if !ok {
		return version{}, fmt.Errorf("version %q: not an integer, and Contiguous wants those", number)
	}
	before := big.NewInt(0)
	if last != "" {
		if _, ok := before.SetString(last, 10); !ok {
			return version{}, fmt.Errorf("version %q took effect last: not an integer, and Contiguous wants those", last)
		}
	}
	next := new(big.Int).Add(before, big.NewInt(1))
	switch n.Cmp(next) {
	case 1:
		return version{is: early, missing: next.String()}, nil
	case 0:
		return version{}, nil
	}
	if n.Cmp(before) == 0 && !(same && last != "") {
		return version{}, nil
	}
	return version{is: stale}, nil
}

// compareVersions compares two integers, or two instants.
func compareVersions(a, b string) (int, error) {
	x, first := new(big.Int).SetString(a, 10)
	y, second := new(big.Int).SetString(b, 10)
	if first && second {
		return x.Cmp(y), nil
	}
	s, first := source.Instant(a)
	t, second := source.Instant(b)
	if first && second {
		return s.Compare(t), nil
	}
	return 0, fmt.Errorf("version %q cannot be compared with %q, which took effect last: want two integers or two RFC 3339 times", a, b)
}

// judgeVersion compares the version of an entry with the last one of its ordering
// key, in the handler's transaction.
func (in *Inbox[Tx]) judgeVersion(ctx context.Context, tx Tx, ef *effect[Tx], it *item) (version, error) {
	number := it.entry.Note.Version
	if !ef.trait.versioned || number == "" {
		return version{}, nil
	}
	last, _, err := in.store.versions.Version(ctx, tx, it.entry.Order)
	if err != nil {
		return version{}, err
	}
	v, err := place(number, last.Number, bytes.Equal(last.Content, it.entry.Fingerprint.Sum), ef.trait.contiguous)
	if err != nil {
		return version{}, unavez.Dead(err)
	}
	if v.is == early && it.forced {
		return version{}, nil
	}
	return v, nil
}

// setVersion remembers the version of an entry that has taken effect, in the
// transaction that commits it.
func (in *Inbox[Tx]) setVersion(ctx context.Context, tx Tx, ef *effect[Tx], it *item) error {
	number := it.entry.Note.Version
	if !ef.trait.versioned || number == "" {
		return nil
	}
	return in.store.versions.SetVersion(ctx, tx, it.entry.Order, store.Version{Number: number, Content: it.entry.Fingerprint.Sum})
}
