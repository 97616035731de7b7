"""Delivers what is made of events to a receiver, on threads of its own: no batch waits for it."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock._observe.bus import EventBus
from penstock._observe.events import (
    Body,
    DeliveryProgress,
    ErrorInfo,
    Event,
    EventOrigin,
    UnknownBody,
)
from penstock._observe.masking import shown

QUEUE_SIZE = 2000
"""So many things wait for the receiver; what does not fit is dropped and counted."""

DRAIN_SECONDS = 10.0
"""So long the end of an update waits for what is not sent yet."""

MOMENT_SECONDS = 1.0
"""So long it waits for what is under way to a receiver that failed the last time."""

_TELL_SECONDS = 30.0
_LONGEST_PAUSE = 30.0

_logger = logging.getLogger(__name__)

Fold = Callable[[Event], Iterable[Any]]
Send = Callable[[list[Any]], None]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Words and events by which a delivery reports its result.

    Attributes:
        name: First word of messages and threads.
        things: What is sent, in the plural.
        body: Of the events, made of the sums; they are not delivered themselves.
        condition: Of what was not delivered.
        class_name: Likewise.
    """

    name: str
    things: str
    body: Callable[..., DeliveryProgress]
    condition: str
    class_name: str


class Delivery:
    """Folds the events of an update into things and sends them. Subscribe it to the bus.

    One thread folds, so that the queue before it is always short; another one sends, from a queue
    that is bounded. After a failure it pauses, longer each time. How it goes becomes events with
    the sums of what was sent, failed and dropped: a warning at the first failure, then at most
    twice a minute, and at the end.

    Args:
        bus: Takes those events.
        origin: Of those events.
        signal: Words and events of its reports.
        fold: Makes things of an event, on the folding thread.
        send: Sends some things, on the sending thread, and raises if that fails.
        finish: Makes the last things, when there are no more events.
        regularly: Makes things every `every_seconds`, whatever happens.
        every_seconds: See `regularly`.
        batch_size: At most so many things are sent at once.
        gather_seconds: So long is waited for more of them.
        unheard: Bodies of events that are not folded.
        queue_size: See `QUEUE_SIZE`.
        newest_counts: Where the queue is full, its oldest thing is dropped instead of the new one:
            for things of which each has all that was in those before.
    """

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        signal: Signal,
        *,
        fold: Fold,
        send: Send,
        finish: Callable[[], Iterable[Any]] = tuple,
        regularly: Callable[[], Iterable[Any]] = tuple,
        every_seconds: float | None = None,
        batch_size: int = 1,
        gather_seconds: float = 0.0,
        unheard: tuple[type[Body], ...] = (),
        queue_size: int = QUEUE_SIZE,
        newest_counts: bool = False,
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._signal = signal
        self._newest_counts = newest_counts
        self._fold = fold
        self._send = send
        self._finish = finish
        self._regularly = regularly
        self._every_seconds = every_seconds
        self._batch_size = batch_size
        self._gather_seconds = gather_seconds
        self._unheard: tuple[type[Body | UnknownBody], ...] = (*unheard, type(signal.body()))
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._waiting: queue.Queue[Any] = queue.Queue(maxsize=queue_size)
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._sums = {"sent": 0, "failed": 0, "dropped": 0}
        self._sending = self._failures = 0
        self._is_over = False
        self._counting = threading.Lock()
        self._told_at = -_TELL_SECONDS
        self._told: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=target, name=f"{signal.name} {what}", daemon=True)
            for what, target in (("fold", self._fold_all), ("send", self._send_all))
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event; any thread, never blocks."""
        if not isinstance(event.body, self._unheard):
            self._events.put(event)

    @property
    def is_failing(self) -> bool:
        """Whether the receiver did not take what it was sent last."""
        return self._failures > 0

    def close(self, timeout_seconds: float = DRAIN_SECONDS) -> None:
        """Send what is waiting; after the timeout the rest is dropped, and that is told.

        A receiver that failed the last time is hardly waited for.
        """
        if self._closing.is_set():
            return
        self._deadline = time.monotonic() + timeout_seconds
        self._events.put(None)
        self._threads[0].join(timeout_seconds)
        self._closing.set()
        most = MOMENT_SECONDS if self._failures else timeout_seconds
        self._threads[1].join(max(0.5, min(most, self._deadline - time.monotonic())))
        # One that hangs in the receiver is a daemon; whatever it still holds was not delivered.
        held = self._sending if self._threads[1].is_alive() else 0
        self._count("dropped", self._waiting.qsize() + held)
        self._report(None, at_the_end=True)
        with self._counting:
            self._is_over = True

    # -- threads -------------------------------------------------------------------------------

    def _fold_all(self) -> None:
        every = self._every_seconds
        due = None if every is None else time.monotonic() + every
        while True:
            wait = None if due is None else due - time.monotonic()
            if wait is not None and wait <= 0:
                self._make(self._regularly)
                due = None if every is None else time.monotonic() + every
                continue
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                continue
            if event is None:
                self._make(self._finish)
                return
            self._make(self._fold, event)

    def _make(self, make: Callable[..., Iterable[Any]], *arguments: Event) -> None:
        try:
            for made in make(*arguments):
                self._put(made)
        except Exception as error:
            _logger.debug("an event could not be sent as %s", self._signal.name, exc_info=True)
            self._count("failed")
            self._report(error)

    def _put(self, made: Any) -> None:
        while True:
            try:
                self._waiting.put_nowait(made)
                return
            except queue.Full:
                self._count("dropped")
                if not self._newest_counts:
                    return
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                self._count("dropped", -1)  # sent just now

    def _send_all(self) -> None:
        while True:
            try:
                things = [self._waiting.get(timeout=0.2)]
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            if self._gather_seconds:
                self._closing.wait(self._gather_seconds)
            while len(things) < self._batch_size:
                try:
                    things.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            # After a failure at the end there is no more waiting for a receiver that is down.
            if self._closing.is_set() and (self._failures or time.monotonic() > self._deadline):
                self._count("dropped", len(things))
                continue
            self._sending = len(things)
            try:
                self._send(things)
            except Exception as error:
                self._failures += 1
                self._count("failed", len(things))
                self._report(error)
                self._sending = 0
                # Bounded before it is a power: a receiver may be down for days.
                self._closing.wait(min(2.0 ** min(self._failures - 1, 10), _LONGEST_PAUSE))
            else:
                self._failures = 0
                self._count("sent", len(things))
                self._report(None)
            self._sending = 0

    # -- what became of it ---------------------------------------------------------------------

    def _count(self, outcome: str, number: int = 1) -> None:
        with self._counting:
            if not self._is_over:
                self._sums[outcome] += number

    def _report(self, error: Exception | None, *, at_the_end: bool = False) -> None:
        with self._counting:
            now, sums = time.monotonic(), dict(self._sums)
            is_first = error is not None and not self._told.get("failed")
            due = now - self._told_at >= _TELL_SECONDS
            if self._is_over or not (at_the_end or is_first or due) or sums == self._told:
                return
            lost = any(sums[key] > self._told.get(key, 0) for key in ("failed", "dropped"))
            self._told, self._told_at = sums, now
        signal = self._signal
        text = f"{signal.name}: {sums['sent']} {signal.things} sent"
        if sums["failed"] or sums["dropped"]:
            text += f", {sums['failed']} failed, {sums['dropped']} dropped"
        info = None
        if error is not None:
            reason = shown(f"{type(error).__name__}: {error}")
            text += f" ({reason[:500]})"
        if lost:
            info = ErrorInfo(
                condition=signal.condition,
                class_name=signal.class_name,
                message=text,
                fatal=False,
            )
        self._bus.emit(Event(self._origin, signal.body(**sums), text, error=info))
