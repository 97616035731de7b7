"""Offsets of the demo's topic, read with a plain Kafka client."""

from collections.abc import Mapping
from typing import Any

from penstock._model.extras import import_extra
from penstock.errors import SetupError

_TIMEOUT_SECONDS = 20.0

Ranges = Mapping[int, tuple[int, int]]
"""First offset and end offset (of the next message) per partition."""


def read_ranges(
    bootstrap_servers: str, topic: str, *, timeout_seconds: float = _TIMEOUT_SECONDS
) -> dict[int, tuple[int, int]]:
    kafka = import_client()
    consumer = open_consumer(kafka, bootstrap_servers)
    try:
        metadata = consumer.list_topics(topic, timeout=timeout_seconds)
        return {
            partition: consumer.get_watermark_offsets(
                kafka.TopicPartition(topic, partition), timeout=timeout_seconds, cached=False
            )
            for partition in sorted(metadata.topics[topic].partitions)
        }
    except kafka.KafkaException as error:
        raise unreachable(bootstrap_servers, str(error)) from error
    finally:
        consumer.close()


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
