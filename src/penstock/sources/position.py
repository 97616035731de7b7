"""Where the streams of a flow begin, and end, whatever their own options say.

A position is resolved once, to offsets, versions and times, and kept with the flow: the first batch
of a checkpoint must be the same when it is planned again.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._tables.delta_log import DeltaJvm
from penstock.errors import PlanError

Offsets = Mapping[str, Mapping[str, int]]
"""Topic to partition to offset."""

_EMPTY: Mapping[str, Any] = {}
_KAFKA_STARTS = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
)
_DELTA_STARTS = ("startingversion", "startingtimestamp")
_MOST_FILES = 20_000
_MOST_OFFSETS, _LEAST_OFFSETS = 1_000_000, 10_000
_BEYOND_NEWEST = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Of all streams of one flow.

    Attributes:
        offsets: First offset per topic and partition; partitions that are not named begin at their
            first record.
        end_offsets: The one after the last, for a range; empty for a stream without end.
        versions: First version by path of a Delta table.
        end_versions: The last version of a range.
        from_the_start: The options with which a query says itself where to begin are left out.
        modified_after: Files that were changed after this moment only, ISO in UTC.
        modified_before: And before this one.
        files: And with a name that this pattern matches.
    """

    offsets: Offsets = field(default_factory=dict)
    end_offsets: Offsets = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    end_versions: Mapping[str, int] = field(default_factory=dict)
    from_the_start: bool = False
    modified_after: str | None = None
    modified_before: str | None = None
    files: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What `position_of` reads."""
        return {key: value for key, value in asdict(self).items() if value}


def position_of(body: Mapping[str, Any]) -> Position | None:
    """A position that was kept; `None` for an empty one."""
    return Position(**body) if body else None


_active: ContextVar[Position | None] = ContextVar("penstock_position", default=None)


@contextlib.contextmanager
def positioned(body: Mapping[str, Any]) -> Iterator[None]:
    """Let streams that are made inside begin and end there.

    Args:
        body: From `Position.as_json`; empty changes nothing.
    """
    token = _active.set(position_of(body))
    try:
        yield
    finally:
        _active.reset(token)


def current_position() -> Position | None:
    """The position of the streams that are made now."""
    return _active.get()


def table_key(path: str) -> str:
    """One spelling for the path of a table: local paths have several."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path.rstrip("/")


def at_delta(options: Mapping[str, str], path: str) -> dict[str, str]:
    """Options of a stream from a Delta table, with the place where it is to begin."""
    position = _active.get()
    version = None if position is None else position.versions.get(table_key(path))
    if position is None or (version is None and not position.from_the_start):
        return dict(options)
    kept = {key: value for key, value in options.items() if key.lower() not in _DELTA_STARTS}
    return kept if version is None else {**kept, "startingVersion": str(version)}


def delta_stream(spark: SparkSession, options: Mapping[str, str], path: str) -> DataFrame:
    """A stream from a Delta table, begun and ended where the flow's position says.

    Args:
        spark: The session.
        options: Of the reader, secrets filled in.
        path: The table.
    """
    given = at_delta(options, path)
    position = _active.get()
    version = None if position is None else position.versions.get(table_key(path))
    if version is not None and version > int(DeltaJvm(spark).snapshot(path).version()):
        return _waiting_stream(spark, given, path)
    return within_delta(spark.readStream.format("delta").options(**given).load(path), path)


def _waiting_stream(spark: SparkSession, options: Mapping[str, str], path: str) -> DataFrame:
    """A stream that begins at a version which is yet to come; Delta would refuse it.

    Its setting is asked for when the first batch is planned, in the session that the stream was
    made in: one of its own, so that nothing else gets the setting.
    """
    session: Any = spark._jsparkSession.cloneSession()
    session.conf().set(_BEYOND_NEWEST, "true")
    reader = session.readStream().format("delta")
    for key, value in options.items():
        reader = reader.option(key, value)
    jvm: Any = spark._jvm
    dataset = jvm.org.apache.spark.sql.classic.Dataset
    plan = reader.load(path).logicalPlan()
    return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def within_delta(df: DataFrame, path: str) -> DataFrame:
    """The rows of a stream from a Delta table that commits of the range have added."""
    position = _active.get()
    last = None if position is None else position.end_versions.get(table_key(path))
    if position is None or last is None:
        return df
    first = position.versions[table_key(path)]
    if "_commit_version" in df.columns:  # a change feed, whose rows say it themselves
        return df.where(F.col("_commit_version").between(first, last))
    names = added_files(df.sparkSession, path, first, last)
    # Delta's streams have no `_metadata`; right above the scan, the name of its file holds.
    return df.where(F.element_at(F.split(F.input_file_name(), "/"), -1).isin(names))


