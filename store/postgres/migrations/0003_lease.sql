-- Lease mode. Each function is one transaction of its own when it is called by
-- itself, so that a claim costs one trip and one commit.

-- move brings an attempt from one state into another and writes that down.
CREATE FUNCTION unavez.move(operation_key uuid, old_fence bigint, old_state smallint, new_state smallint, delay bigint, new_actor text, new_reason text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    UPDATE unavez.attempt x SET state = new_state, due = at + delay * interval '1 microsecond', reason = new_reason, changed = at
        WHERE x.key = operation_key AND x.fence = old_fence AND x.state = old_state;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'attempt % is not in state % any more', old_fence, old_state USING ERRCODE = 'UV005';
    END IF;
    INSERT INTO unavez.transition (key, at, from_state, to_state, attempt, actor, reason)
        VALUES (operation_key, at, old_state, new_state, old_fence, new_actor, new_reason);
END $$;

-- claim grants the lease of an operation: its lock is held from the read to the
-- commit, so that no finish comes between. What it returns tells the operation
-- as it was found.
CREATE FUNCTION unavez.claim(
    operation_key uuid, operation_lock bigint, from_fence bigint, lease bigint,
    new_operation text, new_version integer, new_fingerprint bytea, new_derived text, new_origin text)
RETURNS unavez.found LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f unavez.found;
    doubtful boolean;
BEGIN
    f := unavez.gate(operation_key, operation_lock, false, NULL);
    IF f.incarnation < 0 THEN
        PERFORM unavez.new_incarnation(false);
    END IF;
    IF f.lapsed THEN
        PERFORM unavez.move(operation_key, f.number, 1::smallint, 4::smallint, 0, 'store', f.reason);
        f.changed := f.at;
    END IF;
    IF f.state = 0 THEN
        IF f.stale THEN
            PERFORM unavez.forget(operation_key);
        END IF;
        INSERT INTO unavez.attempt (key, fence, state, version, expires, due, created, changed, operation, fingerprint, derived, origin, reason)
            VALUES (operation_key, 1, 1, new_version, f.at + lease * interval '1 microsecond', f.at, f.at, f.at,
                new_operation, new_fingerprint, new_derived, new_origin, '');
        SELECT l.doubted > f.at INTO STRICT doubtful FROM unavez.ledger l;
        IF doubtful THEN
            -- An earlier claim may have been lost with the old history, and its
            -- outside call made.
            f.number := 1; f.version := new_version; f.operation := new_operation; f.fingerprint := new_fingerprint;
            f.expires := f.at; f.due := f.at; f.created := f.at; f.derived := new_derived; f.origin := new_origin;
            PERFORM unavez.move(operation_key, 1, 1::smallint, 4::smallint, 0, 'store', 'first claim after a change of the database''s history');
            f.state := 4; f.changed := f.at; f.reason := 'first claim after a change of the database''s history';
            RETURN f;
        END IF;
        f.granted := true;
    ELSIF from_fence <> 0 AND f.number = from_fence AND (f.state IN (3, 4) OR f.state = 2 AND f.due <= f.at) THEN
        UPDATE unavez.attempt x SET fence = x.fence + 1, state = 1, expires = f.at + lease * interval '1 microsecond', reason = '', changed = f.at
            WHERE x.key = operation_key AND x.fence = from_fence;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fence % is not the last', from_fence USING ERRCODE = 'UV004';
        END IF;
        f.granted := true;
    END IF;
    RETURN f;
END $$;

-- renew extends a lease that still lives.
CREATE FUNCTION unavez.renew(operation_key uuid, old_fence bigint, lease bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE unavez.attempt x SET expires = clock_timestamp() + lease * interval '1 microsecond'
        WHERE x.key = operation_key AND x.fence = old_fence AND x.state = 1 AND x.expires > clock_timestamp();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fence % is not the last, or its lease has expired', old_fence USING ERRCODE = 'UV004';
    END IF;
END $$;

-- rest ends an attempt without an outcome; state 0 deletes it.
CREATE FUNCTION unavez.rest(operation_key uuid, old_fence bigint, new_state smallint, delay bigint, new_reason text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old smallint;
BEGIN
    SELECT x.state INTO old FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fence % is not the last', old_fence USING ERRCODE = 'UV004';
    END IF;
    IF new_state <> 0 THEN
        PERFORM unavez.move(operation_key, old_fence, old, new_state, delay, 'worker', new_reason);
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM unavez.step x WHERE x.key = operation_key AND x.done) THEN
        RAISE EXCEPTION 'operation has finished steps' USING ERRCODE = 'UV005';
    END IF;
    DELETE FROM unavez.attempt x WHERE x.key = operation_key;
    DELETE FROM unavez.step x WHERE x.key = operation_key;
    DELETE FROM unavez.transition x WHERE x.key = operation_key;
END $$;

-- save_step writes the start or the end of an outside call, under the row lock
-- of its attempt.
CREATE FUNCTION unavez.save_step(operation_key uuid, old_fence bigint, new_name text, new_done boolean, new_result bytea)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM unavez.attempt x WHERE x.key = operation_key AND x.fence = old_fence FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fence % is not the last', old_fence USING ERRCODE = 'UV004';
    END IF;
    INSERT INTO unavez.step (key, name, done, fence, result) VALUES (operation_key, new_name, new_done, old_fence, new_result)
        ON CONFLICT (key, name) DO UPDATE SET done = excluded.done, fence = excluded.fence, result = excluded.result;
END $$;

-- expire turns attempts whose lease has run out into unknown ones. An operation
-- whose lock is held is left to its holder.
CREATE FUNCTION unavez.expire(most integer) RETURNS SETOF unavez.attempt
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a unavez.attempt;
    n integer := 0;
BEGIN
    FOR a IN SELECT * FROM unavez.attempt x WHERE x.state = 1 AND x.expires <= clock_timestamp() ORDER BY x.expires, x.key LOOP
        EXIT WHEN n >= most;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(unavez.lock_of(a.key));
        UPDATE unavez.attempt x SET state = 4, due = clock_timestamp(), reason = 'lease expired', changed = clock_timestamp()
            WHERE x.key = a.key AND x.fence = a.fence AND x.state = 1 AND x.expires <= clock_timestamp()
            RETURNING * INTO a;
        CONTINUE WHEN NOT FOUND;
        INSERT INTO unavez.transition (key, at, from_state, to_state, attempt, actor, reason)
            VALUES (a.key, a.changed, 1, 4, a.fence, 'store', a.reason);
        n := n + 1;
        RETURN NEXT a;
    END LOOP;
END $$;
