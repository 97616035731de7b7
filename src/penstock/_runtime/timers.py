"""Timers of an update."""

import heapq
import itertools
from collections.abc import Callable


class Timers:
    """Callbacks ordered by time. They cannot be cancelled: each checks whether it still applies."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def add(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` at `when`; callbacks with equal times are called in insertion order."""
        heapq.heappush(self._heap, (when, next(self._count), callback))

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Callable[[], None]]:
        """Remove and return the callbacks that are due."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
