"""The Kafka source and sink pass the suites of all connectors."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from test_kafka_sink import in_topic
from test_kafka_source import produce

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock.sinks.kafka import KafkaSink
from penstock.sources.kafka.source import KafkaSource
from penstock.testing import SinkSuite, SourceSuite

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Ignored by unencrypted listeners.
SECRET = "kafka.ssl.truststore.password"


@pytest.fixture
def connection(kafka_broker: BrokerHandle) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, SECRET: "hidden-password"}


@pytest.fixture
def topic(kafka_broker: BrokerHandle) -> str:
    name = f"suite-{uuid.uuid4().hex[:8]}"
    ensure_topic(kafka_broker.bootstrap_servers, name, 2)
    return name


class TestKafkaSource(SourceSuite):
    source = KafkaSource
    has_latest = True
    has_ranges = True
    has_lag = True
    secrets = (SECRET,)
    wrong_options = (
        {"kafka.bootstrap.servers": None},
        {"subscribe": None},
        {"assign": '{"t": [0]}'},
        {"startingOffset": "earliest"},
        {"kafka.sasl.jaas.config": "evil.Module required;"},
    )

    @pytest.fixture(autouse=True)
    def _connect(self, kafka_broker: BrokerHandle, connection: dict[str, str], topic: str) -> None:
        self.broker, self.connection, self.topic = kafka_broker, connection, topic

    def options(self, folder: Path) -> Mapping[str, str]:
        return {**self.connection, "subscribe": self.topic, "startingOffsets": "earliest"}

    def add_rows(self, spark: Any, folder: Path, rows: Sequence[tuple[Any, ...]]) -> None:
        for number, name in rows:
            value = json.dumps({"id": number, "name": name})
            produce(self.broker, self.topic, value, partition=number % 2)

    def query(self, rows: DataFrame) -> DataFrame:
        value = F.from_json(F.col("value").cast("string"), "id BIGINT, name STRING")
        return rows.select(value.alias("v")).select("v.id", "v.name")


class TestKafkaSink(SinkSuite):
    sink = KafkaSink
    is_repeated = True
    secrets = (SECRET,)
    wrong_options = (
        {"kafka.bootstrap.servers": None},
        {"checkpointLocation": "x"},
        {"rowIds": "yes"},
        {"kafka.sasl.jaas.config": "evil.Module required;"},
    )
    failures: ClassVar[Mapping[str, str]] = {
        "Topic t not present in metadata after 20000 ms.": "SINK_TOPIC_NOT_FOUND"
    }

    @pytest.fixture(autouse=True)
    def _connect(self, kafka_broker: BrokerHandle, connection: dict[str, str], topic: str) -> None:
        self.broker, self.connection, self.topic = kafka_broker, connection, topic

    def options(self, folder: Path) -> Mapping[str, str]:
        return {**self.connection, "topic": self.topic}

    def query(self, rows: DataFrame) -> DataFrame:
        return rows.select(F.to_json(F.struct("*")).alias("value"))

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        for _, value, _ in in_topic(spark, self.broker, self.topic):
            row = json.loads(value)
            yield row["id"], row.get("name")
