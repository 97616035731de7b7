"""The two ends of a range: fixed, not beyond what the flow has read, and never empty."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock._engine.rereading.ranges import resolve_range
from penstock._engine.rereading.sources import (
    Place,
    Progress,
    SourceKind,
    StreamSource,
    parse_place,
)
from penstock.errors import PlanError

KAFKA = StreamSource(kind=SourceKind.KAFKA, name="kafka")
TABLE = StreamSource(kind=SourceKind.DELTA, name="table /t", path="/t")
FOLDER = StreamSource(kind=SourceKind.FILES, name="files /in", path="/in")
OTHER = StreamSource(kind=SourceKind.OTHER, name="rate")


@dataclass
class Topics:
    ends: dict[str, dict[str, int]]

    def latest(self) -> dict[str, dict[str, int]]:
        return self.ends


@dataclass
class Streams:
    """A topic of two partitions, and a table whose versions are ten seconds apart."""

    sources: tuple[StreamSource, ...]
    done: Progress
    topics: Topics = field(default_factory=lambda: Topics({"t": {"0": 20, "1": 9}}))
    by_time: dict[str, dict[str, int]] = field(default_factory=lambda: {"t": {"0": 4, "1": 9}})

    def offsets(self, place: Place) -> dict[str, dict[str, int]]:
        if place.kind == "timestamp":
            return self.by_time
        if place.kind == "offsets":
            return {"t": {"0": 2, "1": 3, **place.offsets["t"]}}
        return {"t": {"0": 2, "1": 3}}

    def version(self, path: str, place: Place) -> int:
        assert path == "/t"
        return {"earliest": 0, "timestamp": place.moment_ms // 10_000}.get(
            place.kind, place.version
        )

    def table_id(self, path: str) -> str:
        return "id"


def resolve(streams: Streams, begin: str | None, end: str | None, files: str | None = None) -> Any:
    places = [None if text is None else parse_place(text) for text in (begin, end)]
    found: Any = streams
    return resolve_range(found, "flow", places[0], places[1], files)


def refused(streams: Streams, *asked: str | None) -> str:
    with pytest.raises(PlanError) as error:
        resolve(streams, *asked)
    assert error.value.hint
    return error.value.condition


def kafka() -> Streams:
    return Streams((KAFKA,), Progress(offsets={"t": {"0": 12, "1": 9}}))


def table(whole: int) -> Streams:
    return Streams((TABLE,), Progress(whole_versions={"id": whole}))


def test_a_range_of_kafka_ends_where_the_flow_is():
    position, (report,) = resolve(kafka(), None, None)
    assert position.offsets == {"t": {"0": 2, "1": 3}}
    assert position.end_offsets == {"t": {"0": 12, "1": 9}}
    assert (report.count, report.text) == (16, "t-0 2 to 11; t-1 3 to 8")
    # A partition without a part of the range begins at its end.
    position, (report,) = resolve(kafka(), "1970-01-01", '{"t": {"0": 6}}')
    assert position.offsets == {"t": {"0": 4, "1": 9}}
    assert (position.end_offsets, report.count) == ({"t": {"0": 6}}, 2)
    assert refused(kafka(), None, '{"t": {"0": 13}}') == "BACKFILL_NOT_READ_YET"
    assert refused(kafka(), '{"t": {"0": 12, "1": 9}}', None) == "BACKFILL_RANGE_INVALID"
    never = Streams((KAFKA,), Progress())
    assert refused(never, None, '{"t": {"0": 5}}') == "BACKFILL_RANGE_INVALID"


def test_versions_are_included_and_moments_are_not():
    position, (report,) = resolve(table(7), "version=2", "version=4")
    assert (position.versions, position.end_versions) == ({"/t": 2}, {"/t": 4})
    assert (report.count, report.text) == (3, "2 to 4")
    position, _ = resolve(table(7), "1970-01-01T00:00:20Z", "1970-01-01T00:00:40Z")
    assert (position.versions, position.end_versions) == ({"/t": 2}, {"/t": 3})
    position, _ = resolve(table(7), None, "latest")
    assert position.end_versions == {"/t": 6}
    assert refused(table(7), None, "version=7") == "BACKFILL_NOT_READ_YET"
    # What is read in part does not count as read.
    assert refused(table(0), None, "version=3") == "BACKFILL_NOT_READ_YET"
    assert refused(table(7), "version=5", "version=4") == "BACKFILL_RANGE_INVALID"


def test_files_are_taken_by_time_and_name():
    taken = {"file:///in/a1.json": 10_000, "file:///in/a2.json": 20_000, "file:///in/b": 30_000}
    streams = Streams((FOLDER,), Progress(files=taken))
    position, (report,) = resolve(streams, "1970-01-01T00:00:20Z", "1970-01-01T00:00:30Z", "a*")
    assert (report.unit, report.count) == ("files", 1)
    assert position.modified_after == "1970-01-01T00:00:19.999Z"
    assert (position.modified_before, position.files) == ("1970-01-01T00:00:30.000Z", "a*")
    position, (report,) = resolve(streams, None, None)
    assert (report.count, position.modified_before) == (3, "1970-01-01T00:00:30.001Z")
    assert refused(streams, None, None, "x*") == "BACKFILL_RANGE_INVALID"


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        (OTHER, (None, None)),
        (KAFKA, ("version=1", None)),
        (TABLE, ('{"t": {"0": 1}}', None)),
        (TABLE, (None, None, "*.json")),
        (FOLDER, ("version=1", None)),
        (FOLDER, ("latest", None)),
    ],
)
def test_places_that_a_source_does_not_have_are_refused(
    source: StreamSource, asked: tuple[str | None, ...]
):
    assert refused(Streams((source,), Progress()), *asked) == "BACKFILL_RANGE_INVALID"
