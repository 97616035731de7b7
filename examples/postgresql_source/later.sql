INSERT INTO shop_orders (customer, amount) VALUES ('eve', 20);
UPDATE shop_customers SET city = 'Rome', updated_at = '2026-01-01 12:30:00Z' WHERE name = 'bob';
INSERT INTO shop_customers VALUES ('eve', 'Oslo', '2026-01-01 11:50:00Z');
