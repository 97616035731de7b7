from typing import Any

import pytest

from penstock._execution.listener import backlog_records
from penstock._model.flow import Flow
from penstock._model.origin import source_location
from penstock._observe.lag import source_view
from penstock.errors import CheckpointError, FlowError
from penstock.sources.base import Loss, explained
from penstock.sources.kinesis.offsets import Offset, Position
from penstock.sources.kinesis.source import KinesisStream

NO_ROWS: Any = None
STREAM = KinesisStream(NO_ROWS, ["a"], name="kinesis a")


def losses(start: Offset | None, end: Offset, rows: int, tolerant: bool = True) -> list[Loss]:
    """Losses of a batch of a flow that also reads Kafka."""
    after = Offset(end.streams, tolerant=tolerant)
    entry = {
        "startOffset": None if start is None else start.to_json(),
        "endOffset": after.to_json(),
        "numInputRows": rows,
    }
    entries = [entry, {"endOffset": {"topic": {"0": 3}}, "startOffset": None}]
    return [loss for planned in entries for loss in STREAM.lost(planned)]


READ = Offset({"a": {"s0": Position(after="9", first="5", rows=4), "s1": Position()}})


def test_rows_are_lost_when_a_planned_batch_returns_fewer():
    (lost,) = losses(None, READ, 3)
    assert lost.body == {"stream": "a", "shard": "s0", "after": None, "rows": 1}
    assert lost.text == "1 row of a/s0"
    assert losses(None, READ, 4) == []
    assert losses(None, READ, 3, tolerant=False) == []
    assert losses(READ, READ, 0) == []


def test_rows_are_lost_when_a_batch_cannot_continue_at_the_last_offset():
    after = Offset({"a": {"s0": Position(after="20", first="15", rows=2, lost="9")}})
    (lost,) = losses(READ, after, 2)
    assert lost.body == {"stream": "a", "shard": "s0", "after": "9", "rows": None}
    assert lost.text == "a/s0 after 9"
    assert losses(after, after, 0) == []


def test_a_loss_is_reported_by_the_source_that_reads_the_stream():
    other = KinesisStream(NO_ROWS, ["b"], name="kinesis b")
    after = Offset(READ.streams, tolerant=True).to_json()
    progress = {"startOffset": None, "endOffset": after, "numInputRows": 3}
    assert len(STREAM.lost(progress)) == 1
    assert other.lost(progress) == []


def test_time_behind_is_not_a_number_of_records():
    source = {
        "endOffset": READ.to_json(),
        "latestOffset": {"behind_millis": {"a/s0": 1500}},
    }
    assert backlog_records({"sources": [source]}) is None
    view = source_view(source)
    assert view["partitions"] == []
    assert view["shards"] == [{"stream": "a", "shard": "s0", "behind_seconds": 1.5}]


@pytest.mark.parametrize(
    ("condition", "retryable", "hint"),
    [
        ("KINESIS_UNREACHABLE", True, "slower"),
        ("KINESIS_REFUSED", False, "slower"),
        ("SOURCE_ROWS_LOST", False, "--full-refresh orders"),
        ("STREAM_RECREATED", False, "--full-refresh orders"),
    ],
)
def test_an_error_of_a_python_worker_keeps_its_condition(condition, retryable, hint):
    flow = Flow(
        name="orders", target="orders", function=lambda: None, origin=source_location("a.py", 1)
    )
    text = (
        "org.apache.spark.SparkException: [PYTHON_DATA_SOURCE_ERROR] Traceback ...\n"
        f"penstock.errors.ConnectorError: [{condition}] Kinesis said so\n  hint: read slower\n\tat"
    )
    error = explained(text, [STREAM], flow)
    assert isinstance(error, FlowError)
    assert (error.condition, error.retryable) == (condition, retryable)
    assert hint in (error.hint or "")
    assert isinstance(error, CheckpointError) == (condition == "STREAM_RECREATED")
