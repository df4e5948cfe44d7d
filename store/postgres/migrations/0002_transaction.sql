-- Transaction mode: gate and finish. Both are VOLATILE, so that each statement
-- inside sees what was committed before it began, and run with the rights of
-- their caller.
--
-- SQLSTATEs that they raise:
--   UV001  the outcome exists already, or another transaction holds the operation
--   UV002  this is not the transaction of the gate
--   UV003  it has written
--   UV004  the attempt's fence is not ours
--   UV005  the operation is not in a state that allows this
--   UV006  over the limit of the transaction
--   UV007  a ring needs READ COMMITTED
--   UV008  another transaction holds the operation, said by a gate that goes ahead of a handler's statement
--   UV009  something is stored of the operation, said by such a gate
--   UV010  the slots have changed since such a gate's text was made

-- What a gate finds of an operation.
CREATE TYPE unavez.found AS (
    state         smallint,    -- as the numbers of the protocol
    at            timestamptz, -- the clock that decided
    granted       boolean,     -- by a claim
    stale         boolean,     -- rows of an earlier, forgotten life are still there
    lapsed        boolean,     -- the lease has run out, which is not written yet
    attempt_fence bigint,      -- of the attempt, also beside an outcome
    incarnation   bigint,      -- of the database's history; -1 where it has changed unseen
    position      text,        -- of the server's log
    durability    text,        -- synchronous_commit as it was configured
    -- of the outcome, the tombstone or the attempt
    operation     text,
    number        bigint,      -- attempt of the outcome, fence of the attempt
    version       integer,
    fingerprint   bytea,
    expires       timestamptz,
    -- of the outcome
    ended         timestamptz,
    code          bigint,
    unreplayable  boolean,
    header        bytea,
    body          bytea,
    checksum      bytea,
    -- of the attempt
    due           timestamptz,
    created       timestamptz,
    changed       timestamptz,
    derived       text,
    origin        text,
    reason        text
);

