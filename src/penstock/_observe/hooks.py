"""Event hooks: calls functions of the user with every event, on background threads."""

import queue
import threading
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from penstock._model.pipeline import EventHook
from penstock._observe.bus import EventBus
from penstock._observe.codec import event_json
from penstock._observe.events import ErrorInfo, Event, EventOrigin, HookProgress

_DRAIN_SECONDS = 30.0
_MOST_WAITING = 10_000


class EventHooks:
    """Delivers events to the hooks of a pipeline; a subscriber of the bus.

    Each hook receives every event of the update in order, including those from before the source
    files were loaded. An exception of a hook becomes a `hook_progress` event; these are not
    delivered. If a hook is too slow and its queue of `most_waiting` events is full, new events are
    dropped and reported.
    """

    def __init__(
        self, bus: EventBus, origin: EventOrigin, *, most_waiting: int = _MOST_WAITING
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._most_waiting = most_waiting
        self._workers: list[_Worker] = []
        self._early: list[tuple[Event, int]] | None = []
        self._sequence = 0
        self._lock = threading.Lock()

    def start(self, hooks: Sequence[EventHook]) -> None:
        """Start delivery; call it once."""
        with self._lock:
            self._workers = [_Worker(hook) for hook in hooks]
            for worker in self._workers:
                for item in self._early or ():
                    worker.events.put(item)
            self._early = None
        for worker in self._workers:
            worker.thread = threading.Thread(
                target=self._deliver, args=(worker,), name=f"hook {worker.hook.name}", daemon=True
            )
            worker.thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event. Thread-safe, never blocks."""
        if isinstance(event.body, HookProgress):
            return
        with self._lock:
            self._sequence += 1
            if self._early is not None:
                self._early.append((event, self._sequence))
            for worker in self._workers:
                if worker.is_disabled:
                    continue
                if worker.events.qsize() < self._most_waiting:
                    worker.events.put((event, self._sequence))
                else:
                    worker.dropped += 1

    def close(self, timeout_seconds: float = _DRAIN_SECONDS) -> None:
        """Wait for the hooks to process their queues; events left after the timeout are dropped."""
        for worker in self._workers:
            worker.events.put(None)
        until = time.monotonic() + timeout_seconds
        for worker in self._workers:
            assert worker.thread is not None
            worker.thread.join(max(0.0, until - time.monotonic()))
            if worker.failed > 1 and not worker.is_disabled:
                self._report(worker, f"raised for {worker.failed} events")
            is_late, left = worker.thread.is_alive(), worker.dropped
            if is_late:
                left += worker.events.qsize()
            if is_late or left:
                what = "did not finish in time;" if is_late else "was too slow:"
                text = f"{what} {left} events were not delivered"
                self._report(worker, text, status="SLOW")

    def _deliver(self, worker: "_Worker") -> None:
        failures = 0
        is_reported = False
        while (item := worker.events.get()) is not None:
            event, number = item
            try:
                body = event_json(event, instance=self._origin.update_id, seq_no=number)
                # The function may modify its argument, but the values of the event are shared.
                worker.hook.function(deepcopy(body))
            except (Exception, SystemExit) as error:
                failures += 1
                worker.failed += 1
                if failures == 1:
                    self._report(worker, f"raised {type(error).__name__}: {error}", error)
                limit = worker.hook.max_consecutive_failures
                if limit is not None and failures > limit:
                    worker.is_disabled = True
                    text = f"is disabled after {failures} failures in a row"
                    self._report(worker, text, status="DISABLED")
                    return
            else:
                failures = 0
            if worker.dropped and not is_reported:
                is_reported = True
                self._report(worker, "is too slow: events are dropped", status="SLOW")

    def _report(
        self,
        worker: "_Worker",
        what: str,
        error: BaseException | None = None,
        *,
        status: str = "FAILED",
    ) -> None:
        text = f"event hook {worker.hook.name!r} {what}"
        info = None
        if error is not None:
            kind = type(error).__name__
            info = ErrorInfo(condition="HOOK_FAILED", class_name=kind, message=text, fatal=False)
        body = HookProgress(
            hook_name=worker.hook.name, status=status, declared_at=str(worker.hook.origin)
        )
        self._bus.emit(Event(self._origin, body, text, error=info))


@dataclass
class _Worker:
    hook: EventHook
    events: "queue.SimpleQueue[tuple[Event, int] | None]" = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    is_disabled: bool = False
    dropped: int = 0
    failed: int = 0
