"""Orders from Kafka to gold: raw, cleaned, and two answers. Runs with `penstock run`."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as dp

spark = SparkSession.active()

ORDER = """
    order_id STRING, customer_id STRING, product STRING, quantity INT,
    unit_price DECIMAL(10,2), amount DECIMAL(12,2), currency STRING,
    event_time STRING, _corrupt_record STRING
"""


@dp.table(partition_cols=["date"])
def orders_bronze() -> DataFrame:
    """All messages, unchanged."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spark.conf.get("demo.bootstrap.servers"))
        .option("subscribe", spark.conf.get("demo.topic"))
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value", "topic", "partition", "offset", "timestamp")
        .withColumn("ingest_time", F.current_timestamp())
        .withColumn("date", F.to_date("timestamp"))
    )


@dp.table
@dp.expect_all_or_drop(
    {
        "valid_json": "order_id IS NOT NULL AND _corrupt_record IS NULL",
        "amount_positive": "amount > 0",
        "amount_matches": "amount = quantity * unit_price",
        "not_too_late": "event_time >= timestamp - INTERVAL 9 MINUTES",
    }
)
@dp.expect("known_customer", "customer_id LIKE 'C%'")
def orders() -> DataFrame:
    """Each order once. Rows that violate a rule are in `orders_quarantine`, with its name."""
    text = F.make_valid_utf8(F.col("value").cast("string"))
    # Messages without an order id are never dropped as duplicates.
    own_id = F.concat_ws("-", "topic", "partition", "offset")
    return (
        spark.readStream.table("orders_bronze")
        .withColumn("order", F.from_json(text, ORDER))
        .withColumn("dedup_key", F.coalesce("order.order_id", own_id))
        # The watermark uses Kafka's timestamp, so a wrong event time does not affect deduplication.
        .withWatermark("timestamp", "10 minutes")
        .dropDuplicatesWithinWatermark(["dedup_key"])
        .select("order.*", "topic", "partition", "offset", "timestamp")
        .withColumn("event_time", event_time(F.col("event_time"), F.col("timestamp")))
    )


def event_time(claimed: Column, arrived: Column) -> Column:
    """What the order claims, or its arrival if that is missing, corrupt or in the future.

    A single order from next year would move the watermark of `revenue_5m` past all the others. The
    format is strict because a cast would take the word "yesterday" for a time.
    """
    claimed = F.try_to_timestamp(claimed, F.lit("yyyy-MM-dd'T'HH:mm:ss.SSSX"))
    return F.when(claimed <= arrived + F.expr("INTERVAL 1 MINUTE"), claimed).otherwise(arrived)


@dp.table(output_mode="update")
def revenue_5m() -> DataFrame:
    """Revenue per product in windows of five minutes."""
    return (
        spark.readStream.table("orders")
        .withWatermark("event_time", "10 minutes")
        .groupBy(F.window("event_time", "5 minutes"), "product")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
        .select("window.start", "window.end", "product", "orders", "revenue")
    )


@dp.materialized_view
def customer_totals() -> DataFrame:
    """Total purchases per customer."""
    return (
        spark.read.table("orders")
        .groupBy("customer_id")
        .agg(
            F.count("*").alias("orders"),
            F.sum("amount").alias("revenue"),
            F.max("event_time").alias("last_order"),
        )
    )
