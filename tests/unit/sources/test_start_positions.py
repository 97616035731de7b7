"""Parsing of start positions, and the effect of a start at a position."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paper_sources import PaperFolder, PaperTable, PaperTopics, Topics, checkpoint

from penstock._model.flow import Flow
from penstock._model.origin import source_location
from penstock._repair.reset import why_refused
from penstock.errors import PlanError, SpecError
from penstock.sources.base import (
    EARLIEST,
    StartKind,
    StartPosition,
    StartReport,
    parse_start,
    path_key,
)
from penstock.sources.delta import source as delta
from penstock.sources.files import source as files
from penstock.sources.jdbc.source import JdbcRows
from penstock.sources.kafka import offsets as kafka
from penstock.sources.kafka.admin import KafkaAdmin, KafkaOptions
from penstock.sources.kinesis.source import KinesisStream


def test_start_positions_are_parsed():
    assert parse_start("Earliest").kind is StartKind.EARLIEST
    assert parse_start("version=12") == StartPosition(kind=StartKind.VERSION, version=12)
    assert parse_start("Key=a=b") == StartPosition(kind=StartKind.KEY, key="a=b")
    at = parse_start("2026-03-01T10:00:00Z")
    assert at == parse_start("2026-03-01T12:00:00+02:00") == parse_start("2026-03-01 10:00")
    assert str(at) == "2026-03-01T10:00:00.000Z"
    assert parse_start("timestamp=2026-03-01").timestamp_ms == 1_772_323_200_000
    # Partitions are normalized, because they are compared as strings.
    assert parse_start('{"t": {"01": 5}}').offsets == {"t": {"1": 5}}
    wrong = ("", "soon", "version=", "version=-1", "version=x", "offset=3", "key=")
    for text in (*wrong, '{"t": {"x": 1}}', '{"t": {"0": -1}}', '{"t": 3}', "{"):
        with pytest.raises(SpecError) as error:
            parse_start(text)
        assert error.value.condition == "START_INVALID"


def test_start_counts_rows_that_are_read_again_or_skipped(tmp_path: Path):
    done = checkpoint(tmp_path, {"t": {"0": 10, "1": 5}})
    topics = PaperTopics({"t": {"0": 0, "1": 0}, "new": {"0": 0}}, {})
    at = parse_start('{"t": {"0": 4, "1": 9}, "new": {"0": 7}}')
    position, report = topics.start(at, [done], 90_000)
    assert (report.again, report.skipped) == (6, 4)
    assert position == {"offsets": {"t": {"0": 4, "1": 9}, "new": {"0": 7}}}


@pytest.mark.parametrize(
    ("read", "after"), [(110_000, "59.999"), (120_100, "00.100"), (999_000, "00.699")]
)
def test_latest_files_include_those_of_the_same_second_that_were_not_read(
    tmp_path: Path, read: int, after: str
):
    at = StartPosition(kind=StartKind.LATEST)
    done = checkpoint(tmp_path, {}, files={"file:///in/a": read})
    position, _ = PaperFolder().start(at, [done], 120_700)
    assert position["modified_after"].endswith(f":{after}Z")


def test_start_that_a_source_does_not_support_is_named(tmp_path: Path):
    at = parse_start('{"t": {"0": 4}}')
    for source, reason in ((PaperTable(), "a Delta table has"), (PaperFolder(), "files have")):
        with pytest.raises(PlanError, match=f": {reason} no offsets\n"):
            source.start(at, [checkpoint(tmp_path)], 90_000)


def test_a_start_has_the_assigned_partitions_of_a_topic_only():
    # Spark refuses `startingOffsets` with others.
    options = KafkaOptions({"assign": '{"t": [1], "u": [0, 2]}'})
    spark: Any = SimpleNamespace(_jvm=None)
    assert KafkaAdmin(spark, options, None).partitions() == [("t", 1), ("u", 0), ("u", 2)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "No offset matched from request of topic-partition t-1 and timestamp 9.",
            "partition t-1 has no record since timestamp 9",
        ),
        (
            "assertion failed: ... you must specify all TopicPartitions.\n"
            "Use -1 for latest, -2 for earliest. Specified: Set(t-0) Assigned: Set(t-0, t-1)\nat x",
            "offsets are set for t-0, the topics have t-0, t-1",
        ),
        (
            "Some data may have been lost. Partition t-1 offset was changed from 90 to 5. See",
            "partition t-1 has no offset 90; its next one is 5",
        ),
    ],
)
def test_start_that_does_not_match_the_topic_is_not_retried(text: str, reason: str):
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    error = PaperTopics({}, {}).explain(text, flow)
    assert error is not None
    assert error.condition == "KAFKA_OFFSETS_INVALID"
    assert error.message.endswith(reason)
    assert error.hint
    assert not error.retryable


@pytest.mark.parametrize(
    "text",
    [
        "UnknownTopicOrPartitionException: This server does not host this topic-partition.",
        "Use -1 for latest, -2 for earliest. Specified: Set(t-0) Assigned: Set()",
    ],
)
def test_missing_topic_is_named(text: str):
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    error = PaperTopics({}, {}).explain(text, flow)
    assert error is not None
    assert (error.condition, error.retryable) == ("SOURCE_TOPIC_NOT_FOUND", True)
    assert "a topic of kafka" in error.message


def test_pattern_that_java_refuses_is_named():
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    text = "java.util.regex.PatternSyntaxException: Unclosed group near index 5\nt-(\nat x"
    error = PaperTopics({}, {}).explain(text, flow)
    assert error is not None
    assert (error.condition, error.retryable) == ("KAFKA_SUBSCRIPTION_INVALID", False)


@pytest.mark.parametrize(
    "text",
    [
        "TimeoutException: Timed out waiting for a node assignment. Call: listNodes\nat x",
        "TimeoutException: Cannot fetch record for offset 5 in 60000 milliseconds\nat x",
    ],
)
def test_brokers_that_do_not_respond_are_named(text: str):
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    error = PaperTopics({}, {}).explain(text, flow)
    assert error is not None
    assert (error.condition, error.retryable) == ("KAFKA_NOT_ANSWERING", True)
    assert "of kafka do not respond" in error.message


def test_rows_are_read_again_only_for_targets_that_allow_it():
    some = (StartReport(source="t", unit="offsets", again=6, skipped=0),)
    none = (StartReport(source="t", unit="offsets", again=0, skipped=4),)
    unknown = (StartReport(source="t", unit="rows", again=None, skipped=None),)
    assert "6 offsets" in (why_refused("added", some, is_whole=True) or "")
    assert why_refused("added", none, is_whole=False) is None
    assert "unknown number" in (why_refused("added", unknown, is_whole=True) or "")
    assert why_refused("keyed", unknown, is_whole=False) is None
    assert why_refused("recomputed", some, is_whole=True) is None
    assert why_refused("recomputed", some, is_whole=True, lost="retention") == "retention"
    assert "wrong" in (why_refused("recomputed", none, is_whole=False) or "")


def test_position_overrides_the_options_of_the_query():
    options = {"startingTimestamp": "5", "subscribe": "t"}

    def of_topics(position: dict[str, Any]) -> dict[str, str]:
        topics: Any = Topics({"t": {"0": 0, "1": 0}}, {}, {})
        return kafka.options_at(options, position, topics)

    assert of_topics({}) == options
    # The format that earlier versions stored in the state of a flow as well.
    position = {"offsets": {"t": {"0": 3}}, "versions": {"/a": 7}, "modified_after": "x"}
    # A partition that was added later is read from its first record.
    text = '{"t": {"0": 3, "1": -2}}'
    assert of_topics(position) == {"subscribe": "t", "startingOffsets": text}
    own = {"startingversion": "1"}
    assert delta.options_at(own, position, path_key("file:///a/")) == {"startingVersion": "7"}
    assert delta.options_at(own, position, "/b") == own
    named = files.options_at({"MODIFIEDAFTER": "y", "a": "b"}, position, times=True)
    assert named == {"a": "b", "modifiedAfter": "x"}
    assert files.options_at({"a": "b"}, {"files": "a*"}, times=False)["pathGlobFilter"] == "a*"
    for own_names in ({"PathGlobFilter": "*.json"}, {"cloudFiles.fileNamePattern": "*.json"}):
        assert files.options_at(own_names, {"files": "a*"}, times=True) == own_names
    start = {"from_the_start": True}
    assert of_topics(start) == {"subscribe": "t", "startingOffsets": "earliest"}
    latest = {"startingVersion": "latest", "x": "y"}
    assert delta.options_at(latest, start, "/b") == {"x": "y"}


def test_rows_read_again_are_unknown_without_checkpoint_files(tmp_path: Path):
    lost = replace(checkpoint(tmp_path), exists=False)
    stream: Any = SimpleNamespace(
        rows=lambda: None, greatest=lambda keys: None, count=lambda bounds: 5, newest=lambda: "9"
    )
    options: Any = SimpleNamespace(place="orders", key="id")
    table, shards = JdbcRows(stream, options), KinesisStream(stream, ["a"], name="kinesis a")
    latest = StartPosition(kind=StartKind.LATEST)
    for source, at in ((table, EARLIEST), (table, latest), (shards, latest)):
        for done, again in ((checkpoint(tmp_path), 0), (lost, None)):
            assert source.start(at, [done], 1000)[1].again == again
