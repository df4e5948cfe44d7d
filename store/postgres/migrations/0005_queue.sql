-- The queue: entries that wait to be done, in a ring of four insert-only slots.
--
-- SQLSTATEs that its functions raise beside those of 0002:
--   UV011  the lane has another holder, or is being taken over
--   UV012  the queue is full
--   UV013  the lanes have been changed
--   UV014  a lane needs READ COMMITTED
--   UV015  there is no such item

INSERT INTO unavez.setting (name, value) VALUES
    ('lanes', '256'),
    ('queue_payload', '604800000000'), -- for how long the payload of an entry that is done may be kept, in microseconds
    ('queue_bytes', '17179869184');    -- the room of all slots

-- The sequence of arrival. A flush draws one block after its last entry has
-- arrived and numbers from there; what is left of the block is dropped.
CREATE SEQUENCE unavez.queue_sequence AS bigint INCREMENT 1000 START 1 CACHE 1;

-- A slot: the entries of one span of time. xid is the top level transaction that
-- put the row here, by which readers tell what became visible between two
-- snapshots; first is the one that put it into the queue, where that was another
-- slot. Columns stand by width.
CREATE TABLE unavez.queue_0 (
    sequence    bigint      NOT NULL,
    xid         xid8        NOT NULL,
    arrived     timestamptz NOT NULL,
    first       xid8,
    key         uuid        PRIMARY KEY,
    operation   uuid        NOT NULL,
    ordering    uuid        NOT NULL,
    subject     uuid,
    lane        integer     NOT NULL,
    version     integer     NOT NULL,
    erased      boolean     NOT NULL,
    source      text        NOT NULL,
    fingerprint bytea       NOT NULL,
    note        json        NOT NULL,
    payload     bytea       NOT NULL
);
CREATE INDEX queue_0_xid ON unavez.queue_0 (xid);
CREATE INDEX queue_0_sequence ON unavez.queue_0 (sequence);
CREATE INDEX queue_0_ordering ON unavez.queue_0 (ordering, sequence);
CREATE INDEX queue_0_subject ON unavez.queue_0 (subject) WHERE subject IS NOT NULL;
CREATE TABLE unavez.queue_1 (LIKE unavez.queue_0 INCLUDING ALL);
CREATE TABLE unavez.queue_2 (LIKE unavez.queue_0 INCLUDING ALL);
CREATE TABLE unavez.queue_3 (LIKE unavez.queue_0 INCLUDING ALL);

-- All entries, for people and audits. One that was carried to another slot
-- stands here twice until the old slot is emptied.
CREATE VIEW unavez.queue AS
    SELECT * FROM unavez.queue_0 UNION ALL SELECT * FROM unavez.queue_1
    UNION ALL SELECT * FROM unavez.queue_2 UNION ALL SELECT * FROM unavez.queue_3;

-- The life of each slot. closed is a snapshot that sees every row that will ever
-- have come into a sealed slot; checked is the sequence up to which its rows are
-- done or have a copy in a later slot.
CREATE TABLE unavez.queue_slot (
    number  integer     PRIMARY KEY,
    state   text        NOT NULL CHECK (state IN ('empty', 'current', 'sealed')),
    since   timestamptz NOT NULL,
    sealed  timestamptz,
    closed  pg_snapshot,
    checked bigint      NOT NULL
);
CREATE UNIQUE INDEX queue_slot_current ON unavez.queue_slot (state) WHERE state = 'current';
INSERT INTO unavez.queue_slot (number, state, since, checked)
    SELECT n, CASE n WHEN 0 THEN 'current' ELSE 'empty' END, clock_timestamp(), 0 FROM generate_series(0, 3) n;

-- What was seen of an entry's key besides its first arrival: 2 is a duplicate, 3
-- a conflict. sum is the front of its fingerprint.
CREATE TABLE unavez.delivery (
    id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key  uuid        NOT NULL,
    at   timestamptz NOT NULL,
    what smallint    NOT NULL CHECK (what IN (2, 3)),
    sum  bytea       NOT NULL
);
CREATE INDEX delivery_key ON unavez.delivery (key, id);
CREATE INDEX delivery_at ON unavez.delivery (at);

-- Authentic deliveries that cannot be operations.
CREATE TABLE unavez.quarantine (
    key         uuid        PRIMARY KEY,
    subject     uuid,
    arrived     timestamptz NOT NULL,
    erased      boolean     NOT NULL,
    tenant      text        NOT NULL,
    source      text        NOT NULL,
    type        text        NOT NULL,
    reason      text        NOT NULL,
    detail      text        NOT NULL,
    note        json        NOT NULL,
    contenttype text        NOT NULL,
    payload     bytea       NOT NULL
);
CREATE INDEX quarantine_source ON unavez.quarantine (source, key);
CREATE INDEX quarantine_subject ON unavez.quarantine (subject) WHERE subject IS NOT NULL;

-- What the ledger remembers of operations that have ended, a tombstone with an
-- expiry long ago.
CREATE VIEW unavez.memory AS
    SELECT key, forgets, expires, state, version, fingerprint FROM unavez.outcome_0
    UNION ALL SELECT key, forgets, expires, state, version, fingerprint FROM unavez.outcome_1
    UNION ALL SELECT key, forgets, expires, state, version, fingerprint FROM unavez.outcome_2
    UNION ALL SELECT key, forgets, expires, state, version, fingerprint FROM unavez.outcome_3
    UNION ALL SELECT key, forgets, expires, state, version, fingerprint FROM unavez.outcome_table
    UNION ALL SELECT key, forgets, '-infinity', 8::smallint, 0, short FROM unavez.tombstone_0
    UNION ALL SELECT key, forgets, '-infinity', 8::smallint, 0, short FROM unavez.tombstone_1
    UNION ALL SELECT key, forgets, '-infinity', 8::smallint, 0, short FROM unavez.tombstone_2;

-- is_full tells whether a slot has come to twice its share of the room. A purge
-- turns the ring at one share; what comes in until then, and what is carried
-- over, has the other.
CREATE FUNCTION unavez.is_full(slot regclass) RETURNS boolean
LANGUAGE sql STABLE STRICT SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_relation_size(slot) + pg_relation_size(c.reltoastrelid) >= s.value::bigint / 2
    FROM unavez.setting s, pg_class c WHERE s.name = 'queue_bytes' AND c.oid = slot
$$;

-- known tells for each key whether there is an entry, an attempt, an outcome or
-- a tombstone of it: 0 for none, 2 with the same payload, 3 with another; of a
-- result that is over only the front of its fingerprint counts. It looks at the
-- queue first and at tombstones last, since rows only ever go that way, and by
-- index, however small a table was when the statement was planned.
CREATE FUNCTION unavez.known(at timestamptz, keys uuid[], versions integer[], fingerprints bytea[]) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (SELECT array_agg(CASE
            WHEN f.fingerprint IS NULL THEN 0
            WHEN f.whole AND f.version = k.version AND f.fingerprint = k.fingerprint THEN 2
            WHEN NOT f.whole AND substring(f.fingerprint FROM 1 FOR 8) = substring(k.fingerprint FROM 1 FOR 8) THEN 2
            ELSE 3 END::smallint ORDER BY k.n)
        FROM unnest(keys, versions, fingerprints) WITH ORDINALITY AS k(key, version, fingerprint, n)
        LEFT JOIN LATERAL (
            SELECT true AS whole, x.version, x.fingerprint FROM unavez.queue x WHERE x.key = k.key
            UNION ALL SELECT true, x.version, x.fingerprint FROM unavez.attempt x WHERE x.key = k.key
            UNION ALL SELECT x.expires > at, x.version, x.fingerprint FROM unavez.memory x WHERE x.key = k.key AND x.forgets > at
            LIMIT 1) f ON true);
