from pyspark.sql import functions as F

import penstock as dp
from penstock import parsing


@dp.table
def received():
    return spark.readStream.text("data/orders").select(
        "value",
        F.col("_metadata.file_path").alias("source_file"),
        F.col("_metadata.file_modification_time").alias("arrived_at"),
    )


@dp.table(partition_cols=["date"])
@dp.expect_or_quarantine("parsed", parsing.PARSED)
@dp.expect_or_quarantine("has a time", "event_time IS NOT NULL")
def orders():
    payloads = spark.readStream.table("received")
    parsed = parsing.parse_json(
        payloads, "value", schema=parsing.schema_from_file("orders.ddl"), extra_fields="keep"
    )
    timed = parsing.event_time(parsed, ["created_at"], formats=["dd.MM.yyyy HH:mm"])
    return parsing.with_date_columns(timed)
