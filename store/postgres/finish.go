package postgres

import (
	"fmt"

	"github.com/unavez/unavez/store"
)

// finishText inserts the outcome.
const (
	finishText = "SELECT " + finishCall
	finishCall = "unavez.finish($1::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.bool, $4::pg_catalog.int8, $5::pg_catalog.bool," +
		" $6::pg_catalog.text, $7::pg_catalog.int8, $8::pg_catalog.int8, $9::pg_catalog.int8, $10::pg_catalog.text, $11::pg_catalog.int2, $12::pg_catalog.int8," +
		" $13::pg_catalog.int8, $14::pg_catalog.bool, $15::pg_catalog.int4, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea)"
)

// insertText is finish as a plain INSERT into the slot that was current at the
// gate. Its conditions are the checks of unavez.finish, and the slot's still
// being current: where one does not hold nothing is inserted, and the function
// is called, which raises or writes elsewhere. The statement's snapshot is taken
// after its lock on the slot; see there.
func insertText(slot int32) string {
	return fmt.Sprintf("WITH put AS (INSERT INTO unavez.outcome_%d (key, ended, expires, forgets, code, attempt, version, state, unreplayable, operation, fingerprint, checksum, header, body)"+
		" SELECT $1::pg_catalog.uuid, n.at, n.at OPERATOR(pg_catalog.+) ($8::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond'),"+
		" n.at OPERATOR(pg_catalog.+) (($8::pg_catalog.int8 OPERATOR(pg_catalog.+) $9::pg_catalog.int8) OPERATOR(pg_catalog.*) interval '1 microsecond'),"+
		" $13::pg_catalog.int8, $12::pg_catalog.int8, $15::pg_catalog.int4, $11::pg_catalog.int2, $14::pg_catalog.bool,"+
		" $10::pg_catalog.text, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea"+
		" FROM unavez.ledger l, (SELECT pg_catalog.clock_timestamp() AS at OFFSET 0) n WHERE l.slot OPERATOR(pg_catalog.=) %d AND l.ring OPERATOR(pg_catalog.>=) $8::pg_catalog.int8"+
		" AND pg_catalog.current_setting('unavez.tx', true) OPERATOR(pg_catalog.=) $2::pg_catalog.text"+
		" AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) $6::pg_catalog.text"+
		" AND ($7::pg_catalog.int8 IS NULL OR n.at OPERATOR(pg_catalog.<=) (pg_catalog.transaction_timestamp() OPERATOR(pg_catalog.+) ($7::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond')))"+
		" AND (NOT $3::pg_catalog.bool OR pg_catalog.pg_current_xact_id_if_assigned() IS NULL)"+
		" RETURNING ended) SELECT coalesce((SELECT ended FROM put), "+finishCall+")", slot, slot)
}

// outcome is what is going to be stored, and the arguments that say so.
func outcome(gate store.Gate, attempt int64, end store.End) (*store.Outcome, []any) {
	o := &store.Outcome{State: end.State, Result: end.Result, Fingerprint: gate.Fingerprint, Attempt: attempt, Left: gate.Retention}
	return o, []any{
		microseconds(gate.Retention), microseconds(gate.Tombstone), gate.Identity.Text(), int16(o.State), attempt,
		int64(o.Result.Code), o.Result.NotReplayable, int32(o.Fingerprint.Version), blob(o.Fingerprint.Sum), o.Checksum(gate.Key),
		blob(store.AppendHeader(nil, o.Result.Header)), blob(o.Result.Body),
	}
}

// blob is never null.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
