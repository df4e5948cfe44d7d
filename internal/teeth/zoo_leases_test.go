package teeth

// zooOfLeases are bugs of lease mode.
func zooOfLeases() []bug {
	const fence = `        DELETE FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fence % is not the last', old_fence USING ERRCODE = 'UV004';
        END IF;
        DELETE FROM unavez.step`
	return []bug{
		{
			name: "a finish has no fence (PostgreSQL)",
			changes: one(migration2, fence, `        DELETE FROM unavez.attempt x WHERE x.key = operation_key;
        DELETE FROM unavez.step`),
			hunts: []hunt{{server, pg, "^TestLeaseIsGuardedByLockAndFence$"}},
		},
		{
			name: "a finish has no fence (SQLite)",
			changes: []Change{
				{"store/sqlite/find.go", `n, err := r.exec("DELETE FROM unavez_attempt WHERE key = ?1 AND fence = ?2", key[:], e.fence)`, `n, err := r.exec("DELETE FROM unavez_attempt WHERE key = ?1 AND ?2 <> 0", key[:], e.fence)`},
				{"store/sqlite/attempts.go", "case fence != 0 && (!f.attempt || f.fence != fence):", "case fence != 0 && !f.attempt:"},
			},
			hunts: []hunt{{conformance, lite, those(stores+"/^modernc$", "taken_over", "takeover", "fence")}, {driver, "internal/fault", "^TestSQLiteUnderEveryFault$"}},
		},
		{
			name: "the fence is looked at by a SELECT",
			changes: one(migration2, fence, `        PERFORM FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fence % is not the last', old_fence USING ERRCODE = 'UV004';
        END IF;
        DELETE FROM unavez.attempt x WHERE x.key = operation_key;
        DELETE FROM unavez.step`),
			hunts: []hunt{{server, pg, "^TestFenceWaitsForATakeoverThatHasNotCommitted$"}},
		},
		{
			name: "a fence that is not found stops nothing",
			changes: one(migration2, fence, `        DELETE FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence;
        DELETE FROM unavez.step`),
			hunts: []hunt{{server, pg, "^TestLeaseIsGuardedByLockAndFence$"}},
		},
		{
			name: "a claim takes no lock (PostgreSQL)",
			changes: one(migration3, `    f := unavez.gate(operation_key, operation_lock, false, NULL);
    IF f.incarnation < 0 THEN
        PERFORM unavez.new_incarnation(false);
    END IF;
    IF f.lapsed`, `    f := unavez.gate(operation_key, NULL, false, NULL);
    IF f.incarnation < 0 THEN
        PERFORM unavez.new_incarnation(false);
    END IF;
    IF f.lapsed`),
			hunts: []hunt{{server, pg, "^TestLeaseIsGuardedByLockAndFence$"}},
		},
		{
			name:    "a takeover keeps the fence",
			changes: one("store/sqlite/attempts.go", "SET fence = fence + 1, state = 1", "SET fence = fence, state = 1"),
			hunts:   []hunt{{conformance, lite, those(stores+"/^modernc$", "taken_over", "takeover", "fence")}, {driver, "internal/fault", "^TestSQLiteUnderEveryFault$"}},
		},
		{
			name: "an expired attempt is taken for a free operation",
			changes: one(migration2, "f.state := 4; f.reason := 'lease expired'; f.lapsed := true;",
				"f.state := 0; f.stale := true; f.operation := NULL;"),
			hunts: []hunt{{conformance, pg, those(pgRing, "expire", "expiry")}},
		},
		{
			name:    "a lease that has run out is renewed",
			changes: one("store/sqlite/attempts.go", `WHERE key = ?1 AND fence = ?2 AND state = 1 AND expires > " + now`, `WHERE key = ?1 AND fence = ?2 AND state = 1"`),
			hunts:   []hunt{{conformance, lite, those(stores+"/^modernc$", "renew", "expire", "taken_over")}},
		},
		{
			name:    "an unknown outcome is tried again, whatever the policy",
			changes: one("leased.go", "return policy == Retry || policy == Steps, nil", "return true, nil"),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestLeaseModeUnderEveryFault$"},
			},
		},
		{
			name: "each attempt has a derived key of its own",
			changes: one("leased.go", `DerivedKey: c.gate.Identity.DerivedKey(""), Origin`,
				`DerivedKey: c.gate.Identity.DerivedKey(rand.Text()), Origin`),
			hunts: []hunt{{unit, ".", "."}},
		},
		{
			name: "the lease is counted from the answer, not from the question",
			changes: one("leased.go", `	if row != nil {
		a, err := e.newAttempt(ctx, c, row, at)`, `	if row != nil {
		at = time.Now()
		a, err := e.newAttempt(ctx, c, row, at)`),
			hunts: []hunt{{unit, ".", "^TestLeaseIsCountedFromTheQuestion$"}},
		},
		{
			name: "a failed call is taken for one that was not made",
			changes: one("leased.go", `err = e.attempts.Rest(record, c.gate.Key, a.claimed(), store.Rest{State: store.Unknown, Reason: reason})`,
				`err = e.attempts.Rest(record, c.gate.Key, a.claimed(), store.Rest{State: store.Free, Reason: reason})`),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestLeaseModeUnderEveryFault$"},
			},
		},
		{
			name: "the mark of a commit is trusted",
			changes: one("leased.go", `	case other.Completed:
		limited`, `	case other.Completed:
		if c.samePayload(Fingerprint{Version: other.Version, Sum: other.Fingerprint}) {
			return none, &Outcome{State: store.Completed, Replayed: true}, nil
		}
		limited`),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestFastLeaseUnderEveryFault$"},
			},
		},
		{
			name: "Redis says no, for ever",
			changes: one("leased.go", `	case e.refused.believe(c.gate.Key, other.Token, c.op.Lease):`,
				`	case e.refused.believe(c.gate.Key, other.Token, c.op.Lease) || !held:`),
			hunts: []hunt{
				{unit, ".", "."},
				{driver, "internal/fault", "^TestFastLeaseUnderEveryFault$"},
			},
		},
		{
			name: "a lease is deleted without asking whose it is",
			changes: one("lease/redis/scripts.go", `	releaseScript = `+"`"+`
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.sub(value, 1, #ARGV[1]) == ARGV[1] then`, `	releaseScript = `+"`"+`
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.len(value) > 0 then`),
			hunts: []hunt{{conformance, "lease/redis", "^TestLeaserKeepsEveryPromise$"}},
		},
	}
}
