"""Streaming queries take turns. In each test, only one rate or limit determines the result."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
SECONDS = 30.0


def await_that(holds: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        pause.wait(0.01)


class Line:
    """Threads that wait in a queue for one turn each."""

    def __init__(self, spark: SparkSession, permits: int, limit_ms: int = HOUR_MS) -> None:
        jvm: Any = spark._jvm
        self.admission = jvm.penstock.spark.BatchAdmission(permits, limit_ms)
        self.entered: list[str] = []
        self._started = 0

    def join(self, name: str, work: Callable[[], Any] = bool, *, patience_ms: int = 0) -> None:
        """Start a thread; return when it waits for its turn or has its turn."""
        turn = self.admission.turn(patience_ms)

        def take() -> None:
            turn.enter()
            self.entered.append(name)
            work()
            turn.leave()

        threading.Thread(target=take, daemon=True).start()
        self._started += 1
        await_that(lambda: len(self.entered) + self.admission.waiting() == self._started)

    def await_entered(self, count: int) -> None:
        """Return when this many threads have entered."""
        await_that(lambda: len(self.entered) >= count)


def test_turns_are_in_order_and_limited_by_permits(spark: SparkSession) -> None:
    line, go, both = Line(spark, permits=2), threading.Event(), threading.Barrier(2)
    for name in ("first", "second"):
        line.join(name, lambda: go.wait(SECONDS))
    for name in "abcdef":
        line.join(name, lambda: both.wait(SECONDS))  # ends when another thread also has a turn
    assert line.entered == ["first", "second"]
    assert line.admission.waiting() == 6
    go.set()
    line.await_entered(8)
    pairs = ["".join(sorted(line.entered[at] + line.entered[at + 1])) for at in (2, 4, 6)]
    assert pairs == ["ab", "cd", "ef"]
    assert line.admission.waiting() == 0


def test_turns_over_the_limit_do_not_block_others_unless_there_are_many(
    spark: SparkSession,
) -> None:
    limit_ms = 300
    line, first, second = Line(spark, 1, limit_ms), threading.Event(), threading.Event()
    line.join("long", lambda: first.wait(SECONDS))
    line.join("as long", lambda: second.wait(SECONDS))
    line.await_entered(2)
    began = time.monotonic()
    line.join("third")
    threading.Event().wait(2 * limit_ms / 1000)
    assert line.admission.waiting() == 1
    first.set()
    line.await_entered(3)
    # After many times the limit, even many permits in use do not block others.
    line.join("stuck", lambda: first.clear() or first.wait(SECONDS))
    line.await_entered(4)
    line.join("last")
    line.await_entered(5)
    assert time.monotonic() - began > 10 * limit_ms / 1000
    second.set()
    first.set()
    assert line.entered == ["long", "as long", "third", "stuck", "last"]


def test_patient_queries_wait_for_others_until_their_patience_expires(
    spark: SparkSession,
) -> None:
    line, go = Line(spark, permits=1), threading.Event()
    line.join("first", lambda: go.wait(SECONDS))
    line.join("short of patience", patience_ms=1)
    line.join("patient", patience_ms=HOUR_MS)
    line.join("patient, too", patience_ms=HOUR_MS)
    line.join("others wait for it")
    go.set()
    line.await_entered(5)
    assert line.entered[1:] == [
        "short of patience",
        "others wait for it",
        "patient",
        "patient, too",
    ]


def endless(spark: SparkSession) -> DataFrame:
    """A source that has one new row for every trigger."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()


class Queries:
    """Queries that always have new rows, in one admission."""

    def __init__(self, spark: SparkSession, folder: Path, permits: int) -> None:
        jvm: Any = spark._jvm
        self.admission = jvm.penstock.spark.BatchAdmission(permits, HOUR_MS)
        self.spark, self.folder = spark, folder
        self.running: list[Any] = []
        self.batches: list[str] = []
        self.changed = threading.Condition()

    def start(
        self,
        name: str,
        *,
        interval: str = "20 milliseconds",
        work: Callable[[], Any] = bool,
        is_eager: bool = False,
        patience_ms: int = 0,
    ) -> Any:
        def on_batch(_: DataFrame, __: int) -> None:
            with self.changed:
                self.batches.append(name)
                self.changed.notify_all()
            work()

        writer = endless(self.spark).writeStream.foreachBatch(on_batch)
        writer = writer.option("checkpointLocation", str(self.folder / name))
        query: Any = writer.trigger(processingTime=interval).start()
        self.running.append(query)
        self.admission.attach(query._jsq.streamingQuery(), patience_ms, is_eager)
        return query

    def await_batches(self, holds: Callable[[list[str]], bool]) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: holds(self.batches), SECONDS), self.batches
            return list(self.batches)


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[int], Queries]]:
    created: list[Queries] = []

    def make(permits: int) -> Queries:
        created.append(Queries(spark, tmp_path, permits))
        return created[-1]

    yield make
    for query in created[0].running:
        query.stop()


