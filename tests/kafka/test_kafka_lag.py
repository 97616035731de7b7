"""The lag of a flow on a real broker: age, retention, and records that were removed unread."""

import time
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from made_events import lag_progress

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import EventOrigin
from penstock._observe.lag import lag_summary
from penstock._observe.metrics import metric_series
from penstock._observe.state import ObservedUpdate
from penstock.sources.kafka.admin import KafkaOptions
from penstock.sources.kafka.lag import KafkaLag

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def configure(broker: BrokerHandle, topic: str, **settings: str) -> None:
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in client.incremental_alter_configs([resource]).values():
        done.result(30)


def lag(spark: Any, servers: str, now_ms: int, topic: str = "lagging") -> KafkaLag:
    options = {"subscribe": topic, "kafka.bootstrap.servers": servers}
    options["kafka.isolation.level"] = "read_committed"
    return KafkaLag(spark, KafkaOptions(options), lambda: now_ms)


def test_lag_of_each_partition_is_that_of_its_oldest_unread_record(kafka_broker, spark):
    servers, topic = kafka_broker.bootstrap_servers, "lagging"
    ensure_topic(servers, topic, 3)
    configure(kafka_broker, topic, retention_ms="3600000")
    now = round(time.time() * 1000)
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(5):
        producer.produce(topic, f"a{number}", partition=0, timestamp=now - 500_000 + number * 1000)
    producer.produce(topic, "b0", partition=1, timestamp=now - 9000)
    assert producer.flush(30) == 0
    client = AdminClient({"bootstrap.servers": servers})
    place = TopicPartition(topic, 0, 1)
    client.delete_records([place])[place].result(30)

    measured = lag(spark, servers, now)
    measured_lag = measured.measure({topic: {"0": 2, "1": 1, "2": 0}})
    assert measured_lag["problem"] is None
    behind, done, empty = measured_lag["partitions"]
    assert (behind["earliest_offset"], behind["latest_offset"], behind["records"]) == (1, 5, 3)
    assert behind["seconds_behind"] == 498.0  # of the record at offset 2
    assert (behind["loss"], behind["loss_by"], behind["seconds_to_loss"]) == (
        "expected",
        "age",
        3102.0,
    )
    assert (done["records"], done["seconds_behind"], done["loss"]) == (0, 0.0, "none")
    assert (empty["records"], empty["seconds_behind"], empty["loss"]) == (0, 0.0, "none")
    figures = ObservedUpdate()
    origin = EventOrigin(pipeline_name="shop", flow_name="bronze")
    figures(lag_progress(origin, {"sources": [measured_lag], **lag_summary([measured_lag])}))
    shown = {series.metric.name: list(series.values.values()) for series in metric_series(figures)}
    assert shown["penstock_flow_lag_seconds"] == [498.0]
    assert shown["penstock_flow_time_to_loss_seconds"] == [3102.0]
    assert measured_lag["retention"] == {topic: {"deletes": True, "seconds": 3600.0, "bytes": None}}

    # A flow that was stopped for too long.
    gone = measured.measure({topic: {"0": 0}})["partitions"][0]
    assert (gone["loss"], gone["lost_records"], gone["seconds_to_loss"]) == ("happened", 1, 0.0)
    assert gone["seconds_behind"] == 499.0

    # Retention by size and compaction: the time to data loss is unknown.
    configure(kafka_broker, topic, retention_ms="-1", retention_bytes="1000")
    sized = lag(spark, servers, now).measure({topic: {"0": 2}})["partitions"][0]
    assert (sized["loss"], sized["seconds_to_loss"]) == ("unknown", None)
    configure(kafka_broker, topic, cleanup_policy="compact")
    kept = lag(spark, servers, now).measure({topic: {"0": 2}})["partitions"][0]
    assert (kept["loss"], kept["seconds_behind"]) == ("none", 498.0)


def test_lag_is_unknown_without_an_answer_of_the_broker(kafka_broker, spark):
    servers = kafka_broker.bootstrap_servers
    missing = lag(spark, kafka_broker.bootstrap_servers, 0, "not-there")
    measured_lag = missing.measure({"not-there": {"0": 7}})
    assert measured_lag["problem"].startswith(
        f"the brokers of {servers} rejected the request: UnknownTop"
    )
    # A rejected request does not mean that the brokers are unavailable: other flows query them.
    assert missing._silent == {}
    (part,) = measured_lag["partitions"]
    assert {part[key] for key in ("latest_offset", "records", "seconds_behind")} == {None}
    assert (part["loss"], part["lost_records"]) == ("unknown", None)


def test_unavailable_brokers_are_reported_and_not_queried_by_every_flow(spark):
    silent: dict[str, float] = {}
    options = KafkaOptions({"subscribe": "lagging", "kafka.bootstrap.servers": "127.0.0.1:1"})
    for other in range(2):
        began = time.monotonic()
        lag = KafkaLag(spark, options, silent=silent).measure({"lagging": {"0": 7}})
        assert lag["problem"] == "no broker of 127.0.0.1:1 responds"
        (part,) = lag["partitions"]
        assert (part["records"], part["loss"]) == (None, "unknown")
        assert other == 0 or time.monotonic() - began < 1.0
    assert lag_summary([lag])["seconds_behind"] is None
