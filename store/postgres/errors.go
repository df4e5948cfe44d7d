package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/unavez/unavez/store"
)

// SQLSTATEs that this package raises itself; see migrations/0002_transaction.sql.
const (
	stateDuplicate = "UV001"
	stateForeign   = "UV002"
	stateWrote     = "UV003"
	stateLeaseLost = "UV004"
	stateConflict  = "UV005"
	stateLimit     = "UV006"
	stateRing      = "UV007"
	stateInFlight  = "UV008" // this one and the next two only ahead of a handler's statement
	stateKnown     = "UV009"
	stateSlots     = "UV010"
	stateLane      = "UV011" // this one and those below of the queue; see migrations/0005_queue.sql
	stateFull      = "UV012"
	stateLanes     = "UV013"
	stateNoLane    = "UV014"
	stateNotFound  = "UV015"
)

// SQLSTATEs of PostgreSQL that matter here:
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	stateProtocol           = "08P01" // PgBouncer, of a parameter that it does not know
	stateOtherResult        = "0A000" // of a prepared statement, among others
	stateUniqueViolation    = "23505"
	stateReadOnly           = "25006"
	stateRecovery           = "55000" // pg_current_wal_insert_lsn on a standby
	stateAborted            = "25P02"
	stateIdleTimeout        = "25P03"
	stateTransactionTimeout = "25P04"
	stateNoStatement        = "26000"
	stateInvalidCatalog     = "3D000"
	stateInvalidSchema      = "3F000"
	stateSerialization      = "40001"
	stateDeadlock           = "40P01"
	statePrivilege          = "42501"
	stateSameStatement      = "42P05"
	stateNoFunction         = "42883"
	stateNoTable            = "42P01"
	stateNotAvailable       = "55P03"
	stateCancelled          = "57014"
)

// lockTimeout is what a fault says where a lock was not to be had in time.
const lockTimeout = "waited too long for a lock"

// fault is an error of the store: what it means for the engine, what to do
// about it, and the driver's own error.
type fault struct {
	kind  error // nil where no error of package store fits
	text  string
	cause error
}

func (f *fault) Error() string {
	s := "postgres store: " + f.text
	if f.kind != nil {
		s += ": " + f.kind.Error()
	}
	if f.cause != nil {
		s += ": " + f.cause.Error()
	}
	return s
}

func (f *fault) Unwrap() []error {
	var all []error
	for _, err := range []error{f.kind, f.cause} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// classify turns an error into what its caller should do about it. What is the
// application's own, such as a violated constraint of its table, is returned as
// it is. The connection's loss is ErrUnavailable here: where a commit was on its
// way, see lost.
func classify(err error) error {
	var known *fault
	if err == nil || errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return classifyState(pg, err)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case disconnected(err):
		return &fault{store.ErrUnavailable, "connection failed", err}
	}
	return err
}

// classifyState knows the SQLSTATEs.
func classifyState(pg *pgconn.PgError, err error) error {
	switch pg.Code {
	case stateDuplicate:
		return &fault{store.ErrDuplicate, pg.Message, err}
	case stateForeign:
		return &fault{store.ErrForeignCommit, pg.Message, err}
	case stateWrote:
		return &fault{store.ErrWrote, pg.Message, err}
	case stateLeaseLost:
		return &fault{store.ErrLeaseLost, pg.Message, err}
	case stateConflict:
		return &fault{store.ErrConflict, pg.Message, err}
	case stateLimit, stateIdleTimeout, stateTransactionTimeout:
		return &fault{store.ErrLimit, pg.Message, err}
	case stateLane:
		return &fault{store.ErrLaneLost, pg.Message, err}
	case stateFull:
		return &fault{store.ErrFull, pg.Message, err}
	case stateLanes:
		return &fault{store.ErrUnavailable, "the number of lanes was changed: start the worker again", err}
	case stateNoLane:
		return &fault{nil, "begin the transaction of a lane at READ COMMITTED", err}
	case stateNotFound:
		return &fault{store.ErrNotFound, pg.Message, err}
	case stateRing:
		return &fault{nil, "join at a higher isolation level: run postgres.Migrate with Settings.NoRing", err}
	case stateUniqueViolation:
		if pg.SchemaName == "unavez" { // else it is the application's own
			return &fault{store.ErrDuplicate, "inserted by another transaction", err}
		}
	case stateAborted:
		return &fault{store.ErrAborted, "a statement failed before", err}
	case stateSerialization, stateDeadlock:
		return &fault{store.ErrAborted, "given up in favour of another transaction", err}
	case stateNotAvailable:
		return &fault{store.ErrUnavailable, lockTimeout, err}
	case stateCancelled:
		if strings.Contains(pg.Message, "statement timeout") {
			return &fault{store.ErrLimit, "a statement was over the limit", err}
		}
		return &fault{store.ErrUnavailable, "statement was cancelled", err}
	case stateReadOnly, stateRecovery:
		return &fault{store.ErrUnavailable, "database is read-only: is this a standby?", err}
	case stateProtocol:
		if strings.Contains(pg.Message, "startup parameter") {
			return &fault{nil, "pooler refuses a parameter of the connection: take it out of the URL (limits are set in each transaction), or name it in PgBouncer's ignore_startup_parameters", err}
		}
	case stateNoStatement, stateSameStatement:
		if strings.Contains(pg.Message, "stmtcache_") || strings.Contains(pg.Message, statementPrefix) { // of pgx, of ours; else it is the application's own
			return &fault{store.ErrUnavailable, "a pooler or a DEALLOCATE loses prepared statements: connect with default_query_exec_mode=exec, or use PgBouncer 1.21 with max_prepared_statements", err}
		}
	case statePrivilege:
		return &fault{nil, "missing right: run unavez migrate as a member of unavez_migrate, and GRANT unavez_app TO the role that runs", err}
	case stateInvalidSchema, stateNoTable, stateNoFunction, stateInvalidCatalog:
		if strings.Contains(pg.Message, "unavez") || pg.Code == stateInvalidCatalog {
			return &fault{nil, "schema is missing or outdated: run unavez migrate", err}
		}
	}
	switch class := pg.Code[:min(2, len(pg.Code))]; class {
	case "08", "53", "57", "58", "XX":
		return &fault{store.ErrUnavailable, "database cannot work", err}
	}
	return err
}

// disconnected tells an error of the connection from one of a value.
func disconnected(err error) bool {
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "closed pool")
}

// fatal reports whether the server ended the connection with this error.
func fatal(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC")
}

// lost turns the error of a commit's trip into what is known of the commit. The
// server's own word, which leaves the connection alive, is that nothing was
// committed; so is a trip that never left. After anything else the commit may
// have happened.
func lost(err error) error {
	var pg *pgconn.PgError
	var known *fault
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, store.ErrNotFound):
		return err
	case errors.As(err, &pg) && (!fatal(err) || pg.Code == stateIdleTimeout): // it was idle, and never saw the trip
		return classify(err)
	case errors.Is(err, pgx.ErrTxClosed), pgconn.SafeToRetry(err):
		return classify(err)
	}
	return &fault{store.ErrCommitUnknown, "connection was lost at the commit", err}
}
