"""Delivery of events to receivers that are unavailable, hang, or recover."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from made_events import definition, details

from penstock._observe import delivery as delivery_module
from penstock._observe.bus import EventBus
from penstock._observe.delivery import Delivery, Signal
from penstock._observe.events import EventOrigin, LineageProgress

UPDATE = EventOrigin(pipeline_name="shop", update_id="u")
SIGNAL = Signal(name="x", items="things", body=LineageProgress, condition="C", class_name="E")


class RecordedDelivery:
    """A delivery, and the progress that it reported."""

    def __init__(self, send: Callable[[list[Any]], None], **more: Any) -> None:
        self.progress: list[dict[str, Any]] = []
        bus = EventBus()
        bus.subscribe(lambda event: self.progress.append(details(event)))
        self.delivery = Delivery(
            bus, UPDATE, SIGNAL, fold=lambda event: [event.message], send=send, **more
        )

    def emit(self, *messages: str) -> None:
        for message in messages:
            self.delivery(definition("thing", UPDATE, message, {}))


def test_delivery_is_retried_until_the_receiver_is_available(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery_module, "_LONGEST_PAUSE", 0.0)
    attempts, arrived = [], threading.Event()

    def send(items: list[Any]) -> None:
        attempts.append(items)
        if len(attempts) <= 1200:
            raise ConnectionError("connection refused")
        arrived.set()

    recorded = RecordedDelivery(send)
    recorded.emit(*map(str, range(1201)))
    assert arrived.wait(60)
    recorded.delivery.close()
    assert recorded.progress[-1] == {"sent": 1, "failed": 1200, "dropped": 0}


def test_oldest_items_are_dropped_when_the_queue_is_full():
    sent: list[str] = []
    began, release = threading.Event(), threading.Event()

    def send(items: list[Any]) -> None:
        began.set()
        release.wait(30)
        sent.extend(items)

    recorded = RecordedDelivery(
        send, queue_size=2, batch_size=2, drop_oldest=True, finish=lambda: ["the last"]
    )
    recorded.emit("0")
    assert began.wait(30)
    recorded.emit(*"123456789")
    threading.Timer(0.3, release.set).start()
    recorded.delivery.close()
    assert sent == ["0", "9", "the last"]
    assert recorded.progress[-1] == {"sent": 3, "failed": 0, "dropped": 8}


def test_close_does_not_wait_long_when_the_receiver_failed_before(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(delivery_module, "_LONGEST_PAUSE", 0.0)
    hangs, release, ended = threading.Event(), threading.Event(), threading.Event()

    def send(items: list[Any]) -> None:
        if items == ["first"]:
            raise ConnectionError("connection refused")
        hangs.set()
        release.wait(30)
        ended.set()

    recorded = RecordedDelivery(send)
    recorded.emit("first", "second", "third")
    assert hangs.wait(30)
    began = time.monotonic()
    recorded.delivery.close()
    assert time.monotonic() - began < 5.0
    assert recorded.progress[-1] == {"sent": 0, "failed": 1, "dropped": 2}
    # Later results are not reported: the update has ended.
    progress = list(recorded.progress)
    release.set()
    assert ended.wait(30)
    recorded.delivery._threads[1].join(30)
    assert recorded.progress == progress
