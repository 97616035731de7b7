"""Sends items made from events to a receiver on background threads; no batch waits for it."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock._observe.bus import EventBus
from penstock._observe.events import (
    DeliveryProgress,
    ErrorInfo,
    Event,
    EventOrigin,
)
from penstock._observe.masking import shown

QUEUE_SIZE = 2000
"""Capacity of the queue to the receiver; items beyond it are dropped and counted."""

DRAIN_SECONDS = 10.0
"""Maximum time to send queued items at the end of an update."""

FAILING_DRAIN_SECONDS = 1.0
"""Maximum time to wait for items in flight at the end if the last request failed."""

_REPORT_SECONDS = 30.0
_LONGEST_PAUSE = 30.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Signal:
    """How a delivery reports its progress; `body` makes the body of an event from the totals."""

    name: str
    items: str
    body: Callable[..., DeliveryProgress]
    condition: str
    class_name: str


class Delivery:
    """Folds the events of an update into items and sends them; a subscriber of the bus.

    One thread folds, so the queue of events stays short. Another thread sends from a bounded queue
    and backs off after a failure. Progress events report the totals of sent, failed and dropped
    items: a warning at the first failure, then at most twice a minute, and at the end. `send`
    raises on failure. With `drop_oldest` a full queue drops its oldest item instead of the new one,
    for cumulative items.
    """

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        signal: Signal,
        *,
        fold: Callable[[Event], Iterable[Any]],
        send: Callable[[list[Any]], None],
        finish: Callable[[], Iterable[Any]] = tuple,
        on_interval: Callable[[], Iterable[Any]] = tuple,
        interval_seconds: float | None = None,
        batch_size: int = 1,
        gather_seconds: float = 0.0,
        queue_size: int = QUEUE_SIZE,
        drop_oldest: bool = False,
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._signal = signal
        self._drop_oldest = drop_oldest
        self._fold = fold
        self._send = send
        self._finish = finish
        self._on_interval = on_interval
        self._interval_seconds = interval_seconds
        self._batch_size = batch_size
        self._gather_seconds = gather_seconds
        self._own_body = type(signal.body())
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=queue_size)
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._sums = {"sent": 0, "failed": 0, "dropped": 0}
        self._sending = self._failures = 0
        self._is_over = False
        self._counting = threading.Lock()
        self._reported_at = -_REPORT_SECONDS
        self._reported: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=target, name=f"{signal.name} {what}", daemon=True)
            for what, target in (("fold", self._fold_all), ("send", self._send_all))
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event. Thread-safe, never blocks."""
        if not isinstance(event.body, self._own_body):
            self._events.put(event)

    @property
    def is_failing(self) -> bool:
        return self._failures > 0

    def close(self, timeout_seconds: float = DRAIN_SECONDS) -> None:
        """Send the queued items within a timeout, a short one after a failure; report the rest."""
        if self._closing.is_set():
            return
        self._deadline = time.monotonic() + timeout_seconds
        self._events.put(None)
        self._threads[0].join(timeout_seconds)
        self._closing.set()
        drain_seconds = FAILING_DRAIN_SECONDS if self._failures else timeout_seconds
        self._threads[1].join(max(0.5, min(drain_seconds, self._deadline - time.monotonic())))
        # The sending thread is a daemon; if it hangs, its items are counted as dropped.
        in_flight = self._sending if self._threads[1].is_alive() else 0
        self._count("dropped", self._queue.qsize() + in_flight)
        self._report(None, at_the_end=True)
        with self._counting:
            self._is_over = True

    # -- threads -------------------------------------------------------------------------------

    def _fold_all(self) -> None:
        interval = self._interval_seconds
        due = None if interval is None else time.monotonic() + interval
        while True:
            wait = None if due is None else due - time.monotonic()
            if wait is not None and wait <= 0:
                self._enqueue_from(self._on_interval)
                due = None if interval is None else time.monotonic() + interval
                continue
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                continue
            if event is None:
                self._enqueue_from(self._finish)
                return
            self._enqueue_from(self._fold, event)

    def _enqueue_from(self, make: Callable[..., Iterable[Any]], *arguments: Event) -> None:
        try:
            for item in make(*arguments):
                self._enqueue(item)
        except Exception as error:
            _logger.debug("an event could not be sent as %s", self._signal.name, exc_info=True)
            self._count("failed")
            self._report(error)

    def _enqueue(self, item: Any) -> None:
        while True:
            try:
                self._queue.put_nowait(item)
                return
            except queue.Full:
                self._count("dropped")
                if not self._drop_oldest:
                    return
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._count("dropped", -1)  # the sending thread took it

    def _send_all(self) -> None:
        while True:
            try:
                items = [self._queue.get(timeout=0.2)]
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            if self._gather_seconds:
                self._closing.wait(self._gather_seconds)
            while len(items) < self._batch_size:
                try:
                    items.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            # While closing, nothing is sent after a failure or after the deadline.
            if self._closing.is_set() and (self._failures or time.monotonic() > self._deadline):
                self._count("dropped", len(items))
                continue
            self._sending = len(items)
            try:
                self._send(items)
            except Exception as error:
                self._failures += 1
                self._count("failed", len(items))
                self._report(error)
                self._sending = 0
                # The exponent is bounded, too: a receiver may be down for days.
                self._closing.wait(min(2.0 ** min(self._failures - 1, 10), _LONGEST_PAUSE))
            else:
                self._failures = 0
                self._count("sent", len(items))
                self._report(None)
            self._sending = 0

    # -- results --------------------------------------------------------------------------------

    def _count(self, outcome: str, number: int = 1) -> None:
        with self._counting:
            if not self._is_over:
                self._sums[outcome] += number

    def _report(self, error: Exception | None, *, at_the_end: bool = False) -> None:
        with self._counting:
            now, sums = time.monotonic(), dict(self._sums)
            is_first = error is not None and not self._reported.get("failed")
            due = now - self._reported_at >= _REPORT_SECONDS
            if self._is_over or not (at_the_end or is_first or due) or sums == self._reported:
                return
            lost = any(sums[key] > self._reported.get(key, 0) for key in ("failed", "dropped"))
            self._reported, self._reported_at = sums, now
        signal = self._signal
        text = f"{signal.name}: {sums['sent']} {signal.items} sent"
        if sums["failed"] or sums["dropped"]:
            text += f", {sums['failed']} failed, {sums['dropped']} dropped"
        info = None
        if error is not None:
            reason = shown(f"{type(error).__name__}: {error}")
            text += f" ({reason[:500]})"
        if lost:
            info = ErrorInfo(
                condition=signal.condition, class_name=signal.class_name, message=text, fatal=False
            )
        self._bus.emit(Event(self._origin, signal.body(**sums), text, error=info))
