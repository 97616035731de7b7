"""The streams of a flow, how far its checkpoint has read them, and places to read them from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock._spark.plans import analyzed, iterate, kind_of
from penstock._tables.checkpoint_files import Checkpoint
from penstock._tables.delta_log import DeltaJvm
from penstock.errors import PlanError, SpecError
from penstock.sources.kafka.offsets import TopicOffsets
from penstock.sources.kafka.reader import KafkaRead
from penstock.sources.options import FILE_FORMATS
from penstock.sources.position import Offsets, Position, table_key


class SourceKind(StrEnum):
    """What a stream reads."""

    KAFKA = "kafka"
    DELTA = "delta"
    FILES = "files"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """One stream of a query.

    Attributes:
        kind: What it reads.
        name: For people.
        path: Of a Delta table or a folder.
        options: Of its reader, names in lower case; those of Kafka and the like are not told.
    """

    kind: SourceKind
    name: str
    path: str = ""
    options: tuple[tuple[str, str], ...] = ()


def stream_sources(df: DataFrame) -> tuple[StreamSource, ...]:
    """The streams that a query reads, each once, taken from its plan."""
    found: dict[StreamSource, None] = {}
    for leaf in iterate(analyzed(df).collectLeaves()):
        if leaf.isStreaming():
            found[_source(leaf)] = None
    return tuple(found)


def _source(leaf: Any) -> StreamSource:
    if kind_of(leaf) == "StreamingRelation":
        made_of = leaf.dataSource()
        name = str(made_of.className()).lower()
        options = {str(pair._1()).lower(): str(pair._2()) for pair in iterate(made_of.options())}
        path = options.get("path") or next(map(str, iterate(made_of.paths())), "")
        if name.endswith("delta") or "delta.sources" in name:
            return StreamSource(
                kind=SourceKind.DELTA,
                name=f"table {path}",
                path=table_key(path),
                options=tuple(sorted(options.items())),
            )
        if name in FILE_FORMATS or path:
            return StreamSource(kind=SourceKind.FILES, name=f"files {path}", path=path)
        return StreamSource(kind=SourceKind.OTHER, name=name)
    name = str(leaf.sourceName()) if hasattr(leaf, "sourceName") else kind_of(leaf)
    if name.lower() == "kafka":
        return StreamSource(kind=SourceKind.KAFKA, name="kafka")
    return StreamSource(kind=SourceKind.OTHER, name=name)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a checkpoint has read, by source.

    Attributes:
        offsets: Kafka's next offsets.
        versions: Next version of each Delta table, by the table's id.
        files: Files that were taken into batches, with the time of their last change.
        whole_versions: As `versions`, without what may be read in part only.
        is_known: False if the checkpoint is gone, so that nobody knows.
    """

    offsets: Offsets = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    is_known: bool = True
    whole_versions: Mapping[str, int] = field(default_factory=dict)
    first_offsets: Offsets = field(default_factory=dict)
    born_ms: int = 0


def progress_of(checkpoint: Checkpoint | None) -> Progress:
    """What the newest planned batch of a checkpoint says."""
    if checkpoint is None:
        return Progress()
    if not checkpoint.planned:
        return Progress(is_known=checkpoint.exists and not checkpoint.finished)
    offsets: dict[str, dict[str, int]] = {}
    versions: dict[str, int] = {}
    whole: dict[str, int] = {}
    for offset in checkpoint.planned[-1].offsets:
        if not isinstance(offset, dict):
            continue
        if "reservoirVersion" in offset:
            # A commit that is read in part counts as read.
            is_begun = offset.get("isStartingVersion") or int(offset.get("index", -1)) >= 0
            table, version = str(offset.get("reservoirId")), int(offset["reservoirVersion"])
            versions[table] = version + bool(is_begun)
            whole[table] = 0 if offset.get("isStartingVersion") else version
        elif _is_kafkas(offset):
            offsets |= offset
    return Progress(
        offsets=offsets,
        versions=versions,
        files=_taken_files(checkpoint.path),
        whole_versions=whole,
        first_offsets=_first_offsets(checkpoint.path),
        born_ms=_born_ms(checkpoint.path),
    )