def added_files(spark: SparkSession, path: str, first: int, last: int) -> list[str]:
    """Names of the files that the commits of a range have added.

    Raises:
        PlanError: `BACKFILL_RANGE_INVALID`: there are too many to name.
    """
    delta = DeltaJvm(spark)
    found: list[str] = []
    for version in range(first, last + 1):
        for line in delta.commit_lines(path, version) or ():
            if line.startswith('{"add"'):
                # Delta's names of files are unique, and have no characters that URIs escape.
                found.append(json.loads(line)["add"]["path"].rpartition("/")[2])
        if len(found) > _MOST_FILES:
            raise PlanError(
                "BACKFILL_RANGE_INVALID",
                f"versions {first} to {last} of {path} have more than {_MOST_FILES:,} files",
                hint="backfill a part of the range, and then the next",
            )
    return found


def at_files(options: Mapping[str, str], *, times: bool = False) -> dict[str, str]:
    """Options of a stream from files, with the names of the range.

    Args:
        options: Of the reader.
        times: Add the times as well, as Auto Loader takes them; Spark's own streams refuse them,
            see `within_files`.
    """
    position = _active.get()
    result = dict(options)
    if position is None:
        return result
    for name, value in (
        ("modifiedAfter", position.modified_after if times else None),
        ("modifiedBefore", position.modified_before if times else None),
        ("pathGlobFilter", position.files),
    ):
        if value is not None:
            spellings = (name.lower(), f"cloudfiles.{name.lower()}")
            result = {key: kept for key, kept in result.items() if key.lower() not in spellings}
            result[name] = value
    return result


def within_files(df: DataFrame) -> DataFrame:
    """The rows of a stream from files that were changed in the range; others are not opened."""
    position = _active.get()
    if position is None:
        return df
    changed = F.col("_metadata.file_modification_time")
    if position.modified_after is not None:
        df = df.where(changed > F.lit(position.modified_after).cast("timestamp"))
    if position.modified_before is not None:
        df = df.where(changed < F.lit(position.modified_before).cast("timestamp"))
    return df


def at_kafka(options: Mapping[str, str], partitions: Offsets) -> dict[str, str]:
    """Options of a stream from Kafka, with the offsets where it is to begin.

    Args:
        options: As prepared.
        partitions: Those that the subscribed topics have now, with any value: Spark wants an
            offset for each of them.
    """
    position = _active.get()
    if position is None or not (position.offsets or position.from_the_start):
        return dict(options)
    kept = {key: value for key, value in options.items() if key.lower() not in _KAFKA_STARTS}
    if not position.offsets:
        return {**kept, "startingOffsets": "earliest"}
    chosen = {
        topic: {number: position.offsets.get(topic, _EMPTY).get(number, -2) for number in numbers}
        for topic, numbers in partitions.items()
    }
    kept["startingOffsets"] = json.dumps(chosen)
    if position.end_offsets and not any(key.lower() == "maxoffsetspertrigger" for key in kept):
        # A batch shall not read far behind the end of the range.
        wanted = sum(
            max(0, end - position.offsets.get(topic, _EMPTY).get(number, 0))
            for topic, ends in position.end_offsets.items()
            for number, end in ends.items()
        )
        kept["maxOffsetsPerTrigger"] = str(max(_LEAST_OFFSETS, min(_MOST_OFFSETS, wanted)))
    return kept


def within_kafka(df: DataFrame) -> DataFrame:
    """The rows of a stream from Kafka that lie before the end of the range."""
    position = _active.get()
    if position is None or not position.end_offsets:
        return df
    condition: Column = F.lit(False)
    for topic, partitions in position.end_offsets.items():
        for number, end in partitions.items():
            condition = condition | (
                (F.col("topic") == topic)
                & (F.col("partition") == int(number))
                & (F.col("offset") < end)
            )
    return df.where(condition)