END $$;

-- append puts entries into the current slot, numbered in the order they are
-- given in, and tells of each: 1 new, 2 duplicate, 3 conflict. The first of two
-- with one key counts. With noted what is not new leaves a row that it was seen.
-- locks are those of ordering keys, in order: who appends
-- in a longer transaction holds them from before its sequence is drawn to its
-- end, so that of two such entries the one that is visible first has the
-- smaller one.
--
-- The INSERT reads the current slot in its own statement, whose snapshot is taken
-- after its lock on the slot: a slot that a purge has closed, under a SHARE lock,
-- gets no row any more. A purge turns the ring under such a lock too, so that the
-- look-up, which comes after the slot was read, finds what has come into older
-- slots; only where a transaction has kept that lock from it for long may a key
-- come into two slots, and then the ledger decides.
CREATE FUNCTION unavez.append(
    lanes integer, noted boolean, locks bigint[], keys uuid[], operations uuid[], orders uuid[], subjects uuid[], lane_numbers integer[],
    versions integer[], fingerprints bytea[], sources text[], notes json[], payloads bytea[])
RETURNS smallint[] LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz;
    base bigint;
    target integer;
    answers smallint[];
    added bigint[];
    one bigint;
BEGIN
    IF cardinality(keys) = 0 THEN
        RETURN '{}';
    END IF;
    IF lanes <> (SELECT s.value::integer FROM unavez.setting s WHERE s.name = 'lanes') THEN
        RAISE EXCEPTION 'the database has % lanes, not %', (SELECT s.value FROM unavez.setting s WHERE s.name = 'lanes'), lanes USING ERRCODE = 'UV013';
    END IF;
    FOREACH one IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(one);
    END LOOP;
    at := clock_timestamp();
    base := nextval('unavez.queue_sequence');
    FOR i IN 1..10 LOOP
        SELECT s.number INTO STRICT target FROM unavez.queue_slot s WHERE s.state = 'current';
        answers := unavez.known(at, keys, versions, fingerprints);
        IF array_position(answers, 0::smallint) IS NULL THEN
            EXIT; -- nothing is new
        END IF;
        CASE target
        WHEN 0 THEN
            IF unavez.is_full('unavez.queue_0') THEN RAISE EXCEPTION 'no room' USING ERRCODE = 'UV012'; END IF;
            WITH put AS (INSERT INTO unavez.queue_0
                    SELECT base + u.n - 1, pg_current_xact_id(), at, NULL, u.key, u.operation, u.ordering, u.subject, u.lane, u.version, false, u.source, u.fingerprint, u.note, u.payload
                    FROM unnest(answers, keys, operations, orders, subjects, lane_numbers, versions, fingerprints, sources, notes, payloads)
                        WITH ORDINALITY AS u(answer, key, operation, ordering, subject, lane, version, fingerprint, source, note, payload, n)
                    WHERE u.answer = 0 AND EXISTS (SELECT FROM unavez.queue_slot s WHERE s.number = 0 AND s.state = 'current')
                    ORDER BY u.key, u.n ON CONFLICT (key) DO NOTHING RETURNING sequence)
                SELECT array_agg(p.sequence) INTO added FROM put p;
        WHEN 1 THEN
            IF unavez.is_full('unavez.queue_1') THEN RAISE EXCEPTION 'no room' USING ERRCODE = 'UV012'; END IF;
            WITH put AS (INSERT INTO unavez.queue_1
                    SELECT base + u.n - 1, pg_current_xact_id(), at, NULL, u.key, u.operation, u.ordering, u.subject, u.lane, u.version, false, u.source, u.fingerprint, u.note, u.payload
                    FROM unnest(answers, keys, operations, orders, subjects, lane_numbers, versions, fingerprints, sources, notes, payloads)
                        WITH ORDINALITY AS u(answer, key, operation, ordering, subject, lane, version, fingerprint, source, note, payload, n)
                    WHERE u.answer = 0 AND EXISTS (SELECT FROM unavez.queue_slot s WHERE s.number = 1 AND s.state = 'current')
                    ORDER BY u.key, u.n ON CONFLICT (key) DO NOTHING RETURNING sequence)
                SELECT array_agg(p.sequence) INTO added FROM put p;
        WHEN 2 THEN
            IF unavez.is_full('unavez.queue_2') THEN RAISE EXCEPTION 'no room' USING ERRCODE = 'UV012'; END IF;
            WITH put AS (INSERT INTO unavez.queue_2
                    SELECT base + u.n - 1, pg_current_xact_id(), at, NULL, u.key, u.operation, u.ordering, u.subject, u.lane, u.version, false, u.source, u.fingerprint, u.note, u.payload
                    FROM unnest(answers, keys, operations, orders, subjects, lane_numbers, versions, fingerprints, sources, notes, payloads)
                        WITH ORDINALITY AS u(answer, key, operation, ordering, subject, lane, version, fingerprint, source, note, payload, n)
                    WHERE u.answer = 0 AND EXISTS (SELECT FROM unavez.queue_slot s WHERE s.number = 2 AND s.state = 'current')
                    ORDER BY u.key, u.n ON CONFLICT (key) DO NOTHING RETURNING sequence)
                SELECT array_agg(p.sequence) INTO added FROM put p;
        ELSE
            IF unavez.is_full('unavez.queue_3') THEN RAISE EXCEPTION 'no room' USING ERRCODE = 'UV012'; END IF;
            WITH put AS (INSERT INTO unavez.queue_3
                    SELECT base + u.n - 1, pg_current_xact_id(), at, NULL, u.key, u.operation, u.ordering, u.subject, u.lane, u.version, false, u.source, u.fingerprint, u.note, u.payload
                    FROM unnest(answers, keys, operations, orders, subjects, lane_numbers, versions, fingerprints, sources, notes, payloads)
                        WITH ORDINALITY AS u(answer, key, operation, ordering, subject, lane, version, fingerprint, source, note, payload, n)
                    WHERE u.answer = 0 AND EXISTS (SELECT FROM unavez.queue_slot s WHERE s.number = 3 AND s.state = 'current')
                    ORDER BY u.key, u.n ON CONFLICT (key) DO NOTHING RETURNING sequence)
                SELECT array_agg(p.sequence) INTO added FROM put p;
        END CASE;
        IF added IS NOT NULL OR EXISTS (SELECT FROM unavez.queue_slot s WHERE s.number = target AND s.state = 'current') THEN
            EXIT;
        END IF;
        IF i = 10 THEN
            RAISE EXCEPTION 'the slot changes faster than it can be written to' USING ERRCODE = '55P03';
        END IF;
    END LOOP;
    FOREACH one IN ARRAY coalesce(added, '{}') LOOP
        answers[one - base + 1] := 1;
    END LOOP;
    IF array_position(answers, 0::smallint) IS NOT NULL THEN
        -- Others, or an earlier one of these, had the key.
        SELECT array_agg(CASE WHEN a.answer > 0 THEN a.answer WHEN a.known = 0 THEN 2::smallint ELSE a.known END ORDER BY a.n) INTO answers
            FROM unnest(answers, unavez.known(at, keys, versions, fingerprints)) WITH ORDINALITY AS a(answer, known, n);
    END IF;
    INSERT INTO unavez.delivery (key, at, what, sum)
        SELECT a.key, at, a.answer, substring(a.fingerprint FROM 1 FOR 8)
        FROM unnest(answers, keys, fingerprints) WITH ORDINALITY AS a(answer, key, fingerprint, n) WHERE noted AND a.answer > 1 ORDER BY a.n;
    RETURN answers;