def progress_since(found: Sequence[Checkpoint], moment_ms: int) -> Progress:
    """All that the checkpoints of a flow have read, of which a table may have rows.

    Args:
        found: Its checkpoints, the one that it goes on with and those before.
        moment_ms: When all rows of the table were replaced: those that ended before do not count.
    """
    counted = [progress_of(one) for one in found if one.is_current or _ended_ms(one) > moment_ms]
    if not counted:
        return Progress()
    ends: dict[str, dict[str, int]] = {}
    starts: dict[str, dict[str, int]] = {}
    versions: dict[str, int] = {}
    for one in counted:
        for topic, parts in one.offsets.items():
            for number, end in parts.items():
                first = one.first_offsets.get(topic, {}).get(number, 0)
                known = ends.setdefault(topic, {}), starts.setdefault(topic, {})
                known[0][number] = max(known[0].get(number, 0), end)
                known[1][number] = min(known[1].get(number, first), first)
        for table, version in one.versions.items():
            versions[table] = max(versions.get(table, 0), version)
    return Progress(
        offsets=ends,
        versions=versions,
        files={path: at for one in counted for path, at in one.files.items()},
        is_known=all(one.is_known for one in counted),
        first_offsets=starts,
        born_ms=min(one.born_ms for one in counted),
    )


def _ended_ms(checkpoint: Checkpoint) -> int:
    """When its last batch was finished; 0 if it has none."""
    times = [file.stat().st_mtime for file in (checkpoint.path / "commits").glob("[0-9]*")]
    return round(max(times, default=0) * 1000)


def _is_kafkas(offset: Mapping[str, Any]) -> bool:
    return all(
        isinstance(parts, dict) and all(isinstance(end, int) for end in parts.values())
        for parts in offset.values()
    )


def _born_ms(place: Path) -> int:
    """When Spark gave the query its id: written once, before the first batch."""
    try:
        return round((place / "metadata").stat().st_mtime * 1000)
    except OSError:
        return 0


def _first_offsets(place: Path) -> dict[str, dict[str, int]]:
    """What Spark noted of Kafka before the first batch; a zero byte stands before it."""
    found: dict[str, dict[str, int]] = {}
    for log in (place / "sources").glob("*/0"):
        try:
            offset = json.loads(log.read_text(encoding="utf-8").rpartition("\n")[2])
        except (OSError, ValueError):
            continue
        if isinstance(offset, dict) and offset and _is_kafkas(offset):
            found |= offset
    return found


