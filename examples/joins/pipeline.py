"""Clicks joined with the impressions before them, and with a table of campaigns that changes."""

from pyspark.sql import functions as F

import penstock as dp
from penstock.parsing import event_time
from penstock.timing import not_in_future


@dp.table
@dp.expect_or_drop("has_time", "seen IS NOT NULL")
@dp.expect_or_drop("clock_is_right", not_in_future("seen", "10 minutes"))
def impressions():
    rows = spark.readStream.schema("impression STRING, ad STRING, seen STRING").json("impressions")
    return event_time(rows, ["seen"], into="seen")


@dp.table(deduplicate_by=["click"])
@dp.expect_or_drop("has_time", "clicked IS NOT NULL")
@dp.expect_or_drop("clock_is_right", not_in_future("clicked", "10 minutes"))
def clicks():
    rows = spark.readStream.schema("click STRING, impression STRING, clicked STRING").json("clicks")
    return event_time(rows, ["clicked"], into="clicked")


def seen_then_clicked(how):
    """Join each click with its impression if that was shown at most ten minutes before."""
    left = spark.readStream.table("impressions").withWatermark("seen", "30 minutes").alias("i")
    right = spark.readStream.table("clicks").withWatermark("clicked", "30 minutes").alias("c")
    condition = """
        i.impression = c.impression
        AND c.clicked >= i.seen AND c.clicked <= i.seen + INTERVAL 10 MINUTES
    """
    return left.join(right, F.expr(condition), how).select("i.impression", "ad", "click", "seen")


@dp.table(comment="Each click with its impression")
def clicked():
    return seen_then_clicked("inner")


@dp.table(comment="Each impression; click is NULL if there is none", late_rows="quarantine")
def impressions_with_clicks():
    return seen_then_clicked("left")


@dp.materialized_view(comment="Campaigns; refreshed when the file changes")
def campaigns():
    return spark.read.schema("ad STRING, campaign STRING").json("campaigns.json")


@dp.table(comment="Clicks with the campaign at the time of processing")
def clicks_by_campaign():
    rows = spark.readStream.table("clicked")
    return rows.join(spark.read.table("campaigns"), "ad", "left").select("click", "campaign")
