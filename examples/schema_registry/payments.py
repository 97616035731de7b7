from pathlib import Path

import penstock as dp
from penstock import parsing


@dp.table
def payments_bronze():
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spark.conf.get("shop.bootstrap.servers"))
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load()
        .select("value", "topic", "partition", "offset", "timestamp")
    )


@dp.table
@dp.expect_or_quarantine("parsed", parsing.PARSED)
def payments():
    # For a registry with a password, add `registry.auth: ${secret:registry/auth}` to
    # `configuration`, and auth=spark.conf.get("registry.auth") here.
    registry = parsing.SchemaRegistry(
        spark.conf.get("registry.url"),
        timeout_seconds=float(spark.conf.get("registry.timeout.seconds", "10")),
    )
    return parsing.parse_confluent(
        spark.readStream.table("payments_bronze"), registry=registry, schema=Path("payment.avsc")
    )
