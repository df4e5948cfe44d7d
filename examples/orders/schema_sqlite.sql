create table if not exists orders (
	id        integer primary key,
	placed_as text not null unique,
	customer  text not null,
	currency  text not null,
	total     integer not null,
	state     text not null check (state in ('pending', 'paid', 'shipped'))
) strict;
create table if not exists order_item (
	order_id   integer not null references orders (id),
	line       integer not null,
	sku        text not null,
	quantity   integer not null check (quantity > 0),
	unit_price integer not null check (unit_price >= 0),
	primary key (order_id, line)
) strict, without rowid;
create table if not exists payment (
	order_id integer primary key references orders (id), -- one payment for each order
	amount   integer not null,
	currency text not null
) strict;
create table if not exists shipment (
	order_id integer primary key references orders (id), -- one parcel for each order
	tracking text not null
) strict;
