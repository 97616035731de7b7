import itertools
import json
from types import SimpleNamespace

import pytest

from penstock.sources.kinesis import data_source
from penstock.sources.kinesis.offsets import (
    Offset,
    Position,
    Shard,
    ShardRange,
    is_offset,
    ranges,
    reconcile,
)
from penstock.sources.kinesis.options import InitialPosition, KinesisOptions

NOW = 1_000
OLDEST = InitialPosition(kind="trim_horizon")


def test_offset_is_equal_after_a_json_round_trip():
    offset = Offset(
        {
            "b": {"s1": Position(after="7", first="3", rows=4, seen=9, closed=True, lost="1")},
            "a": {"s0": Position(since=5), "s2": Position()},
        },
        tolerant=True,
    )
    text = json.dumps(offset.to_json())
    again = Offset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text
    assert again.tolerant
    assert is_offset(json.loads(text))
    assert not is_offset({"topic": {"0": 1}})
    assert not is_offset(None)


def test_batch_has_ranges_of_shards_with_new_records():
    start = Offset({"a": {"s0": Position(after="5", first="1", rows=5), "s1": Position()}})
    end = Offset(
        {
            "a": {
                "s0": Position(after="5", first="1", rows=5, closed=True),
                "s1": Position(after="9", first="8", rows=2),
                "s2": Position(seen=3),
            }
        }
    )
    assert ranges(start, end) == [ShardRange(stream="a", shard="s1", first="8", last="9", rows=2)]
    assert ranges(end, end) == []
    assert [part.shard for part in ranges(Offset(), end)] == ["s0", "s1"]


def test_child_shards_wait_until_their_parents_are_read():
    shards = [
        Shard(id="s0"),
        Shard(id="s1"),
        Shard(id="s2", parents=("s0", "s1")),
        Shard(id="s3", parents=("s2",)),
    ]
    known = {"s0": Position(after="1", closed=True), "s1": Position(after="2")}
    first = reconcile(known, shards, NOW)
    assert list(first.ready) == ["s1"]
    assert first.positions["s2"] == Position(seen=NOW)
    read = {**first.positions, "s1": Position(after="3", closed=True)}
    second = reconcile(read, shards, NOW)
    assert list(second.ready) == ["s2"]


def test_child_shard_starts_immediately_without_its_parent():
    result = reconcile({}, [Shard(id="s5", parents=("s1", "s2"))], NOW)
    assert list(result.ready) == ["s5"]


def test_closed_shards_are_removed_when_read_and_lost_when_unread():
    known = {
        "s0": Position(after="4", closed=True),
        "s1": Position(after="5"),
        "s2": Position(),
        "s3": Position(after="6"),
    }
    result = reconcile(known, [Shard(id="s3", first=1)], NOW)
    assert "s0" not in result.positions
    assert list(result.gone) == ["s1", "s2"]
    assert (result.positions["s1"].lost, result.positions["s2"].lost) == ("5", "?")
    assert result.positions["s1"].closed
    # The next batch does not contain them.
    assert set(reconcile(result.positions, [Shard(id="s3", first=1)], NOW).positions) == {"s3"}


def test_stream_is_recreated_when_its_sequence_numbers_start_after_the_offset():
    known = {"s0": Position(after="49680445287252483051")}
    assert reconcile(known, [Shard(id="s0", first=49680445287252483052)], NOW).recreated == "s0"
    assert reconcile(known, [Shard(id="s0", first=49680445287252483051)], NOW).recreated is None


def test_all_tasks_of_a_batch_end_at_one_time(monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count(1000, 1000)
    shards = [Shard(id=f"s{number}") for number in range(7)]
    client = SimpleNamespace(shards=lambda stream: (shards, next(clock)))
    monkeypatch.setattr(data_source, "KinesisClient", lambda *_: client)
    tasks = data_source.KinesisBatchReader(
        KinesisOptions(streams=("a",), start=OLDEST)
    ).partitions()
    assert len(tasks) == 2
    assert len({task.until for task in tasks}) == 1
