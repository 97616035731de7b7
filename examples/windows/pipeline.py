"""Sensor readings in five-minute windows; late rows and rows without a time are quarantined."""

from pyspark.sql import functions as F

import penstock as dp
from penstock.parsing import event_time
from penstock.timing import not_in_future, window_columns

READING = "reading_id STRING, sensor STRING, celsius DOUBLE, measured_at STRING"


@dp.table(
    comment="Readings without duplicates, with a valid event time",
    deduplicate_by=["reading_id"],
)
@dp.expect_or_drop("has_time", "measured_at IS NOT NULL")
@dp.expect_or_drop("clock_is_right", not_in_future("measured_at", "10 minutes"))
def readings():
    rows = spark.readStream.schema(READING).json("data")
    return event_time(rows, ["measured_at"], into="measured_at")


@dp.table(
    comment="Finished windows: each is written once, when the watermark passes its end",
    partition_cols=["window_start"],
    late_rows="quarantine",
)
def averages():
    return (
        spark.readStream.table("readings")
        .withWatermark("measured_at", "10 minutes")
        .groupBy(F.window("measured_at", "5 minutes"), "sensor")
        .agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))
        .transform(window_columns)
    )


@dp.table(
    comment="The same windows, updated by each batch",
    output_mode="update",
    late_rows="quarantine",
)
def averages_now():
    return (
        spark.readStream.table("readings")
        .withWatermark("measured_at", "10 minutes")
        .groupBy(F.window("measured_at", "5 minutes"), "sensor")
        .agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))
        .transform(window_columns)
    )


@dp.table(comment="A visit ends when a sensor is silent for 15 minutes", late_rows="quarantine")
def sessions():
    return (
        spark.readStream.table("readings")
        .withWatermark("measured_at", "10 minutes")
        .groupBy(F.session_window("measured_at", "15 minutes"), "sensor")
        .agg(F.count("*").alias("readings"))
        .transform(window_columns)
    )