-- The lock of an operation: the front of its key, big-endian, XOR a constant
-- fixed for ever.
CREATE FUNCTION unavez.lock_of(operation_key uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.replace(operation_key::pg_catalog.text, '-', ''), 1, 16))::pg_catalog.bit(64)::pg_catalog.int8
           OPERATOR(pg_catalog.#) 8461807911012278273::pg_catalog.int8
$$;

-- new_incarnation writes down that the database's history is another one: by
-- the cluster's identifier, by the timeline of its log (that of the control file
-- is stale after a promotion), or because somebody says so, who may name the
-- incarnation that he means. It returns the number of the incarnation.
CREATE FUNCTION unavez.new_incarnation(said boolean, after bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l unavez.ledger;
    cluster bigint;
    line text := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
BEGIN
    SELECT c.system_identifier INTO STRICT cluster FROM pg_control_system() c;
    SELECT * INTO STRICT l FROM unavez.ledger;
    IF said OR l.timeline <> line OR l.system <> cluster THEN
        UPDATE unavez.ledger x SET system = cluster, timeline = line, incarnation = x.incarnation + 1,
            doubted = clock_timestamp() + x.doubt * interval '1 microsecond'
            WHERE said AND x.incarnation = coalesce(after, x.incarnation) OR x.timeline <> line OR x.system <> cluster;
        SELECT * INTO STRICT l FROM unavez.ledger;
    END IF;
    RETURN l.incarnation;
END $$;

-- refuse raises, inside an expression: what must stop the statements behind it raises.
CREATE FUNCTION unavez.refuse(code text, why text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = why, ERRCODE = code;
END $$;

-- gate locks the operation, if told to, and reads it. The read comes after the
-- lock and in statements of its own: it sees what the last holder committed.
-- The attempt is read first and the tombstones last, since rows only ever move
-- from attempt to outcome to tombstone: without the lock too, one of them shows.
CREATE FUNCTION unavez.gate(operation_key uuid, operation_lock bigint, waits boolean, limit_ms bigint)
RETURNS unavez.found LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f unavez.found;
    l unavez.ledger;
    a unavez.attempt;
    o unavez.outcome_0;
    t unavez.tombstone_0;
    ms text;
    ignored text;
BEGIN
    f.state := 0;
    f.granted := false;
    f.stale := false;
    f.lapsed := false;
    IF limit_ms IS NOT NULL THEN
        -- A key is free within the limit also when its worker is stopped.
        ms := greatest(limit_ms, 0)::text; -- 0 is none
        ignored := set_config('idle_in_transaction_session_timeout', ms, true)
            || set_config('statement_timeout', ms, true) || set_config('tcp_user_timeout', ms, true);
        IF current_setting('transaction_timeout', true) IS NOT NULL THEN
            ignored := set_config('transaction_timeout', ms, true);
        END IF;
        f.durability := current_setting('synchronous_commit');
    END IF;
    IF operation_lock IS NOT NULL THEN
        IF waits THEN
            PERFORM pg_advisory_xact_lock(operation_lock);
        ELSIF NOT pg_try_advisory_xact_lock(operation_lock) THEN
            f.state := 1;
            RETURN f;
        END IF;
    END IF;
    SELECT * INTO a FROM unavez.attempt x WHERE x.key = operation_key;
    f.attempt_fence := a.fence;
    SELECT * INTO STRICT l FROM unavez.ledger;
    f.position := pg_current_wal_insert_lsn();
    f.incarnation := CASE WHEN l.timeline = substr(pg_walfile_name(f.position::pg_lsn), 1, 8) THEN l.incarnation ELSE -1 END;
    IF l.slot >= 0 AND operation_lock IS NOT NULL AND current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE EXCEPTION 'a ring needs READ COMMITTED: another transaction''s outcome could be missed at %', current_setting('transaction_isolation')
            USING ERRCODE = 'UV007', HINT = 'migrate with NoRing, so that outcomes are kept in one table';
    END IF;
    f.at := clock_timestamp();
    <<search>> BEGIN
        IF l.live & 1 <> 0 THEN
            SELECT * INTO o FROM unavez.outcome_0 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN o.forgets > f.at; f.stale := true; END IF;
        END IF;
        IF l.live & 2 <> 0 THEN
            SELECT * INTO o FROM unavez.outcome_1 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN o.forgets > f.at; f.stale := true; END IF;
        END IF;
        IF l.live & 4 <> 0 THEN
            SELECT * INTO o FROM unavez.outcome_2 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN o.forgets > f.at; f.stale := true; END IF;
        END IF;
        IF l.live & 8 <> 0 THEN
            SELECT * INTO o FROM unavez.outcome_3 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN o.forgets > f.at; f.stale := true; END IF;
        END IF;
        SELECT * INTO o FROM unavez.outcome_table x WHERE x.key = operation_key;
        IF FOUND THEN EXIT search WHEN o.forgets > f.at; f.stale := true; END IF;
        o := NULL;
        -- A purge that has moved the row since may have turned the tombstones' slot before.
        SELECT x.tombstone_live INTO STRICT l.tombstone_live FROM unavez.ledger x;
        IF l.tombstone_live & 1 <> 0 THEN
            SELECT * INTO t FROM unavez.tombstone_0 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN t.forgets > f.at; f.stale := true; END IF;
        END IF;
        IF l.tombstone_live & 2 <> 0 THEN
            SELECT * INTO t FROM unavez.tombstone_1 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN t.forgets > f.at; f.stale := true; END IF;
        END IF;
        IF l.tombstone_live & 4 <> 0 THEN
            SELECT * INTO t FROM unavez.tombstone_2 x WHERE x.key = operation_key;
            IF FOUND THEN EXIT search WHEN t.forgets > f.at; f.stale := true; END IF;
        END IF;
        t := NULL;
    END;
    IF o.key IS NOT NULL AND o.expires > f.at THEN
        f.state := o.state; f.operation := o.operation; f.number := o.attempt; f.version := o.version; f.fingerprint := o.fingerprint;
        f.expires := o.expires; f.ended := o.ended; f.code := o.code; f.unreplayable := o.unreplayable;
        f.header := o.header; f.body := o.body; f.checksum := o.checksum;
    ELSIF o.key IS NOT NULL THEN
        f.state := 8; f.fingerprint := substring(o.fingerprint FROM 1 FOR 8);
    ELSIF t.key IS NOT NULL THEN
        f.state := 8; f.fingerprint := t.short;
    ELSIF a.key IS NOT NULL THEN
        f.state := a.state; f.operation := a.operation; f.number := a.fence; f.version := a.version; f.fingerprint := a.fingerprint;
        f.expires := a.expires; f.due := a.due; f.created := a.created; f.changed := a.changed;
        f.derived := a.derived; f.origin := a.origin; f.reason := a.reason;
        IF a.state = 1 AND a.expires <= f.at THEN
            f.state := 4; f.reason := 'lease expired'; f.lapsed := true;
            f.changed := a.expires; -- until then it may have worked
        END IF;
    END IF;
    RETURN f;
END $$;

-- forget deletes what is left of an operation's earlier life, if that is over.
CREATE FUNCTION unavez.forget(operation_key uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
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

-- finish inserts the outcome, or raises: what must stop a commit raises.
--
-- Each INSERT reads the current slot in its own statement, whose snapshot is
-- taken after its lock on the slot. A purge looks at a sealed slot only under a
-- SHARE lock, which no uncommitted INSERT lets through. So no row arrives in a
-- slot that has been measured, however long its transaction stood still.
CREATE FUNCTION unavez.finish(
    operation_key uuid, started timestamptz, unwritten boolean, old_fence bigint, stale boolean, durability text, limit_us bigint,
    kept bigint, remembered bigint,
    new_operation text, new_state smallint, new_attempt bigint, new_code bigint, new_unreplayable boolean,
    new_version integer, new_fingerprint bytea, new_checksum bytea, new_header bytea, new_body bytea)
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
    keeps timestamptz := at + kept * interval '1 microsecond';
    knows timestamptz := keeps + remembered * interval '1 microsecond';
    target integer;
    place tid;
    ignored text;
BEGIN
    IF started <> transaction_timestamp() THEN
        RAISE EXCEPTION 'not the transaction of the gate: it was ended and another one begun' USING ERRCODE = 'UV002';
    END IF;
    IF at > transaction_timestamp() + limit_us * interval '1 microsecond' THEN
        RAISE EXCEPTION 'transaction is over its limit' USING ERRCODE = 'UV006';
    END IF;
    IF unwritten AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'transaction has written' USING ERRCODE = 'UV003';
    END IF;
    IF durability IS NOT NULL AND current_setting('synchronous_commit') <> durability THEN
        ignored := set_config('synchronous_commit', durability, true);
    END IF;
    IF old_fence > 0 THEN
        DELETE FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fence % is not the last', old_fence USING ERRCODE = 'UV004';
        END IF;
        DELETE FROM unavez.step x WHERE x.key = operation_key;
    END IF;
    IF stale THEN
        PERFORM unavez.forget(operation_key);
    END IF;
    IF old_fence = 0 AND current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        -- The operation was read before this transaction: a claim that came
        -- between collides with this row, seen or not. It goes by its place, since
        -- a look at the index would be a read that SERIALIZABLE watches.
        INSERT INTO unavez.attempt (key, fence, state, version, expires, due, created, changed, operation, fingerprint, derived, origin, reason)
            VALUES (operation_key, 1, 1, new_version, at, at, at, at, new_operation, new_fingerprint, '', '', '')
            RETURNING ctid INTO place;
        DELETE FROM unavez.attempt x WHERE x.ctid = place;
    END IF;
    FOR i IN 1..10 LOOP
        SELECT CASE WHEN kept <= l.ring THEN l.slot ELSE -1 END INTO STRICT target FROM unavez.ledger l;
        CASE target
        WHEN 0 THEN
            INSERT INTO unavez.outcome_0 SELECT operation_key, at, keeps, knows, new_code, new_attempt, new_version, new_state, new_unreplayable,
                new_operation, new_fingerprint, new_checksum, new_header, new_body FROM unavez.ledger l WHERE l.slot = 0;
        WHEN 1 THEN
            INSERT INTO unavez.outcome_1 SELECT operation_key, at, keeps, knows, new_code, new_attempt, new_version, new_state, new_unreplayable,
                new_operation, new_fingerprint, new_checksum, new_header, new_body FROM unavez.ledger l WHERE l.slot = 1;
        WHEN 2 THEN
            INSERT INTO unavez.outcome_2 SELECT operation_key, at, keeps, knows, new_code, new_attempt, new_version, new_state, new_unreplayable,
                new_operation, new_fingerprint, new_checksum, new_header, new_body FROM unavez.ledger l WHERE l.slot = 2;
        WHEN 3 THEN
            INSERT INTO unavez.outcome_3 SELECT operation_key, at, keeps, knows, new_code, new_attempt, new_version, new_state, new_unreplayable,
                new_operation, new_fingerprint, new_checksum, new_header, new_body FROM unavez.ledger l WHERE l.slot = 3;
        ELSE
            INSERT INTO unavez.outcome_table VALUES (operation_key, at, keeps, knows, new_code, new_attempt, new_version, new_state, new_unreplayable,
                new_operation, new_fingerprint, new_checksum, new_header, new_body);
        END CASE;
        IF FOUND THEN
            RETURN at;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the slot changes faster than it can be written to' USING ERRCODE = 'UV001';
END $$;

-- finish_joined is finish in a transaction that the caller owns. A savepoint
-- that was rolled back may have taken the gate's lock and the marker with it:
-- the transaction is told by its start and its backend, the lock is taken
-- again, and the ledger read again.
CREATE FUNCTION unavez.finish_joined(
    operation_key uuid, operation_lock bigint, started timestamptz, backend integer, unwritten boolean, old_fence bigint, stale boolean,
    kept bigint, remembered bigint,
    new_operation text, new_state smallint, new_attempt bigint, new_code bigint, new_unreplayable boolean,
    new_version integer, new_fingerprint bytea, new_checksum bytea, new_header bytea, new_body bytea)
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f unavez.found;
BEGIN
    IF started IS DISTINCT FROM transaction_timestamp() OR backend <> pg_backend_pid() THEN
        RAISE EXCEPTION 'not the transaction of the gate' USING ERRCODE = 'UV002';
    END IF;
    f := unavez.gate(operation_key, operation_lock, false, NULL);
    IF f.state >= 6 OR f.state > 0 AND (f.operation IS NULL OR f.number <> old_fence) THEN
        RAISE EXCEPTION 'operation has ended, or runs elsewhere' USING ERRCODE = 'UV001';
    END IF;
    RETURN unavez.finish(operation_key, NULL, unwritten, old_fence, stale OR f.stale, NULL, NULL, kept, remembered,
        new_operation, new_state, new_attempt, new_code, new_unreplayable, new_version, new_fingerprint, new_checksum, new_header, new_body);
END $$;
