"""What is made of events and sent: receivers that are away, hang, or come back."""

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


class Made:
    """A delivery, and what it told."""

    def __init__(self, send: Callable[[list[Any]], None], **more: Any) -> None:
        self.told: list[dict[str, Any]] = []
        bus = EventBus()
        bus.subscribe(lambda event: self.told.append(details(event)))
        self.delivery = Delivery(
            bus, UPDATE, SIGNAL, fold=lambda event: [event.message], send=send, **more
        )

    def give(self, *messages: str) -> None:
        for message in messages:
            self.delivery(definition("thing", UPDATE, message, {}))


def test_things_are_sent_again_when_a_receiver_was_away_for_days(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery_module, "_LONGEST_PAUSE", 0.0)
    tries, arrived = [], threading.Event()

    def send(things: list[Any]) -> None:
        tries.append(things)
        if len(tries) <= 1200:
            raise ConnectionError("nobody is there")
        arrived.set()

    made = Made(send)
    made.give(*map(str, range(1201)))
    assert arrived.wait(60)
    made.delivery.close()
    assert made.told[-1] == {"sent": 1, "failed": 1200, "dropped": 0}


def test_the_newest_is_kept_when_each_has_all_that_was_in_those_before():
    sent: list[str] = []
    began, held = threading.Event(), threading.Event()

    def send(things: list[Any]) -> None:
        began.set()
        held.wait(30)
        sent.extend(things)

    made = Made(send, queue_size=2, batch_size=2, drop_oldest=True, finish=lambda: ["the last"])
    made.give("0")
    assert began.wait(30)
    made.give(*"123456789")
    threading.Timer(0.3, held.set).start()
    made.delivery.close()
    assert sent == ["0", "9", "the last"]
    assert made.told[-1] == {"sent": 3, "failed": 0, "dropped": 8}


def test_the_end_waits_a_moment_only_when_the_receiver_failed_before(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(delivery_module, "_LONGEST_PAUSE", 0.0)
    hangs, held, ended = threading.Event(), threading.Event(), threading.Event()

    def send(things: list[Any]) -> None:
        if things == ["first"]:
            raise ConnectionError("nobody is there")
        hangs.set()
        held.wait(30)
        ended.set()

    made = Made(send)
    made.give("first", "second", "third")
    assert hangs.wait(30)
    began = time.monotonic()
    made.delivery.close()
    assert time.monotonic() - began < 5.0
    assert made.told[-1] == {"sent": 0, "failed": 1, "dropped": 2}
    # What comes of it later is told to nobody: the update is over.
    told = list(made.told)
    held.set()
    assert ended.wait(30)
    made.delivery._threads[1].join(30)
    assert made.told == told
