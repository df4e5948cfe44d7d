-- Operations waiting to be done, and those that are done and still kept with
-- their payload. An entry is done when unavez_outcome has its key; the two go
-- together. The order of id is the order of the commits, and no id comes again.
CREATE TABLE unavez_queue (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    key         BLOB    NOT NULL UNIQUE,
    lane        INTEGER NOT NULL,
    operation   BLOB,             -- where it is not the key
    ordering    BLOB,             -- where it is not the key
    subject     BLOB,             -- whose data the payload holds, if anybody's
    version     INTEGER NOT NULL, -- of the fingerprint's algorithm
    fingerprint BLOB,
    arrived     INTEGER NOT NULL,
    erased      INTEGER NOT NULL,
    note        TEXT    NOT NULL,
    payload     BLOB
) STRICT;

-- A reader goes through the ids of its lanes. This order grows at its end only,
-- where (lane, id) would change a page for almost every entry of a commit.
CREATE INDEX unavez_queue_lane ON unavez_queue (id, lane);
CREATE INDEX unavez_queue_ordering ON unavez_queue (ordering) WHERE ordering IS NOT NULL;

-- Arrivals that added nothing.
CREATE TABLE unavez_delivery (
    id   INTEGER PRIMARY KEY,
    key  BLOB    NOT NULL, -- of the entry
    at   INTEGER NOT NULL,
    what INTEGER NOT NULL, -- duplicate or conflict
    sum  BLOB              -- the front of the fingerprint
) STRICT;

CREATE INDEX unavez_delivery_key ON unavez_delivery (key);

-- Authentic deliveries that cannot be operations. No purge touches them.
CREATE TABLE unavez_quarantine (
    key         BLOB    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    detail      TEXT    NOT NULL,
    subject     BLOB,
    arrived     INTEGER NOT NULL,
    erased      INTEGER NOT NULL,
    contenttype TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    payload     BLOB
) STRICT;

-- Buckets of ordering keys, and who holds them until when.
CREATE TABLE unavez_lane (
    lane    INTEGER PRIMARY KEY,
    worker  TEXT    NOT NULL, -- empty for none
    epoch   INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    clean   INTEGER NOT NULL, -- handed back by the worker before
    cursor  TEXT    NOT NULL
) STRICT;

CREATE TABLE unavez_worker (
    name    TEXT    NOT NULL PRIMARY KEY,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Entries whose ordering key waits. Those of gap 0 keep what comes behind them.
CREATE TABLE unavez_blocked (
    ordering  BLOB    NOT NULL,
    sequence  INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    gap       INTEGER NOT NULL,
    key       BLOB    NOT NULL,
    operation BLOB    NOT NULL,
    PRIMARY KEY (ordering, sequence)
) STRICT, WITHOUT ROWID;

-- The last version of each ordering key that took effect.
CREATE TABLE unavez_version (
    ordering BLOB    NOT NULL PRIMARY KEY,
    number   TEXT    NOT NULL,
    day      INTEGER NOT NULL, -- when it was written, in days of the Unix epoch
    content  BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX unavez_version_day ON unavez_version (day);

-- How far the listings of senders have been read.
CREATE TABLE unavez_position (
    name    TEXT    NOT NULL PRIMARY KEY,
    worker  TEXT    NOT NULL,
    expires INTEGER NOT NULL,
    value   TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- What people decided about what is no operation: quarantined items, and the
-- data of a person.
CREATE TABLE unavez_decision (
    id     INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    what   TEXT    NOT NULL, -- readmit, discard, erase
    key    BLOB    NOT NULL, -- of the item, or of the subject
    actor  TEXT    NOT NULL,
    reason TEXT    NOT NULL
) STRICT;
