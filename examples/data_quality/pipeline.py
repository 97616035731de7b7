"""Orders with expectations."""

from pyspark.sql import functions as F

import penstock as dp


@dp.table
@dp.expect("has_country", "country IS NOT NULL")
@dp.expect_or_drop("has_customer", "customer IS NOT NULL")
@dp.expect_or_drop("plausible", "amount >= 0 AND amount < 1000")
@dp.expect_or_fail("never_huge", "amount < 1000000")
def orders():
    schema = "id BIGINT, customer STRING, country STRING, amount BIGINT"
    return spark.readStream.schema(schema).json("data")


@dp.table(output_mode="update", spark_conf={"penstock.growingState": "allow"})
def totals():
    rows = spark.readStream.table("orders")
    return rows.groupBy("customer").agg(F.sum("amount").alias("amount"))
