from pyspark.sql import functions as F

import penstock as dp
from penstock import parsing


@dp.table
def orders_bronze():
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spark.conf.get("shop.bootstrap.servers"))
        .option("subscribePattern", "shop-orders-.*")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "3")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", spark.conf.get("shop.fail.on.data.loss"))
        .load()
        .select(
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            F.expr("filter(headers, h -> h.key = 'trace')[0].value").cast("string").alias("trace"),
        )
    )


@dp.table
@dp.expect_or_quarantine("parsed", parsing.PARSED)
def orders():
    bronze = spark.readStream.table("orders_bronze")
    return parsing.parse_json(bronze, schema="id BIGINT NOT NULL, amount DECIMAL(10, 2)")
