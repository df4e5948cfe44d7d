-- The protocol for a program in any language, inside its own transaction at
-- READ COMMITTED. Nothing here sets limits: those are the caller's.
--
--   BEGIN;
--   SELECT answer, token, (stored).code, (stored).body FROM unavez.begin_operation('acme', 'order.create.v1', ARRAY['1001']);
--   -- answer 'go on': do the work, then
--   SELECT unavez.finish_operation(:token, 201, 'the answer');
--   COMMIT;
--   -- any other answer: ROLLBACK, and tell it

-- part is one part of a list: its length as uint32 big-endian, then its bytes.
CREATE FUNCTION unavez.part(bytes bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT int4send(length(bytes)) || bytes
$$;

-- identity_of is the SHA-256 over tenant, effect name and key parts.
CREATE FUNCTION unavez.identity_of(tenant text, effect text, parts text[]) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(string_agg(unavez.part(convert_to(p.part, 'UTF8')), ''::bytea ORDER BY p.n))
    FROM unnest(ARRAY[tenant, effect] || parts) WITH ORDINALITY AS p(part, n)
$$;

-- key_of is the database key of an operation: the front of its identity.
CREATE FUNCTION unavez.key_of(tenant text, effect text, parts text[]) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(substring(unavez.identity_of(tenant, effect, parts) FROM 1 FOR 16), 'hex')::uuid
$$;

-- derived_key is what an outside call of the operation carries; step is empty
-- for the operation itself.
CREATE FUNCTION unavez.derived_key(tenant text, effect text, parts text[], step text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'uv1-' || encode(substring(sha256(unavez.part('derive'::bytea) || unavez.part(unavez.identity_of(tenant, effect, parts))
        || unavez.part(convert_to(step, 'UTF8'))) FROM 1 FOR 16), 'hex')
$$;

-- escaped is a part as the readable text has it: what is not a letter, a digit
-- or one of -_.~$&+:=@ as a percent sign and two digits for each byte.
CREATE FUNCTION unavez.escaped(part text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(string_agg(CASE WHEN b.byte < 128 AND chr(b.byte) ~ '[-A-Za-z0-9_.~$&+:=@]' THEN chr(b.byte)
        ELSE '%' || upper(lpad(to_hex(b.byte), 2, '0')) END, '' ORDER BY b.n), '')
    FROM (SELECT n, get_byte(convert_to(part, 'UTF8'), n) AS byte FROM generate_series(0, octet_length(convert_to(part, 'UTF8')) - 1) n) b
$$;

-- text_of is the readable form of an identity.
CREATE FUNCTION unavez.text_of(tenant text, effect text, parts text[]) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(unavez.escaped(p.part), '/' ORDER BY p.n) FROM unnest(ARRAY[tenant, effect] || parts) WITH ORDINALITY AS p(part, n)
$$;

-- checksum covers everything of an outcome that is served or compared.
CREATE FUNCTION unavez.checksum(operation_key uuid, state smallint, version integer, fingerprint bytea, code bigint, unreplayable boolean, header bytea, body bytea)
RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT substring(sha256(unavez.part('outcome'::bytea) || unavez.part(uuid_send(operation_key))
        || unavez.part(set_byte('\x00'::bytea, 0, state) || int4send(version) || int8send(code) || CASE WHEN unreplayable THEN '\x01'::bytea ELSE '\x00'::bytea END)
        || unavez.part(fingerprint) || unavez.part(header) || unavez.part(body)) FROM 1 FOR 16)
$$;

-- begin_operation tries the operation's lock in the caller's transaction and
-- reads. answer is 'go on', with the token that finish_operation takes, or what
-- a duplicate is to be told: 'completed' and 'discarded' with the frozen result
-- in stored, 'in flight', 'other payload', 'expired', 'unknown', 'parked',
-- 'retryable', 'dead', 'damaged'. With from_fence it takes over the attempt at
-- rest that has this fence, if that is due: who names it has looked at it, its
-- payload included.
CREATE FUNCTION unavez.begin_operation(
    tenant text, effect text, parts text[], fingerprint bytea DEFAULT '', version integer DEFAULT 0, from_fence bigint DEFAULT 0,
    OUT answer text, OUT token jsonb, OUT stored unavez.found)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    operation_key uuid := unavez.key_of(tenant, effect, parts);
    same boolean;
BEGIN
    IF tenant IS NULL OR coalesce(effect, '') = '' OR coalesce(cardinality(parts), 0) NOT BETWEEN 1 AND 16 OR array_position(parts, NULL) IS NOT NULL
        OR array_to_string(parts, '') = '' OR octet_length(tenant) > 1024 OR octet_length(effect) > 1024
        OR EXISTS (SELECT FROM unnest(parts) p WHERE octet_length(p) > 1024) OR octet_length(fingerprint) > 64 OR version NOT BETWEEN 0 AND 32767 THEN
        RAISE EXCEPTION 'operation: want a tenant, an effect name and 1 to 16 key parts of at most 1024 bytes, not all of them empty, and a fingerprint of at most 64 bytes'
            USING ERRCODE = '22023';
    END IF;
    stored := unavez.gate(operation_key, unavez.lock_of(operation_key), false, NULL);
    IF stored.incarnation < 0 THEN
        PERFORM unavez.new_incarnation(false);
    END IF;
    same := CASE stored.state WHEN 8 THEN stored.fingerprint = substring(fingerprint FROM 1 FOR 8)
        ELSE stored.fingerprint = fingerprint AND stored.version = version END;
    answer := CASE
        WHEN stored.state = 0 THEN 'go on'
        WHEN stored.state = 1 AND stored.operation IS NULL THEN 'in flight'
        WHEN stored.state IN (6, 7) AND stored.checksum <> unavez.checksum(operation_key, stored.state, stored.version, stored.fingerprint, stored.code,
            stored.unreplayable, stored.header, stored.body) THEN 'damaged'
        WHEN from_fence <> 0 AND stored.number = from_fence AND (stored.state IN (3, 4) OR stored.state = 2 AND stored.due <= stored.at) THEN 'go on'
        WHEN NOT same THEN 'other payload'
        ELSE (ARRAY['in flight', 'retryable', 'parked', 'unknown', 'dead', 'completed', 'discarded', 'expired'])[stored.state] END;
    IF answer = 'go on' THEN
        token := jsonb_build_object('key', operation_key, 'operation', unavez.text_of(tenant, effect, parts), 'version', version,
            'fingerprint', encode(fingerprint, 'hex'), 'fence', CASE stored.state WHEN 0 THEN 0 ELSE stored.number END, 'stale', stored.stale,
            'started', transaction_timestamp(), 'backend', pg_backend_pid());
    END IF;
END $$;

-- finish_operation inserts the outcome in the same transaction, which the
-- caller then commits. It raises where that would make a second one, or where
-- this is not the transaction of begin_operation any more; see the SQLSTATEs of
-- 0002. header is a list of names and values as parts.
CREATE FUNCTION unavez.finish_operation(
    token jsonb, code bigint, body bytea DEFAULT '', header bytea DEFAULT '',
    retention interval DEFAULT interval '48 hours', tombstone interval DEFAULT interval '30 days',
    discarded boolean DEFAULT false, unwritten boolean DEFAULT false, replayable boolean DEFAULT true)
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    operation_key uuid := token ->> 'key';
    fence bigint := token ->> 'fence';
    version integer := token ->> 'version';
    fingerprint bytea := decode(token ->> 'fingerprint', 'hex');
    state smallint := CASE WHEN discarded THEN 7 ELSE 6 END;
BEGIN
    IF token IS NULL OR operation_key IS NULL OR retention <= interval '0' OR tombstone < interval '0' THEN
        RAISE EXCEPTION 'want the token of begin_operation, a retention and a tombstone' USING ERRCODE = '22023';
    END IF;
    RETURN unavez.finish_joined(operation_key, unavez.lock_of(operation_key), (token ->> 'started')::timestamptz, (token ->> 'backend')::integer,
        unwritten, fence, (token ->> 'stale')::boolean,
        (extract(epoch FROM retention) * 1000000)::bigint, (extract(epoch FROM tombstone) * 1000000)::bigint,
        token ->> 'operation', state, fence + 1, code, NOT replayable, version, fingerprint,
        unavez.checksum(operation_key, state, version, fingerprint, code, NOT replayable, header, body), header, body);
END $$;
