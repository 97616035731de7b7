"""Rows in the console and memory sinks."""

import penstock as dp

KNOWN = ("roof", "cellar")


@dp.table
@dp.expect_or_drop("is_number", "celsius IS NOT NULL")
def readings():
    rows = spark.readStream.schema("sensor STRING, celsius STRING").json("data")
    return rows.selectExpr("sensor", "try_cast(celsius AS DOUBLE) AS celsius", "celsius AS as_read")


dp.create_sink("terminal", "console", {"truncate": "false", "numRows": "50"})


@dp.append_flow(target="terminal")
def show_unknown():
    rows = spark.readStream.table("readings")
    return rows.where(~rows.sensor.isin(*KNOWN))


dp.create_sink("in_memory", "memory")


@dp.update_flow(target="in_memory")
def newest():
    return spark.readStream.table("readings").groupBy("sensor").count()
