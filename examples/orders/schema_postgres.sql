create table if not exists orders (
	id        bigint generated always as identity primary key,
	placed_as text not null unique,
	customer  text not null,
	currency  text not null,
	total     bigint not null,
	state     text not null check (state in ('pending', 'paid', 'shipped'))
);
create table if not exists order_item (
	order_id   bigint not null references orders (id),
	line       bigint not null,
	sku        text not null,
	quantity   bigint not null check (quantity > 0),
	unit_price bigint not null check (unit_price >= 0),
	primary key (order_id, line)
);
create table if not exists payment (
	order_id bigint primary key references orders (id), -- one payment for each order
	amount   bigint not null,
	currency text not null
);
create table if not exists shipment (
	order_id bigint primary key references orders (id), -- one parcel for each order
	tracking text not null
);
