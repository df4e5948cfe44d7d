package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unavez/unavez/store"
)

// Kind is what happens at a step.
type Kind uint8

// The kinds. Pause, Stop and Jump are the director's own doing: a wrapper takes
// them for None.
const (
	// None: nothing goes wrong.
	None Kind = iota
	// Fail: the step is refused. Nothing is done, and the answer says so.
	Fail
	// Lose: the step is done and its answer is lost, with the connection.
	Lose
	// Cut: the connection is lost before the step arrives. Nothing is done, and
	// the answer cannot tell.
	Cut
	// Late: the answer is lost at once, and the step arrives later.
	Late
	// Pause: the worker stands still until another has gone on.
	Pause
	// Stop: the worker stands still for longer than a lease.
	Stop
	// Jump: the database's clock jumps ahead by more than a lease.
	Jump
	// Kill: the worker ends before the step.
	Kill
	// Die: the worker ends after the step, before it has the answer.
	Die
	// Panic: the caller's code panics.
	Panic
	// Lie: the fast lease answers the opposite of what is so.
	Lie
	// Forget: the fast lease has lost everything before the step.
	Forget
	// Gone: the worker was killed at another step meanwhile. It is no fault of
	// its own, and a director gives it to those who wait.
	Gone
)

// String is the word in reports.
func (k Kind) String() string {
	names := [...]string{"none", "fail", "lose", "cut", "late", "pause", "stop", "jump", "kill", "die", "panic", "lie", "forget", "gone"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// The steps.
const (
	Gate      = "gate"       // a transaction begins: lock and read
	Handler   = "handler"    // the caller's own code in a transaction
	Commit    = "commit"     // outcome and commit
	Rollback  = "rollback"   // a transaction is given up
	Noticed   = "noticed"    // the server finds a connection gone; a step of the wire
	Verdict   = "verdict"    // what a gate found that went with the first statement
	Join      = "join"       // the gate inside the caller's transaction
	Insert    = "insert"     // the outcome inside the caller's transaction
	OwnBegin  = "own begin"  // the caller's own transaction begins
	OwnCommit = "own commit" // and commits
	Look      = "look"       // a plain read
	Settle    = "settle"     // what became of a commit
	Peek      = "peek"       // what a waiter asks

	Claim  = "claim"  // a lease is claimed
	Renew  = "renew"  // and renewed
	Finish = "finish" // the transaction that ends an attempt begins
	Rest   = "rest"   // an attempt ends without an outcome
	Save   = "save"   // the end of an outside call is stored
	Steps  = "steps"  // and read by a later attempt
	Run    = "run"    // the caller's own code under a lease
	Call   = "call"   // an outside call
	Probe  = "probe"  // an outside read
	Serve  = "serve"  // a request arrives at the worker's own server

	Acquire  = "acquire"   // the fast lease is asked for
	Prolong  = "prolong"   // and renewed
	GiveBack = "give back" // and given back
	Mark     = "mark"      // or turned into the mark of a commit

	List      = "list"      // what an operator sees
	Show      = "show"      // of one operation
	Counts    = "counts"    // of all
	Release   = "release"   // an operator lets an operation go on
	Redrive   = "redrive"   // or a dead one
	Complete  = "complete"  // or ends it
	Discard   = "discard"   // or ends it without its effect
	Append    = "append"    // entries are made durable
	Take      = "take"      // lanes are kept and taken
	HandBack  = "hand back" // and given up
	Snapshot  = "snapshot"  // entries are read
	Followers = "followers" // of one ordering key
	Load      = "load"      // one with its payload
	Waiting   = "waiting"   // ordering keys that wait
	Block     = "block"     // one begins to
	Unblock   = "unblock"   // and ends

	Purge  = "purge"  // upkeep forgets
	Expire = "expire" // and finds leases that ran out
)

// Kinds gives the faults that a step can have.
func Kinds(step string) []Kind {
	stand := []Kind{Pause, Stop, Jump, Kill}
	switch step {
	case Gate, Join, Finish, OwnBegin:
		return append([]Kind{Fail, Lose, Die}, stand...)
	case Handler:
		return append([]Kind{Fail, Cut, Panic}, stand...)
	case Run:
		return append([]Kind{Panic}, stand...)
	case Commit, OwnCommit, Claim, Renew, Rest, Save, Call, Serve, Release, Redrive, Complete, Discard, Purge, Expire,
		Append, Take, HandBack, Block, Unblock:
		return append([]Kind{Fail, Lose, Cut, Late, Die}, stand...)
	case Rollback:
		return []Kind{Cut, Pause, Stop, Kill}
	case Insert:
		return []Kind{Fail, Cut, Pause, Stop, Kill, Die}
	case Look, Settle, Peek, Steps, Verdict, Probe, List, Show, Counts, Snapshot, Followers, Load, Waiting:
		return []Kind{Fail, Pause, Stop, Kill}
	case Acquire:
		return append([]Kind{Fail, Lose, Late, Lie, Forget, Die}, stand...)
	case Prolong, GiveBack, Mark:
		return []Kind{Fail, Lose, Late, Forget, Kill}
	}
	return nil
}

// Point is one step of one worker.
type Point struct {
	// Life that makes the step.
	Life string
	// Step is its name.
	Step string
	// Nth counts the steps of that name of the life, from 1.
	Nth int
	// Wire says that the step was sent before, or is the server's own: it
	// happens also when the worker is dead.
	Wire bool
}

// String is how a trace shows it.
func (p Point) String() string {
	s := fmt.Sprintf("%s/%s#%d", p.Life, p.Step, p.Nth)
	if p.Wire {
		s += "~"
	}
	return s
}

// Fault is one thing that goes wrong: what, and where.
type Fault struct {
	// Point is where.
	Point
	// Kind is what.
	Kind Kind
}

// String is how a trace shows it.
func (f Fault) String() string {
	if f.Kind == None {
		return f.Point.String()
	}
	return f.Point.String() + "!" + f.Kind.String()
}

// Note is what a step came to, for whoever keeps the record.
type Note struct {
	Fault
	// Key of the operation, where the step has one.
	Key store.Key
	// Fence under which the step was made, or which it gave.
	Fence int64
	// Hold is the lane that the step belongs to, and Held are those that it gave.
	Hold store.Hold
	Held []store.Held
	// Verdict of a gate or a claim.
	Verdict store.State
	// To is the state that the step was to bring about.
	To store.State
	// Lease that was asked for.
	Lease time.Duration
	// Err is the store's own answer, which the worker may never have got.
	Err error
}

// Director says what happens at each step. Its methods are called by the
// goroutines that make the steps.
type Director interface {
	// Sent is told of a step of the wire before it is on its way; Arrive follows, in
	// another goroutine.
	Sent(at Point)
	// Arrive holds a step until its turn, and says what happens there: one of
	// the kinds of the step, None, or Gone.
	Arrive(ctx context.Context, at Point) Kind
	// Depart is told what became of a step that was done.
	Depart(note Note)
}

// The errors that stand for what a driver would say.
var (
	// ErrDown is the cause of what a fault makes of a store's answer.
	ErrDown = errors.New("fault: the connection is down")
	// ErrRefused is how an outside call ends that was never sent.
	ErrRefused = errors.New("fault: connection refused")
	// ErrReset is how an outside call ends whose answer was lost.
	ErrReset = errors.New("fault: connection reset by peer")
	// ErrHandler is the error of the caller's own code.
	ErrHandler = errors.New("fault: the handler failed")
	// ErrPanic is what the caller's own code panics with.
	ErrPanic = errors.New("fault: the handler panicked")
)

// says wraps a store's error around the cause.
func says(err error) error { return fmt.Errorf("%w: %w", err, ErrDown) }
