package postgres_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/postgres"
	"github.com/unavez/unavez/store/storetest"
)

// caller is a program that knows nothing of this package but the functions of
// the schema: it begins and finishes operations by begin_operation and
// finish_operation. Everything else is the store's.
type caller struct {
	*postgres.Store
	w *worker
}

// called is an operation between the two functions.
type called struct {
	tx       pgx.Tx
	gate     store.Gate
	token    []byte
	number   int64
	deadline time.Time
	done     bool
}

const beginText = "SELECT answer, token, (stored).* FROM unavez.begin_operation($1, $2, $3, $4, $5, $6)"

// call begins the operation in a transaction.
func call(ctx context.Context, tx pgx.Tx, gate store.Gate) (*called, store.Verdict, error) {
	var answer string
	c := &called{tx: tx, gate: gate, number: 1}
	if gate.Limit > 0 {
		c.deadline = time.Now().Add(gate.Limit)
	}
	sum := gate.Fingerprint.Sum
	if sum == nil {
		sum = []byte{}
	}
	columns, verdict := postgres.FoundColumns(gate.Key)
	id := gate.Identity
	err := tx.QueryRow(ctx, beginText, id.Tenant, id.Effect, id.Parts, sum, gate.Fingerprint.Version, gate.From).Scan(append([]any{&answer, &c.token}, columns...)...)
	if err != nil {
		return nil, store.Verdict{}, postgres.Classify(err)
	}
	v, err := verdict()
	if (answer == "damaged") != (err != nil) {
		panic("the function and the package do not agree on damage")
	}
	if err != nil || answer != "go on" {
		return nil, v, err
	}
	if v.State != store.Free {
		c.number = gate.From + 1
	}
	return c, v, nil
}

