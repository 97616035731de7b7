import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._local.demo import run
from penstock._local.demo.account import Account
from penstock._local.demo.run import Conductor

RANGES = {0: (0, 1)}


class Update:
    """Counts requests to stop."""

    def __init__(self) -> None:
        self.requests = 0
        self.stopped = threading.Event()

    def request_stop(self) -> None:
        self.requests += 1
        self.stopped.set()


class Producer:
    """An order producer without Kafka."""

    def __init__(self) -> None:
        self.started = False
        self.finished = False

    def start(self) -> None:
        self.started = True

    def request_stop(self) -> None:
        self.finished = True

    def join(self, timeout_seconds: float | None = None) -> bool:
        return self.finished


class SlowProducer(Producer):
    """A producer that does not send its last order before a timeout."""

    was_cut_short = False

    def request_stop(self) -> None:
        self.was_cut_short = not self.finished

    def join(self, timeout_seconds: float | None = None) -> bool:
        self.finished = timeout_seconds is None
        return self.finished


@pytest.fixture
def finished(tables: Any, bronze: Any) -> Any:
    tables.add("orders_bronze", [bronze(0, 0, b"x")])
    tables.commit("orders_bronze", {"orders": {"0": 1}})
    tables.commit("orders", {"reservoirVersion": 1, "index": -1})
    tables.commit("revenue_5m", {"reservoirVersion": 1, "index": -1})
    return tables


def make_conductor(tables: Any, **options: Any) -> tuple[Conductor, Producer, Update]:
    producer = Producer()
    conductor = Conductor(tables.folders, lambda: RANGES, producer, **options)  # type: ignore[arg-type]
    return conductor, producer, Update()


def test_orders_are_sent_when_the_update_runs(finished: Any) -> None:
    conductor, producer, update = make_conductor(finished)
    assert not producer.started
    assert conductor.begin(update) is conductor
    assert producer.started
    conductor.end()


def test_update_ends_when_all_orders_are_sent_and_processed(finished: Any) -> None:
    conductor, producer, update = make_conductor(finished)
    conductor.begin(update)
    assert not update.stopped.wait(1.5)
    producer.finished = True
    assert update.stopped.wait(10)
    conductor.end()
    assert update.requests == 1 and not conductor.was_cut_short


def test_update_ends_when_processing_stalls(finished: Any) -> None:
    finished.commit("orders", {"reservoirVersion": 0, "index": -1})
    conductor, producer, update = make_conductor(finished, stall_seconds=1.0)
    producer.finished = True
    conductor.begin(update)
    assert update.stopped.wait(10)
    conductor.end()
    assert not finished.folders.is_caught_up(RANGES)


def test_first_stop_request_stops_only_the_producer(finished: Any) -> None:
    finished.commit("orders", {"reservoirVersion": 0, "index": -1})
    conductor, producer, update = make_conductor(finished)
    conductor.begin(update)
    conductor.request_stop()
    assert producer.finished and update.requests == 0 and not conductor.was_cut_short
    conductor.request_stop()
    assert update.requests == 1 and conductor.was_cut_short
    conductor.request_stop()
    assert update.requests == 2
    conductor.end()


def test_producer_stops_when_the_update_ends(finished: Any) -> None:
    conductor, producer, update = make_conductor(finished)
    conductor.begin(update)
    conductor.end()
    assert producer.finished and update.requests == 0


def test_producer_is_not_started_when_the_update_never_ran(finished: Any) -> None:
    conductor, producer, _ = make_conductor(finished)
    conductor.end()
    assert not producer.started


def test_all_orders_are_sent_before_the_only_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = SlowProducer()
    broker = SimpleNamespace(bootstrap_servers="localhost:1")
    stubs = {
        "start_broker": lambda _folder: broker,
        "ensure_topic": lambda *_: 3,
        "stop_broker": lambda _folder: True,
        "read_ranges": lambda *_: RANGES,
        "take_account": lambda *_: Account(
            read=0, silver=0, quarantined=0, duplicates=0, pending=0
        ),
        "_producer": lambda *_: producer,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(run, name, stub)

    def run_pipeline(*_: Any, continuous: bool) -> Any:
        assert producer.finished
        assert not producer.was_cut_short
        return SimpleNamespace(state="COMPLETED")

    assert run.run_demo(directory=tmp_path, run_pipeline=run_pipeline, once=True).succeeded
