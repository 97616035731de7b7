"""Kafka and Event Hubs as sources: Spark's connector, with checks that it does not make.

Spark compares only offsets. A topic that was deleted and created again starts at offset 0: as long
as it is shorter than before, Spark fails; once it is longer, rows are skipped silently. And with
`failOnDataLoss=false`, Spark only logs that retention removed unread rows.
"""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JError

from penstock._model.exception_text import first_line
from penstock._model.flow import Flow
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import Checkpoint, batches, source_offsets
from penstock.errors import CheckpointError, FlowError
from penstock.sources import checkpoints
from penstock.sources.base import (
    Loss,
    Offsets,
    OpenedSource,
    Position,
    Range,
    RangeReport,
    Read,
    Source,
    StartKind,
    StartPosition,
    StartReport,
    flow_error,
    not_read_yet,
    start_not_available,
)
from penstock.sources.kafka.admin import (
    NO_BROKER,
    KafkaOptions,
    TopicPartition,
    admin_of,
    topic_offsets,
)
from penstock.sources.kafka.event_hubs import as_events, source_options
from penstock.sources.kafka.lag import KafkaLag, is_stream_of
from penstock.sources.kafka.offsets import (
    EMPTY,
    before_end,
    each_offset,
    is_offset,
    lost_offsets,
    lost_ranges,
    options_at,
)
from penstock.sources.kafka.options import (
    SERVERS,
    at_mapped_servers,
    prepare_source_options,
    refuse_misspelt,
)

# With this option, Spark's source would leave fewer offsets than that to the next update.
_LEAST_PER_BATCH = "minoffsetspertrigger"
# The id of each topic of a cluster before Kafka 2.8; an upgrade assigns ids.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_COMPARE_SECONDS = 30.0
# Kafka's error for a missing topic of `subscribe`, and Spark's if no topic matches the pattern.
_NO_TOPIC = re.compile(r"This server does not host this topic-partition|Assigned: Set\(\)")
# Kafka's errors for brokers that do not respond, and Spark's in a task.
_NO_ANSWER = re.compile(
    rf"{NO_BROKER}|Timeout of \d+ms expired before the position"
    r"|Cannot fetch record for offset \d+ in \d+ milliseconds"
)
# Spark's errors for start offsets that do not match the topic.
_NO_RECORD_SINCE = re.compile(r"request of topic-partition (\S+) and timestamp (\d+)")
_OTHER_PARTITIONS = re.compile(r"Specified: (?:\w+\()?(.*?)\)? Assigned: (?:\w+\()?([^)\n]*)")
_OTHER_OFFSET = re.compile(r"Partition (\S+) offset was changed from (\d+) to (\d+)")


class KafkaSource(Source):
    """Topics of Kafka, read by Spark's own connector."""

    formats = ("kafka",)

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        return prepare_source_options(options, streaming=is_stream)

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        return at_mapped_servers(options, map_path)

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        return [value for name, value in options.items() if name.lower() == SERVERS]

    def describe(self, read: Read) -> str:
        options = KafkaOptions(read.options)
        topics = (options.get(name) for name in ("subscribe", "subscribePattern", "assign"))
        return f"{read.format} {next((text for text in topics if text), '')}".rstrip()

    def open(self, read: Read) -> OpenedSource:
        refuse_misspelt(read.options, read.spark._jvm)
        if not read.is_stream:
            return OpenedSource(read.load(read.options), name=self.describe(read))
        return KafkaStream(read, name=self.describe(read))


class EventHubSource(KafkaSource):
    """Event Hubs through the Kafka protocol, with the options and columns of `eventhubs`."""

    formats = ("eventhubs",)

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        return prepare_source_options(
            source_options(options, streaming=is_stream), streaming=is_stream
        )

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        return dict(options)

    def open(self, read: Read) -> OpenedSource:
        kafka = read.spark.read.format("kafka")
        opened = super().open(replace(read, load=lambda options: kafka.options(**options).load()))
        opened.df = as_events(opened.df)
        return opened


