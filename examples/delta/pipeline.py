"""Streams from Delta tables whose rows change."""

from pyspark.sql import functions as F

import penstock as dp


@dp.table
@dp.expect_or_drop("has_customer", "customer IS NOT NULL")
def customer_events():
    schema = "customer STRING, city STRING, sequence BIGINT"
    return spark.readStream.schema(schema).option("pathGlobFilter", "customers*").json("data")


dp.create_streaming_table("customers", table_properties={"delta.enableChangeDataFeed": "true"})
dp.create_auto_cdc_flow(
    target="customers", source="customer_events", keys=["customer"], sequence_by="sequence"
)


@dp.table
def customer_changes():
    changes = spark.readStream.option("readChangeFeed", "true").table("customers")
    return changes.select("customer", "city", "_change_type")


@dp.table
@dp.expect_or_drop("not_negative", "amount >= 0")
def orders():
    schema = "customer STRING, amount BIGINT"
    return spark.readStream.schema(schema).option("pathGlobFilter", "orders*").json("data")


@dp.table
def amounts():
    orders = spark.readStream.option("skipChangeCommits", "true").table("orders")
    return orders.select("customer", "amount")


@dp.materialized_view
def amounts_now():
    return spark.read.table("orders").groupBy("customer").agg(F.sum("amount").alias("amount"))
