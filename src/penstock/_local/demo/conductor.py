"""Ends the generator and a continuous update together."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock._local.demo.kafka_log import Ranges
from penstock._local.demo.places import DemoPlaces
from penstock._local.demo.producer import OrderProducer
from penstock.errors import SetupError

_POLL_SECONDS = 0.5
STALL_SECONDS = 120.0


class Stoppable(Protocol):
    def request_stop(self) -> None:
        """First call: end after the batches in flight. Second call: interrupt. Signal-safe."""


class Conductor:
    """Starts the generator when the update runs, and ends the update when all is processed.

    Receives signals instead of the update: the first request stops the generator and drains what
    was sent, the second ends the update after the batches in flight, the third interrupts them. The
    update also ends if no flow commits for `stall_seconds`.
    """

    def __init__(
        self,
        places: DemoPlaces,
        read_ranges: Callable[[], Ranges],
        producer: OrderProducer,
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._places = places
        self._read_ranges = read_ranges
        self._producer = producer
        self._stall_seconds = stall_seconds
        self._update: Stoppable | None = None
        self._requests = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-demo", daemon=True)

    @property
    def was_cut_short(self) -> bool:
        return self._requests > 1

    def begin(self, update: Stoppable) -> Stoppable:
        """Start sending and watching. Called again for an update that follows a failed JVM.

        Returns what receives signals instead of the update.
        """
        self._update = update
        if self._thread.ident is None:
            self._producer.start()
            self._thread.start()
        elif not self._thread.is_alive():  # it asked the update before to stop, whose JVM died
            update.request_stop()
        return self

    def request_stop(self) -> None:
        self._requests += 1
        if self._requests == 1:
            self._producer.request_stop()
        elif self._update is not None:
            self._update.request_stop()

    def end(self, timeout_seconds: float = 60.0) -> None:
        """End the generator after the update."""
        self._over.set()
        self._producer.request_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
            self._producer.join(timeout_seconds)

    def _watch(self) -> None:
        before: object = None
        moved_at = time.monotonic()
        while not self._over.wait(_POLL_SECONDS):
            progress = self._places.progress()
            now = time.monotonic()
            if progress != before or not self._producer.finished:
                before, moved_at = progress, now
                if not self._producer.finished:
                    continue
            if self._is_done() or now - moved_at > self._stall_seconds:
                break
        if self._update is not None and not self._over.is_set():
            self._update.request_stop()

    def _is_done(self) -> bool:
        try:
            return self._places.is_caught_up(self._read_ranges())
        except SetupError:
            return False  # the broker is gone; if it stays so, no flow commits anything either
