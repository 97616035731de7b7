"""A `Scheduler` with a virtual clock, which advances only when all threads wait."""

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

_REAL_SECONDS = 20.0  # the limit after which a test that hangs fails


class WaitsForEver(AssertionError):
    """A deadlock: a thread waits, and no timer or other thread can wake it."""


@dataclass
class Sleeper:
    """A thread or a callback that waits for a time."""

    event: threading.Event = field(default_factory=threading.Event)
    callback: Callable[[], None] | None = None
    done: bool = False
    cancelled: bool = False


class VirtualTime:
    """An implementation of `penstock._runtime.ports.Scheduler`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._changed = threading.Condition()
        self._awake = 0
        self._heap: list[tuple[float, int, Sleeper]] = []
        self._count = itertools.count()

    def monotonic(self) -> float:
        return self._now

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        with self._changed:
            self._awake += 1

        def run() -> None:
            try:
                target()
            finally:
                with self._changed:
                    self._awake -= 1
                    self._changed.notify_all()

        threading.Thread(target=run, name=name, daemon=True).start()

    def receive(
        self, inbox: "SimpleQueue[Callable[[], None]]", deadline: float | None
    ) -> Callable[[], None] | None:
        while True:
            with self._changed:
                try:
                    return inbox.get_nowait()
                except Empty:
                    pass
                if deadline is not None and deadline <= self._now:
                    return None
                if self._awake:
                    if not self._changed.wait(_REAL_SECONDS):
                        raise WaitsForEver("a thread does not come back")
                    continue
                self._drop_done()
                moment = self._heap[0][0] if self._heap else None
                if moment is None and deadline is None:
                    raise WaitsForEver(f"at {self._now} nothing is left that could happen")
                if moment is None or (deadline is not None and deadline < moment):
                    assert deadline is not None
                    self._now = deadline
                    return None
                _, _, sleeper = heapq.heappop(self._heap)
                self._now = max(self._now, moment)
                sleeper.done = True
                if sleeper.callback is None:
                    self._awake += 1
                    sleeper.event.set()
                    continue
            self.start_thread(sleeper.callback, "at a moment")

    def _drop_done(self) -> None:
        while self._heap and self._heap[0][2].done:
            heapq.heappop(self._heap)

    def at(self, moment: float, callback: Callable[[], None]) -> None:
        """Call `callback` at that time, on a new thread."""
        with self._changed:
            heapq.heappush(self._heap, (moment, next(self._count), Sleeper(callback=callback)))

    def sleep(self, seconds: float, sleeper: Sleeper | None = None) -> bool:
        """Block a thread of `start_thread`. Returns false if the wait was cancelled."""
        sleeper = sleeper or Sleeper()
        with self._changed:
            heapq.heappush(self._heap, (self._now + seconds, next(self._count), sleeper))
            self._awake -= 1
            self._changed.notify_all()
        assert sleeper.event.wait(_REAL_SECONDS)
        return not sleeper.cancelled

    def cancel(self, sleeper: Sleeper) -> None:
        """End the wait of a thread early."""
        with self._changed:
            if not sleeper.done:
                sleeper.done = sleeper.cancelled = True
                self._awake += 1
                sleeper.event.set()
