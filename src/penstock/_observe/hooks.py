"""Event hooks: every event to functions of the user, on threads of their own."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock._model.pipeline import EventHook
from penstock._observe.bus import EventBus
from penstock._observe.codec import event_json
from penstock._observe.events import ErrorInfo, Event, EventOrigin, HookProgress

_DRAIN_SECONDS = 30.0
_MOST_WAITING = 10_000


class EventHooks:
    """Delivers events to the hooks of a pipeline. Subscribe it to the bus.

    Every hook gets every event of the update, in order, also those from before the source files
    were loaded. What a hook raises becomes a `hook_progress` event; those are not delivered. For a
    hook that is too slow some thousand events wait; newer ones are left out then, which is told.

    Args:
        bus: Takes `hook_progress` events.
        origin: Of those events.
        most_waiting: So many events wait for a hook.
    """

    def __init__(
        self, bus: EventBus, origin: EventOrigin, *, most_waiting: int = _MOST_WAITING
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._most_waiting = most_waiting
        self._lines: list[_Line] = []
        self._early: list[tuple[Event, int]] | None = []
        self._sequence = 0
        self._lock = threading.Lock()

    def start(self, hooks: Sequence[EventHook]) -> None:
        """Begin to deliver; once."""
        with self._lock:
            self._lines = [_Line(hook) for hook in hooks]
            for line in self._lines:
                for item in self._early or ():
                    line.events.put(item)
            self._early = None
        for line in self._lines:
            line.thread = threading.Thread(
                target=self._deliver, args=(line,), name=f"hook {line.hook.name}", daemon=True
            )
            line.thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event; any thread, never blocks."""
        if isinstance(event.body, HookProgress):
            return
        with self._lock:
            self._sequence += 1
            if self._early is not None:
                self._early.append((event, self._sequence))
            for line in self._lines:
                if line.is_disabled:
                    continue
                if line.events.qsize() < self._most_waiting:
                    line.events.put((event, self._sequence))
                else:
                    line.left_out += 1

    def close(self, timeout_seconds: float = _DRAIN_SECONDS) -> None:
        """Let every hook finish what it was given; after the timeout the rest is left out."""
        for line in self._lines:
            line.events.put(None)
        until = time.monotonic() + timeout_seconds
        for line in self._lines:
            assert line.thread is not None
            line.thread.join(max(0.0, until - time.monotonic()))
            if line.thread.is_alive():
                left = line.events.qsize() + line.left_out
                self._report(
                    line, f"did not end in time; {left} events were not delivered", status="SLOW"
                )
            elif line.left_out:
                left = line.left_out
                self._report(line, f"was too slow: {left} events were not delivered", status="SLOW")

    def _deliver(self, line: "_Line") -> None:
        failures = 0
        is_told = False
        while (item := line.events.get()) is not None:
            event, number = item
            try:
                line.hook.function(
                    event_json(event, instance=self._origin.update_id, seq_no=number)
                )
            except Exception as error:
                failures += 1
                self._report(line, f"raised {type(error).__name__}: {error}", error)
                limit = line.hook.max_consecutive_failures
                if limit is not None and failures > limit:
                    line.is_disabled = True  # nobody takes what would wait for it
                    text = f"is disabled after {failures} failures in a row"
                    self._report(line, text, status="DISABLED")
                    return
            else:
                failures = 0
            if line.left_out and not is_told:
                is_told = True
                self._report(line, "is too slow: events are left out", status="SLOW")

    def _report(
        self, line: "_Line", what: str, error: Exception | None = None, *, status: str = "FAILED"
    ) -> None:
        text = f"event hook {line.hook.name!r} {what}"
        info = None
        if error is not None:
            kind = type(error).__name__
            info = ErrorInfo(condition="HOOK_FAILED", class_name=kind, message=text, fatal=False)
        body = HookProgress(
            hook_name=line.hook.name, status=status, declared_at=str(line.hook.origin)
        )
        self._bus.emit(Event(self._origin, body, text, error=info))


@dataclass
class _Line:
    hook: EventHook
    events: "queue.SimpleQueue[tuple[Event, int] | None]" = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None
    is_disabled: bool = False
    left_out: int = 0
