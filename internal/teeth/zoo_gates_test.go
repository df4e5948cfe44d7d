package teeth

import "strings"

// The layers of tests.
const (
	unit        = "unit tests"         // of the package itself
	conformance = "conformance suite"  // storetest, queuetest, leasetest
	server      = "tests on a server"  // of the store or the lease, with schedules made by hand
	driver      = "fault driver"       // every step with every fault
	power       = "power cuts"         // a disk that loses what was not synced
	vectors     = "published vectors"  // of signatures
	exchanges   = "HTTP cases"         // of the middleware and the proxy
	receiving   = "tests of the inbox" // from a delivery to its handler
)

// Where bugs are, and are looked for.
const (
	migration2 = "store/postgres/migrations/0002_transaction.sql"
	migration3 = "store/postgres/migrations/0003_lease.sql"
	migration5 = "store/postgres/migrations/0005_queue.sql"
	pg         = "store/postgres"
	pgRing     = "^TestStoreHoldsWhatEveryStorePromises$/^ring$"
	pgRows     = "^TestStoreHoldsWhatEveryStorePromises$/^rows$"
	lite       = "store/sqlite"
	stores     = "^TestStoreHoldsWhatEveryStorePromises$"
	queues     = "^TestQueueHoldsWhatEveryQueuePromises$"
)

// those are the subtests of a test whose names have one of the words.
func those(test string, words ...string) string {
	for i, word := range words {
		words[i] = test + "/" + word
	}
	return strings.Join(words, "|")
}

// one is the change of one text.
func one(file, old, text string) []Change { return []Change{{file, old, text}} }

