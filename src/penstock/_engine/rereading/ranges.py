"""A range of a flow's sources: where it begins and ends, and that the flow has read all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from penstock._engine.position import Offsets, Position
from penstock._engine.rereading.backfill import not_read_yet
from penstock._engine.rereading.sources import (
    FlowStreams,
    Place,
    Progress,
    SourceKind,
    StartKind,
    StreamSource,
    iso,
)
from penstock.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class RangeReport:
    """What a range is of one source.

    Attributes:
        source: Its name.
        unit: What is counted: `offsets`, `versions` or `files`.
        count: How many.
        text: From where to where.
    """

    source: str
    unit: str
    count: int
    text: str


def resolve_range(
    streams: FlowStreams,
    flow: str,
    begin: Place | None,
    end: Place | None,
    files: str | None,
) -> tuple[Position, tuple[RangeReport, ...]]:
    """Fix the two ends of a range.

    Args:
        streams: Of the flow.
        flow: Its name.
        begin: The first rows; the earliest by default.
        end: The rows behind the last, of versions the last one; where the flow is by default.
        files: Pattern of file names.

    Raises:
        PlanError: `BACKFILL_RANGE_INVALID`, `BACKFILL_NOT_READ_YET`, `START_NOT_AVAILABLE`.
    """
    begin = begin or Place(kind=StartKind.EARLIEST)
    if end is not None and end.kind is StartKind.LATEST:
        end = None
    kinds = [source.kind for source in streams.sources]
    _check(kinds, begin, end, files)
    offsets: Offsets = {}
    ends: Offsets = {}
    versions: dict[str, int] = {}
    last_versions: dict[str, int] = {}
    after = before = None
    reports = []
    for source in streams.sources:
        if source.kind is SourceKind.KAFKA:
            offsets, ends, count = _kafka_range(streams, flow, begin, end)
            text = "; ".join(
                f"{topic}-{number} {offsets[topic][number]} to {last - 1}"
                for topic, parts in sorted(ends.items())
                for number, last in sorted(parts.items())
                if last > offsets[topic][number]
            )
            reports.append(RangeReport(source=source.name, unit="offsets", count=count, text=text))
        elif source.kind is SourceKind.DELTA:
            first, last = _version_range(streams, flow, source, begin, end)
            versions[source.path], last_versions[source.path] = first, last
            reports.append(
                RangeReport(
                    source=source.name,
                    unit="versions",
                    count=max(0, last - first + 1),
                    text=f"{first} to {last}",
                )
            )
        else:
            after = None if begin.kind is StartKind.EARLIEST else begin.moment_ms - 1
            # The next update reads newer files.
            newest = max(streams.done.files.values(), default=0)
            before = newest + 1 if end is None else end.moment_ms
            taken = _taken(streams.done, after, before, files)
            shown = "the beginning" if after is None else str(begin)
            text = f"changed from {shown} to {iso(before)}" + (f", {files}" if files else "")
            reports.append(RangeReport(source=source.name, unit="files", count=taken, text=text))
    if not any(report.count for report in reports):
        raise _invalid("the flow has read nothing of it", "choose another range")
    position = Position(
        offsets=offsets,
        end_offsets=ends,
        versions=versions,
        end_versions=last_versions,
        modified_after=None if after is None else iso(after),
        modified_before=None if before is None else iso(before),
        files=files,
    )
    return position, tuple(reports)


def _check(kinds: list[SourceKind], begin: Place, end: Place | None, files: str | None) -> None:
    if SourceKind.OTHER in kinds or not kinds:
        raise _invalid(
            "its source cannot be read again from a place", "Kafka, folders and Delta tables can"
        )
    if files is not None and SourceKind.FILES not in kinds:
        raise _invalid("--files is for folders", "leave it out")
    for place in (begin, end):
        if place is None or place.kind in (StartKind.EARLIEST, StartKind.TIMESTAMP):
            continue
        if place.kind is StartKind.VERSION and set(kinds) == {SourceKind.DELTA}:
            continue
        if place.kind is StartKind.OFFSETS and set(kinds) == {SourceKind.KAFKA}:
            continue
        raise _invalid(
            f"its source has no {place.kind.value}",
            "offsets are of Kafka, versions of Delta tables; all of them have moments",
        )


def _kafka_range(
    streams: FlowStreams, flow: str, begin: Place, end: Place | None
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]], int]:
    done = streams.done.offsets
    start, newest = streams.offsets(begin), streams.topics.latest()
    if end is None:
        wanted: Offsets = done
    elif end.kind is StartKind.OFFSETS:
        wanted = {topic: {**parts, **end.offsets.get(topic, {})} for topic, parts in done.items()}
    else:
        wanted = streams.offsets(end)
    first: dict[str, dict[str, int]] = {}
    last: dict[str, dict[str, int]] = {}
    count = 0
    for topic, parts in newest.items():
        for number, latest in parts.items():
            stop = wanted.get(topic, {}).get(number, 0)
            read = done.get(topic, {}).get(number, 0)
            begins = min(start.get(topic, {}).get(number, stop), stop)
            if stop > read and stop > begins:
                raise not_read_yet(
                    flow, f"it is at offset {read} of {topic}-{number}, the range ends at {stop}"
                )
            if stop > begins:
                last.setdefault(topic, {})[number] = stop
                count += stop - begins
            # A partition without a part of the range is not read at all.
            first.setdefault(topic, {})[number] = begins if stop > begins else latest
    return first, last, count


def _version_range(
    streams: FlowStreams, flow: str, source: StreamSource, begin: Place, end: Place | None
) -> tuple[int, int]:
    done = streams.done.whole_versions.get(streams.table_id(source.path), 0)
    first = streams.version(source.path, begin)
    if end is None:
        last = done - 1
    elif end.kind is StartKind.VERSION:
        last = end.version
    else:
        last = streams.version(source.path, end) - 1
    if last >= done:
        raise not_read_yet(
            flow, f"it has read {source.name} before version {done}, the range ends with {last}"
        )
    return first, last


def _taken(done: Progress, after: int | None, before: int, pattern: str | None) -> int:
    files: Mapping[str, int] = done.files
    return len(
        [
            1
            for path, changed in files.items()
            if (after is None or changed > after)
            and changed < before
            and (pattern is None or fnmatchcase(path.rpartition("/")[2], pattern))
        ]
    )


def _invalid(reason: str, hint: str) -> PlanError:
    return PlanError(
        "BACKFILL_RANGE_INVALID", f"this range cannot be backfilled: {reason}", hint=hint
    )
