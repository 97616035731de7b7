CREATE TABLE shop_orders (id bigserial PRIMARY KEY, customer text, amount numeric(12, 2));
INSERT INTO shop_orders (customer, amount) VALUES
  ('ada', 12.50), ('bob', 7), (NULL, 3), ('ada', -1);
BEGIN;
INSERT INTO shop_orders (customer, amount) VALUES ('eve', 99);
ROLLBACK;
INSERT INTO shop_orders (customer, amount) VALUES ('bob', 5);

CREATE TABLE shop_customers (name text PRIMARY KEY, city text, updated_at timestamptz NOT NULL);
CREATE INDEX ON shop_customers (updated_at);
INSERT INTO shop_customers VALUES
  ('ada', 'London', '2026-01-01 12:00:00Z'), ('bob', 'Bern', '2026-01-01 12:10:00Z');
