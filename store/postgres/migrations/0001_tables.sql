-- What is stored. Everything is insert-only on the usual way of an operation.

CREATE TABLE unavez.setting (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- One row, read by every gate and every finish: which slots count, and which
-- is written to. slot is -1 where no ring is used. It has no key, since an index
-- would be one more lock of every gate; nobody but its owner may insert.
CREATE TABLE unavez.ledger (
    slot           integer NOT NULL,
    live           integer NOT NULL, -- bit n: outcome_n is read; bits 4 and 5: outcome_table and attempt have been written to
    ring           bigint  NOT NULL, -- the longest retention that goes into the ring, in microseconds
    tombstone_slot integer NOT NULL,
    tombstone_live integer NOT NULL,
    -- The database's history: the cluster, the timeline of its log, and a number
    -- that counts the changes of both and what an operator says. Until doubted a
    -- first claim is not granted, since the claim before it may have been lost.
    system      bigint      NOT NULL,
    timeline    text        NOT NULL,
    incarnation bigint      NOT NULL,
    doubt       bigint      NOT NULL, -- microseconds
    doubted     timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The life of each slot; only a purge reads and writes it. copied is how far
-- the identities of a slot over its time have been copied to the tombstones.
CREATE TABLE unavez.slot (
    ring   text        NOT NULL CHECK (ring IN ('outcome', 'tombstone')),
    number integer     NOT NULL,
    state  text        NOT NULL CHECK (state IN ('empty', 'current', 'sealed', 'retired')),
    since  timestamptz NOT NULL,
    until  timestamptz,
    copied uuid,
    PRIMARY KEY (ring, number)
);

-- A slot of the ring: the outcomes of one span of time. Columns stand by width,
-- so that no row has padding.
CREATE TABLE unavez.outcome_0 (
    key          uuid        PRIMARY KEY,
    ended        timestamptz NOT NULL,
    expires      timestamptz NOT NULL, -- until when the result is kept
    forgets      timestamptz NOT NULL, -- until when the identity is remembered
    code         bigint      NOT NULL,
    attempt      bigint      NOT NULL,
    version      integer     NOT NULL,
    state        smallint    NOT NULL,
    unreplayable boolean     NOT NULL,
    operation    text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    checksum     bytea       NOT NULL,
    header       bytea       NOT NULL,
    body         bytea       NOT NULL
);
CREATE TABLE unavez.outcome_1 (LIKE unavez.outcome_0 INCLUDING ALL);
CREATE TABLE unavez.outcome_2 (LIKE unavez.outcome_0 INCLUDING ALL);
CREATE TABLE unavez.outcome_3 (LIKE unavez.outcome_0 INCLUDING ALL);

-- The class that is kept in one table: retentions longer than the ring's, and
-- everything where transactions run above READ COMMITTED.
CREATE TABLE unavez.outcome_table (LIKE unavez.outcome_0 INCLUDING ALL);
CREATE INDEX outcome_table_expires ON unavez.outcome_table (expires);

CREATE TABLE unavez.tombstone_0 (
    key     uuid        PRIMARY KEY,
    forgets timestamptz NOT NULL,
    short   bytea       NOT NULL -- the front of the fingerprint
);
CREATE TABLE unavez.tombstone_1 (LIKE unavez.tombstone_0 INCLUDING ALL);
CREATE TABLE unavez.tombstone_2 (LIKE unavez.tombstone_0 INCLUDING ALL);

-- Every unfinished operation that needs memory. No index holds what a renewal
-- changes, so that renewals stay on their page.
CREATE TABLE unavez.attempt (
    key         uuid        PRIMARY KEY,
    fence       bigint      NOT NULL,
    state       smallint    NOT NULL CHECK (state BETWEEN 1 AND 5),
    version     integer     NOT NULL,
    expires     timestamptz NOT NULL, -- end of the lease, for processing
    due         timestamptz NOT NULL, -- for retryable
    created     timestamptz NOT NULL,
    changed     timestamptz NOT NULL,
    operation   text        NOT NULL,
    fingerprint bytea       NOT NULL,
    derived     text        NOT NULL,
    origin      text        NOT NULL,
    reason      text        NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX attempt_processing ON unavez.attempt (key) WHERE state = 1;
CREATE INDEX attempt_changed ON unavez.attempt (changed, key);

CREATE TABLE unavez.step (
    key    uuid    NOT NULL,
    name   text    NOT NULL COLLATE "C",
    done   boolean NOT NULL,
    fence  bigint  NOT NULL,
    result bytea   NOT NULL,
    PRIMARY KEY (key, name)
);

-- The history of operations: only what cannot be derived.
CREATE TABLE unavez.transition (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        uuid        NOT NULL,
    at         timestamptz NOT NULL,
    from_state smallint    NOT NULL,
    to_state   smallint    NOT NULL,
    attempt    bigint      NOT NULL,
    actor      text        NOT NULL,
    reason     text        NOT NULL
);
CREATE INDEX transition_key ON unavez.transition (key);

-- A gate looks only into tables that have been written to, since each look costs
-- it a tenth of a transaction. The bit is set in the transaction of the first
-- INSERT, so that whoever sees a row sees its bit.
CREATE FUNCTION unavez.written() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE unavez.ledger l SET live = l.live | TG_ARGV[0]::integer WHERE l.live & TG_ARGV[0]::integer = 0;
    RETURN NULL;
END $$;
CREATE TRIGGER written BEFORE INSERT ON unavez.outcome_table FOR EACH STATEMENT EXECUTE FUNCTION unavez.written(16);
CREATE TRIGGER written BEFORE INSERT ON unavez.attempt FOR EACH STATEMENT EXECUTE FUNCTION unavez.written(32);

-- All outcomes, for people and audits. Gates name the slots themselves.
CREATE VIEW unavez.outcome AS
    SELECT * FROM unavez.outcome_0 UNION ALL SELECT * FROM unavez.outcome_1
    UNION ALL SELECT * FROM unavez.outcome_2 UNION ALL SELECT * FROM unavez.outcome_3
    UNION ALL SELECT * FROM unavez.outcome_table;

INSERT INTO unavez.setting (name, value) VALUES ('protocol', '1');
INSERT INTO unavez.ledger (slot, live, ring, tombstone_slot, tombstone_live, system, timeline, incarnation, doubt, doubted)
    SELECT 0, 1, 172800000000, 0, 1, c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), 1, 300000000, '-infinity'
    FROM pg_control_system() c;
INSERT INTO unavez.slot (ring, number, state, since)
    SELECT 'outcome', n, CASE n WHEN 0 THEN 'current' ELSE 'empty' END, clock_timestamp() FROM generate_series(0, 3) n
    UNION ALL
    SELECT 'tombstone', n, CASE n WHEN 0 THEN 'current' ELSE 'empty' END, clock_timestamp() FROM generate_series(0, 2) n;
