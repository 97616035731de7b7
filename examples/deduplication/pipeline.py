"""Three methods to deduplicate events."""

import penstock as dp


@dp.table
@dp.expect_or_drop("has_time", "at IS NOT NULL")
def events():
    return spark.readStream.schema("event STRING, at TIMESTAMP").json("data")


@dp.table(deduplicate_by=["event"])
def by_table():
    return spark.readStream.table("events")


@dp.table(late_rows="quarantine")
def within_watermark():
    rows = spark.readStream.table("events").withWatermark("at", "10 minutes")
    return rows.dropDuplicatesWithinWatermark(["event"])


@dp.table
def by_id_and_time():
    rows = spark.readStream.table("events").withWatermark("at", "10 minutes")
    return rows.dropDuplicates(["event", "at"])
