CREATE TABLE IF NOT EXISTS orders (
	id        TEXT PRIMARY KEY,
	state     TEXT NOT NULL CHECK (state IN ('pending', 'paid')),
	customer  TEXT NOT NULL,
	reference TEXT UNIQUE,
	currency  TEXT NOT NULL,
	total     INTEGER NOT NULL CHECK (total >= 0),
	items     TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS payments (
	id       TEXT PRIMARY KEY,
	order_id TEXT NOT NULL UNIQUE REFERENCES orders (id),
	amount   INTEGER NOT NULL CHECK (amount >= 0),
	currency TEXT NOT NULL
) STRICT;
-- Orders that a shop platform tells of: one row each, however many events name it.
CREATE TABLE IF NOT EXISTS imports (
	platform    TEXT NOT NULL,
	store       TEXT NOT NULL,
	external_id TEXT NOT NULL,
	payment     TEXT NOT NULL,
	total       TEXT NOT NULL,
	updated_at  TEXT NOT NULL,
	PRIMARY KEY (platform, store, external_id)
) STRICT;
CREATE TABLE IF NOT EXISTS notices (
	event_id TEXT NOT NULL UNIQUE,
	type     TEXT NOT NULL,
	subject  TEXT NOT NULL
) STRICT;
