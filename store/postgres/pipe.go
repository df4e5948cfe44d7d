package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/unavez/unavez/store"
)

// statement is one of this package's own, which goes to the server without the
// driver's conversions.
type statement struct {
	name, text string // name is that of the prepared statement
	rows       bool   // whether it answers with a row
}

// statementPrefix begins the names of our prepared statements.
const statementPrefix = "unavez_"

func newStatement(text string, rows bool) *statement {
	sum := sha256.Sum256([]byte(text))
	return &statement{name: statementPrefix + hex.EncodeToString(sum[:10]), text: text, rows: rows}
}

// session is what this package knows of one connection.
type session struct {
	greeted    bool // its history has been compared
	prepares   bool // named statements may be kept on it
	transacts  bool // transaction_timeout is known, since PostgreSQL 17
	replicated bool // a commit waits for standbys, as the last statement saw it
	prepared   map[string]*pgconn.StatementDescription
}

// sessionKey is where a connection keeps its session.
const sessionKey = "github.com/unavez/unavez/store/postgres"

func sessionOf(conn *pgx.Conn) *session {
	data := conn.PgConn().CustomData()
	if known, ok := data[sessionKey].(*session); ok {
		return known
	}
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	number, _ := strconv.Atoi(major) // an unknown one counts as old
	fresh := &session{
		prepares:  conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement,
		transacts: number >= 17, prepared: map[string]*pgconn.StatementDescription{},
	}
	data[sessionKey] = fresh
	return fresh
}

// trip is what goes to the server together and is answered together. An error
// of one statement skips those behind it.
type trip struct {
	session *session
	pipe    *pgconn.Pipeline
	asked   []asked
}

// asked is a statement whose answer is still to be read.
type asked struct {
	statement *statement
	first     bool // it was prepared on the way
}

func newTrip(ctx context.Context, conn *pgx.Conn) *trip {
	return &trip{session: sessionOf(conn), pipe: conn.PgConn().StartPipeline(ctx), asked: make([]asked, 0, 5)}
}

// formats: every parameter and every column is binary.
func formats() []int16 { return []int16{1} }

// send adds a statement to the trip.
func (t *trip) send(s *statement, params [][]byte) {
	var paramFormats, resultFormats []int16
	if len(params) > 0 {
		paramFormats = formats()
	}
	if s.rows {
		resultFormats = formats()
	}
	next := asked{statement: s}
	switch described := t.session.prepared[s.name]; {
	case !t.session.prepares:
		t.pipe.SendQueryParams(s.text, params, nil, paramFormats, resultFormats)
	case described != nil:
		t.pipe.SendQueryStatement(described, params, paramFormats, resultFormats)
	default:
		next.first = true
		t.pipe.SendPrepare(s.name, s.text, nil)
		t.pipe.SendQueryPrepared(s.name, params, paramFormats, resultFormats)
	}
	t.asked = append(t.asked, next)
}

// read takes the answer of the next statement. Its row, if there is one, is
// given to fn, which must not keep it.
func (t *trip) read(fn func(row row) error) error {
	next := t.asked[0]
	t.asked = t.asked[1:]
	if next.first {
		described, err := answer[*pgconn.StatementDescription](t.pipe)
		if err != nil {
			return err
		}
		described.Name = next.statement.name
		t.session.prepared[next.statement.name] = described
	}
	result, err := answer[*pgconn.ResultReader](t.pipe)
	if err != nil {
		return err
	}
	for result.NextRow() {
		if fn != nil {
			if err := fn(row{values: result.Values()}); err != nil {
				return err
			}
		}
	}
	_, err = result.Close()
	return err
}

// answer is the next result of a pipeline, which must be of this kind.
func answer[T any](pipe *pgconn.Pipeline) (kind T, err error) {
	result, err := pipe.GetResults()
	if err != nil {
		return kind, err
	}
	kind, ok := result.(T)
	if !ok {
		return kind, fmt.Errorf("postgres store: answer of type %T", result)
	}
	return kind, nil
}

// end reads what is left and gives the connection back. The error is the first
// of the trip.
func (t *trip) end(first error) error {
	err := errors.Join(t.pipe.Close()) // an error that was read before comes again here, or none
	if first != nil {
		err = first
	}
	t.forget(err)
	return err
}

// forget drops what was prepared where the server does not have it any more, as
// after DEALLOCATE ALL or behind a pooler, or has it for another schema.
func (t *trip) forget(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == stateNoStatement || pg.Code == stateOtherResult) {
		clear(t.session.prepared)
	}
}

// forgotten reports whether a trip failed for nothing but a prepared statement
// that is gone.
func forgotten(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == stateNoStatement || pg.Code == stateOtherResult)
}

// row is one row of binary columns. What does not fit is an error in the end.
type row struct{ values [][]byte }

// column is the bytes of the next column, nil for null.
func (r *row) column() []byte {
	if len(r.values) == 0 {
		return nil
	}
	next := r.values[0]
	r.values = r.values[1:]
	return next
}

func (r *row) bool() bool { c := r.column(); return len(c) == 1 && c[0] == 1 }

func (r *row) int32() int32 {
	if c := r.column(); len(c) == 4 {
		return int32(binary.BigEndian.Uint32(c))
	}
	return 0
}

func (r *row) int64() int64 {
	if c := r.column(); len(c) == 8 {
		return int64(binary.BigEndian.Uint64(c))
	}
	return 0
}

// text is nil for null.
func (r *row) text() *string {
	c := r.column()
	if c == nil {
		return nil
	}
	s := string(c)
	return &s
}

// epoch is the server's zero of time.
func epoch() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func (r *row) time() time.Time {
	return epoch().Add(time.Duration(r.int64()) * time.Microsecond)
}

// The parameters, in the binary forms of their types.

func bytesOfInt64(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
func bytesOfInt32(v int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }
func bytesOfKey(key store.Key) []byte {
	return key[:]
}

// bytesOfTime is null for the zero time.
func bytesOfTime(at time.Time) []byte {
	if at.IsZero() {
		return nil
	}
	return bytesOfInt64(at.Sub(epoch()).Microseconds())
}

// bytesOfText is null for nil.
func bytesOfText(s *string) []byte {
	if s == nil {
		return nil
	}
	return blob([]byte(*s))
}

// encoded are arguments of the kinds that outcome makes.
func encoded(args []any) [][]byte {
	params := make([][]byte, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case nil:
		case pgtype.UUID:
			params[i] = v.Bytes[:]
		case time.Time:
			params[i] = bytesOfTime(v)
		case bool:
			params[i] = []byte{0}
			if v {
				params[i][0] = 1
			}
		case int16:
			params[i] = binary.BigEndian.AppendUint16(nil, uint16(v))
		case int32:
			params[i] = bytesOfInt32(v)
		case int64:
			params[i] = bytesOfInt64(v)
		case string:
			params[i] = bytesOfText(&v)
		case *string:
			params[i] = bytesOfText(v)
		case []byte:
			params[i] = v
		default:
			panic(fmt.Sprintf("postgres store: argument of type %T", arg))
		}
	}
	return params
}
