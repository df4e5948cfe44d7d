package teeth

// zooOfLanes are bugs of the queue, of lanes and of the inbox.
func zooOfLanes() []bug {
	return []bug{
		{
			name: "a delivery is acknowledged before it is stored",
			changes: one("inbox/flush.go", `	select {
	case <-a.done:
		return a.result, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: not stored in time: %w", store.ErrUnavailable, context.Cause(ctx))
	}`, `	said := make([]store.Appended, len(in.Entries))
	for i := range said {
		said[i] = store.New
	}
	return said, nil`),
			hunts: []hunt{
				{receiving, "inbox", "^TestAStoreThatIsDown|^TestAnArrival|^TestALostAnswer|^TestWhatWasAcknowledged"},
				{driver, "internal/fault", "^TestInboxUnderEveryFault$"},
			},
		},
		{
			name:    "a reader passes by what was open at its last look (a sequence as cursor)",
			changes: one(migration5, "    running xid8[] := ARRAY(SELECT pg_snapshot_xip(since));", "    running xid8[] := '{}';"),
			hunts:   []hunt{{conformance, pg, those(queues, "readings", "commits_late")}, {server, pg, "^TestReaders"}},
		},
		{
			name: "a reader orders by transactions (the usual horizon reader)",
			changes: []Change{{migration5, `        FROM h LEFT JOIN r ON true ORDER BY r.sequence;
END $$;

-- read_pages is`, `        FROM h LEFT JOIN r ON true ORDER BY r.xid, r.sequence;
END $$;

-- read_pages is`}},
			hunts: []hunt{{server, pg, "^TestReaders|" + those(queues, "readings")}},
		},
		{
			name: "entries are numbered by their hash",
			changes: one(migration5, `            WITH put AS (INSERT INTO unavez.queue_0
                    SELECT base + u.n - 1,`, `            WITH put AS (INSERT INTO unavez.queue_0
                    SELECT base + row_number() OVER (ORDER BY u.key) - 1,`),
			hunts: []hunt{{server, pg, "^TestArrivalsAreNumberedInTheirOrder$"}},
		},
		{
			name: "an append in a transaction draws its number before its lock",
			changes: one(migration5, `    FOREACH one IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(one);
    END LOOP;
    at := clock_timestamp();
    base := nextval('unavez.queue_sequence');`, `    at := clock_timestamp();
    base := nextval('unavez.queue_sequence');
    FOREACH one IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(one);
    END LOOP;`),
			hunts: []hunt{{server, pg, "^TestEnqueueThatWaitsForOneKeyComesBehindWhoCommitsInAnother$"}},
		},
		{
			name:    "a lane is taken over beside what still runs in it",
			changes: one(migration5, "            PERFORM pg_advisory_xact_lock(unavez.lane_lock(one));", "            PERFORM pg_advisory_xact_lock_shared(unavez.lane_lock(one));"),
			hunts:   []hunt{{server, pg, "^TestTakeoverWaitsForWhatRunsAndLetsNothingBegin$"}},
		},
		{
			name:    "a lane's holder does not look at its epoch (PostgreSQL)",
			changes: one(migration5, "WHERE l.number = lane_number AND l.epoch = lane_epoch) THEN", "WHERE l.number = lane_number) THEN"),
			hunts:   []hunt{{conformance, pg, those(queues, "hold", "taken_over", "after_a_takeover")}},
		},
		{
			name:    "a lane's holder does not look at its epoch (SQLite)",
			changes: one("store/sqlite/lanes.go", "WHERE lane = ?1 AND epoch = ?2 AND worker <> '')", "WHERE lane = ?1 AND ?2 <> 0)"),
			hunts:   []hunt{{conformance, lite, those(queues+"/^modernc$", "hold", "taken_over", "after_a_takeover")}},
		},
		{
			name: "what follows an entry that waits is run",
			changes: one("inbox/together.go", `		case own.Err != nil:
			runs[n].class, held[b.lines[n]] = later, true`, `		case own.Err != nil:
			runs[n].class = later`),
			hunts: []hunt{{receiving, "inbox", "."}},
		},
		{
			name: "the rest of a batch goes on behind an entry that fails",
			changes: one("inbox/together.go", `			if err := in.caught(b.ef, func() error { return b.ef.Handle(ctx, tx, event) }); err != nil {
				return nil, nil, err
			}`, `			if err := in.caught(b.ef, func() error { return b.ef.Handle(ctx, tx, event) }); err != nil {
				runs[n].class = later
				continue
			}`),
			hunts: []hunt{{receiving, "inbox", "^TestWhatFails|^TestPromisesHoldOnMemory|^TestOrderAndOnce|^TestPoison"}},
		},
		{
			name: "a conflict takes the first one's place",
			changes: one("store/sqlite/queue.go", `		case q[0] != nil:
			said = whole(q)`, `		case q[0] != nil:
			if said = whole(q); said == store.Conflict {
				_, err = r.exec("UPDATE unavez_queue SET payload = ?2 WHERE key = ?1", e.Key[:], bytesOf(e.Payload))
			}`),
			hunts: []hunt{{conformance, lite, those(queues+"/^modernc$", "conflict", "appended_again", "random")}},
		},
	}
}
