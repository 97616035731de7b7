"""Places in streams as users say them, and what a start means."""

import pytest

from penstock._repair.reset import why_refused
from penstock.errors import SpecError
from penstock.sources.position import (
    Position,
    at_delta,
    at_files,
    at_kafka,
    position_of,
    positioned,
)
from penstock.sources.rewind import (
    Place,
    SourceReport,
    StartKind,
    compare_offsets,
    parse_place,
)


def test_places_are_read_as_they_are_written():
    assert parse_place("Earliest").kind is StartKind.EARLIEST
    assert parse_place("version=12") == Place(kind=StartKind.VERSION, version=12)
    moment = parse_place("2026-03-01T10:00:00Z")
    assert moment == parse_place("2026-03-01T12:00:00+02:00") == parse_place("2026-03-01 10:00")
    assert str(moment) == "2026-03-01T10:00:00.000Z"
    assert parse_place("timestamp=2026-03-01").moment_ms == 1_772_323_200_000
    for text in ("", "soon", "version=", "version=-1", "version=x", "offset=3"):
        with pytest.raises(SpecError) as error:
            parse_place(text)
        assert error.value.condition == "PLACE_INVALID"


def test_a_start_says_what_comes_again_and_what_never_comes():
    done = {"t": {"0": 10, "1": 5}}
    found = compare_offsets({"t": {"0": 4, "1": 9}, "new": {"0": 7}}, done)
    assert (found.again, found.skipped) == (6, 4)


def test_only_what_can_take_rows_again_gets_them():
    some = (SourceReport(source="t", unit="offsets", again=6, skipped=0),)
    none = (SourceReport(source="t", unit="offsets", again=0, skipped=4),)
    unknown = (SourceReport(source="t", unit="rows", again=None, skipped=None),)
    assert "6 offsets" in (why_refused("added", some, is_whole=True) or "")
    assert why_refused("added", none, is_whole=False) is None
    assert "nobody knows" in (why_refused("added", unknown, is_whole=True) or "")
    assert why_refused("keyed", unknown, is_whole=False) is None
    assert why_refused("recomputed", some, is_whole=True) is None
    assert "wrong" in (why_refused("recomputed", none, is_whole=False) or "")


def test_a_position_wins_over_the_options_of_the_query():
    given = {"startingTimestamp": "5", "subscribe": "t"}
    assert at_kafka(given, {}) == given
    position = Position(offsets={"t": {"0": 3}}, versions={"/a": 7}, modified_after="x")
    assert position_of(position.as_json()) == position
    assert position_of({}) is None
    with positioned(position.as_json()):
        # A partition that came later is read from its first record.
        text = '{"t": {"0": 3, "1": -2}}'
        partitions = {"t": {"0": 0, "1": 0}}
        assert at_kafka(given, partitions) == {"subscribe": "t", "startingOffsets": text}
        assert at_delta({"startingversion": "1"}, "file:///a/") == {"startingVersion": "7"}
        assert at_delta({"startingversion": "1"}, "/b") == {"startingversion": "1"}
        assert at_files({"MODIFIEDAFTER": "y", "a": "b"}, times=True) == {
            "a": "b",
            "modifiedAfter": "x",
        }
    with positioned(Position(from_the_start=True).as_json()):
        assert at_kafka(given, {}) == {"subscribe": "t", "startingOffsets": "earliest"}
        assert at_delta({"startingVersion": "latest", "x": "y"}, "/b") == {"x": "y"}