def _taken_files(place: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for log in (place / "sources").glob("*/*"):
        if not log.is_file() or not log.name.removesuffix(".compact").isdecimal():
            continue
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            try:
                entry = json.loads(line)
                found[str(entry["path"])] = int(entry["timestamp"])
            except (ValueError, KeyError, TypeError):
                continue  # the first offsets of another kind of source
    return found


class StartKind(StrEnum):
    """Where a flow shall begin."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    VERSION = "version"
    OFFSETS = "offsets"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the streams of a flow, as a user says it.

    Attributes:
        kind: Which.
        moment_ms: Of a timestamp.
        version: Of a Delta table.
        offsets: Of Kafka; partitions that are not named are taken as a whole.
    """

    kind: StartKind
    moment_ms: int = 0
    version: int = 0
    offsets: Offsets = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind is StartKind.OFFSETS:
            return f"offsets {json.dumps(self.offsets)}"
        if self.kind is StartKind.TIMESTAMP:
            return iso(self.moment_ms)
        return f"version {self.version}" if self.kind is StartKind.VERSION else self.kind.value


def parse_place(text: str, option: str = "--from") -> Place:
    """A place: `earliest`, `latest`, `version=12`, offsets as JSON, or a moment as ISO text.

    A moment without an offset is in UTC.

    Raises:
        SpecError: `PLACE_INVALID`.
    """
    word = text.strip()
    if word.lower() in (StartKind.EARLIEST, StartKind.LATEST):
        return Place(kind=StartKind(word.lower()))
    name, is_pair, value = word.partition("=")
    try:
        if word.startswith("{"):
            return Place(kind=StartKind.OFFSETS, offsets=_offsets(json.loads(word)))
        if is_pair and name.strip().lower() == "version" and int(value) >= 0:
            return Place(kind=StartKind.VERSION, version=int(value))
        if not is_pair or name.strip().lower() == "timestamp":
            moment = datetime.fromisoformat((value if is_pair else word).strip())
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return Place(kind=StartKind.TIMESTAMP, moment_ms=round(moment.timestamp() * 1000))
    except (ValueError, OverflowError, AttributeError, TypeError):
        pass
    raise SpecError(
        "PLACE_INVALID",
        f"{option} {text!r} is no place to read from",
        hint="`earliest`, `latest`, a moment such as `2026-03-01T10:00:00Z`, `version=12` of a "
        'Delta table, or offsets of Kafka such as `{"orders": {"0": 250}}`',
    )


def _offsets(body: Any) -> Offsets:
    found = {
        str(topic): {str(int(number)): int(offset) for number, offset in parts.items()}
        for topic, parts in body.items()
    }
    if any(offset < 0 for parts in found.values() for offset in parts.values()):
        raise ValueError
    return found


def iso(milliseconds: int) -> str:
    """A moment as ISO text in UTC."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """What a place means for one source.

    Attributes:
        source: Its name.
        unit: What is counted: `offsets`, `versions` or `files`.
        again: How many are read that the flow has read already; `None` if nobody knows.
        skipped: How many that it has not read are never read; `None` likewise.
    """

    source: str
    unit: str
    again: int | None
    skipped: int | None


class FlowStreams:
    """Finds places in the streams of one flow.

    Args:
        spark: The session.
        df: The flow's query.
        kafka: Its streams from Kafka.
        done: How far it has read.
        now_ms: The time, for `latest` of folders.
    """

    def __init__(
        self,
        spark: SparkSession,
        df: DataFrame,
        kafka: Sequence[KafkaRead],
        done: Progress,
        now_ms: int,
    ) -> None:
        self.sources = stream_sources(df)
        self.done = done
        self.topics = TopicOffsets(spark, kafka)
        self._delta = DeltaJvm(spark)
        self._now_ms = now_ms

    def position(self, place: Place) -> tuple[Position, tuple[SourceReport, ...]]:
        """The position of all streams for a place, and what it means.

        Raises:
            PlanError: `START_NOT_AVAILABLE`.
        """
        self._check(place)
        kinds = {source.kind for source in self.sources}
        offsets: Offsets = {}
        versions: dict[str, int] = {}
        reports = []
        after: int | None = None
        if SourceKind.KAFKA in kinds:
            offsets = self.offsets(place)
            reports.append(compare_offsets(offsets, self.done.offsets))
        for source in self.sources:
            if source.kind is SourceKind.DELTA:
                version = self.version(source.path, place)
                if place.kind is not StartKind.EARLIEST:
                    versions[source.path] = version
                reports.append(self._compare_version(source, version))
            elif source.kind is SourceKind.FILES:
                if place.kind is StartKind.LATEST:
                    after = self._now_ms
                elif place.kind is StartKind.TIMESTAMP:
                    # Files that were changed at that moment belong to the range.
                    after = place.moment_ms - 1
                taken = self.done.files.values()
                again = len([1 for changed in taken if after is None or changed > after])
                skipped = 0 if after is None else None
                reports.append(
                    SourceReport(source=source.name, unit="files", again=again, skipped=skipped)
                )
            elif source.kind is SourceKind.OTHER:
                reports.append(
                    SourceReport(source=source.name, unit="rows", again=None, skipped=None)
                )
        if not self.done.is_known:
            reports = [replace(report, again=None, skipped=None) for report in reports]
        position = Position(
            offsets={} if place.kind is StartKind.EARLIEST else offsets,
            versions=versions,
            from_the_start=place.kind is StartKind.EARLIEST,
            modified_after=None if after is None else iso(after),
        )
        return position, tuple(reports)

    def offsets(self, place: Place) -> dict[str, dict[str, int]]:
        """Kafka's offsets at a place."""
        match place.kind:
            case StartKind.LATEST:
                return self.topics.latest()
            case StartKind.TIMESTAMP:
                return self.topics.at(place.moment_ms)
            case StartKind.OFFSETS:
                whole = self.topics.earliest()
                return {
                    topic: {**parts, **place.offsets.get(topic, {})}
                    for topic, parts in whole.items()
                }
            case _:
                return self.topics.earliest()

    def version(self, path: str, place: Place) -> int:
        """The first version of a Delta table that belongs to what begins at a place.

        Raises:
            PlanError: `START_NOT_AVAILABLE`: the table does not have it any more, or not yet.
        """
        rows = self._delta.spark.sql(f"DESCRIBE HISTORY delta.`{path}`")
        known = {
            int(row["version"]): int(row["at"])
            for row in rows.selectExpr("version", "unix_millis(timestamp) AS at").collect()
        }
        first, newest = min(known), max(known)
        if place.kind is StartKind.EARLIEST:
            return first
        if place.kind is StartKind.LATEST:
            return newest + 1
        if place.kind is StartKind.TIMESTAMP:
            later = [version for version, at in known.items() if at >= place.moment_ms]
            return min(later, default=newest + 1)
        if not first <= place.version <= newest + 1:
            raise PlanError(
                "START_NOT_AVAILABLE",
                f"table {path} has no version {place.version}: its log has {first} to {newest}",
                hint=f"choose one of them, or {newest + 1} for what comes next",
            )
        return place.version

    def table_id(self, path: str) -> str:
        """Delta's id of a table."""
        return self._delta.metadata(self._delta.begin(path)).id

    def _compare_version(self, source: StreamSource, start: int) -> SourceReport:
        done = self.done.versions.get(self.table_id(source.path), 0)
        return SourceReport(
            source=source.name,
            unit="versions",
            again=max(0, done - start),
            skipped=max(0, start - done),
        )

    def _check(self, place: Place) -> None:
        kinds = [source.kind for source in self.sources]
        reason = ""
        if place.kind is StartKind.VERSION and set(kinds) != {SourceKind.DELTA}:
            reason = "only Delta tables have versions"
        elif place.kind is StartKind.VERSION and len(kinds) > 1:
            reason = "it reads several tables, whose versions have nothing to do with each other"
        elif place.kind is StartKind.OFFSETS and set(kinds) != {SourceKind.KAFKA}:
            reason = "only Kafka has offsets"
        elif place.kind is not StartKind.EARLIEST and SourceKind.OTHER in kinds:
            other = next(one.name for one in self.sources if one.kind is SourceKind.OTHER)
            reason = f"the source {other} can only be read from where its options say"
        if reason:
            raise PlanError(
                "START_NOT_AVAILABLE",
                f"the flow cannot begin at {place}: {reason}",
                hint="choose `earliest`"
                + (", or a moment" if SourceKind.OTHER not in kinds else ""),
            )


def compare_offsets(start: Offsets, done: Offsets) -> SourceReport:
    """What a start means for topics that were read up to some offsets."""
    again = skipped = 0
    for topic, partitions in start.items():
        for number, offset in partitions.items():
            read = done.get(topic, {}).get(number, 0)
            again += max(0, read - offset)
            skipped += max(0, offset - read) if topic in done else 0
    return SourceReport(
        source=f"kafka {', '.join(sorted(start))}", unit="offsets", again=again, skipped=skipped
    )