class KafkaStream(OpenedSource):
    """A stream of topics. Positions are offsets; see `OpenedSource`."""

    def __init__(self, read: Read, *, name: str) -> None:
        self._spark = read.spark
        self._flow = read.flow
        self._options = KafkaOptions(read.options)
        self._topics = partial(topic_offsets, read.spark, self._options)
        self._lag = KafkaLag(read.spark, self._options)
        self._ids: dict[str, str] = {}
        self._compared = 0.0
        options = options_at(read.options, read.position, self._topics)
        if read.is_triggered:
            options = {k: v for k, v in options.items() if k.lower() != _LEAST_PER_BATCH}
        reader = read.spark.readStream.format("kafka").options(**options)
        if read.schema is not None:
            reader = reader.schema(read.schema)  # Spark refuses it
        rows = reader.load()
        rows = before_end(rows, read.position)
        super().__init__(rows, name=name, unit="offsets", place=self._options.place)

    def includes(self, path: str) -> bool:
        """See `OpenedSource.includes`; a sink may write to other partitions than `assign` names."""
        servers, _, topic = path.removeprefix("kafka://").rpartition("/")
        same = {server.strip() for server in servers.split(",")} & {*self.place.split(",")}
        return bool(same) and not self._omits({topic: {"-1": 0}})

    def prepare_start(self, checkpoint: str, siblings: Sequence[OpenedSource]) -> None:
        """See `OpenedSource.prepare_start`: refuse to drop what the checkpoint has read.

        Spark would plan a batch without the topic or partition. If it were added again later, it
        would be read from its start.
        """
        files = StorageFiles(self._spark)
        planned = batches(files, checkpoint, "offsets")[-1:]
        text = files.read(f"{checkpoint}/offsets/{planned[0]}") if planned else None
        if text is not None and text.startswith("v1\n\n"):
            # From continuous processing. Spark plans no micro-batch after offsets without settings.
            head = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
            text = text.replace("\n\n", f"\n{head}\n", 1)
            files.write(f"{checkpoint}/offsets/{planned[0]}", text)
        streams = [other for other in siblings if isinstance(other, KafkaStream)]
        last = list(source_offsets(text or ""))
        ends = [offset for offset in last if is_offset(offset)]
        removed = [part for end in ends for part in min((s._omits(end) for s in streams), key=len)]
        if not removed:
            return
        hint = "undo the change to continue from the checkpoint"
        if not files.exists(f"{checkpoint}/commits/{planned[0]}"):
            hint += ", and run an update: its last batch is not finished"
        elif len(ends) == len(last):
            kept: dict[str, dict[str, int]] = {}
            for topic, number, at in (each for end in ends for each in each_offset(end)):
                if (topic, number) not in removed:
                    kept.setdefault(topic, {})[number] = at
            start = shlex.quote(json.dumps(kept)) if kept else "earliest"
            hint += (
                "; the query can filter out rows by `topic` and `partition`; or `penstock "
                f"checkpoint reset {self._flow} --from {start}` continues without it: if it is "
                "added again later, it is read from its start"
            )
        parts = self._options.get("assign") is not None
        names = dict.fromkeys(f"{topic}-{n}" if parts else topic for topic, n in removed)
        raise CheckpointError(
            "SOURCE_TOPIC_REMOVED",
            f"flow {self._flow!r} no longer reads {', '.join(names)}, of which its checkpoint has "
            "offsets",
            flow=self._flow,
            hint=hint,
        )

    def _omits(self, read: Offsets) -> list[tuple[str, str]]:
        """The partitions in `read` that the options exclude."""
        options, pattern = self._options, self._options.get("subscribePattern")
        assigned = json.loads(options.get("assign") or "{}")
        names = [name.strip() for name in (options.get("subscribe") or "").split(",")]
        if pattern is not None:  # as in `KafkaAdmin.topics`
            java: Any = self._spark._jvm
            compiled = java.java.util.regex.Pattern.compile(pattern)
            names = [topic for topic in read if compiled.matcher(topic).find()]
        return [
            (topic, number)
            for topic, number, _ in each_offset(read)
            if topic not in names and int(number) not in assigned.get(topic, ())
        ]

    def check_identity(self, known: Mapping[str, str], flow: Flow, display: str) -> dict[str, str]:
        """See `OpenedSource.check_identity`: ids of topics.

        Fails if no broker responds: Spark would wait for them six times as long.
        """
        self._ids, self._target = dict(known), (flow, display)
        ids = self._checked_ids(is_start=True)
        if absent := self._absent():
            raise flow_error(
                "SOURCE_TOPIC_NOT_FOUND",
                flow,
                f"option `assign` names partitions that do not exist: {', '.join(absent)}",
                retryable=True,
                hint="correct the numbers, which begin at 0, or add partitions to the topic",
            )
        self._ids |= ids
        return ids

    def check_batch(self, checkpoint: str, batch_id: int) -> None:
        """See `OpenedSource.check_batch`: periodically compare the ids of topics."""
        if time.monotonic() - self._compared >= _COMPARE_SECONDS:
            self._checked_ids()

    def _checked_ids(self, *, is_start: bool = False) -> dict[str, str]:
        flow, display = self._target
        ids = self._topic_ids(flow if is_start else None)
        for topic, topic_id in ids.items():
            if self._ids.get(topic, _NO_ID) not in (topic_id, _NO_ID):
                raise CheckpointError(
                    "TOPIC_RECREATED",
                    f"flow {flow.name!r} has read topic {topic!r}, which was deleted and created "
                    "again: the offsets of its checkpoint are no longer valid",
                    flow=flow.name,
                    origin=flow.origin,
                    hint=f"--full-refresh {display} reads the new topic from its start"
                    f"{flow.sink_reset}; to keep the rows of the old one, give the flow a new "
                    "name: it starts with a new checkpoint",
                )
        self._compared = time.monotonic()
        return ids

    def new_identities(self, progress: Mapping[str, Any]) -> Mapping[str, str]:
        end = progress.get("endOffset")
        if not self._is_mine(progress) or not isinstance(end, dict):
            return {}
        new = end.keys() - self._ids.keys()
        ids = self._topic_ids() if new else {}
        # If the brokers do not respond, a topic is compared from the next start on.
        self._ids = {topic: self._ids.get(topic) or ids.get(topic, _NO_ID) for topic in end}
        return {topic: ids[topic] for topic in new & ids.keys()}

    def _topic_ids(self, starting: Flow | None = None) -> dict[str, str]:
        """The ids of topics, by name.

        A cluster that does not allow the user to describe topics is no error here: there is nothing
        to compare. Nor is one that does not respond, unless a flow is starting.
        """
        try:
            with admin_of(self._spark, self._options) as admin:
                return admin.topic_ids()
        except Py4JError as error:
            if starting is not None and NO_BROKER in first_line(error):
                raise self._not_responding(NO_BROKER, starting) from error
        return {}

    def _absent(self) -> Sequence[str]:
        """The partitions of `assign` that do not exist, which Spark ignores silently."""
        if self._options.get("assign") is not None:
            with contextlib.suppress(Py4JError), admin_of(self._spark, self._options) as admin:
                return admin.absent()
        return ()

    def explain(self, text: str, flow: Flow) -> FlowError | None:
        if _NO_TOPIC.search(text):
            return flow_error(
                "SOURCE_TOPIC_NOT_FOUND",
                flow,
                f"a topic of {self.name} is not known to the brokers",
                retryable=True,
                hint="create it, or correct the name of the topic or of the brokers",
            )
        if (silent := _NO_ANSWER.search(text)) is not None:
            return self._not_responding(silent[0], flow)
        if "PatternSyntaxException" in text:
            return flow_error(
                "KAFKA_SUBSCRIPTION_INVALID",
                flow,
                f"option `subscribePattern` is no regular expression: {self.name}",
            )
        if (record := _NO_RECORD_SINCE.search(text)) is not None:
            reason = f"partition {record[1]} has no record since timestamp {record[2]}"
            hint = (
                '.option("startingOffsetsByTimestampStrategy", "latest") begins such a partition '
                "with its next record"
            )
        elif (partitions := _OTHER_PARTITIONS.search(text)) is not None:
            specified = partitions[1] or "no partition"
            reason = f"offsets are set for {specified}, the topics have {partitions[2]}"
            hint = "name each partition of each topic; as an offset, -2 is earliest, -1 is latest"
        elif (other := _OTHER_OFFSET.search(text)) is not None and int(other[2]) > int(other[3]):
            reason = f"partition {other[1]} has no offset {other[2]}; its next one is {other[3]}"
            hint = "correct `startingOffsets`; as an offset, -2 is earliest, -1 is latest"
        else:
            return None
        return flow_error("KAFKA_OFFSETS_INVALID", flow, f"it cannot start: {reason}", hint=hint)

    def _not_responding(self, reason: str, flow: Flow) -> FlowError:
        return flow_error(
            "KAFKA_NOT_ANSWERING",
            flow,
            f"the brokers {self.place} of {self.name} do not respond: {reason}",
            retryable=True,
            hint="check that they run, that the driver and executors can connect to them, and that "
            "`kafka.security.protocol` and `kafka.sasl.mechanism` are those of their listener; "
            "nothing is lost: the flow continues at its last offsets",
        )

    def lost(self, progress: Mapping[str, Any]) -> Sequence[Loss]:
        if not self._options.tolerates_loss or not self._is_mine(progress):
            return ()
        return lost_ranges(progress, self._earliest)

    def _earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with contextlib.suppress(Py4JError), admin_of(self._spark, self._options) as admin:
            # A deleted topic is left out; the others are still compared.
            return admin.offsets(partitions, "earliest", lambda _: None)
        return {}

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        end = progress.get("endOffset")
        if not self._is_mine(progress) or not isinstance(end, dict):
            return None
        return self._lag.measure(end)

    def _is_mine(self, progress: Mapping[str, Any]) -> bool:
        return is_stream_of(str(progress.get("description", "")), self._options)

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        offsets = self._at(at)
        read, _ = self._read_by(done)
        again = skipped = 0
        for topic, number, offset in each_offset(offsets):
            end = read.get(topic, EMPTY).get(number, 0)
            again += max(0, end - offset)
            skipped += max(0, offset - end) if topic in read else 0
        report = self.start_report(again, skipped, done)
        is_earliest = at.kind is StartKind.EARLIEST
        return {"from_the_start": True} if is_earliest else {"offsets": offsets}, report

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        read, _ = self._read_by([done])
        start, newest = self._at(wanted.begin), self._topics("latest")
        if wanted.end is None:
            ends: Offsets = read
        elif wanted.end.kind is StartKind.OFFSETS:
            ends = {t: {**p, **wanted.end.offsets.get(t, EMPTY)} for t, p in read.items()}
        else:
            ends = self._at(wanted.end)
        first: dict[str, dict[str, int]] = {}
        last: dict[str, dict[str, int]] = {}
        count = 0
        for topic, number, latest in each_offset(newest):
            stop = ends.get(topic, EMPTY).get(number, 0)
            known = read.get(topic, EMPTY).get(number, 0)
            begins = min(start.get(topic, EMPTY).get(number, stop), stop)
            if stop > known and stop > begins:
                raise not_read_yet(
                    wanted.flow,
                    f"it is at offset {known} of {topic}-{number}, the range ends at {stop}",
                )
            if stop > begins:
                last.setdefault(topic, {})[number] = stop
                count += stop - begins
            # A partition without a part of the range is not read at all.
            first.setdefault(topic, {})[number] = begins if stop > begins else latest
        text = "; ".join(
            f"{topic}-{number} {first[topic][number]} to {end - 1}"
            for topic, number, end in sorted(each_offset(last))
        )
        return {"offsets": first, "end_offsets": last}, self.range_report(count, text)

    def is_past_end(self, position: Position, progress: Mapping[str, Any]) -> bool:
        end = progress.get("endOffset")
        if not self._is_mine(progress) or not isinstance(end, dict):
            return False
        return all(
            int((end.get(topic) or EMPTY).get(number, 0)) >= stop
            for topic, number, stop in each_offset(position.get("end_offsets", {}))
        )

    def history(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        position, report = self.start(at, done, now_ms)
        missing = lost_offsets(self._at(at), *self._read_by(done))
        return position, replace(report, missing=missing)

    def _at(self, at: StartPosition) -> Offsets:
        match at.kind:
            case StartKind.EARLIEST | StartKind.LATEST:
                return self._topics(at.kind.value)
            case StartKind.TIMESTAMP:
                since, ends = self._topics(at.timestamp_ms), self._topics("latest")
                return {
                    topic: {
                        # A partition without a record since then begins with its next one.
                        number: offset if offset >= 0 else ends.get(topic, EMPTY).get(number, 0)
                        for number, offset in partitions.items()
                    }
                    for topic, partitions in since.items()
                }
            case StartKind.OFFSETS:
                return {
                    topic: {**partitions, **at.offsets.get(topic, EMPTY)}
                    for topic, partitions in self._topics("earliest").items()
                }
            case _:
                raise start_not_available(
                    at, f"Kafka has no {at.kind.plural}", "use offsets or a timestamp"
                )

    def _read_by(self, done: Sequence[Checkpoint]) -> tuple[Offsets, Offsets]:
        """The next offsets that the checkpoints read, and the first ones that they have read."""
        ends: dict[str, dict[str, int]] = {}
        starts: dict[str, dict[str, int]] = {}
        for checkpoint in done:
            first: dict[str, Mapping[str, int]] = {}
            for offset in filter(is_offset, checkpoints.first_offsets(checkpoint)):
                first |= offset
            for offset in filter(is_offset, checkpoints.last_offsets(checkpoint)):
                for topic, number, stop in each_offset(offset):
                    end, start = ends.setdefault(topic, {}), starts.setdefault(topic, {})
                    begins = first.get(topic, EMPTY).get(number, 0)
                    end[number] = max(end.get(number, 0), stop)
                    start[number] = min(start.get(number, begins), begins)
        return ends, starts
