"""All sources of one flow: where they begin, what a range of them is, what they still have."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.sources.base import (
    OpenedSource,
    Position,
    Range,
    RangeReport,
    SourceHistory,
    StartKind,
    StartPosition,
    StartReport,
    merged,
    range_invalid,
    start_not_available,
)


def distinct(sources: Iterable[OpenedSource]) -> list[OpenedSource]:
    """Each source of a query once, however often the query reads it."""
    return list({source.name: source for source in sources}.values())


def start_position(
    sources: Iterable[OpenedSource], at: StartPosition, done: Sequence[Checkpoint], now_ms: int
) -> tuple[dict[str, Any], tuple[StartReport, ...]]:
    """Fix where all streams of a flow begin; see `OpenedSource.start`."""
    streams = _streams(sources, at)
    starts = [source.start(at, done, now_ms) for source in streams]
    return merged([part for part, _ in starts]), tuple(report for _, report in starts)


def source_history(
    sources: Iterable[OpenedSource], at: StartPosition, done: Sequence[Checkpoint], now_ms: int
) -> tuple[dict[str, Any], tuple[SourceHistory, ...]]:
    """As `start_position`, with what is no longer there; see `OpenedSource.history`."""
    streams = _streams(sources, at)
    parts = [source.history(at, done, now_ms) for source in streams]
    return merged([part for part, _ in parts]), tuple(history for _, history in parts)


def resolve_range(
    sources: Iterable[OpenedSource], wanted: Range, done: Checkpoint
) -> tuple[dict[str, Any], tuple[RangeReport, ...]]:
    """Fix both ends of a range; see `OpenedSource.range`."""
    streams = distinct(sources)
    if not streams:
        raise range_invalid("the flow reads no stream", "--full-refresh recomputes it")
    if wanted.end is not None and wanted.end.kind is StartKind.LATEST:
        wanted = replace(wanted, end=None)
    parts = [source.range(wanted, done) for source in streams]
    reports = tuple(report for _, report in parts)
    if not any(report.count for report in reports):
        raise range_invalid("the flow has read nothing of it", "choose another range")
    return merged([part for part, _ in parts]), reports


def is_past_end(
    sources: Iterable[OpenedSource], position: Position, entries: Sequence[Any]
) -> bool:
    """Whether all that is still to come lies behind a range; `entries` are of Spark's report."""
    known = list(sources)
    return bool(entries) and all(
        any(source.is_past_end(position, entry) for source in known) for entry in entries
    )


def _streams(sources: Iterable[OpenedSource], at: StartPosition) -> list[OpenedSource]:
    streams = distinct(sources)
    if at.kind is StartKind.VERSION and len(streams) > 1:
        raise start_not_available(
            at,
            "it reads several tables with independent versions",
            "use `earliest` or a timestamp",
        )
    return streams
