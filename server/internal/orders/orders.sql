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
