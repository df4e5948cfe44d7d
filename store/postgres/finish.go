package postgres

import (
	"fmt"

	"github.com/unavez/unavez/store"
)

// finishText inserts the outcome; see unavez.finish.
const finishText = "SELECT unavez.finish($1::pg_catalog.uuid, $2::pg_catalog.timestamptz, $3::pg_catalog.bool, $4::pg_catalog.int8, $5::pg_catalog.bool," +
	" $6::pg_catalog.text, $7::pg_catalog.int8, $8::pg_catalog.int8, $9::pg_catalog.int8, $10::pg_catalog.text, $11::pg_catalog.int2, $12::pg_catalog.int8," +
	" $13::pg_catalog.int8, $14::pg_catalog.bool, $15::pg_catalog.int4, $16::pg_catalog.bytea, $17::pg_catalog.bytea, $18::pg_catalog.bytea, $19::pg_catalog.bytea)"

// insertText is finish as a plain INSERT into the slot that was current at the
// gate, for a first attempt that completed. Its conditions are the checks of
// unavez.finish, and the slot's still being current. Where one does not hold the
// function is called, which raises or writes elsewhere, and no row comes back.
// The statement's snapshot is taken after its lock on the slot; see there.
func insertText(slot int32) string {
	const at = "pg_catalog.statement_timestamp()"
	return fmt.Sprintf("INSERT INTO unavez.outcome_%[1]d (key, ended, expires, forgets, code, attempt, version, state, unreplayable, operation, fingerprint, checksum, header, body)"+
		" SELECT $1::pg_catalog.uuid, "+at+", "+at+" OPERATOR(pg_catalog.+) ($5::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond'),"+
		" "+at+" OPERATOR(pg_catalog.+) (($5::pg_catalog.int8 OPERATOR(pg_catalog.+) $6::pg_catalog.int8) OPERATOR(pg_catalog.*) interval '1 microsecond'),"+
		" $8::pg_catalog.int8, 1, $9::pg_catalog.int4, %[2]d, false, $7::pg_catalog.text, $10::pg_catalog.bytea, $11::pg_catalog.bytea, $12::pg_catalog.bytea, $13::pg_catalog.bytea"+
		" FROM unavez.ledger l WHERE CASE WHEN l.slot OPERATOR(pg_catalog.=) %[1]d"+
		" AND ($2::pg_catalog.timestamptz IS NULL OR pg_catalog.transaction_timestamp() OPERATOR(pg_catalog.=) $2::pg_catalog.timestamptz)"+
		" AND ($3::pg_catalog.text IS NULL OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) $3::pg_catalog.text)"+
		" AND ($4::pg_catalog.int8 IS NULL OR "+at+" OPERATOR(pg_catalog.<=) (pg_catalog.transaction_timestamp() OPERATOR(pg_catalog.+) ($4::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond')))"+
		" THEN true ELSE unavez.finish($1::pg_catalog.uuid, $2::pg_catalog.timestamptz, false, 0::pg_catalog.int8, false, $3::pg_catalog.text, $4::pg_catalog.int8,"+
		" $5::pg_catalog.int8, $6::pg_catalog.int8, $7::pg_catalog.text, %[2]d::pg_catalog.int2, 1::pg_catalog.int8, $8::pg_catalog.int8, false, $9::pg_catalog.int4,"+
		" $10::pg_catalog.bytea, $11::pg_catalog.bytea, $12::pg_catalog.bytea, $13::pg_catalog.bytea) IS NULL END RETURNING ended", slot, store.Completed)
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
