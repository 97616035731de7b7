"""Orders from files, with rules, into two PostgreSQL tables."""

from pyspark.sql import functions as F

import penstock as dp

DATABASE = {
    "url": spark.conf.get("database.url"),
    "user": spark.conf.get("database.user"),
    "password": "${secret:DATABASE_PASSWORD}",
}


@dp.table(comment="Valid orders; rows that violate a rule are in orders_quarantine")
@dp.expect_or_drop("has_customer", "customer IS NOT NULL")
@dp.expect_or_drop("not_negative", "amount >= 0")
def orders():
    schema = "id BIGINT, customer STRING, amount DECIMAL(12, 2), note STRING, placed TIMESTAMP"
    return spark.readStream.schema(schema).json("data")


# Each order once. If the table does not exist, it is created with types that can hold all values.
dp.create_sink("order_rows", "jdbc", {**DATABASE, "dbtable": "orders", "nulCharacters": "replace"})


@dp.append_flow(target="order_rows")
def publish_orders():
    return spark.readStream.table("orders")


# One row per customer: a batch updates the rows that changed.
dp.create_sink(
    "customer_rows",
    "jdbc",
    {**DATABASE, "dbtable": "customers", "mode": "upsert", "keys": "customer"},
)


@dp.update_flow(target="customer_rows")
def publish_customers():
    return (
        spark.readStream.table("orders")
        .groupBy("customer")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("spent"))
    )
