"""Ctrl-C and SIGTERM while an update runs: first stop gracefully, then interrupt."""

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAME_REQUEST_SECONDS = 1.0
"""Signals within this time count as one request."""


class Stoppable(Protocol):
    """A running update that signals can stop."""

    def request_stop(self) -> None:
        """First call: end after the batches in flight. Second call: interrupt. Signal-safe."""


class StopSignals:
    """Turns signals into requests to stop, between `__enter__` and `__exit__`.

    Signals within a second count as one request: `timeout`, `uv run` and similar commands forward a
    signal that the terminal has already sent to the whole process group. Before `bind` there is
    nothing to stop gracefully: a signal raises `KeyboardInterrupt`, and the end of Spark's JVM is
    not interrupted by the same request. A signal that is ignored on entry (SIGHUP below `nohup`)
    stays ignored. Does nothing on a thread that is not the main one: Python delivers signals only
    there.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.received = 0
        self._monotonic = monotonic
        self._last = -math.inf
        self._running: Stoppable | None = None
        self._before: dict[signal.Signals, object] = {}

    def bind(self, running: Stoppable | None) -> None:
        """Make signals stop this update; `None` if none is running. For any thread."""
        self._running, self._last = running, -math.inf

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: the handler was not installed from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._before.clear()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        # No output here: the interrupted thread may be writing to the same stream.
        now = self._monotonic()
        if now - self._last < SAME_REQUEST_SECONDS:
            return
        self._last = now
        self.received += 1
        if self._running is None:
            raise KeyboardInterrupt
        self._running.request_stop()