END $$;

-- set_aside keeps items that cannot be operations; one that is there already
-- changes nothing.
CREATE FUNCTION unavez.set_aside(
    keys uuid[], subjects uuid[], tenants text[], sources text[], types text[], reasons text[], details text[], notes json[], contenttypes text[], payloads bytea[])
RETURNS void LANGUAGE sql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO unavez.quarantine (key, subject, arrived, erased, tenant, source, type, reason, detail, note, contenttype, payload)
        SELECT u.key, u.subject, clock_timestamp(), false, u.tenant, u.source, u.type, u.reason, u.detail, u.note, u.contenttype, u.payload
        FROM unnest(keys, subjects, tenants, sources, types, reasons, details, notes, contenttypes, payloads)
            WITH ORDINALITY AS u(key, subject, tenant, source, type, reason, detail, note, contenttype, payload, n)
        ORDER BY u.key, u.n ON CONFLICT (key) DO NOTHING
$$;

-- What reading gives: the history and the snapshot that it saw, how far it has
-- looked, and an entry, if there is one.
CREATE TYPE unavez.reading AS (
    incarnation bigint, -- of the database's history; -1 where it has changed unseen
    position    text,   -- of the server's log
    upto        text,   -- the snapshot
    looked      bigint, -- rows that were looked at, in the order of their sequence
    last        bigint, -- sequence of the last of them
    -- of the entry
    sequence    bigint,
    key         uuid,
    operation   uuid,
    ordering    uuid,
    subject     uuid,
    version     integer,
    fingerprint bytea,
    note        json,
    payload     bytea,  -- null where it is larger than what goes with its entry
    size        integer,
    erased      boolean,
    arrived     timestamptz
);

-- read_since gives entries that became visible between two snapshots, until now
-- where until is null, by sequence: those behind after, at most most. lanes has a
-- bit for each lane.
--
-- What became visible has the number of a transaction that was running when the
-- first snapshot was taken, or a later one; looked for like that by index, the
-- read costs nothing for what came in behind a transaction that stays open. A row
-- that was carried to another slot meanwhile is found by the transaction that put
-- it into the queue. Where there is much, pages behind the first go by sequence.
--
-- The statements of these functions are planned once in a session, for what is
-- usual, and by index, however small a table was at that time.
CREATE FUNCTION unavez.read_since(since pg_snapshot, until pg_snapshot, lanes bytea, after bigint, most integer) RETURNS SETOF unavez.reading
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    running xid8[] := ARRAY(SELECT pg_snapshot_xip(since));
    later xid8 := pg_snapshot_xmax(since);
    never xid8 := '18446744073709551615';
BEGIN
    IF after > 0 AND 8 * most <= (SELECT count(*) FROM (
            SELECT FROM unavez.queue q WHERE q.xid = ANY (running) OR q.xid >= later AND q.xid < never LIMIT 8 * most) m) THEN
        RETURN QUERY SELECT * FROM unavez.read_pages(since, until, lanes, after, most);
        RETURN;
    END IF;
    RETURN QUERY
        WITH h AS MATERIALIZED (SELECT CASE WHEN l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) THEN l.incarnation ELSE -1 END AS incarnation,
                pg_current_wal_insert_lsn()::text AS place, coalesce(until, pg_current_snapshot()) AS upto FROM unavez.ledger l),
        r AS (SELECT DISTINCT ON (u.sequence) u.* FROM (
            (SELECT q.* FROM unavez.queue_0 q WHERE (q.xid = ANY (running) OR q.xid >= later AND q.xid < never) AND q.sequence + 0 > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence + 0 LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_1 q WHERE (q.xid = ANY (running) OR q.xid >= later AND q.xid < never) AND q.sequence + 0 > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence + 0 LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_2 q WHERE (q.xid = ANY (running) OR q.xid >= later AND q.xid < never) AND q.sequence + 0 > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence + 0 LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_3 q WHERE (q.xid = ANY (running) OR q.xid >= later AND q.xid < never) AND q.sequence + 0 > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence + 0 LIMIT most)
            ) u ORDER BY u.sequence LIMIT most)
        SELECT h.incarnation, h.place, h.upto::text, 0::bigint, 0::bigint, r.sequence, r.key, r.operation, r.ordering, r.subject,
            r.version, r.fingerprint, r.note, CASE WHEN octet_length(r.payload) <= 32768 THEN r.payload END, octet_length(r.payload), r.erased, r.arrived
        FROM h LEFT JOIN r ON true ORDER BY r.sequence;
END $$;

-- read_pages is read_since in the order of an index.
CREATE FUNCTION unavez.read_pages(since pg_snapshot, until pg_snapshot, lanes bytea, after bigint, most integer) RETURNS SETOF unavez.reading
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
        WITH h AS MATERIALIZED (SELECT CASE WHEN l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) THEN l.incarnation ELSE -1 END AS incarnation,
                pg_current_wal_insert_lsn()::text AS place, coalesce(until, pg_current_snapshot()) AS upto FROM unavez.ledger l),
        r AS (SELECT DISTINCT ON (u.sequence) u.* FROM (
            (SELECT q.* FROM unavez.queue_0 q WHERE q.sequence > after AND NOT pg_visible_in_snapshot(q.xid, since) AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_1 q WHERE q.sequence > after AND NOT pg_visible_in_snapshot(q.xid, since) AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_2 q WHERE q.sequence > after AND NOT pg_visible_in_snapshot(q.xid, since) AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_3 q WHERE q.sequence > after AND NOT pg_visible_in_snapshot(q.xid, since) AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h))) ORDER BY q.sequence LIMIT most)
            ) u ORDER BY u.sequence LIMIT most)
        SELECT h.incarnation, h.place, h.upto::text, 0::bigint, 0::bigint, r.sequence, r.key, r.operation, r.ordering, r.subject,
            r.version, r.fingerprint, r.note, CASE WHEN octet_length(r.payload) <= 32768 THEN r.payload END, octet_length(r.payload), r.erased, r.arrived
        FROM h LEFT JOIN r ON true ORDER BY r.sequence;
END $$;

