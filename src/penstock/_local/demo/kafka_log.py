"""Offsets of the demo's topic, read with a plain Kafka client."""

import time
from collections.abc import Mapping
from typing import Any

from penstock._model.extras import import_extra
from penstock.errors import SetupError

_TIMEOUT_SECONDS = 20.0
_POLL_SECONDS = 0.1
_STARTING = ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE")

Ranges = Mapping[int, tuple[int, int]]
"""First offset and end offset (of the next message) per partition."""


def read_ranges(
    bootstrap_servers: str, topic: str, *, timeout_seconds: float = _TIMEOUT_SECONDS
) -> dict[int, tuple[int, int]]:
    kafka = import_client()
    consumer = open_consumer(kafka, bootstrap_servers)
    deadline = time.monotonic() + timeout_seconds
    try:
        while True:
            try:
                return _read_ranges(kafka, consumer, topic, timeout_seconds)
            except kafka.KafkaException as error:
                # A broker that has just started answers before its partitions have a leader.
                is_starting = error.args[0].name() in _STARTING
                if not is_starting or time.monotonic() > deadline:
                    raise unreachable(bootstrap_servers, str(error)) from error
            consumer.poll(_POLL_SECONDS)
    finally:
        consumer.close()


def _read_ranges(
    kafka: Any, consumer: Any, topic: str, timeout_seconds: float
) -> dict[int, tuple[int, int]]:
    metadata = consumer.list_topics(topic, timeout=timeout_seconds)
    return {
        partition: consumer.get_watermark_offsets(
            kafka.TopicPartition(topic, partition), timeout=timeout_seconds, cached=False
        )
        for partition in sorted(metadata.topics[topic].partitions)
    }


def import_client() -> Any:
    return import_extra(
        "confluent_kafka", extra="demo", feature="the demo", package="confluent-kafka"
    )


def open_consumer(kafka: Any, bootstrap_servers: str) -> Any:
    return kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "penstock-demo-account",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )


def unreachable(bootstrap_servers: str, reason: str) -> SetupError:
    return SetupError(
        "BROKER_UNREACHABLE",
        f"the Kafka broker at {bootstrap_servers} does not respond: {reason}",
        hint="run `penstock broker status`, and see its log",
    )
