-- The tables of the shop. The ledger's own are made by postgres.Migrate.
create table if not exists orders (
	id       bigint generated always as identity primary key,
	customer text not null,
	sku      text not null,
	quantity integer not null check (quantity > 0)
);
create table if not exists stock (
	sku      text primary key,
	quantity integer not null check (quantity >= 0)
);
