"""The same source with different triggers."""

import penstock as dp


def rows():
    return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json("data")


@dp.table(spark_conf={"pipelines.trigger": "processingTime=5 seconds"})
@dp.expect_or_drop("has_id", "id IS NOT NULL")
def often():
    return rows()


@dp.table
def like_the_pipeline():
    return rows()


@dp.table(spark_conf={"pipelines.trigger": "once"})
def old_style():
    return rows()
