"""The lag of a Kafka stream: first and last offsets, age of unread records, retention.

Kafka deletes whole segments: a segment is due when its newest record is older than `retention.ms`,
or when the partition is larger than `retention.bytes` without it. So a time that is computed from
the age is the earliest possible one. Deletion by size cannot be predicted: it is estimated from how
fast the first offset of the partition has moved recently.
"""

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from penstock.sources.base import age_of_oldest, now_ms
from penstock.sources.kafka.admin import (
    KafkaAdmin,
    KafkaOptions,
    TopicPartition,
    admin_of,
    client_properties,
)

_TIMEOUT_MS = 5000
_SILENT_SECONDS = 5.0
_CONFIG_SECONDS = 300.0
_READ_PARTITIONS = 64
_READ_SECONDS = 3.0
_CONSUMER = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "allow.auto.create.topics": "false",
    "max.poll.records": "1",
    "max.partition.fetch.bytes": "65536",
    "fetch.max.bytes": "1048576",
}
_SUBSCRIPTION = re.compile(r"KafkaV2\[(Subscribe|SubscribePattern|Assign)\[(.*)\]\]$")

# Brokers that did not respond, and the time until which they get no request; shared by all flows,
# so that these do not wait for the same brokers in turn.
_silent: dict[str, float] = {}
_WINDOW_SECONDS = 1800.0


class LossRisk(StrEnum):
    """The risk that unread rows of a partition are lost, in ascending order."""

    NONE = "none"
    """There are no unread rows, or they are never removed."""
    UNKNOWN = "unknown"
    EXPECTED = "expected"
    """Some will be removed after `Risk.seconds`, unless they are read before."""
    HAPPENED = "happened"
    """Some were removed."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Whether a topic deletes records, from which age (ms) and partition size; -1 for never."""

    deletes: bool
    milliseconds: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """The retention for the event; `None` means never."""
        return {
            "deletes": self.deletes,
            "seconds": None if self.milliseconds < 0 else self.milliseconds / 1000,
            "bytes": None if self.size < 0 else self.size,
        }


@dataclass
class StartRate:
    """How fast the first offset of a partition moves."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, earliest: int) -> None:
        self.seen.append((now, earliest))
        while len(self.seen) > 2 and now - self.seen[0][0] > _WINDOW_SECONDS:
            self.seen.popleft()

    @property
    def offsets_per_second(self) -> float | None:
        """`None` if the offset has not moved."""
        (begin, first), (end, last) = self.seen[0], self.seen[-1]
        return (last - first) / (end - begin) if last > first and end > begin else None


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What is known about the loss of a partition's unread rows.

    `seconds` is the time until the oldest may be removed, `None` if never or unknown; `by` is `age`
    or `size`; `lost_records` is the number of removed offsets, `None` if unknown.
    """

    loss: LossRisk
    seconds: float | None = None
    by: str | None = None
    lost_records: int | None = 0


def risk_of(
    offset: int,
    *,
    earliest: int | None,
    latest: int | None,
    oldest_ms: int | None,
    retention: Retention | None,
    now_ms: int,
    start_rate: float | None,
) -> Risk:
    """The risk for rows from `offset` on; `earliest` moves by `start_rate` offsets a second."""
    if earliest is None or latest is None:
        return Risk(loss=LossRisk.UNKNOWN, lost_records=None)
    if earliest > offset:
        return Risk(loss=LossRisk.HAPPENED, seconds=0.0, lost_records=earliest - offset)
    if latest <= offset:
        return Risk(loss=LossRisk.NONE)
    if retention is None:
        return Risk(loss=LossRisk.UNKNOWN)
    if not retention.deletes or (retention.milliseconds < 0 and retention.size < 0):
        return Risk(loss=LossRisk.NONE)
    known: list[tuple[float, str]] = []
    if retention.milliseconds >= 0 and oldest_ms is not None:
        left = (oldest_ms + retention.milliseconds - now_ms) / 1000
        known.append((round(max(0.0, left), 1), "age"))
    if retention.size >= 0 and start_rate:
        known.append((round((offset - earliest) / start_rate, 1), "size"))
    if not known:
        return Risk(loss=LossRisk.UNKNOWN)
    seconds, by = min(known)
    return Risk(loss=LossRisk.EXPECTED, seconds=seconds, by=by)


