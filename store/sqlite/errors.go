package sqlite

import (
	"context"
	"errors"
	"strings"

	"github.com/unavez/unavez/store"
)

// Result codes of SQLite that matter here: https://sqlite.org/rescode.html
const (
	codeBusy       = 5
	codeLocked     = 6
	codeNoMem      = 7
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeProtocol   = 15
	codeConstraint = 19
	codeNotADB     = 26
)

// codeOf is the primary result code of a driver's error, 0 when there is none.
// Drivers agree on no interface: where there is no code, the text that SQLite
// itself gives for it decides.
func codeOf(err error) int {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return 0
	}
	var known *fault
	if errors.As(err, &known) {
		return codeOf(known.cause)
	}
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	text := strings.TrimPrefix(err.Error(), "sqlite3: ")
	for _, known := range [...]struct {
		text string
		code int
	}{
		{"database is locked", codeBusy},
		{"database table is locked", codeLocked},
		{"out of memory", codeNoMem},
		{"attempt to write a readonly database", codeReadOnly},
		{"interrupted", codeInterrupt},
		{"disk I/O error", codeIOErr},
		{"database disk image is malformed", codeCorrupt},
		{"database or disk is full", codeFull},
		{"unable to open database file", codeCantOpen},
		{"locking protocol", codeProtocol},
		{"constraint failed", codeConstraint},
		{"file is not a database", codeNotADB},
	} {
		if strings.HasPrefix(text, known.text) {
			return known.code
		}
	}
	return 0
}

// fault is an error of the store: what it means for the engine, what to do
// about it, and the driver's own error.
type fault struct {
	kind  error
	text  string
	cause error
	quiet bool // the cause is not part of the text
}

func (f *fault) Error() string {
	s := "sqlite store: " + f.text + ": " + f.kind.Error()
	if f.cause != nil && !f.quiet {
		s += ": " + f.cause.Error()
	}
	return s
}

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

func unavailable(text string, cause error) error {
	return &fault{kind: store.ErrUnavailable, text: text, cause: cause}
}

// groupLost is for the units of a group that was rolled back through one of them.
func groupLost(why string, cause error) error {
	return &fault{kind: store.ErrLost, text: "group was rolled back: " + why, cause: cause}
}

// busy is what a caller gets instead of "database is locked".
func busy(cause error) error {
	return &fault{kind: store.ErrUnavailable, text: "another worker holds the file's writer (is one stopped inside its transaction?)", cause: cause, quiet: true}
}

// classify turns a driver's error that means the database cannot work into one
// of the store; every other error, such as a violated constraint, is returned
// as it is.
func classify(err error) error {
	var known *fault
	if err == nil || errors.As(err, &known) {
		return err
	}
	switch codeOf(err) {
	case codeBusy, codeLocked, codeProtocol:
		return busy(err)
	case codeFull:
		return unavailable("disk is full: free space on it, or raise max_page_count", err)
	case codeReadOnly:
		return unavailable("file is read-only: let this user write the file and its folder", err)
	case codeIOErr:
		return unavailable("disk failed: look at the system's log and at free space", err)
	case codeCantOpen:
		return unavailable("file cannot be opened: look at its path and at the rights on it and its folder", err)
	case codeCorrupt, codeNotADB:
		return unavailable("file is corrupt or not a database: stop, keep a copy, restore from a backup", err)
	case codeNoMem:
		return unavailable("out of memory", err)
	}
	return err
}

// dooms reports whether SQLite advises to roll back after an error like this,
// whether or not it did so itself.
func dooms(err error) bool {
	switch codeOf(err) {
	case codeBusy, codeLocked, codeNoMem, codeInterrupt, codeIOErr, codeCorrupt, codeFull, codeCantOpen, codeProtocol, codeNotADB:
		return true
	}
	return false
}
