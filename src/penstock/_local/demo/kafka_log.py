"""The Kafka log as a plain client sees it: how long it is, and every message in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._model.extras import import_extra
from penstock.errors import SetupError

_TIMEOUT_SECONDS = 20.0
_BATCH = 1_000

Ranges = Mapping[int, tuple[int, int]]
"""First offset and end offset (of the next message) per partition."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One message as it lies in the log."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_ranges(
    bootstrap_servers: str, topic: str, *, timeout_seconds: float = _TIMEOUT_SECONDS
) -> dict[int, tuple[int, int]]:
    """What the broker says about the length of a topic.

    Raises:
        SetupError: `BROKER_UNREACHABLE`.
        MissingExtraError: `MISSING_EXTRA`.
    """
    kafka = import_client()
    consumer = _consumer(kafka, bootstrap_servers)
    try:
        metadata = consumer.list_topics(topic, timeout=timeout_seconds)
        return {
            partition: consumer.get_watermark_offsets(
                kafka.TopicPartition(topic, partition), timeout=timeout_seconds, cached=False
            )
            for partition in sorted(metadata.topics[topic].partitions)
        }
    except kafka.KafkaException as error:
        raise _unreachable(bootstrap_servers, str(error)) from error
    finally:
        consumer.close()


def read_records(bootstrap_servers: str, topic: str, ranges: Ranges) -> Iterator[Record]:
    """Every message of these ranges, in the order of its partition.

    Raises:
        SetupError: `BROKER_UNREACHABLE`.
        MissingExtraError: `MISSING_EXTRA`.
    """
    kafka = import_client()
    consumer = _consumer(kafka, bootstrap_servers)
    left = {partition: end for partition, (begin, end) in ranges.items() if end > begin}
    try:
        consumer.assign([kafka.TopicPartition(topic, number, ranges[number][0]) for number in left])
        while left:
            messages = consumer.consume(_BATCH, timeout=_TIMEOUT_SECONDS)
            if not messages:
                raise _unreachable(bootstrap_servers, f"no messages in {_TIMEOUT_SECONDS:g} s")
            for message in messages:
                if message.error() is not None:
                    raise _unreachable(bootstrap_servers, str(message.error()))
                partition, offset = message.partition(), message.offset()
                if offset < ranges[partition][1]:
                    yield Record(
                        partition=partition,
                        offset=offset,
                        timestamp_ms=message.timestamp()[1],
                        key=message.key(),
                        value=message.value(),
                    )
                if offset + 1 >= ranges[partition][1]:
                    left.pop(partition, None)
    except kafka.KafkaException as error:
        raise _unreachable(bootstrap_servers, str(error)) from error
    finally:
        consumer.close()


def import_client() -> Any:
    """The client library for Kafka.

    Raises:
        MissingExtraError: `MISSING_EXTRA`.
    """
    return import_extra(
        "confluent_kafka", extra="demo", feature="the demo", package="confluent-kafka"
    )


def _consumer(kafka: Any, bootstrap_servers: str) -> Any:
    return kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "penstock-demo-account",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )


def _unreachable(bootstrap_servers: str, reason: str) -> SetupError:
    return SetupError(
        "BROKER_UNREACHABLE",
        f"the Kafka broker at {bootstrap_servers} does not answer: {reason}",
        hint="see whether it runs (`penstock broker status`), and look into its log",
    )
