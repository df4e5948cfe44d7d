-- The queue: entries that wait to be done, in a ring of four insert-only slots.
--
-- SQLSTATEs that its functions raise beside those of 0002:
--   UV011  the lane has another holder, or is being taken over
--   UV012  the queue is full
--   UV013  the lanes have been changed

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