class KafkaLag:
    """Measures the lag of one stream. Used by one thread at a time.

    Each call requests the first and last offsets (and sometimes topic settings), and reads one
    record of each partition whose oldest unread record has changed; it takes a few seconds at most.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: KafkaOptions,
        now_ms: Callable[[], int] = now_ms,
        silent: dict[str, float] | None = None,
    ) -> None:
        self._silent = _silent if silent is None else silent
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._options = options
        self._now_ms = now_ms
        self._retention: dict[str, tuple[float, Retention | None]] = {}
        self._rates: dict[TopicPartition, StartRate] = {}
        self._oldest: dict[TopicPartition, tuple[int, int | None]] = {}

    def measure(self, offsets: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """The lag of the stream, from its next offsets; unknown values are `None`."""
        next_offsets = {
            (topic, int(number)): offset
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        }
        earliest: dict[TopicPartition, int] = {}
        latest: dict[TopicPartition, int] = {}
        retention: dict[str, Retention | None] = {}
        problem: str | None = None
        servers = self._options.servers
        if next_offsets and time.monotonic() < self._silent.get(servers, 0.0):
            problem = _no_answer(servers)
        elif next_offsets:
            failed: list[Py4JError] = []
            try:
                with admin_of(self._spark, self._options, _TIMEOUT_MS) as admin:
                    known = list(next_offsets)
                    # A deleted partition is left out; the others are still measured.
                    earliest = admin.offsets(known, "earliest", failed.append)
                    latest = admin.offsets(known, "latest", failed.append)
                    if latest:
                        retention = self._retentions(admin, sorted(offsets))
            except Py4JError as error:
                failed.append(error)
            # An error that is not a Java exception means that the JVM is shutting down.
            if not latest and failed and isinstance(failed[-1], Py4JJavaError):
                problem = _problem(servers, failed[-1])
            # Brokers that reject this flow may serve others; those that do not respond serve none.
            if problem == _no_answer(servers):
                self._silent[servers] = time.monotonic() + _SILENT_SECONDS
        unread = {
            partition: max(offset, earliest[partition])
            for partition, offset in next_offsets.items()
            if latest.get(partition, 0) > offset and partition in earliest
        }
        if unread:
            self._read_oldest(unread, latest)
        partitions = [
            self._partition(partition, offset, earliest, latest, retention.get(partition[0]))
            for partition, offset in sorted(next_offsets.items())
        ]
        shown = {
            topic: None if settings is None else settings.as_json()
            for topic, settings in retention.items()
        }
        return {"kind": "kafka", "partitions": partitions, "retention": shown, "problem": problem}

    def _partition(
        self,
        partition: TopicPartition,
        offset: int,
        earliest: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        retention: Retention | None,
    ) -> dict[str, Any]:
        begin, end = earliest.get(partition), latest.get(partition)
        rate = None
        if begin is not None:
            moving = self._rates.setdefault(partition, StartRate())
            moving.note(time.monotonic(), begin)
            rate = moving.offsets_per_second
        oldest = None
        if begin is not None and end is not None and end > offset:
            at, stamp = self._oldest.get(partition, (-1, None))
            oldest = stamp if at == max(offset, begin) else None
        now = self._now_ms()
        risk = risk_of(
            offset,
            earliest=begin,
            latest=end,
            oldest_ms=oldest,
            retention=retention,
            now_ms=now,
            start_rate=rate,
        )
        behind = age_of_oldest([oldest], now)
        return {
            "topic": partition[0],
            "partition": str(partition[1]),
            "offset": offset,
            "earliest_offset": begin,
            "latest_offset": end,
            "records": None if end is None else max(0, end - offset),
            "seconds_behind": 0.0 if end is not None and end <= offset else behind,
            "seconds_to_loss": risk.seconds,
            "loss": risk.loss.value,
            "loss_by": risk.by,
            "lost_records": risk.lost_records,
        }

    def _retentions(self, admin: KafkaAdmin, topics: Sequence[str]) -> dict[str, Retention | None]:
        now = time.monotonic()
        known = self._retention
        due = [t for t in topics if t not in known or now - known[t][0] > _CONFIG_SECONDS]
        if due:
            for topic, answer in admin.topic_configs(due).items():
                settings = None
                with contextlib.suppress(Py4JError, ValueError, AttributeError):
                    settings = _retention(answer.get())
                self._retention[topic] = (now, settings)
        return {topic: self._retention[topic][1] for topic in topics}

    def _read_oldest(
        self, unread: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> None:
        new = [
            partition
            for partition, at in unread.items()
            if self._oldest.get(partition, (-1,))[0] != at
        ]
        new.sort(key=lambda partition: unread[partition] - latest[partition])
        of_java = self._jvm.org.apache.kafka.common.TopicPartition
        chosen = {partition: of_java(*partition) for partition in new[:_READ_PARTITIONS]}
        if not chosen:
            return
        with contextlib.suppress(Py4JError), self._consumer() as consumer:
            consumer.assign(list(chosen.values()))
            for partition, java_partition in chosen.items():
                consumer.seek(java_partition, unread[partition])
            waiting = dict(chosen)
            deadline = time.monotonic() + _READ_SECONDS
            while waiting and time.monotonic() < deadline:
                records = consumer.poll(self._jvm.java.time.Duration.ofMillis(300)).iterator()
                while records.hasNext():
                    record = records.next()
                    partition = (str(record.topic()), int(record.partition()))
                    java_partition = waiting.pop(partition, None)
                    if java_partition is None:
                        continue
                    stamp = int(record.timestamp())
                    self._oldest[partition] = (unread[partition], stamp if stamp >= 0 else None)
                    consumer.pause([java_partition])

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Any]:
        # The smallest fetch that brokers support: one batch of records.
        properties = client_properties(self._spark, self._options, _TIMEOUT_MS)
        for name, value in _CONSUMER.items():
            properties.put(name, value)
        properties.remove("group.id")
        bytes_of = self._jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
        consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
            properties, bytes_of(), bytes_of()
        )
        try:
            yield consumer
        finally:
            consumer.close(self._jvm.java.time.Duration.ZERO)


def _no_answer(servers: str) -> str:
    return f"no broker of {servers} responds"


def _problem(servers: str, failed: Py4JJavaError) -> str:
    """Why the lag is unknown: the brokers do not respond, or they rejected the request."""
    error = failed.java_exception
    while (cause := error.getCause()) is not None:
        error = cause
    name = str(error.getClass().getSimpleName())
    if name in ("TimeoutException", "DisconnectException", "ConnectException"):
        return _no_answer(servers)
    return f"the brokers of {servers} rejected the request: {name}: {error.getMessage()}"


def _retention(config: Any) -> Retention:
    return Retention(
        deletes="delete" in str(config.get("cleanup.policy").value()),
        milliseconds=int(config.get("retention.ms").value()),
        size=int(config.get("retention.bytes").value()),
    )


def is_stream_of(description: str, options: KafkaOptions) -> bool:
    """Whether a source of Spark's progress reads what a stream with these options reads."""
    match = _SUBSCRIPTION.match(description)
    wanted = None if match is None else options.get(match[1])
    if match is None or wanted is None:
        return False
    if match[1] == "Subscribe":
        return _names(wanted) == _names(match[2])
    return match[1] == "Assign" or wanted == match[2]


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",")}
