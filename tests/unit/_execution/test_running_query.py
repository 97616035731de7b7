"""The end of a query, and the lag of its sources."""

import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from penstock._execution.lag_probe import FlowLag, LagProbe
from penstock._execution.listener import ProgressListener
from penstock._execution.running import RunningQuery
from penstock._model.flow import Flow
from penstock._model.origin import source_location
from penstock._observe.events import EventOrigin, SourceProgress
from penstock.errors import FlowError

BATCH = {"batchId": 0, "numInputRows": 1, "durationMs": {"addBatch": 1}}


def query_with(failures):
    """A query whose attempts to record its success have these results; its events and ends."""
    events, ends = [], []

    def record():
        failure = failures.pop(0)
        if failure is not None:
            raise failure

    flow = Flow(name="f", target="t", function=lambda: None, origin=source_location("a.py", 1))
    origin = EventOrigin(flow_name="f")
    return RunningQuery(flow, origin, events.append, ends.append, on_success=record), events, ends


def test_the_flow_fails_when_its_success_cannot_be_recorded():
    query, events, ends = query_with([OSError("disk full"), OSError("disk full")])
    query.progressed(BATCH)
    assert events
    query.terminated(None)
    assert "disk full" in str(ends[0])


def test_recording_of_success_is_retried():
    failures = [OSError("busy"), None]
    query, _, ends = query_with(failures)
    query.progressed(BATCH)
    query.progressed(BATCH)
    query.progressed(BATCH)
    query.terminated(None)
    assert (failures, ends[0]) == ([], None)


def test_success_is_not_recorded_when_a_query_fails_immediately():
    failures = [None]
    query, _, ends = query_with(failures)
    query.terminated("java.lang.IllegalStateException: x")
    assert failures == [None]
    assert ends[0] is not None


def end_of(query, ends, error):
    query.terminated(error)
    for thread in threading.enumerate():
        if thread.name == "recover f":
            thread.join(10)
    (end,) = ends
    return str(end)


def failing_close():
    raise OSError("mail server is away")


def test_the_failure_of_a_batch_is_reported_when_closing_its_sink_fails_too():
    query, _, ends = query_with([])
    query.writes_batches(lambda df, batch_id: None, failing_close)
    text = end_of(query, ends, "java.lang.IllegalStateException: batch failed")
    assert "batch failed" in text
    assert "mail server" not in text


def test_the_flow_fails_when_only_closing_its_sink_fails():
    query, _, ends = query_with([None])
    query.writes_batches(lambda df, batch_id: None, failing_close)
    assert "mail server is away" in end_of(query, ends, None)


def test_stop_request_cancels_before_it_waits_for_the_batch():
    query, _, _ = query_with([None])
    cancelled = threading.Event()
    query.writes_batches(lambda df, batch_id: None, cancel=cancelled.set)
    query.request_stop()
    assert cancelled.wait(10)
    query.terminated(None)  # ends the thread


def test_listener_releases_a_query_that_has_ended():
    listener = ProgressListener()
    for run, ends_early in enumerate([False, True]):
        query, _, ends = query_with([None])
        end = SimpleNamespace(runId=run, id="q", exception=None)
        if ends_early:  # before `start` has returned
            listener.onQueryTerminated(end)
        listener.watch(str(run), query)
        if not ends_early:
            assert listener.watchers() == [query]
            listener.onQueryTerminated(end)
        assert len(ends) == 1
        assert listener.watchers() == []


def refused(*_):
    raise ConnectionRefusedError("the JVM is gone")


def test_a_failure_is_reported_when_the_jvm_ends_soon_after_it():
    query, _, ends = query_with([])
    query.attach(SimpleNamespace())  # a query of a JVM that does not respond
    query.terminated("java.lang.OutOfMemoryError: Java heap space", "q")
    assert "Java heap space" in str(ends[0])
    assert ends[0].query_id == "q"
    query, _, ends = query_with([])
    query.explains_failures(refused)
    query.terminated("java.lang.OutOfMemoryError: Java heap space", "q")
    assert "the JVM is gone" in str(ends[0])


class SparkQuery:
    """A stand-in for a query or a batch of Spark."""


def failing_write(df, batch_id):
    try:
        raise OSError("disk is full")
    except OSError as error:
        raise FlowError("DISK_FULL", str(error), flow="f") from error


def test_terminated_query_is_freed_while_its_error_is_referenced():
    query, _, ends = query_with([None])
    spark_query, batch = SparkQuery(), SparkQuery()
    freed = [weakref.ref(spark_query), weakref.ref(batch)]
    lag = FlowLag(EventOrigin(flow_name="f"), (), spark_query, bool, {})
    query.writes_batches(failing_write)
    query.attach(spark_query)
    query.measures_lag(lag)
    with pytest.raises(FlowError) as raised:  # PySpark keeps a reference to the error
        query.on_batch(batch, 0)
    del spark_query, batch
    query.terminated("java.lang.IllegalStateException: x")
    lag.measure()
    assert "disk is full" in str(ends[0])
    assert raised.value is ends[0]
    assert [ref() for ref in freed] == [None, None]


class Source:
    """A source whose broker does not respond while `problem` is set."""

    def __init__(self):
        self.problem = None

    def lag(self, progress, java_source):
        return {"kind": "kafka", "problem": self.problem}

    def description(self, text):
        return text


def test_next_measurement_is_due_soon_after_a_slow_one(monkeypatch):
    clock = [1000.0]

    class SlowSource(Source):
        def lag(self, progress, java_source):
            clock[0] += 6.0
            return super().lag(progress, java_source)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lag = FlowLag(EventOrigin(flow_name="f"), (SlowSource(),), SparkQuery(), bool, {})
    lag.progressed({**BATCH, "sources": [{"description": "kafka orders"}]})
    lag.measure()
    assert lag.due(clock[0]) == 30.0


@pytest.mark.parametrize(
    ("end", "states"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: x", ["NO_ANSWER", "ANSWERS"]),
        (None, []),  # the flow ended without an error
        ("org.apache.spark.SparkArithmeticException: x", []),  # not an error of the broker
    ],
)
def test_a_silent_source_is_reported_when_its_flow_fails_before_it_is_measured(end, states):
    source, reported = Source(), []
    probe = LagProbe(reported.append)
    progress = {**BATCH, "sources": [{"description": "kafka orders"}]}

    def started():
        query, _, _ = query_with([None])
        lag = probe.watch(EventOrigin(flow_name="f"), (source,), SparkQuery())
        query.measures_lag(lag)
        lag.progressed(progress)
        return query

    try:
        query = started()
        wait_until(lambda: len(reported) == 1)
        source.problem = "no broker responds"
        query.terminated(end)
        wait_until(lambda: len(reported) == 2 + len(states[:1]))
        source.problem = None
        started()
        wait_until(lambda: len(reported) == 3 + len(states))
    finally:
        probe.close()
    bodies = [event.body for event in reported]
    assert [body.state for body in bodies if isinstance(body, SourceProgress)] == states


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