@pytest.mark.parametrize("interval", ["20 milliseconds", "0 seconds"])
def test_queries_with_data_take_turns(queries: Callable[[int], Queries], interval: str) -> None:
    flows, inside, measured = queries(1), threading.Lock(), threading.Event()
    overlaps: list[str] = []

    def work() -> None:
        if not inside.acquire(blocking=False):
            overlaps.append("two batches at a time")
            return
        if measured.is_set():
            # Turns have the order of arrival. A query that is slow between two batches would arrive
            # later than the others and miss its turn in the round.
            await_that(lambda: flows.admission.waiting() == 3 or not measured.is_set())
        inside.release()

    for name in "abcd":
        flows.start(name, interval=interval, work=work)
    # The first batch of a query may start before its clock is replaced, and take long.
    flows.await_batches(lambda done: all(done.count(name) > 1 for name in "abcd"))
    with flows.changed:
        # Ignore batches before all queries took turns.
        flows.batches.clear()
        overlaps.clear()
        measured.set()
    done = flows.await_batches(lambda done: len(done) >= 24)[4:24]
    measured.clear()
    rounds = {"".join(sorted(done[at : at + 4])) for at in range(0, 20, 4)}
    assert rounds == {"abcd"}
    assert overlaps == []


def test_an_eager_query_waits_for_its_interval_only_without_rows(
    queries: Callable[[int], Queries],
) -> None:
    flows = queries(2)
    flows.start("eager", interval="3 seconds", is_eager=True)
    flows.start("patient", interval="3 seconds")
    done = flows.await_batches(lambda done: done.count("patient") >= 3)
    assert done.count("eager") > 2 * done.count("patient")


def test_an_eager_query_begins_fewer_batches_while_others_wait(
    queries: Callable[[int], Queries],
) -> None:
    flows, pause = queries(1), threading.Event()
    flows.start("eager", interval="3 seconds", is_eager=True)
    for name in "abc":
        flows.start(name, work=lambda: pause.wait(0.05), patience_ms=HOUR_MS)
    flows.await_batches(lambda done: all(done.count(name) > 1 for name in "abc"))
    with flows.changed:
        flows.batches.clear()
    began = time.monotonic()
    flows.await_batches(lambda done: done.count("eager") >= 6)
    assert time.monotonic() - began >= 2.2  # 1.2 s without the other queries


def test_pause_is_not_prolonged_when_the_clock_is_set_back(
    spark: SparkSession, queries: Callable[[int], Queries]
) -> None:
    query = queries(2).start("flow", interval="100 milliseconds")._jsq.streamingQuery()
    await_that(lambda: query.triggerExecutor() is not None)
    executor = query.triggerExecutor()
    field = executor.getClass().getDeclaredField("clock")
    field.setAccessible(True)
    await_that(lambda: "TurnClock" in str(field.get(executor).getClass()))
    jvm: Any = spark._jvm
    began = time.monotonic()
    field.get(executor).waitTillTime(jvm.System.currentTimeMillis() + HOUR_MS)
    assert 0.1 <= time.monotonic() - began < SECONDS


def test_eager_query_without_rows_polls_less_and_less_often(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    admission = jvm.penstock.spark.BatchAdmission(1, HOUR_MS)
    arrivals = jvm.java.lang.Class.forName("penstock.spark.BatchAdmission").getDeclaredField(
        "arrivals"
    )
    arrivals.setAccessible(True)
    (tmp_path / "empty").mkdir()
    rows = spark.readStream.text(str(tmp_path / "empty")).writeStream.format("noop")
    rows = rows.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query: Any = rows.trigger(processingTime="10 seconds").start()
    try:
        admission.attach(query._jsq.streamingQuery(), 0, True)
        await_that(lambda: arrivals.getLong(admission) > 0)
        threading.Event().wait(3)
        # After 0.1, 0.3, 0.7, 1.5 s and so on; without pauses there would be hundreds of polls.
        assert arrivals.getLong(admission) < 12
    finally:
        query.stop()


def test_a_failed_or_stopped_query_releases_its_turn(
    queries: Callable[[int], Queries],
) -> None:
    flows, busy, go = queries(1), threading.Event(), threading.Event()

    def block() -> None:
        if len(flows.batches) < 3:
            return  # the first batch may start before the clock is replaced
        busy.set()
        go.wait(SECONDS)
        raise ValueError("this batch fails")

    failing = flows.start("failing", work=block)
    assert busy.wait(SECONDS)
    stopped = flows.start("stopped")
    last = flows.start("last")
    await_that(lambda: flows.admission.waiting() == 2)
    before = len(flows.batches)
    stopped.stop()
    assert stopped.exception() is None
    assert flows.admission.waiting() == 1
    assert len(flows.batches) == before
    go.set()
    flows.await_batches(lambda done: done.count("last") >= 3)
    assert failing.exception() is not None
    assert last.exception() is None
