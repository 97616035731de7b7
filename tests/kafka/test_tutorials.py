"""Code blocks from tutorials of Structured Streaming and DLT, with a real broker.

Code blocks that declare datasets run unchanged; those that start queries are in
`test_tutorial_jobs`. There are two updates; rows that arrive in the second update are late.
"""

import json
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest
from confluent_kafka import Producer
from update_project import Project, shared_project

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import UpdateState

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TOPIC = "tutorial-sales"

# `dlt` as notebooks import it, a setting of the pipeline, a watermark that only silver declares,
# and an aggregate over a window with an alias.
NOTEBOOK = """
import dlt
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

SERVERS = spark.conf.get("pipeline.kafka.bootstrap_servers")
SALE = StructType([
    StructField("sale", StringType(), nullable=False),
    StructField("buyer", StringType(), nullable=False),
    StructField("price", DoubleType(), nullable=True),
    StructField("kind", StringType(), nullable=True),
    StructField("at", TimestampType(), nullable=True),
])


@dlt.table(name="sales_bronze", comment="As received", table_properties={"quality": "bronze"})
def sales_bronze():
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "tutorial-sales")
        .option("startingOffsets", "earliest")
        .load()
        .select(
            F.col("value").cast("string").alias("raw"),
            F.col("timestamp").alias("kafka_timestamp"),
            F.col("offset").alias("kafka_offset"),
        )
    )


@dlt.expect("has_sale", "sale IS NOT NULL")
@dlt.expect_or_drop("not_negative", "price >= 0")
@dlt.table(name="sales_silver", table_properties={"quality": "silver"})
def sales_silver():
    return (
        dlt.read_stream("sales_bronze")
        .withColumn("data", F.from_json(F.col("raw"), SALE))
        .select("kafka_offset", "data.*")
        .withColumn("ingested_at", F.current_timestamp())
        .withWatermark("at", "2 hours")
    )


@dlt.table(name="sales_gold", table_properties={"quality": "gold"})
def sales_gold():
    return (
        dlt.read_stream("sales_silver")
        .groupBy(F.window("at", "1 hour").alias("hour"), "kind")
        .agg(F.count("sale").alias("sales"), F.sum("price").alias("revenue"))
        .select(F.col("hour.start").alias("start"), "kind", "sales", "revenue")
    )
"""

# The same with a watermark in gold, functions without the prefix `F`, and the window as a struct.
SHORT_NOTEBOOK = """
import dlt
from pyspark.sql.functions import col, count, current_timestamp, from_json, sum, window

SCHEMA = "sale STRING, buyer STRING, price DOUBLE, kind STRING, at TIMESTAMP"


@dlt.table(comment="As received")
def raw_sales():
    return (
        spark.readStream.format("kafka")
        .option("subscribe", "tutorial-sales")
        .option("kafka.bootstrap.servers", spark.conf.get("pipeline.kafka.bootstrap_servers"))
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(value AS STRING) AS raw", "timestamp AS kafka_timestamp")
    )


@dlt.table(comment="Parsed")
@dlt.expect_or_drop("positive", "price > 0")
@dlt.expect_or_drop("has_buyer", "buyer IS NOT NULL")
def parsed_sales():
    return (
        dlt.read_stream("raw_sales")
        .select(from_json(col("raw"), SCHEMA).alias("data"))
        .select("data.*")
        .withColumn("processed_at", current_timestamp())
    )


@dlt.table(comment="By hour")
def hourly_sales():
    return (
        dlt.read_stream("parsed_sales")
        .withWatermark("at", "1 hour")
        .groupBy(window("at", "1 hour"), "kind")
        .agg(count("sale").alias("sales"), sum("price").alias("revenue"))
    )
"""
SETTINGS = (
    "name: tutorials\nstorage: .penstock\nconfiguration:\n  pipeline.kafka.bootstrap_servers: {}\n"
)


def sale(number: int, hour: int, price: float | None, **more: Any) -> str:
    at = f"2026-03-01T{hour:02d}:10:00Z"
    row = {"sale": f"s{number}", "buyer": "b", "price": price, "kind": "web", "at": at}
    return json.dumps(row | more)


def send(broker: BrokerHandle, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(TOPIC, value)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def project(
    kafka_broker: BrokerHandle, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    ensure_topic(kafka_broker.bootstrap_servers, TOPIC, 1)
    with shared_project(tmp_path_factory.mktemp("tutorials"), spark) as made:
        (made.root / "notebook.py").write_text(NOTEBOOK, encoding="utf-8")
        (made.root / "short.py").write_text(SHORT_NOTEBOOK, encoding="utf-8")
        settings = SETTINGS.format(kafka_broker.bootstrap_servers)
        (made.root / "pipeline.yaml").write_text(settings, encoding="utf-8")
        send(
            kafka_broker,
            sale(1, 8, 10.0),
            sale(2, 8, -1.0),
            sale(3, 9, 0.0),
            sale(4, 13, 20.0, kind="shop"),
            "not JSON",
        )
        assert made.run().state is UpdateState.COMPLETED
        send(kafka_broker, sale(5, 8, 5.0), sale(6, 13, 7.5), sale(7, 14, 1.0, buyer=None))
        assert made.run().state is UpdateState.COMPLETED
        yield made


def hours(project: Project, table: str, start: str) -> list[tuple[Any, ...]]:
    rows = project.table(table).selectExpr(f"{start} AS start", "kind", "sales", "revenue")
    return sorted((row[0].astimezone(UTC).hour, *row[1:]) for row in rows.collect())


# Code block: its table and the expected rows.
DECLARED: dict[str, tuple[str, str, Any]] = {
    "DLT notebook: bronze from Kafka": ("sales_bronze", "count(*)", [(8,)]),
    "DLT notebook: silver with expectations": (
        "sales_silver",
        "sale",
        [("s1",), ("s3",), ("s4",), ("s5",), ("s6",), ("s7",)],
    ),
    "DLT example: bronze from Kafka": ("raw_sales", "count(*)", [(8,)]),
    "DLT example: silver, two rules": (
        "parsed_sales",
        "sale",
        [("s1",), ("s4",), ("s5",), ("s6",)],
    ),
}


@pytest.mark.parametrize("block", DECLARED)
def test_rows_are_those_of_the_code_block(project: Project, block: str) -> None:
    table, column, expected = DECLARED[block]
    rows = project.table(table).selectExpr(column).collect()
    assert sorted(tuple(row) for row in rows) == expected


def test_gold_counts_late_rows_when_only_silver_declares_the_watermark(project: Project) -> None:
    assert hours(project, "sales_gold", "start") == [
        (8, "web", 2, 15.0),
        (9, "web", 1, 0.0),
        (13, "shop", 1, 20.0),
        (13, "web", 1, 7.5),
        (14, "web", 1, 1.0),
    ]


def test_gold_leaves_late_rows_out_when_it_declares_the_watermark(project: Project) -> None:
    """The window of the newest row is still open: append mode writes it when it is closed."""
    assert hours(project, "hourly_sales", "window.start") == [(8, "web", 1, 10.0)]
