-- name: InsertOrder :one
insert into orders (customer, sku, quantity) values ($1, $2, $3) returning id;

-- name: TakeFromStock :execrows
update stock set quantity = quantity - @taken::int where sku = @sku and quantity >= @taken::int;