-- read_from gives entries from the beginning, up to a snapshot or to now, that
-- are not done: of the next rows behind after, no more than it may look at. What
-- is visible and has the number of a transaction that is still to come was
-- restored from another database.
CREATE FUNCTION unavez.read_from(until pg_snapshot, lanes bytea, after bigint, most integer, looks integer) RETURNS SETOF unavez.reading
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
        WITH h AS MATERIALIZED (SELECT CASE WHEN l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) THEN l.incarnation ELSE -1 END AS incarnation,
                pg_current_wal_insert_lsn()::text AS place, coalesce(until, pg_current_snapshot()) AS upto, pg_snapshot_xmax(pg_current_snapshot()) AS next FROM unavez.ledger l),
        w AS MATERIALIZED (SELECT DISTINCT ON (u.sequence) u.* FROM (
            (SELECT q.* FROM unavez.queue_0 q WHERE q.sequence > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h)) OR q.xid >= (SELECT h.next FROM h)) ORDER BY q.sequence LIMIT looks)
            UNION ALL
            (SELECT q.* FROM unavez.queue_1 q WHERE q.sequence > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h)) OR q.xid >= (SELECT h.next FROM h)) ORDER BY q.sequence LIMIT looks)
            UNION ALL
            (SELECT q.* FROM unavez.queue_2 q WHERE q.sequence > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h)) OR q.xid >= (SELECT h.next FROM h)) ORDER BY q.sequence LIMIT looks)
            UNION ALL
            (SELECT q.* FROM unavez.queue_3 q WHERE q.sequence > after AND get_bit(lanes, q.lane) = 1
                AND (pg_visible_in_snapshot(q.xid, (SELECT h.upto FROM h)) OR pg_visible_in_snapshot(q.first, (SELECT h.upto FROM h)) OR q.xid >= (SELECT h.next FROM h)) ORDER BY q.sequence LIMIT looks)
            ) u ORDER BY u.sequence LIMIT looks),
        r AS (SELECT w.* FROM w WHERE (SELECT true FROM unavez.memory m WHERE m.key = w.key AND m.forgets > w.arrived LIMIT 1) IS NULL ORDER BY w.sequence LIMIT most)
        SELECT h.incarnation, h.place, h.upto::text, (SELECT count(*) FROM w), (SELECT max(w.sequence) FROM w), r.sequence, r.key, r.operation, r.ordering, r.subject,
            r.version, r.fingerprint, r.note, CASE WHEN octet_length(r.payload) <= 32768 THEN r.payload END, octet_length(r.payload), r.erased, r.arrived
        FROM h LEFT JOIN r ON true ORDER BY r.sequence;
END $$;

-- followers gives the entries of one ordering key behind a sequence that are
-- visible now and not done.
CREATE FUNCTION unavez.followers(order_key uuid, after bigint, most integer) RETURNS SETOF unavez.reading
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
        SELECT NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::bigint, r.sequence, r.key, r.operation, r.ordering, r.subject, r.version, r.fingerprint, r.note,
            CASE WHEN octet_length(r.payload) <= 32768 THEN r.payload END, octet_length(r.payload), r.erased, r.arrived
        FROM (SELECT DISTINCT ON (u.sequence) u.* FROM (
            (SELECT q.* FROM unavez.queue_0 q WHERE q.ordering = order_key AND q.sequence > after
                AND (SELECT true FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived LIMIT 1) IS NULL ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_1 q WHERE q.ordering = order_key AND q.sequence > after
                AND (SELECT true FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived LIMIT 1) IS NULL ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_2 q WHERE q.ordering = order_key AND q.sequence > after
                AND (SELECT true FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived LIMIT 1) IS NULL ORDER BY q.sequence LIMIT most)
            UNION ALL
            (SELECT q.* FROM unavez.queue_3 q WHERE q.ordering = order_key AND q.sequence > after
                AND (SELECT true FROM unavez.memory m WHERE m.key = q.key AND m.forgets > q.arrived LIMIT 1) IS NULL ORDER BY q.sequence LIMIT most)
            ) u ORDER BY u.sequence LIMIT most) r ORDER BY r.sequence;
END $$;

-- Lanes are shared out among workers. Whoever runs entries of a lane holds it,
-- by the number of its holder, the epoch. cursor is how far its reading has come.
CREATE TABLE unavez.lane (
    number  integer     PRIMARY KEY,
    epoch   bigint      NOT NULL,
    expires timestamptz NOT NULL,
    clean   boolean     NOT NULL, -- handed back by the holder before, or there was none
    holder  text        NOT NULL, -- '' for none
    cursor  text        NOT NULL
) WITH (fillfactor = 50);
INSERT INTO unavez.lane (number, epoch, expires, clean, holder, cursor) SELECT n, 0, '-infinity', true, '', '' FROM generate_series(0, 255) n;

CREATE TABLE unavez.worker (
    name    text        PRIMARY KEY,
    expires timestamptz NOT NULL
);

-- Ordering keys that wait, each with the first entry that does; and entries that
-- wait at a gap, several of a key.
CREATE TABLE unavez.blocked (
    ordering  uuid    NOT NULL,
    sequence  bigint  NOT NULL,
    lane      integer NOT NULL,
    gap       boolean NOT NULL,
    key       uuid    NOT NULL,
    operation uuid    NOT NULL,
    PRIMARY KEY (ordering, sequence)
);
CREATE UNIQUE INDEX blocked_first ON unavez.blocked (ordering) WHERE NOT gap;

-- The last change of each ordering key that took effect, where effects declare
-- versions.
CREATE TABLE unavez.version (
    ordering uuid  PRIMARY KEY,
    number   text  NOT NULL,
    content  bytea NOT NULL
);

-- How far the listings of senders have been read, and by whom.
CREATE TABLE unavez.position (
    name    text        PRIMARY KEY,
    worker  text        NOT NULL,
    expires timestamptz NOT NULL,
    value   text        NOT NULL
);

-- What people decided about entries and their payloads: what is readmit,
-- discard or erase.
CREATE TABLE unavez.action (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key    uuid        NOT NULL,
    at     timestamptz NOT NULL,
    what   text        NOT NULL,
    actor  text        NOT NULL,
    reason text        NOT NULL
);

-- lane_lock is the lock of a lane: every transaction of its holder has it
-- shared, and who takes the lane over has it alone.
CREATE FUNCTION unavez.lane_lock(lane_number integer) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 8461807911012289536 + (lane_number::bigint << 16)
$$;

