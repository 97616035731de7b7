"""What the sources of a flow still have of what its table was made of.

A table that is computed anew has what its sources have now. Where they have lost something since -
Kafka by retention, a table by a deletion that the stream skipped, a folder by its archive - the new
table would silently be smaller than the old one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock._tables.delta_log import DeltaJvm, size_in_bytes
from penstock._tables.files import local_path
from penstock._tables.log_scan import LoggedRemovals, append_only_start, logged_removals
from penstock.sources.position import Offsets, Position, table_key
from penstock.sources.rewind import (
    FlowStreams,
    Place,
    Progress,
    SourceKind,
    StartKind,
    StreamSource,
    iso,
    stream_sources,
)

_LONGEST_LOG = 10_000
_SKIPS = ("skipchangecommits", "ignorechanges")
_FEEDS = ("readchangefeed", "readchangedata")
# With these a query says itself how the beginning is read.
_OWN_BEGINNING = (*_FEEDS, "witheventtimeorder", "schematrackinglocation", "schemalocation")


@dataclass(frozen=True, kw_only=True)
class SourceHistory:
    """What a source has for a table that is computed anew.

    Attributes:
        source: Its name.
        unit: What is counted: `offsets`, `versions`, `files` or `rows`.
        again: How many of them the flow reads again; `None` if nobody knows.
        size: Of what is read, in bytes; `None` likewise.
        missing: What the old table was made of and the new one will not be; empty if nothing.
        note: What else there is to know.
    """

    source: str
    unit: str
    again: int | None
    size: int | None = None
    missing: str = ""
    note: str = ""


def history(
    spark: SparkSession, streams: FlowStreams, place: Place
) -> tuple[Position, tuple[SourceHistory, ...]]:
    """Where a flow begins that is computed anew, and what of its sources is gone.

    Args:
        spark: The session.
        streams: Of the flow, with how far its old checkpoint has read them.
        place: Where to begin.

    Raises:
        PlanError: `START_NOT_AVAILABLE`.
    """
    position, reports = streams.position(place)
    delta = DeltaJvm(spark)
    found = []
    versions = dict(position.versions)
    kafka = [one for one in reports if one.unit == "offsets"]
    for report in kafka:
        starts = streams.offsets(place)
        missing = lost_offsets(starts, streams.done)
        found.append(
            SourceHistory(source="kafka", unit="offsets", again=report.again, missing=missing)
        )
    others = [one for one in reports if one.unit != "offsets"]
    sources = [one for one in streams.sources if one.kind is not SourceKind.KAFKA]
    for source, report in zip(sources, others, strict=True):
        one = SourceHistory(source=report.source, unit=report.unit, again=report.again)
        if source.kind is SourceKind.DELTA:
            snapshot = delta.snapshot(source.path)
            newest = int(snapshot.version())
            whole = None
            if place.kind is StartKind.EARLIEST and not _has(source, _OWN_BEGINNING):
                # In the order in which its rows came, so that a watermark finds as few late.
                whole = append_only_start(delta, source.path, newest, most=_LONGEST_LOG)
            if whole is not None:
                versions[source.path] = whole
            removals = logged_removals(delta, source.path, newest)
            start = position.versions.get(source.path)
            done = streams.done.versions.get(streams.table_id(source.path), 0)
            missing, note = lost_versions(source, removals, streams.done, start, done)
            size = size_in_bytes(snapshot)
            one = replace(one, size=size, missing=missing, note=note)
        elif source.kind is SourceKind.FILES:
            one = replace(one, missing=lost_files(spark, streams.done.files, position))
        else:
            one = replace(one, missing=f"nobody knows what {source.name} still has")
        found.append(one)
    return replace(position, versions=versions), tuple(found)


def lost_offsets(starts: Offsets, done: Progress) -> str:
    """The records that a flow has read of Kafka and that lie before a start."""
    gone = []
    for topic, partitions in sorted(done.offsets.items()):
        for number, end in sorted(partitions.items()):
            first = done.first_offsets.get(topic, {}).get(number, 0)
            start = starts.get(topic, {}).get(number)
            stop = end if start is None else min(start, end)
            if stop > first:
                gone.append(f"{topic}-{number} {first} to {stop - 1}")
    return f"offsets of {'; '.join(gone)} are not read" if gone else ""


def lost_versions(
    source: StreamSource, removals: LoggedRemovals, done: Progress, start: int | None, read: int
) -> tuple[str, str]:
    """What a table has lost since a flow began to read it, and what nobody knows.

    Args:
        source: The table as the query reads it.
        removals: Of its log.
        done: How far the flow has read.
        start: The version that the flow shall begin with; `None` for the table as it is.
        read: The version before which the flow has read it.
    """
    own = dict(source.options).get("startingversion", "")
    missing = ""
    changed = [
        f"{version} ({operation})"
        for version, (operation, at) in removals.versions.items()
        if read and (version >= int(own) if own.isdecimal() else at > done.born_ms)
    ]
    if start is not None and start > 0:
        missing = f"what was in the table before version {start} is not read"
    elif changed:
        missing = "rows that the flow has read were removed or changed since, by version " + (
            ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        )
    note = ""
    if removals.first > 0:
        note = f"its log begins at version {removals.first}: what was removed before is not known"
    return missing, note


def lost_files(spark: SparkSession, taken: Mapping[str, int], position: Position) -> str:
    """The files that a flow has taken and that are gone, or lie before a start."""
    after = position.modified_after
    gone = [
        path
        for path, changed in taken.items()
        if (after is not None and iso(changed) <= after) or not _exists(spark, path)
    ]
    if not gone:
        return ""
    return f"{len(gone):,} files that the flow has read are not read, such as {gone[0]}"


def _exists(spark: SparkSession, path: str) -> bool:
    place = path.partition("#")[0]  # a fragment marks a file that was read before it changed
    local = local_path(place)
    if local is not None:
        return Path(local).exists()
    jvm = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(place)  # type: ignore[union-attr]
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return bool(hadoop.getFileSystem(conf).exists(hadoop))


def sees_replacement(df: DataFrame, path: str) -> str:
    """What a stream does with a commit that replaces all rows of a table.

    Args:
        df: The query of the flow that reads it.
        path: The table.

    Returns:
        `stops`, `skips` (the commit is passed over) or `changes` (a change feed has it as deleted
        and inserted rows).
    """
    reads = [one for one in stream_sources(df) if one.path == table_key(path)]
    if any(not _has(one, _FEEDS) and not _has(one, _SKIPS) for one in reads):
        return "stops"
    return "skips" if any(_has(one, _SKIPS) for one in reads) else "changes"


def _has(source: StreamSource, names: Sequence[str]) -> bool:
    options = dict(source.options)
    return any(options.get(name, "false").lower() != "false" for name in names)
