"""What Spark's Kafka source does not watch over: that a topic is the same one, and what was lost.

Spark knows offsets only. A topic that was deleted and made again starts at 0: as long as it is
shorter than before, Spark fails; once it is longer, rows are passed over without a word. And with
`failOnDataLoss=false` rows that retention removed leave nothing but a line in Spark's log.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from penstock._model.flow import Flow
from penstock.errors import CheckpointError
from penstock.sources.kafka.event_hubs import as_events, source_options
from penstock.sources.kafka.options import prepare_source_options
from penstock.sources.position import (
    Offsets,
    at_kafka,
    current_position,
    within_kafka,
)

_ADMIN_TIMEOUT_MS = "15000"
_SHOWN_RANGES = 5
_read: ContextVar[list["KafkaRead"] | None] = ContextVar("penstock_kafka_reads", default=None)


@dataclass(frozen=True)
class KafkaRead:
    """A stream from Kafka.

    Attributes:
        options: As Spark got them: with secrets, never shown.
    """

    options: Mapping[str, str]

    def __repr__(self) -> str:
        return "KafkaRead(...)"

    def option(self, name: str) -> str | None:
        """An option in any spelling."""
        return next((v for k, v in self.options.items() if k.lower() == name.lower()), None)

    @property
    def tolerates_loss(self) -> bool:
        """Whether the query goes on when rows are gone."""
        return (self.option("failOnDataLoss") or "true").lower() == "false"


@dataclass(frozen=True, kw_only=True)
class LostRange:
    """Offsets of a partition that were never read.

    Attributes:
        topic: Its name.
        partition: Its number.
        first: The first lost offset.
        end: The offset after the last one; `None` if nobody knows, because the partition is gone.
    """

    topic: str
    partition: int
    first: int
    end: int | None

    def __str__(self) -> str:
        last = "its end" if self.end is None else str(self.end - 1)
        return f"{self.topic}-{self.partition} from {self.first} to {last}"


@contextlib.contextmanager
def collecting_kafka() -> Iterator[list[KafkaRead]]:
    """Collect the streams from Kafka that are made inside."""
    found: list[KafkaRead] = []
    token = _read.set(found)
    try:
        yield found
    finally:
        _read.reset(token)


def note_kafka(options: Mapping[str, str]) -> None:
    """Remember a stream for whoever collects."""
    found = _read.get()
    if found is not None:
        found.append(KafkaRead(dict(options)))


def read_event_hub(spark: SparkSession, options: Mapping[str, str], streaming: bool) -> DataFrame:
    """Rows of an event hub, with the columns and options of the `eventhubs` format.

    Raises:
        ConnectorError: The options are wrong.
    """
    prepared = prepare_source_options(
        source_options(options, streaming=streaming), streaming=streaming
    )
    if streaming:
        return as_events(kafka_stream(spark, prepared))
    return as_events(spark.read.format("kafka").options(**prepared).load())


def kafka_stream(spark: SparkSession, prepared: Mapping[str, str]) -> DataFrame:
    """A stream from Kafka, begun and ended where the flow's position says.

    Args:
        spark: The session.
        prepared: Checked options, secrets filled in.
    """
    note_kafka(prepared)
    position = current_position()
    partitions: Offsets = {}
    if position is not None and position.offsets:
        read = KafkaRead(dict(prepared))
        with admin_of(spark, read) as admin:
            partitions = _partitions(spark, admin, read)
    options = at_kafka(prepared, partitions)
    return within_kafka(spark.readStream.format("kafka").options(**options).load())


def check_topics(
    spark: SparkSession,
    reads: Sequence[KafkaRead],
    known: Mapping[str, str],
    flow: Flow,
    display: str,
) -> dict[str, str]:
    """Compare the topics of a flow with those that its checkpoint has read.

    A cluster that does not answer, or does not let the user describe topics, is no error here:
    Spark will say what is wrong, or there is nothing to compare.

    Args:
        spark: Its JVM has the Kafka client.
        reads: The flow's streams.
        known: Kafka's ids by name of topic, as returned before.
        flow: For the error.
        display: Name of its target.

    Returns:
        The ids to remember.

    Raises:
        CheckpointError: `TOPIC_RECREATED`.
    """
    found: dict[str, str] = {}
    for read in reads:
        with contextlib.suppress(Py4JError), admin_of(spark, read) as admin:
            found |= _topic_ids(spark, admin, read)
    for topic, topic_id in found.items():
        if known.get(topic, topic_id) != topic_id:
            raise CheckpointError(
                "TOPIC_RECREATED",
                f"flow {flow.name!r} has read topic {topic!r}, which was deleted and made again: "
                "the offsets of its checkpoint mean other rows now",
                flow=flow.name,
                origin=flow.origin,
                hint=f"--full-refresh {display} reads the new topic from its start; to keep the "
                "rows of the old one, give the flow a new name: it starts with a new checkpoint",
            )
    return {**known, **found}


class LossWatch:
    """Finds what a flow with `failOnDataLoss=false` did not get.

    Args:
        spark: Its JVM has the Kafka client.
        reads: The flow's streams.
    """

    def __init__(self, spark: SparkSession, reads: Sequence[KafkaRead]) -> None:
        self._spark = spark
        self._reads = [read for read in reads if read.tolerates_loss]

    def __bool__(self) -> bool:
        return bool(self._reads)

    def lost(self, progress: Mapping[str, Any]) -> list[LostRange]:
        """The ranges that the micro-batch of a progress report was to read, and could not."""
        suspects: list[LostRange] = []
        for source in progress.get("sources", ()):
            if str(source.get("description", "")).startswith("KafkaV2"):
                rows = int(source.get("numInputRows", 0))
                suspects += missing_ranges(source, rows, self._earliest)
        return suspects

    def _earliest(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        for read in self._reads:
            with contextlib.suppress(Py4JError), admin_of(self._spark, read) as admin:
                return _earliest_offsets(self._spark, admin, topic, partitions)
        return {}


def missing_ranges(
    source: Mapping[str, Any],
    rows: int,
    earliest: Callable[[str, Sequence[int]], Mapping[int, int]],
) -> list[LostRange]:
    """What a source's report says about rows that are gone.

    Fewer rows than offsets are normal (transactions, compaction), and retention may remove rows
    right after they were read. So a range is lost if rows are missing and the partition begins
    behind the place where reading was to begin.

    Args:
        source: Entry of Spark's progress.
        rows: How many rows came.
        earliest: Gives the first offsets that partitions of a topic still have.
    """
    start, end = source.get("startOffset"), source.get("endOffset")
    if not (isinstance(start, dict) and isinstance(end, dict)):
        return []
    found: list[LostRange] = []
    wanted = 0
    ahead: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, partitions in start.items():
        for number, first in partitions.items():
            last = end.get(topic, {}).get(number)
            if last is None:
                found.append(LostRange(topic=topic, partition=int(number), first=first, end=None))
            elif last > first:
                wanted += last - first
                ahead.setdefault(topic, {})[int(number)] = (first, last)
    if rows >= wanted:
        return found
    for topic, ranges in ahead.items():
        begins = earliest(topic, sorted(ranges))
        for number, (first, last) in sorted(ranges.items()):
            if begins.get(number, first) > first:
                until = min(begins[number], last)
                found.append(LostRange(topic=topic, partition=number, first=first, end=until))
    return found


def describe_loss(ranges: Sequence[LostRange]) -> str:
    """One line about lost ranges."""
    shown = ", ".join(str(lost) for lost in ranges[:_SHOWN_RANGES])
    more = f" and {len(ranges) - _SHOWN_RANGES} more" if len(ranges) > _SHOWN_RANGES else ""
    return f"rows were lost: {shown}{more} had been removed from Kafka before they were read"


@contextlib.contextmanager
def admin_of(spark: SparkSession, read: KafkaRead) -> Iterator[Any]:
    """An admin client for the brokers of a stream."""
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    for name, value in read.options.items():
        if name.lower().startswith("kafka."):
            properties.put(name[len("kafka.") :], value)
    properties.put("default.api.timeout.ms", _ADMIN_TIMEOUT_MS)
    properties.put("request.timeout.ms", _ADMIN_TIMEOUT_MS)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        yield admin
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _topic_ids(spark: SparkSession, admin: Any, read: KafkaRead) -> dict[str, str]:
    jvm: Any = spark._jvm
    names = jvm.java.util.ArrayList()
    for topic in topics_of(admin, read):
        names.add(topic)
    futures = admin.describeTopics(names).topicNameValues()
    found: dict[str, str] = {}
    for topic in names:
        # One that is not there yet must not hide the others.
        with contextlib.suppress(Py4JError):
            found[topic] = str(futures.get(topic).get().topicId().toString())
    return found


def _partitions(spark: SparkSession, admin: Any, read: KafkaRead) -> Offsets:
    names = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    for topic in topics_of(admin, read):
        names.add(topic)
    described = admin.describeTopics(names).allTopicNames().get()
    return {
        topic: {str(info.partition()): 0 for info in described.get(topic).partitions()}
        for topic in names
    }


def topics_of(admin: Any, read: KafkaRead) -> list[str]:
    """The topics that a stream reads now."""
    if names := read.option("subscribe"):
        return [name.strip() for name in names.split(",") if name.strip()]
    if text := read.option("assign"):
        return list(json.loads(text))
    pattern = re.compile(read.option("subscribePattern") or "")
    return [name for name in admin.listTopics().names().get() if pattern.fullmatch(name)]


def _earliest_offsets(
    spark: SparkSession, admin: Any, topic: str, partitions: Sequence[int]
) -> dict[int, int]:
    jvm: Any = spark._jvm
    wanted = jvm.java.util.HashMap()
    at = {n: jvm.org.apache.kafka.common.TopicPartition(topic, n) for n in partitions}
    for partition in at.values():
        wanted.put(partition, jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())
    answer = admin.listOffsets(wanted)
    return {n: int(answer.partitionResult(p).get().offset()) for n, p in at.items()}