// finish ends the operation in its transaction.
func (c *called) finish(ctx context.Context, end store.End) (*store.Outcome, error) {
	o := &store.Outcome{State: end.State, Result: end.Result, Fingerprint: c.gate.Fingerprint, Attempt: c.number, Left: c.gate.Retention}
	header, body := store.AppendHeader([]byte{}, end.Result.Header), end.Result.Body
	if body == nil {
		body = []byte{}
	}
	err := c.tx.QueryRow(ctx, "SELECT unavez.finish_operation($1, $2, $3, $4, $5, $6, $7, $8, $9)", c.token, end.Result.Code, body, header,
		c.gate.Retention, c.gate.Tombstone, end.State == store.Discarded, end.Unwritten, !end.Result.NotReplayable).Scan(&o.At)
	if err != nil {
		return nil, postgres.Classify(err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// Begin opens a transaction of the program's own.
func (c *caller) Begin(ctx context.Context, gate store.Gate) (store.Txn[pgx.Tx], store.Verdict, error) {
	tx, err := c.w.pool.Begin(ctx)
	if err != nil {
		return nil, store.Verdict{}, err
	}
	t, v, err := call(ctx, tx, gate)
	if t == nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // one that has ended needs none
		return nil, v, err
	}
	return t, v, nil
}

// Join begins in a transaction that is open.
func (c *caller) Join(ctx context.Context, tx pgx.Tx, gate store.Gate) (store.Joined, store.Verdict, error) {
	t, v, err := call(ctx, tx, gate)
	if t == nil {
		return nil, v, err
	}
	return joins{t}, v, nil
}

// joins is an operation in somebody's transaction.
type joins struct{ c *called }

// Finish does not commit.
func (j joins) Finish(ctx context.Context, end store.End) (*store.Outcome, error) {
	o, err := j.c.finish(ctx, end)
	if err == pgx.ErrTxClosed { //nolint:errorlint // as pgx returns it
		err = store.ErrForeignCommit
	}
	return o, err
}

// Leave has nothing to do.
func (j joins) Leave() {}

// Tx is the program's own.
func (c *called) Tx() pgx.Tx { return c.tx }

// Commit finishes and commits, in two trips.
func (c *called) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	if c.done {
		return nil, pgx.ErrTxClosed
	}
	defer c.Rollback(ctx) //nolint:errcheck // it has ended where there is no error
	if time.Now().After(c.deadline) {
		return nil, store.ErrLimit
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	o, err := c.finish(ctx, end)
	if err != nil {
		return nil, err
	}
	return o, c.tx.Commit(ctx)
}

// Rollback gives everything up.
func (c *called) Rollback(ctx context.Context) error {
	if !c.done {
		c.done = true
		_ = c.tx.Rollback(context.WithoutCancel(ctx)) // one that has ended needs none
	}
	return nil
}

func TestFunctionsHoldWhatEveryStorePromises(t *testing.T) {
	all := &beds{t: t}
	storetest.Run(t, func(t *testing.T) storetest.Harness[pgx.Tx] {
		d := all.fresh(t)
		w := d.worker(t, nil)
		h := harness(t, d, w, func(t *testing.T) *worker { return d.worker(t, nil) }) // the second is the package's own
		h.Ledger = &caller{w.Store, w}
		h.EndByHandler, h.LoseAnswer = nil, nil // the transaction is the program's own
		return h
	})
}

func vectors[T any](t *testing.T, name string) (all []T) {
	t.Helper()
	content, err := os.ReadFile("../testdata/" + name)
	must(t, "vectors", err)
	must(t, "vectors", json.Unmarshal(content, &all))
	if len(all) == 0 {
		t.Fatalf("%s: no vectors", name)
	}
	return all
}

func TestFunctionsAreTheProtocolToTheByte(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	pool := d.pool(t, "unavez_app", nil)
	row := func(text string, args []any, dest ...any) {
		t.Helper()
		must(t, text, pool.QueryRow(t.Context(), text, args...).Scan(dest...))
	}
	for _, v := range vectors[struct {
		Tenant, Effect, Text, Sum, Key, Hash64 string
		Parts                                  []string
		Derived                                map[string]string
	}](t, "identity.json") {
		if strings.Contains(v.Tenant+v.Effect+strings.Join(v.Parts, ""), "\x00") {
			continue // no text of this server's
		}
		var text, sum, key, lock string
		row(`SELECT unavez.text_of($1, $2, $3), encode(unavez.identity_of($1, $2, $3), 'hex'), replace(unavez.key_of($1, $2, $3)::text, '-', ''), unavez.lock_of(unavez.key_of($1, $2, $3))::text`,
			[]any{v.Tenant, v.Effect, v.Parts}, &text, &sum, &key, &lock)
		if text != v.Text || sum != v.Sum || key != v.Key || lock != v.Hash64 {
			t.Errorf("%.100s: %.100s, %s, %s, %s", v.Text, text, sum, key, lock)
		}
		for step, want := range v.Derived {
			var got string
			row("SELECT unavez.derived_key($1, $2, $3, $4)", []any{v.Tenant, v.Effect, v.Parts, step}, &got)
			if got != want {
				t.Errorf("%.100s, step %q: %s", v.Text, step, got)
			}
		}
	}
	bytesOf := func(s string) []byte {
		b, err := hex.DecodeString(s)
		must(t, s, err)
		return b
	}
	for i, v := range vectors[struct {
		Key, Fingerprint, Body, Checksum string
		Header                           string `json:"stored_header"`
		State, Code                      int
		Version                          int  `json:"fingerprint_version"`
		Unreplayable                     bool `json:"not_replayable"`
	}](t, "outcome.json") {
		var got string
		row("SELECT encode(unavez.checksum($1::text::uuid, $2::int::smallint, $3, $4, $5, $6, $7, $8), 'hex')", []any{
			v.Key, v.State, v.Version, bytesOf(v.Fingerprint), v.Code, v.Unreplayable, bytesOf(v.Header), bytesOf(v.Body),
		}, &got)
		if got != v.Checksum {
			t.Errorf("outcome %d: checksum %s, want %s", i, got, v.Checksum)
		}
	}
}

func TestFunctionsTellADuplicateWhatItIs(t *testing.T) {
	t.Parallel()
	d := fresh(t, nil)
	w := d.worker(t, nil)
	ctx := t.Context()
	gate := gateOf("told")
	answer := func(parts []string, sum string) (got string) {
		t.Helper()
		must(t, "begin_operation", w.pool.QueryRow(ctx, "SELECT answer FROM unavez.begin_operation('tenant', 'order.create.v1', $1, $2, 1)", parts, []byte(sum)).Scan(&got))
		return got
	}
	same := string(gate.Fingerprint.Sum)
	open := w.begin(t, gate)
	if got := answer(gate.Identity.Parts, same); got != "in flight" {
		t.Errorf("while it runs: %s", got)
	}
	_, err := open.Commit(ctx, completed("told"))
	must(t, "Commit", err)
	for sum, want := range map[string]string{same: "completed", "another": "other payload"} {
		if got := answer(gate.Identity.Parts, sum); got != want {
			t.Errorf("after it: %s, want %s", got, want)
		}
	}
	d.advance(t, gate.Retention)
	if got := answer(gate.Identity.Parts, same); got != "expired" {
		t.Errorf("when it is over: %s", got)
	}
	if got := answer([]string{"new"}, ""); got != "go on" {
		t.Errorf("a new one: %s", got)
	}
	for _, bad := range [][]string{nil, {}, {""}, {strings.Repeat("x", 1025)}} {
		if _, err := w.pool.Exec(ctx, "SELECT unavez.begin_operation('tenant', 'effect', $1)", bad); err == nil {
			t.Errorf("parts of %d: no error", len(bad))
		}
	}
}