// zooOfGates are bugs of transaction mode.
func zooOfGates() []bug {
	return []bug{
		{
			name:    "the gate takes no lock (PostgreSQL)",
			changes: one("store/postgres/read.go", `	lock := "pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8)"`, `	lock := "$1::pg_catalog.int8 IS NOT NULL"`),
			hunts:   []hunt{{conformance, pg, those(pgRing, "racing", "race_to")}},
		},
		{
			name: "the gate takes no lock (SQLite)",
			changes: one("store/sqlite/gate.go", `	g.mu.Lock()
	if g.held[l.offset] != nil {
		g.mu.Unlock()
		return nil, nil
	}
	g.held[l.offset] = l
	g.mu.Unlock()
	granted, err := lockByte(g.file, l.offset)`, `	g.mu.Lock()
	g.held[l.offset] = l
	g.mu.Unlock()
	granted, err := true, error(nil)`),
			hunts: []hunt{{conformance, lite, those(stores+"/^modernc$", "racing", "race_to")}},
		},
		{
			name: "lock and read have one snapshot",
			changes: one(migration2, `CREATE FUNCTION unavez.gate(operation_key uuid, operation_lock bigint, waits boolean, limit_ms bigint)
RETURNS unavez.found LANGUAGE plpgsql VOLATILE`, `CREATE FUNCTION unavez.gate(operation_key uuid, operation_lock bigint, waits boolean, limit_ms bigint)
RETURNS unavez.found LANGUAGE plpgsql STABLE`),
			hunts: []hunt{{server, pg, "^TestGateThatWaitedSeesWhatTheHolderCommitted$"}},
		},
		{
			name: "a ring is read above READ COMMITTED",
			changes: one(migration2, "IF l.slot >= 0 AND operation_lock IS NOT NULL AND current_setting('transaction_isolation') NOT LIKE 'read %' THEN",
				"IF false THEN"),
			hunts: []hunt{{server, pg, "^TestIsolationAboveReadCommitted$"}},
		},
		{
			name:    "an outcome goes into the slot that the gate remembers",
			changes: one("store/postgres/finish.go", `WHERE CASE WHEN l.slot OPERATOR(pg_catalog.=) %[1]d"+`, `WHERE CASE WHEN %[1]d OPERATOR(pg_catalog.=) %[1]d"+`),
			hunts:   []hunt{{server, pg, "^TestTransactionOverTheTurnOfASlot$|^TestRingTurns"}},
		},
		{
			name: "a handler's COMMIT is not noticed",
			changes: one("store/postgres/finish.go",
				`" AND ($2::pg_catalog.timestamptz IS NULL OR pg_catalog.transaction_timestamp() OPERATOR(pg_catalog.=) $2::pg_catalog.timestamptz)"+`,
				`" AND ($2::pg_catalog.timestamptz IS NULL OR $2::pg_catalog.timestamptz IS NOT NULL)"+`),
			hunts: []hunt{{server, pg, "^TestCommitUnderneathIsFoundOut$|" + those(pgRing, "ended_by_its_handler")}},
		},
		{
			name:    "a silent client keeps its key",
			changes: one("store/postgres/read.go", `limits := []string{"idle_in_transaction_session_timeout", "statement_timeout"`, `limits := []string{"statement_timeout"`),
			hunts:   []hunt{{server, pg, "^TestKeyOfASilentClientIsFreeWithinItsLimit$"}},
		},
		{
			name: "a silent finish keeps its key",
			changes: one(migration2, `set_config('idle_in_transaction_session_timeout', ms, true)
            || `, ``),
			hunts: []hunt{{server, pg, "^TestKeyOfASilentFinishIsFreeWithinItsLimit$"}},
		},
		{
			name: "a durability that a handler has lowered stays low",
			changes: []Change{
				{"store/postgres/finish.go", `current_setting('synchronous_commit') OPERATOR(pg_catalog.=) $3::pg_catalog.text)"+`, `current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) '')"+`},
			},
			hunts: []hunt{{server, pg, "^TestLoweredDurabilityIsRestoredForTheCommit$"}},
		},
		{
			name: "a commit whose answer is lost counts as rolled back",
			changes: one("transaction.go", "verdict, settleErr := e.settle(record, c)",
				"verdict, settleErr := store.Verdict{State: store.Free}, record.Err()"),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestTransactionModeUnderEveryFault$"},
			},
		},
		{
			name:    "what settles a commit does not wait for it",
			changes: one("transaction.go", "if err == nil && (verdict.State != store.Processing || verdict.Attempt != nil) {", "if err == nil {"),
			hunts:   []hunt{{driver, "internal/fault", "^TestTransactionModeUnderEveryFault$"}},
		},
		{
			name: "payloads are not compared",
			changes: one("engine.go", `		return stored.Equal(c.gate.Fingerprint)
	}`, `		return true
	}`),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestTransactionModeUnderEveryFault$"},
				{exchanges, "httpkey", "."},
			},
		},
		{
			name: "an outcome is cached before its caller commits",
			changes: one("transaction.go", `	finished = true
	return out, nil`, `	finished = true
	e.cache.put(c.gate.Key, out, time.Now(), e.cache.current())
	return out, nil`),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestJoinUnderEveryFault$"},
			},
		},
		{
			name:    "a result is kept from when it was heard of",
			changes: one("cache.go", "until := at.Add(outcome.Left)", "until := time.Now().Add(outcome.Left + at.Sub(at))"),
			hunts:   []hunt{{unit, ".", "."}},
		},
		{
			name:    "the cache outlives the database's history",
			changes: one("cache.go", "	if era != c.era {\n		return\n	}\n", ""),
			hunts:   []hunt{{unit, ".", "."}},
		},
		{
			name:    "a damaged result is served",
			changes: one("store/sqlite/find.go", "if err != nil || !bytes.Equal(outcome.Checksum(key), sum) {", "if err != nil || !bytes.Equal(sum, sum) {"),
			hunts:   []hunt{{conformance, lite, those(stores+"/^modernc$", "damaged")}},
		},
		{
			name:    "a handler that wrote is frozen as one that did not",
			changes: one(migration2, "IF unwritten AND pg_current_xact_id_if_assigned() IS NOT NULL THEN", "IF false THEN"),
			hunts:   []hunt{{conformance, pg, pgRing + "/wr[io]t"}},
		},
	}
}
