"""Orders from files into an outbox, and from there to Kafka."""

from pyspark.sql import functions as F

import penstock as dp


@dp.table(comment="Messages, each with a permanent id")
@dp.expect_or_drop("has_id", "key IS NOT NULL")
def outbox():
    orders = spark.readStream.schema("id BIGINT, amount DECIMAL(12, 2)").json("data")
    return orders.select(
        # A retried batch generates new ids, but only one attempt is committed.
        F.expr("uuid()").alias("row_id"),
        F.col("id").cast("string").alias("key"),
        F.to_json(F.struct("id", "amount")).alias("value"),
    )


dp.create_sink(
    "messages",
    "kafka",
    {
        "kafka.bootstrap.servers": spark.conf.get("kafka.servers"),
        "topic": spark.conf.get("kafka.topic"),
    },
)


@dp.append_flow(target="messages")
def relay():
    return spark.readStream.table("outbox")
