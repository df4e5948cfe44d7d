-- Instants are milliseconds of the Unix epoch by SQLite's own clock.
-- Blobs that are empty may be stored as null.

CREATE TABLE unavez_migration (
    version INTEGER PRIMARY KEY,
    name    TEXT    NOT NULL,
    at      INTEGER NOT NULL
) STRICT;

CREATE TABLE unavez_setting (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- How operations ended. The order of id is the order of the commits.
CREATE TABLE unavez_outcome (
    id           INTEGER PRIMARY KEY,
    key          BLOB    NOT NULL UNIQUE,
    operation    TEXT    NOT NULL, -- the identity, for people
    state        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    expires      INTEGER NOT NULL, -- until when the result is kept
    forgets      INTEGER NOT NULL, -- until when the identity is remembered
    code         INTEGER NOT NULL,
    unreplayable INTEGER NOT NULL,
    version      INTEGER NOT NULL, -- of the fingerprint's algorithm
    fingerprint  BLOB,
    checksum     BLOB    NOT NULL,
    header       BLOB,
    body         BLOB
) STRICT;

-- Retentions are few. By each of them, outcomes expire in the order in which
-- they were made: one index serves the purge and the list.
CREATE INDEX unavez_outcome_kept ON unavez_outcome (expires - at, at, key);

-- Operations of which only the identity is left.
CREATE TABLE unavez_tombstone (
    key     BLOB    NOT NULL PRIMARY KEY,
    forgets INTEGER NOT NULL,
    short   BLOB -- the front of the fingerprint
) STRICT, WITHOUT ROWID;

CREATE INDEX unavez_tombstone_forgets ON unavez_tombstone (forgets);

-- Unfinished operations that need memory. No purge touches them.
CREATE TABLE unavez_attempt (
    key         BLOB    NOT NULL PRIMARY KEY,
    operation   TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    expires     INTEGER NOT NULL, -- end of the lease, while processing
    due         INTEGER NOT NULL, -- when it may run again, while retryable
    created     INTEGER NOT NULL,
    changed     INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    fingerprint BLOB,
    derived     TEXT    NOT NULL,
    origin      TEXT    NOT NULL, -- where it came from, such as a route
    reason      TEXT    NOT NULL
) STRICT;

CREATE INDEX unavez_attempt_changed ON unavez_attempt (changed, key);
CREATE INDEX unavez_attempt_expires ON unavez_attempt (expires) WHERE state = 1;

-- Outside calls of unfinished operations.
CREATE TABLE unavez_step (
    key    BLOB    NOT NULL,
    name   TEXT    NOT NULL,
    done   INTEGER NOT NULL,
    fence  INTEGER NOT NULL,
    result BLOB,
    PRIMARY KEY (key, name)
) STRICT;

-- What cannot be derived: unhappy ends and people's actions.
CREATE TABLE unavez_transition (
    id         INTEGER PRIMARY KEY,
    key        BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    from_state INTEGER NOT NULL,
    to_state   INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    reason     TEXT    NOT NULL
) STRICT;

CREATE INDEX unavez_transition_key ON unavez_transition (key);

INSERT INTO unavez_setting (name, value) VALUES ('protocol', '1');
