import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from paper_sources import PaperTopics

from penstock._execution.running import RunningQuery
from penstock._model.flow import Flow
from penstock._model.origin import source_location
from penstock._observe.events import EventOrigin, SourceRowsLost
from penstock.errors import CheckpointError
from penstock.sources.base import OpenedSource
from penstock.sources.kafka import source as kafka_source
from penstock.sources.kafka.admin import KafkaOptions
from penstock.sources.kafka.offsets import lost_ranges


def lost(start, end, rows, earliest):
    progress = {"startOffset": start, "endOffset": end, "numInputRows": rows}
    losses = lost_ranges(progress, lambda _: earliest)
    bodies = [loss.body for loss in losses]
    return [(b["topic"], b["partition"], b["first"], b["end"]) for b in bodies]


def test_range_is_lost_when_rows_are_missing_and_the_partition_begins_later():
    start, end = {"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 9}}
    assert lost(start, end, 3, {("t", 0): 8, ("t", 1): 7}) == [("t", 0, 5, 8)]
    assert lost(start, end, 0, {("t", 0): 90, ("t", 1): 90}) == [("t", 0, 5, 9), ("t", 1, 7, 9)]


def test_no_row_is_lost_when_all_arrived_or_offsets_have_no_rows():
    start, end = {"t": {"0": 5}}, {"t": {"0": 9}}
    assert lost(start, end, 4, {("t", 0): 9}) == []
    assert lost(start, end, 3, {("t", 0): 5}) == []
    assert lost(None, end, 0, {}) == []


def test_deleted_partition_is_lost():
    assert lost({"t": {"0": 5}}, {"t": {}}, 0, {}) == [("t", 0, 5, None)]


def test_topic_is_recreated_when_its_id_changes_but_not_when_it_first_has_one(monkeypatch):
    ids = {"upgraded": "r1", "new": "r2"}
    admin = SimpleNamespace(topic_ids=lambda: ids)
    monkeypatch.setattr(kafka_source, "admin_of", lambda *_: nullcontext(admin))
    topics = PaperTopics({}, {})
    topics._spark, topics._options = None, KafkaOptions({})
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    assert topics.check_identity({"upgraded": "A" * 22}, flow, "t") == ids
    with pytest.raises(CheckpointError, match="TOPIC_RECREATED"):
        topics.check_identity({"upgraded": "r0"}, flow, "t")


def test_topic_that_is_recreated_between_two_batches_is_an_error_of_the_later_one(monkeypatch):
    ids = {"a": "r1"}
    admin = SimpleNamespace(topic_ids=lambda: dict(ids))
    monkeypatch.setattr(kafka_source, "admin_of", lambda *_: nullcontext(admin))
    topics = PaperTopics({}, {})
    topics._spark, topics._options = None, KafkaOptions({"subscribe": "a"})
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    topics.check_identity({}, flow, "t")
    ids["a"] = "r2"
    topics.check_batch("", 0)  # not compared: the last comparison is recent
    monkeypatch.setattr(kafka_source, "_COMPARE_SECONDS", 0.0)
    with pytest.raises(CheckpointError, match="TOPIC_RECREATED"):
        topics.check_batch("", 1)


def test_id_of_a_topic_that_appears_is_stored_after_its_first_batch(monkeypatch):
    ids = {"a": "r1"}
    admin = SimpleNamespace(topic_ids=lambda: dict(ids))
    monkeypatch.setattr(kafka_source, "admin_of", lambda *_: nullcontext(admin))
    topics = PaperTopics({}, {})
    topics._spark, topics._options = None, KafkaOptions({"subscribePattern": ".*"})
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    topics.check_identity({}, flow, "t")
    stored = []
    twin = PaperTopics({}, {})  # the other side of a self-join
    twin._spark, twin._options = None, topics._options
    sources = [twin, topics]
    query = RunningQuery(
        flow, EventOrigin(), lambda _: None, lambda _: None, sources, remember=stored.append
    )
    for names in ("a", "ab", "ab", "a", "ab"):
        ids |= {"a": "changed", "b": f"r{len(stored)}"}
        source = {
            "description": "KafkaV2[SubscribePattern[.*]]",
            "endOffset": {name: {"0": 5} for name in names},
        }
        query.progressed({"batchId": 0, "sources": [source]})
    assert stored == [{"b": "r0"}, {"b": "r1"}], "a topic that was missing is another one"


@pytest.mark.parametrize(
    ("options", "left_out", "start"),
    [
        ({"subscribe": "a, b"}, None, ""),
        ({"assign": '{"a": [0, 1], "b": [0, 2]}'}, None, ""),
        ({"subscribe": "a", "failOnDataLoss": "false"}, "b,", """'{"a": {"0": 5, "1": 7}}'"""),
        ({"assign": '{"b": [0], "a": [1]}'}, "a-0,", """'{"a": {"1": 7}, "b": {"0": 3}}'"""),
        ({"subscribe": "c"}, "a, b,", "earliest"),
    ],
)
def test_source_is_refused_when_a_partition_of_its_checkpoint_is_missing(
    tmp_path, options, left_out, start
):
    offsets = json.dumps({"a": {"0": 5, "1": 7}, "b": {"0": 3}})
    for name, text in {"offsets/4": f"v1\n{{}}\n{offsets}", "commits/4": "v1\n{}"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    topics = PaperTopics({}, {})
    topics._spark, topics._flow, topics._options = None, "f", KafkaOptions(options)
    siblings = [LosingSource(), topics]
    if left_out is None:
        topics.prepare_start(str(tmp_path), siblings)
        return
    with pytest.raises(CheckpointError, match=f"no longer reads {left_out}") as refused:
        topics.prepare_start(str(tmp_path), siblings)
    assert f"`penstock checkpoint reset f --from {start}`" in (refused.value.hint or "")
    (tmp_path / "commits" / "4").unlink()
    with pytest.raises(CheckpointError) as refused:
        topics.prepare_start(str(tmp_path), siblings)
    assert (refused.value.hint or "").endswith("run an update: its last batch is not finished")


class LosingSource(OpenedSource):
    """A source that has lost all rows of each batch."""

    def __init__(self):
        super().__init__(None, name="kafka t")

    def lost(self, progress):
        return lost_ranges(progress, lambda _: {})


def test_losses_of_a_batch_are_one_event():
    events = []
    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    query = RunningQuery(
        flow, EventOrigin(flow_name="f"), events.append, lambda _: None, [LosingSource()]
    )
    start = {"t": {str(n): 1 for n in range(7)}}
    query.progressed({"batchId": 3, "sources": [{"startOffset": start, "endOffset": {}}]})
    (event,) = events
    assert event.origin.batch_id == 3
    assert isinstance(event.body, SourceRowsLost)
    assert len(event.body.ranges) == 7
    text = event.message
    assert text.startswith("rows were lost: t-0 from 1 to its end, t-1 from 1 to its end")
    assert "and 2 more" in text
    assert text.endswith("had been removed from kafka t before they were read")