-- hold raises unless the epoch is its lane's, and nobody waits to take the lane
-- over. The epoch is read under the lock, in a statement of its own.
CREATE FUNCTION unavez.hold(lane_number integer, lane_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE EXCEPTION 'a lane needs READ COMMITTED: at % its new holder could be missed', current_setting('transaction_isolation') USING ERRCODE = 'UV014';
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(unavez.lane_lock(lane_number)) THEN
        RAISE EXCEPTION 'lane % is being taken over', lane_number USING ERRCODE = 'UV011';
    END IF;
    IF NOT EXISTS (SELECT FROM unavez.lane l WHERE l.number = lane_number AND l.epoch = lane_epoch) THEN
        RAISE EXCEPTION 'epoch % of lane % is over', lane_epoch, lane_number USING ERRCODE = 'UV011';
    END IF;
    RETURN true;
END $$;

-- hold_all is hold for several lanes.
CREATE FUNCTION unavez.hold_all(lanes integer[], epochs bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lost integer;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE EXCEPTION 'a lane needs READ COMMITTED: at % its new holder could be missed', current_setting('transaction_isolation') USING ERRCODE = 'UV014';
    END IF;
    SELECT x.n INTO lost FROM unnest(lanes) AS x(n) WHERE NOT pg_try_advisory_xact_lock_shared(unavez.lane_lock(x.n)) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'lane % is being taken over', lost USING ERRCODE = 'UV011';
    END IF;
    SELECT x.n INTO lost FROM ROWS FROM (unnest(lanes), unnest(epochs)) AS x(n, e)
        WHERE NOT EXISTS (SELECT FROM unavez.lane l WHERE l.number = x.n AND l.epoch = x.e) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'lane % has another holder', lost USING ERRCODE = 'UV011';
    END IF;
    RETURN true;
END $$;

-- keep renews a worker and the lanes that it rightly believes to hold, with their
-- cursors, and tells how many workers live and which lanes may be taken. Its
-- commit does not wait for the disk: what a crash takes back makes a lease run
-- out early, and that decides nothing.
CREATE FUNCTION unavez.keep(worker_name text, lease bigint, numbers integer[], epochs bigint[], cursors text[], leaving boolean, OUT workers integer, OUT held integer[], OUT free integer[])
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + lease * interval '1 microsecond';
    ignored text;
BEGIN
    ignored := set_config('synchronous_commit', 'off', true);
    IF leaving THEN
        DELETE FROM unavez.worker w WHERE w.name = worker_name;
    ELSE
        INSERT INTO unavez.worker (name, expires) VALUES (worker_name, until) ON CONFLICT (name) DO UPDATE SET expires = excluded.expires;
    END IF;
    DELETE FROM unavez.worker w WHERE w.name IN (SELECT x.name FROM unavez.worker x WHERE x.expires <= clock_timestamp() FOR UPDATE SKIP LOCKED);
    WITH mine AS (
        SELECT l.number, m.cursor FROM unavez.lane l JOIN unnest(numbers, epochs, cursors) AS m(number, epoch, cursor) ON m.number = l.number
            WHERE l.holder = worker_name AND l.epoch = m.epoch ORDER BY l.number FOR UPDATE OF l),
    kept AS (UPDATE unavez.lane l SET expires = until, cursor = coalesce(nullif(mine.cursor, ''), l.cursor) FROM mine WHERE l.number = mine.number RETURNING l.number)
        SELECT coalesce(array_agg(k.number ORDER BY k.number), '{}') INTO held FROM kept k;
    SELECT count(*) INTO workers FROM unavez.worker w WHERE w.expires > clock_timestamp();
    SELECT coalesce(array_agg(l.number ORDER BY l.number), '{}') INTO free FROM unavez.lane l
        WHERE l.number < (SELECT s.value::integer FROM unavez.setting s WHERE s.name = 'lanes')
        AND (l.holder = '' OR l.expires <= clock_timestamp() OR l.holder = worker_name AND l.number <> ALL (held));
END $$;

-- take_lanes gives a worker lanes that are free or whose lease has run out, at
-- most most of them, in the given order. It holds the lock of each alone, so that
-- nothing of an earlier holder runs any more, and raises the epoch under it. It
-- waits so many milliseconds for a lock, and raises when it does not get it; with 0
-- it passes such a lane by. known are those of the worker that it knows of.
CREATE FUNCTION unavez.take_lanes(worker_name text, lease bigint, numbers integer[], known integer[], most integer, wait integer)
RETURNS TABLE (number integer, epoch bigint, cursor text, clean boolean)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l unavez.lane;
    one integer;
    n integer := 0;
    ignored text;
BEGIN
    IF wait > 0 THEN
        ignored := set_config('lock_timeout', wait::text, true);
    END IF;
    FOREACH one IN ARRAY numbers LOOP
        EXIT WHEN n >= most;
        IF wait > 0 THEN
            PERFORM pg_advisory_xact_lock(unavez.lane_lock(one));
        ELSIF NOT pg_try_advisory_xact_lock(unavez.lane_lock(one)) THEN
            CONTINUE;
        END IF;
        SELECT * INTO l FROM unavez.lane x WHERE x.number = one
            AND (x.holder = '' OR x.expires <= clock_timestamp() OR x.holder = worker_name AND x.number <> ALL (known)) FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        UPDATE unavez.lane x SET epoch = x.epoch + 1, holder = worker_name, expires = clock_timestamp() + lease * interval '1 microsecond', clean = false WHERE x.number = one;
        n := n + 1;
        number := one; epoch := l.epoch + 1; cursor := l.cursor; clean := l.clean;
        RETURN NEXT;
    END LOOP;
END $$;

-- hand_back frees lanes of a worker. The epoch is raised, so that nothing begins
-- under the old one although nobody has taken the lane yet.
CREATE FUNCTION unavez.hand_back(worker_name text, numbers integer[], epochs bigint[], cursors text[], gone boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    WITH mine AS (
        SELECT l.number, m.cursor FROM unavez.lane l JOIN unnest(numbers, epochs, cursors) AS m(number, epoch, cursor) ON m.number = l.number
            WHERE l.holder = worker_name AND worker_name <> '' AND l.epoch = m.epoch ORDER BY l.number FOR UPDATE OF l)
        UPDATE unavez.lane l SET epoch = l.epoch + 1, holder = '', expires = '-infinity', clean = true, cursor = coalesce(nullif(mine.cursor, ''), l.cursor)
            FROM mine WHERE l.number = mine.number;
    IF gone THEN
        DELETE FROM unavez.worker w WHERE w.name = worker_name;
    END IF;
END $$;

-- block writes down that an entry's ordering key has to wait, and how the attempt
-- rests that it waits for, if new_state is given: found_fence is that of the
-- attempt that is there, 0 for none.
CREATE FUNCTION unavez.block(
    lane_number integer, lane_epoch bigint, entry_key uuid, entry_order uuid, entry_sequence bigint, is_gap boolean,
    operation_key uuid, operation_lock bigint, found_fence bigint, new_fence bigint, new_state smallint, delay bigint, new_reason text,
    new_operation text, new_version integer, new_fingerprint bytea, new_derived text, new_origin text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f unavez.found;
BEGIN
    PERFORM unavez.hold(lane_number, lane_epoch);
    IF new_state IS NOT NULL THEN
        f := unavez.gate(operation_key, operation_lock, false, NULL);
        IF f.state >= 6 THEN
            RAISE EXCEPTION 'operation has ended' USING ERRCODE = 'UV001';
        ELSIF coalesce(f.attempt_fence, 0) <> found_fence OR f.state NOT IN (0, 2, 3, 4) THEN
            RAISE EXCEPTION 'operation runs elsewhere, or attempt % is not the last', found_fence USING ERRCODE = 'UV005';
        END IF;
        IF f.stale THEN
            PERFORM unavez.forget(operation_key);
        END IF;
        IF f.lapsed THEN
            PERFORM unavez.move(operation_key, found_fence, 1::smallint, 4::smallint, 0, 'store', f.reason);
        END IF;
        IF f.state = 0 THEN
            f.at := clock_timestamp();
            INSERT INTO unavez.attempt (key, fence, state, version, expires, due, created, changed, operation, fingerprint, derived, origin, reason)
                VALUES (operation_key, new_fence, 1, new_version, f.at, f.at, f.at, f.at, new_operation, new_fingerprint, new_derived, new_origin, '');
            f.state := 1;
        ELSIF new_fence <> found_fence THEN
            -- It ran meanwhile, in a transaction that was rolled back.
            UPDATE unavez.attempt x SET fence = new_fence, state = 1, expires = clock_timestamp() WHERE x.key = operation_key;
            f.state := 1;
        END IF;
        PERFORM unavez.move(operation_key, new_fence, f.state, new_state, delay, 'worker', new_reason);
    END IF;
    IF is_gap THEN
        INSERT INTO unavez.blocked (ordering, sequence, lane, gap, key, operation) VALUES (entry_order, entry_sequence, lane_number, true, entry_key, operation_key)
            ON CONFLICT (ordering, sequence) DO UPDATE SET gap = true, key = excluded.key, operation = excluded.operation;
    ELSE
        -- The row of an earlier entry that is done gives way.
        DELETE FROM unavez.blocked b WHERE b.ordering = entry_order AND NOT b.gap AND b.sequence < entry_sequence
            AND NOT EXISTS (SELECT FROM unavez.queue q WHERE q.key = b.key
                AND NOT EXISTS (SELECT FROM unavez.memory m WHERE m.key = b.key AND m.forgets > q.arrived));
        DELETE FROM unavez.blocked b WHERE b.ordering = entry_order AND b.sequence = entry_sequence AND b.gap
            AND NOT EXISTS (SELECT FROM unavez.blocked x WHERE x.ordering = entry_order AND NOT x.gap AND x.sequence < entry_sequence);
        INSERT INTO unavez.blocked AS b (ordering, sequence, lane, gap, key, operation) VALUES (entry_order, entry_sequence, lane_number, false, entry_key, operation_key)
            ON CONFLICT (ordering) WHERE NOT gap DO UPDATE SET sequence = excluded.sequence, key = excluded.key, operation = excluded.operation
            WHERE excluded.sequence < b.sequence;
    END IF;
END $$;

-- unblock removes what block wrote for one entry.
CREATE FUNCTION unavez.unblock(lane_number integer, lane_epoch bigint, entry_order uuid, entry_sequence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM unavez.hold(lane_number, lane_epoch);
    DELETE FROM unavez.blocked b WHERE b.ordering = entry_order AND b.sequence = entry_sequence;
END $$;

-- waiting lists blocked rows of some lanes, or of all, behind a place, with what
-- they wait for: the entry itself if it is done, which one is that is in the
-- queue no more; else the operation's outcome, or its attempt.
CREATE FUNCTION unavez.waiting(lanes bytea, after_order uuid, after_sequence bigint, most integer)
RETURNS TABLE (ordering uuid, sequence bigint, lane integer, key uuid, operation uuid, gap boolean, done boolean, state smallint, fence bigint, expires bigint, due bigint)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT w.ordering, w.sequence, w.lane, w.key, w.operation, w.gap, w.ended,
            CASE WHEN w.ended THEN coalesce(own.state, 8::smallint) WHEN other.state IS NOT NULL THEN other.state
                WHEN a.state = 1 AND a.expires <= at THEN 4::smallint ELSE coalesce(a.state, 0::smallint) END,
            CASE WHEN w.ended OR other.state IS NOT NULL THEN NULL ELSE a.fence END,
            CASE WHEN w.ended OR other.state IS NOT NULL THEN NULL WHEN a.state = 1 THEN (extract(epoch FROM a.expires - at) * 1000000)::bigint END,
            CASE WHEN w.ended OR other.state IS NOT NULL THEN NULL WHEN a.state = 2 THEN (extract(epoch FROM a.due - at) * 1000000)::bigint END
        FROM (
            SELECT b.*, q.arrived IS NULL OR (SELECT true FROM unavez.memory m WHERE m.key = b.key AND m.forgets > q.arrived LIMIT 1) IS NOT NULL AS ended
            FROM (SELECT * FROM unavez.blocked x WHERE (lanes IS NULL OR get_bit(lanes, x.lane) = 1) AND (x.ordering, x.sequence) > (after_order, after_sequence)
                ORDER BY x.ordering, x.sequence LIMIT most) b
            LEFT JOIN LATERAL (SELECT x.arrived FROM unavez.queue x WHERE x.key = b.key LIMIT 1) q ON true) w
        LEFT JOIN LATERAL (SELECT CASE WHEN m.expires > at THEN m.state ELSE 8::smallint END AS state FROM unavez.memory m WHERE m.key = w.key AND m.forgets > at LIMIT 1) own ON w.ended
        LEFT JOIN LATERAL (SELECT CASE WHEN m.expires > at THEN m.state ELSE 8::smallint END AS state FROM unavez.memory m WHERE m.key = w.operation AND m.forgets > at LIMIT 1) other ON NOT w.ended
        LEFT JOIN unavez.attempt a ON a.key = w.operation
        ORDER BY w.ordering, w.sequence;
END $$;

-- release_item takes an item out of quarantine, by a person.
CREATE FUNCTION unavez.release_item(item_key uuid, new_what text, new_actor text, new_reason text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM unavez.quarantine x WHERE x.key = item_key;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no item %', item_key USING ERRCODE = 'UV015';
    END IF;
    INSERT INTO unavez.action (key, at, what, actor, reason) VALUES (item_key, clock_timestamp(), new_what, new_actor, new_reason);
END $$;

-- erase removes the payloads of a subject and tells of how many entries and
-- items. A purge, which may be about to carry one of them to another slot, is
-- waited for.
CREATE FUNCTION unavez.erase(subject_key uuid, new_actor text, new_reason text) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entries integer;
    items integer;
BEGIN
    PERFORM pg_advisory_xact_lock(8461807911012270082);
    WITH gone AS (UPDATE unavez.queue_0 x SET payload = '', erased = true WHERE x.subject = subject_key AND NOT x.erased RETURNING x.key),
        gone_1 AS (UPDATE unavez.queue_1 x SET payload = '', erased = true WHERE x.subject = subject_key AND NOT x.erased RETURNING x.key),
        gone_2 AS (UPDATE unavez.queue_2 x SET payload = '', erased = true WHERE x.subject = subject_key AND NOT x.erased RETURNING x.key),
        gone_3 AS (UPDATE unavez.queue_3 x SET payload = '', erased = true WHERE x.subject = subject_key AND NOT x.erased RETURNING x.key)
        SELECT count(*) INTO entries FROM (SELECT key FROM gone UNION SELECT key FROM gone_1 UNION SELECT key FROM gone_2 UNION SELECT key FROM gone_3) g;
    WITH gone AS (UPDATE unavez.quarantine x SET payload = '', erased = true WHERE x.subject = subject_key AND NOT x.erased RETURNING x.key)
        SELECT count(*) INTO items FROM gone;
    INSERT INTO unavez.action (key, at, what, actor, reason) VALUES (subject_key, clock_timestamp(), 'erase', new_actor, new_reason);
    RETURN entries + items;
END $$;

-- erase_keys removes the payloads of entries and items by their own keys and tells
-- of how many. A purge is waited for, as in erase.
CREATE FUNCTION unavez.erase_keys(keys uuid[]) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entries integer;
    items integer;
BEGIN
    PERFORM pg_advisory_xact_lock(8461807911012270082);
    WITH gone AS (UPDATE unavez.queue_0 x SET payload = '', erased = true WHERE x.key = ANY (keys) RETURNING x.key),
        gone_1 AS (UPDATE unavez.queue_1 x SET payload = '', erased = true WHERE x.key = ANY (keys) RETURNING x.key),
        gone_2 AS (UPDATE unavez.queue_2 x SET payload = '', erased = true WHERE x.key = ANY (keys) RETURNING x.key),
        gone_3 AS (UPDATE unavez.queue_3 x SET payload = '', erased = true WHERE x.key = ANY (keys) RETURNING x.key)
        SELECT count(*) INTO entries FROM (SELECT key FROM gone UNION SELECT key FROM gone_1 UNION SELECT key FROM gone_2 UNION SELECT key FROM gone_3) g;
    WITH gone AS (UPDATE unavez.quarantine x SET payload = '', erased = true WHERE x.key = ANY (keys) RETURNING x.key)
        SELECT count(*) INTO items FROM gone;
    RETURN entries + items;
END $$;

-- take_position gives the position of that name to a worker, unless another
-- living one has it.
CREATE FUNCTION unavez.take_position(position_name text, worker_name text, lease bigint, OUT value text, OUT mine boolean)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO unavez.position (name, worker, expires, value) VALUES (position_name, worker_name, clock_timestamp() + lease * interval '1 microsecond', '')
        ON CONFLICT (name) DO NOTHING;
    UPDATE unavez.position x SET worker = worker_name, expires = clock_timestamp() + lease * interval '1 microsecond'
        WHERE x.name = position_name AND (x.worker = worker_name OR x.expires <= clock_timestamp()) RETURNING x.value INTO value;
    mine := FOUND;
    IF NOT mine THEN
        SELECT x.value INTO value FROM unavez.position x WHERE x.name = position_name;
    END IF;
END $$;

-- save_position stores a value, unless another worker has taken the position.
CREATE FUNCTION unavez.save_position(position_name text, worker_name text, new_value text, lease bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE unavez.position x SET value = new_value, expires = clock_timestamp() + lease * interval '1 microsecond'
        WHERE x.name = position_name AND x.worker = worker_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'position % is another worker''s', position_name USING ERRCODE = 'UV004';
    END IF;
END $$;

-- forgetting is until when a purge may forget what has ended: an entry that is in
-- the queue has to stay done, however short its outcome was to be remembered.
CREATE FUNCTION unavez.forgetting() RETURNS timestamptz
LANGUAGE sql STABLE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(clock_timestamp(), min(s.since)) FROM unavez.queue_slot s WHERE s.state <> 'empty'
$$;

-- forget deletes what is left of an operation's earlier life, if that is over, and
-- the entry that was done in it.
CREATE OR REPLACE FUNCTION unavez.forget(operation_key uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    DELETE FROM unavez.queue_0 x WHERE x.key = operation_key AND EXISTS (SELECT FROM unavez.memory m WHERE m.key = operation_key AND m.forgets > x.arrived);
    DELETE FROM unavez.queue_1 x WHERE x.key = operation_key AND EXISTS (SELECT FROM unavez.memory m WHERE m.key = operation_key AND m.forgets > x.arrived);
    DELETE FROM unavez.queue_2 x WHERE x.key = operation_key AND EXISTS (SELECT FROM unavez.memory m WHERE m.key = operation_key AND m.forgets > x.arrived);
    DELETE FROM unavez.queue_3 x WHERE x.key = operation_key AND EXISTS (SELECT FROM unavez.memory m WHERE m.key = operation_key AND m.forgets > x.arrived);
    DELETE FROM unavez.outcome_0 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.outcome_1 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.outcome_2 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.outcome_3 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.outcome_table x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.tombstone_0 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.tombstone_1 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.tombstone_2 x WHERE x.key = operation_key AND x.forgets <= at;
    DELETE FROM unavez.transition x WHERE x.key = operation_key
        AND NOT EXISTS (SELECT FROM unavez.attempt y WHERE y.key = operation_key);
END $$;

-- finish_batch is finish for several operations that are new, whose locks this
-- transaction holds: it inserts all their outcomes, or raises. Each INSERT reads
-- the current slot in its own statement; see finish.
CREATE FUNCTION unavez.finish_batch(
    started timestamptz, unwritten boolean, durability text, limit_us bigint, stales uuid[], keys uuid[], kept bigint[], remembered bigint[],
    operations text[], states integer[], codes bigint[], unreplayables integer[], versions integer[], fingerprints bytea[], checksums bytea[], headers bytea[], bodies bytea[])
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
    micro interval := interval '1 microsecond';
    target integer;
    longest bigint;
    short integer;
    added integer;
    total integer := 0;
    one uuid;
    ignored text;
BEGIN
    IF started <> transaction_timestamp() THEN
        RAISE EXCEPTION 'not the transaction of the gate: it was ended and another one begun' USING ERRCODE = 'UV002';
    END IF;
    IF at > transaction_timestamp() + limit_us * micro THEN
        RAISE EXCEPTION 'transaction is over its limit' USING ERRCODE = 'UV006';
    END IF;
    IF unwritten AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'transaction has written' USING ERRCODE = 'UV003';
    END IF;
    IF durability IS NOT NULL AND current_setting('synchronous_commit') <> durability THEN
        ignored := set_config('synchronous_commit', durability, true);
    END IF;
    FOREACH one IN ARRAY stales LOOP
        PERFORM unavez.forget(one);
    END LOOP;
    FOR i IN 1..10 LOOP
        SELECT l.slot, CASE WHEN l.slot < 0 THEN -1 ELSE l.ring END INTO STRICT target, longest FROM unavez.ledger l;
        SELECT count(*) INTO short FROM unnest(kept) k WHERE k <= longest;
        added := 0;
        CASE WHEN short = 0 THEN
            NULL;
        WHEN target = 0 THEN
            INSERT INTO unavez.outcome_0 SELECT u.key, at, at + u.kept * micro, at + (u.kept + u.remembered) * micro, u.code, 1, u.version, u.state, u.unreplayable = 1,
                u.operation, u.fingerprint, u.checksum, u.header, u.body
                FROM unnest(keys, kept, remembered, operations, states, codes, unreplayables, versions, fingerprints, checksums, headers, bodies)
                    WITH ORDINALITY AS u(key, kept, remembered, operation, state, code, unreplayable, version, fingerprint, checksum, header, body, n)
                WHERE u.kept <= longest AND EXISTS (SELECT FROM unavez.ledger l WHERE l.slot = 0) ORDER BY u.n;
            GET DIAGNOSTICS added = ROW_COUNT;
        WHEN target = 1 THEN
            INSERT INTO unavez.outcome_1 SELECT u.key, at, at + u.kept * micro, at + (u.kept + u.remembered) * micro, u.code, 1, u.version, u.state, u.unreplayable = 1,
                u.operation, u.fingerprint, u.checksum, u.header, u.body
                FROM unnest(keys, kept, remembered, operations, states, codes, unreplayables, versions, fingerprints, checksums, headers, bodies)
                    WITH ORDINALITY AS u(key, kept, remembered, operation, state, code, unreplayable, version, fingerprint, checksum, header, body, n)
                WHERE u.kept <= longest AND EXISTS (SELECT FROM unavez.ledger l WHERE l.slot = 1) ORDER BY u.n;
            GET DIAGNOSTICS added = ROW_COUNT;
        WHEN target = 2 THEN
            INSERT INTO unavez.outcome_2 SELECT u.key, at, at + u.kept * micro, at + (u.kept + u.remembered) * micro, u.code, 1, u.version, u.state, u.unreplayable = 1,
                u.operation, u.fingerprint, u.checksum, u.header, u.body
                FROM unnest(keys, kept, remembered, operations, states, codes, unreplayables, versions, fingerprints, checksums, headers, bodies)
                    WITH ORDINALITY AS u(key, kept, remembered, operation, state, code, unreplayable, version, fingerprint, checksum, header, body, n)
                WHERE u.kept <= longest AND EXISTS (SELECT FROM unavez.ledger l WHERE l.slot = 2) ORDER BY u.n;
            GET DIAGNOSTICS added = ROW_COUNT;
        ELSE
            INSERT INTO unavez.outcome_3 SELECT u.key, at, at + u.kept * micro, at + (u.kept + u.remembered) * micro, u.code, 1, u.version, u.state, u.unreplayable = 1,
                u.operation, u.fingerprint, u.checksum, u.header, u.body
                FROM unnest(keys, kept, remembered, operations, states, codes, unreplayables, versions, fingerprints, checksums, headers, bodies)
                    WITH ORDINALITY AS u(key, kept, remembered, operation, state, code, unreplayable, version, fingerprint, checksum, header, body, n)
                WHERE u.kept <= longest AND EXISTS (SELECT FROM unavez.ledger l WHERE l.slot = 3) ORDER BY u.n;
            GET DIAGNOSTICS added = ROW_COUNT;
        END CASE;
        EXIT WHEN added = short;
    END LOOP;
    total := added;
    IF short < cardinality(keys) THEN
        INSERT INTO unavez.outcome_table SELECT u.key, at, at + u.kept * micro, at + (u.kept + u.remembered) * micro, u.code, 1, u.version, u.state, u.unreplayable = 1,
            u.operation, u.fingerprint, u.checksum, u.header, u.body
            FROM unnest(keys, kept, remembered, operations, states, codes, unreplayables, versions, fingerprints, checksums, headers, bodies)
                WITH ORDINALITY AS u(key, kept, remembered, operation, state, code, unreplayable, version, fingerprint, checksum, header, body, n)
            WHERE u.kept > longest ORDER BY u.n;
        GET DIAGNOSTICS added = ROW_COUNT;
        total := total + added;
    END IF;
    IF total <> cardinality(keys) THEN
        RAISE EXCEPTION 'the slot changes faster than it can be written to' USING ERRCODE = 'UV001';
    END IF;
    RETURN at;
END $$;

-- depth counts entries that are not done, by source, and tells when the oldest of
-- them arrived. It looks at the newest rows, at most so many, and at those that
-- are known to wait.
CREATE FUNCTION unavez.depth(most integer) RETURNS TABLE (source text, waits bigint, oldest timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY
        WITH w AS MATERIALIZED (
            SELECT * FROM (
                (SELECT q.sequence, q.key, q.arrived, q.source FROM unavez.queue_0 q ORDER BY q.sequence DESC LIMIT most)
                UNION ALL (SELECT q.sequence, q.key, q.arrived, q.source FROM unavez.queue_1 q ORDER BY q.sequence DESC LIMIT most)
                UNION ALL (SELECT q.sequence, q.key, q.arrived, q.source FROM unavez.queue_2 q ORDER BY q.sequence DESC LIMIT most)
                UNION ALL (SELECT q.sequence, q.key, q.arrived, q.source FROM unavez.queue_3 q ORDER BY q.sequence DESC LIMIT most)) u
            ORDER BY u.sequence DESC LIMIT most),
        b AS (SELECT q.sequence, q.key, q.arrived, q.source FROM (SELECT x.key FROM unavez.blocked x LIMIT most) k, LATERAL (SELECT * FROM unavez.queue x WHERE x.key = k.key LIMIT 1) q)
        SELECT e.source, count(*), min(e.arrived)
        FROM (SELECT * FROM w UNION SELECT * FROM b) e
        WHERE (SELECT true FROM unavez.memory m WHERE m.key = e.key AND m.forgets > e.arrived LIMIT 1) IS NULL
        GROUP BY e.source;
END $$;

-- lane_of is the lane of an ordering key: its first 8 bytes, big-endian and
-- without a sign, modulo the number of lanes.
CREATE FUNCTION unavez.lane_of(ordering uuid, lanes integer) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (((('x' || substr(k.hex, 1, 8))::bit(32)::bigint % lanes * (4294967296 % lanes) + ('x' || substr(k.hex, 9, 8))::bit(32)::bigint)) % lanes)::integer
    FROM (SELECT replace(ordering::text, '-', '') AS hex) k
$$;

-- order_lock is the lock of an ordering key, which an append in a longer
-- transaction takes before it draws its sequence.
CREATE FUNCTION unavez.order_lock(ordering uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ('x' || substr(replace(ordering::text, '-', ''), 1, 16))::bit(64)::bigint # 8461807911012290305
$$;

-- enqueue appends one entry in the caller's transaction: an operation that has to
-- be done, by tenant, effect name and key parts, whose payload its handler gets.
-- It answers new, duplicate or conflict; the latter two change nothing. With
-- ordering parts it waits for other transactions that have enqueued for them, and
-- those that come later wait for the end of this one, so that what is visible
-- first has the smaller sequence: call it where that is short, at the end. Two
-- calls in one transaction take their ordering keys in the same order everywhere,
-- or one of two such transactions may be aborted as a deadlock.
--
-- subject names the person or account whose data the payload holds, so that it
-- can be erased.
CREATE FUNCTION unavez.enqueue(
    tenant text, effect text, parts text[], ordering text[], payload bytea, content_type text DEFAULT 'application/json',
    type text DEFAULT '', source text DEFAULT '', version text DEFAULT '', subject text[] DEFAULT NULL, attributes jsonb DEFAULT '{}',
    fingerprint bytea DEFAULT NULL, fingerprint_version integer DEFAULT 0)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entry_key uuid := unavez.key_of(tenant, effect, parts);
    ordered boolean := coalesce(cardinality(ordering), 0) > 0;
    order_key uuid := CASE WHEN ordered THEN unavez.key_of(tenant, effect, ordering) ELSE entry_key END;
    identity jsonb := jsonb_build_object('tenant', tenant, 'effect', effect, 'parts', to_jsonb(parts));
    note json;
    number integer;
BEGIN
    IF tenant IS NULL OR coalesce(effect, '') = '' OR coalesce(cardinality(parts), 0) NOT BETWEEN 1 AND 16 OR array_position(parts, NULL) IS NOT NULL
        OR array_to_string(parts, '') = '' OR octet_length(tenant) > 1024 OR octet_length(effect) > 1024
        OR EXISTS (SELECT FROM unnest(parts || ordering) p WHERE octet_length(p) > 1024) OR cardinality(ordering) > 16 OR array_position(ordering, NULL) IS NOT NULL
        OR octet_length(fingerprint) > 64 OR fingerprint_version NOT BETWEEN 0 AND 32767 THEN
        RAISE EXCEPTION 'entry: want a tenant, an effect name and 1 to 16 key parts of at most 1024 bytes, not all of them empty, at most 16 ordering parts, and a fingerprint of at most 64 bytes'
            USING ERRCODE = '22023';
    END IF;
    IF jsonb_typeof(attributes) <> 'object' OR EXISTS (SELECT FROM jsonb_each(attributes) a WHERE jsonb_typeof(a.value) <> 'string') THEN
        RAISE EXCEPTION 'attributes: want an object whose members are strings' USING ERRCODE = '22023';
    END IF;
    note := jsonb_build_object('event', identity, 'operation', identity, 'contentType', content_type)
        || CASE WHEN ordered THEN jsonb_build_object('ordering', to_jsonb(ordering)) ELSE '{}' END
        || CASE WHEN version <> '' THEN jsonb_build_object('version', version) ELSE '{}' END
        || CASE WHEN source <> '' THEN jsonb_build_object('source', source) ELSE '{}' END
        || CASE WHEN type <> '' THEN jsonb_build_object('type', type) ELSE '{}' END
        || CASE WHEN attributes <> '{}' THEN jsonb_build_object('attributes', attributes) ELSE '{}' END;
    IF octet_length(note::text) > 65536 THEN
        RAISE EXCEPTION 'note: % bytes, want at most 65536: fewer attributes', octet_length(note::text) USING ERRCODE = '22023';
    END IF;
    SELECT s.value::integer INTO STRICT number FROM unavez.setting s WHERE s.name = 'lanes';
    payload := coalesce(payload, '');
    RETURN (ARRAY['new', 'duplicate', 'conflict'])[(unavez.append(number, false, CASE WHEN ordered THEN ARRAY[unavez.order_lock(order_key)] ELSE '{}' END,
        ARRAY[entry_key], ARRAY[entry_key], ARRAY[order_key], ARRAY[unavez.key_of(tenant, 'subject', subject)], ARRAY[unavez.lane_of(order_key, number)],
        ARRAY[fingerprint_version], ARRAY[coalesce(fingerprint, sha256(payload))], ARRAY[source], ARRAY[note], ARRAY[payload]))[1]];
END $$;
