package teeth

// zooOfStorage are bugs of what is kept, and of what is purged.
func zooOfStorage() []bug {
	return []bug{
		{
			name:    "emptying a slot queues behind its readers",
			changes: one("store/postgres/upkeep.go", `"LOCK TABLE "+sl.table()+" IN "+mode+" MODE NOWAIT"`, `"LOCK TABLE "+sl.table()+" IN "+mode+" MODE"`),
			hunts:   []hunt{{server, pg, "^TestEmptyingNeverQueues$"}},
		},
		{
			name: "a slot is emptied without a look under the lock",
			changes: one("store/postgres/upkeep.go", `"SELECT NOT EXISTS (SELECT FROM "+sl.table()+" WHERE "+last+" > "+until+")"`,
				`"SELECT true OR EXISTS (SELECT FROM "+sl.table()+" WHERE "+last+" > "+until+")"`),
			hunts: []hunt{{server, pg, "^TestLateInsertIsNotLostWithItsSlot$|^TestRingTurns|^TestRetiredSlot"}},
		},
		{
			name: "a slot of the queue is emptied with what came late",
			changes: one("store/postgres/queue_upkeep.go", `	if !whole {
		_, err`, `	if !whole && q.number < 0 {
		_, err`),
			hunts: []hunt{{server, pg, "^TestSlotIsEmptiedOnlyWhenNothingCameInSinceItWasClosed$|^TestAppendUnderWay"}},
		},
		{
			name:    "the identity is forgotten with the result",
			changes: one("store/sqlite/upkeep.go", "		if o.remembered {", "		if o.remembered && o.id < 0 {"),
			hunts:   []hunt{{conformance, lite, those(stores+"/^modernc$", "remembered", "forgotten", "purge")}},
		},
		{
			name: "a purge does not look whether a result is over",
			changes: []Change{
				{File: "store/postgres/upkeep.go", Old: `" WHERE expires <= pg_catalog.clock_timestamp() ORDER BY expires, key LIMIT $1),"`, New: `" WHERE expires > '-infinity' ORDER BY expires, key LIMIT $1),"`},
				{File: "store/postgres/upkeep.go", Old: ` o USING over WHERE o.key = over.key AND o.expires <= pg_catalog.clock_timestamp()"`, New: ` o USING over WHERE o.key = over.key"`},
			},
			hunts: []hunt{{conformance, pg, those(pgRows, "purge", "remembered")}},
		},
		{
			name:    "what was acknowledged is not synced (SQLite)",
			changes: one("store/sqlite/connector.go", `pragmas = append(pragmas, "PRAGMA synchronous = FULL")`, `pragmas = append(pragmas, "PRAGMA synchronous = NORMAL")`),
			hunts:   []hunt{{power, lite, "^TestPowerCutLosesNothingThatWasSaid$"}},
		},
		{
			name:    "a change of history is not noticed",
			changes: one("store/postgres/read.go", `" THEN l.incarnation ELSE -1 END"`, `" THEN l.incarnation ELSE l.incarnation END"`),
			hunts:   []hunt{{server, pg, "^TestFailover"}},
		},
	}
}
