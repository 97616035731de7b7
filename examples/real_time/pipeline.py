"""Payments from one topic to others in real-time mode."""

from pyspark.sql import functions as F

import penstock as dp

SERVERS = spark.conf.get("kafka.servers")
LIMIT = 1000

dp.create_sink(
    "verdicts",
    "kafka",
    # Message ids are assigned per batch, which real-time mode does not have.
    {"kafka.bootstrap.servers": SERVERS, "rowIds": "false"},
)


@dp.update_flow(target="verdicts", spark_conf={"pipelines.trigger": "realTime=5 minutes"})
def judge():
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", spark.conf.get("kafka.payments"))
        .option("startingOffsets", "earliest")
        .load()
    )
    payment = F.from_json(F.col("value").cast("string"), "id BIGINT, amount DOUBLE")
    read = records.select("value", "timestamp", payment.alias("payment"))
    is_bad = F.col("payment.id").isNull() | F.col("payment.amount").isNull()
    verdict = F.when(F.col("payment.amount") > LIMIT, "look at it").otherwise("pass")
    sent_at = F.unix_millis("timestamp").cast("string").cast("binary")
    return read.select(
        # Payloads that cannot be parsed are sent unchanged to a separate topic.
        F.when(is_bad, spark.conf.get("kafka.refused"))
        .otherwise(spark.conf.get("kafka.verdicts"))
        .alias("topic"),
        F.col("payment.id").cast("string").alias("key"),
        F.when(is_bad, F.col("value"))
        .otherwise(
            F.to_json(F.struct("payment.id", "payment.amount", verdict.alias("verdict"))).cast(
                "binary"
            )
        )
        .alias("value"),
        F.array(F.struct(F.lit("sent-at").alias("key"), sent_at.alias("value"))).alias("headers"),
    )
