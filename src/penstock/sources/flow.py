"""All sources of one flow: their start positions and ranges, and which data they still have."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import PlanError
from penstock.sources.base import (
    OpenedSource,
    Position,
    Range,
    RangeReport,
    StartKind,
    StartPosition,
    StartReport,
    merged,
    range_invalid,
    start_not_available,
)


def distinct(sources: Iterable[OpenedSource]) -> list[OpenedSource]:
    """Each source of a query once, even if the query reads it several times.

    Raises:
        PlanError: Two of them have the same name in different places.
    """
    known: dict[str, OpenedSource] = {}
    for source in sources:
        other = known.get(source.name, source)
        known[source.name] = source
        # A batch read has no offsets.
        if other.place and source.place and other.place != source.place:
            raise PlanError(
                "SOURCES_NOT_DISTINCT",
                f"one query reads {source.name} from {other.place} and from {source.place}: the "
                "offsets of its checkpoint would not show which is which",
                hint="read each in a flow of its own; @dp.append_flow adds them to one table",
            )
    return list(known.values())


def _positioned(sources: Iterable[OpenedSource]) -> list[OpenedSource]:
    """As `distinct`, for a command that compares positions with the offsets of a checkpoint."""
    streams = distinct(sources)
    unnamed = [source.name for source in streams if not source.has_names_in_offsets]
    if len(unnamed) > 1:
        raise PlanError(
            "SOURCES_NOT_DISTINCT",
            f"the flow reads {' and '.join(unnamed)}: the offsets of its checkpoint do not show "
            "which is which",
            hint="--full-refresh of its table reads all of them again",
        )
    return streams


def start_position(
    sources: Iterable[OpenedSource], at: StartPosition, done: Sequence[Checkpoint], now_ms: int
) -> tuple[dict[str, Any], tuple[StartReport, ...]]:
    """Fix where all streams of a flow begin; see `OpenedSource.start`."""
    streams = _streams(sources, at)
    starts = [source.start(at, done, now_ms) for source in streams]
    return merged([part for part, _ in starts]), tuple(report for _, report in starts)


def source_history(
    sources: Iterable[OpenedSource], at: StartPosition, done: Sequence[Checkpoint], now_ms: int
) -> tuple[dict[str, Any], tuple[StartReport, ...]]:
    """As `start_position`, with the data that no longer exists; see `OpenedSource.history`."""
    streams = _streams(sources, at)
    starts = [source.history(at, done, now_ms) for source in streams]
    return merged([part for part, _ in starts]), tuple(report for _, report in starts)


def resolve_range(
    sources: Iterable[OpenedSource], wanted: Range, done: Checkpoint
) -> tuple[dict[str, Any], tuple[RangeReport, ...]]:
    """Fix both ends of a range; see `OpenedSource.range`."""
    streams = _positioned(sources)
    if not streams:
        raise range_invalid("the flow reads no stream", "--full-refresh recomputes it")
    if wanted.end is not None and wanted.end.kind is StartKind.LATEST:
        wanted = replace(wanted, end=None)
    if wanted.files is not None and not all(source.has_files for source in streams):
        raise range_invalid("--files is for folders", "leave it out")
    parts = [source.range(wanted, done) for source in streams]
    reports = tuple(report for _, report in parts)
    if not any(report.count for report in reports):
        raise range_invalid("the flow has read nothing of it", "choose another range")
    return merged([part for part, _ in parts]), reports


def is_past_end(
    sources: Sequence[OpenedSource], position: Position, entries: Sequence[Any]
) -> bool:
    """Whether all remaining rows are after a range; `entries` are sources in Spark's report."""
    return bool(entries) and all(
        any(source.is_past_end(position, entry) for source in sources) for entry in entries
    )


def _streams(sources: Iterable[OpenedSource], at: StartPosition) -> list[OpenedSource]:
    streams = _positioned(sources)
    if at.kind is StartKind.VERSION and len(streams) > 1:
        raise start_not_available(
            at,
            "it reads several tables with independent versions",
            "use `earliest` or a timestamp",
        )
    return streams
