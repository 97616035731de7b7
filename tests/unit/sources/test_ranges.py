"""Ranges have fixed ends, which the flow has read, and are not empty."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from paper_sources import TABLE_ID, PaperFolder, PaperTable, PaperTopics, checkpoint

from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import PlanError
from penstock.sources.base import (
    EARLIEST,
    OpenedSource,
    Range,
    RangeReport,
    StartKind,
    StartPosition,
    parse_start,
)
from penstock.sources.flow import distinct, resolve_range, source_history, start_position
from penstock.sources.kinesis.offsets import Offset, Position
from penstock.sources.kinesis.source import KinesisStream

Resolved = tuple[Mapping[str, Any], tuple[RangeReport, ...]]

NO_ROWS: Any = None
OTHER = OpenedSource(NO_ROWS, name="rate")


@dataclass
class Streams:
    """A source of a flow and the checkpoint of the flow."""

    source: OpenedSource
    done: Checkpoint


def topics() -> PaperTopics:
    return PaperTopics(
        {"t": {"0": 2, "1": 3}}, {"t": {"0": 20, "1": 9}}, by_time={"t": {"0": 4, "1": 9}}
    )


def resolve(
    streams: Streams, begin: str | None, end: str | None, files: str | None = None
) -> Resolved:
    wanted = Range(
        flow="flow",
        begin=EARLIEST if begin is None else parse_start(begin),
        end=None if end is None else parse_start(end),
        files=files,
        now_ms=90_000,
    )
    return resolve_range([streams.source], wanted, streams.done)


def refused(streams: Streams, *wanted: str | None) -> str:
    with pytest.raises(PlanError) as error:
        resolve(streams, *wanted)
    assert error.value.hint
    return error.value.condition


def test_range_of_kafka_ends_at_the_position_of_the_flow(tmp_path: Path):
    kafka = Streams(topics(), checkpoint(tmp_path / "done", {"t": {"0": 12, "1": 9}}))
    position, (report,) = resolve(kafka, None, None)
    assert position["offsets"] == {"t": {"0": 2, "1": 3}}
    assert position["end_offsets"] == {"t": {"0": 12, "1": 9}}
    assert (report.count, report.text) == (16, "t-0 2 to 11; t-1 3 to 8")
    # A partition that is not in the range starts at its end offset.
    position, (report,) = resolve(kafka, "1970-01-01", '{"t": {"0": 6}}')
    assert position["offsets"] == {"t": {"0": 4, "1": 9}}
    assert (position["end_offsets"], report.count) == ({"t": {"0": 6}}, 2)
    assert refused(kafka, None, '{"t": {"0": 13}}') == "BACKFILL_NOT_READ_YET"
    assert refused(kafka, '{"t": {"0": 12, "1": 9}}', None) == "BACKFILL_RANGE_INVALID"
    never = Streams(topics(), checkpoint(tmp_path / "never"))
    assert refused(never, None, '{"t": {"0": 5}}') == "BACKFILL_RANGE_INVALID"


def test_versions_are_included_and_timestamps_are_not(tmp_path: Path):
    offset = {"reservoirVersion": 7, "reservoirId": TABLE_ID, "index": -1}
    other = {"reservoirVersion": 70, "reservoirId": "of another table", "index": -1}
    table = Streams(PaperTable(), checkpoint(tmp_path / "whole", offset, other))
    position, (report,) = resolve(table, "version=2", "version=4")
    assert (position["versions"], position["end_versions"]) == ({"/t": 2}, {"/t": 4})
    assert (report.count, report.text) == (3, "2 to 4")
    position, _ = resolve(table, "1970-01-01T00:00:20Z", "1970-01-01T00:00:40Z")
    assert (position["versions"], position["end_versions"]) == ({"/t": 2}, {"/t": 3})
    position, _ = resolve(table, None, "latest")
    assert position["end_versions"] == {"/t": 6}
    assert refused(table, None, "version=7") == "BACKFILL_NOT_READ_YET"
    # A version that is not read completely does not count as read.
    part = checkpoint(tmp_path / "part", {**offset, "index": 3, "isStartingVersion": True})
    assert refused(Streams(PaperTable(), part), None, "version=3") == "BACKFILL_NOT_READ_YET"
    assert refused(table, "version=5", "version=4") == "BACKFILL_RANGE_INVALID"


def test_files_of_a_range_are_selected_by_time_and_name(tmp_path: Path):
    taken = {"file:///in/a1.json": 10_000, "file:///in/a2.json": 20_000, "file:///in/b": 30_000}
    folder = Streams(PaperFolder(), checkpoint(tmp_path, {}, files=taken))
    position, (report,) = resolve(folder, "1970-01-01T00:00:20Z", "1970-01-01T00:00:30Z", "a*")
    assert (report.unit, report.count) == ("files", 1)
    assert position["modified_after"] == "1970-01-01T00:00:19.999Z"
    assert (position["modified_before"], position["files"]) == ("1970-01-01T00:00:30.000Z", "a*")
    position, (report,) = resolve(folder, None, None)
    assert (report.count, position["modified_before"]) == (3, "1970-01-01T00:00:30.001Z")
    assert refused(folder, None, None, "x*") == "BACKFILL_RANGE_INVALID"


def test_files_of_two_folders_are_counted_separately(tmp_path: Path):
    taken = {"file:///a/1.json": 10_000, "file:///a/2.json": 20_000, "file:///b/3.json": 30_000}
    done = checkpoint(tmp_path, {}, {}, files=taken)
    folders = [PaperFolder("/a"), PaperFolder("/b/../b/")]
    _, starts = start_position(folders, EARLIEST, [done], 90_000)
    assert [start.again for start in starts] == [2, 1]
    wanted = Range(flow="flow", begin=EARLIEST, end=None, files=None, now_ms=90_000)
    position, reports = resolve_range(folders, wanted, done)
    assert [report.count for report in reports] == [2, 1]
    # Both folders have the same end time, which must include the files of each.
    assert position["modified_before"] == "1970-01-01T00:00:30.001Z"
    history = source_history(folders, EARLIEST, [done], 90_000)[1]
    assert [report.missing.split(" that")[0] for report in history] == ["2 files", "1 file"]
    latest = StartPosition(kind=StartKind.LATEST)
    position, _ = start_position(folders[::-1], latest, [done], 30_400)
    # The start time must not include files of either folder that were read.
    assert position["modified_after"] == "1970-01-01T00:00:30.000Z"


def test_range_of_shards_must_end_before_the_position_of_the_flow(tmp_path: Path):
    read = Offset({"a": {"s0": Position(seen=60_000), "s1": Position(seen=50_000)}})
    source = KinesisStream(NO_ROWS, ["a"], name="kinesis a")
    shards = Streams(source, checkpoint(tmp_path / "done", read.to_json()))
    position, (report,) = resolve(shards, "1970-01-01T00:00:20Z", None)
    assert position == {"arrived_from": 20_000, "arrived_before": 50_000}
    assert report.count == 30_000
    assert refused(shards, None, "1970-01-01T00:00:51Z") == "BACKFILL_NOT_READ_YET"
    reversed_ends = ("1970-01-01T00:00:40Z", "1970-01-01T00:00:30Z")
    assert refused(shards, *reversed_ends) == "BACKFILL_RANGE_INVALID"
    never = Streams(source, checkpoint(tmp_path / "never"))
    assert refused(never, None, None) == "BACKFILL_RANGE_INVALID"


@pytest.mark.parametrize(
    ("source", "wanted", "condition"),
    [
        (OTHER, (None, None), "BACKFILL_RANGE_INVALID"),
        (topics(), ("version=1", None), "START_NOT_AVAILABLE"),
        (topics(), (None, "version=1"), "START_NOT_AVAILABLE"),
        (topics(), (None, None, "*.json"), "BACKFILL_RANGE_INVALID"),
        (PaperTable(), ('{"t": {"0": 1}}', None), "START_NOT_AVAILABLE"),
        (PaperTable(), (None, None, "*.json"), "BACKFILL_RANGE_INVALID"),
        (PaperFolder(), ("version=1", None), "START_NOT_AVAILABLE"),
        (PaperFolder(), ("latest", None), "BACKFILL_RANGE_INVALID"),
    ],
)
def test_ranges_that_a_source_does_not_have_are_refused(
    tmp_path: Path, source: OpenedSource, wanted: tuple[str | None, ...], condition: str
):
    assert refused(Streams(source, checkpoint(tmp_path)), *wanted) == condition


def test_a_flow_without_streams_has_no_ranges(tmp_path: Path):
    wanted = Range(flow="flow", begin=EARLIEST, end=None, files=None, now_ms=90_000)
    with pytest.raises(PlanError) as error:
        resolve_range([], wanted, checkpoint(tmp_path))
    assert error.value.condition == "BACKFILL_RANGE_INVALID"


def test_ambiguous_sources_of_a_checkpoint_are_refused(tmp_path: Path):
    here, there = (OpenedSource(NO_ROWS, name="kafka orders", place=at) for at in ("a:1", "b:1"))
    batch = OpenedSource(NO_ROWS, name="kafka orders")
    assert distinct([here, here]) == distinct([batch, here]) == [here]
    with pytest.raises(PlanError, match="reads kafka orders from a:1 and from b:1") as caught:
        distinct([here, there])
    assert caught.value.condition == "SOURCES_NOT_DISTINCT"

    class Rows(OpenedSource):
        has_names_in_offsets = False

    tables = [Rows(NO_ROWS, name=f"jdbc {name}") for name in ("a", "b")]
    assert distinct(tables) == tables
    wanted = Range(flow="flow", begin=EARLIEST, end=None, files=None, now_ms=90_000)
    with pytest.raises(PlanError, match="reads jdbc a and jdbc b"):
        resolve_range(tables, wanted, checkpoint(tmp_path, ()))
