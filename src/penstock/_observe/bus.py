"""The event bus: delivers events from any thread to every subscriber, in order."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock._observe.events import Event
from penstock._observe.masking import without_secrets

Subscriber = Callable[[Event], None]

_logger = logging.getLogger(__name__)


class EventBus:
    """Delivers each event to all subscribers, one event at a time.

    `emit` is thread-safe; subscribers run on the calling thread, under a lock, in the order of
    subscription, and must not block for long. An exception of a subscriber never affects the
    update: it is logged, and the other subscribers still receive the event. Credentials are masked
    before delivery.
    """

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._lock = threading.RLock()
        self._failing: dict[int, str] = {}

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.append(subscriber)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Remove, on exit, the subscribers that were added within the context."""
        with self._lock:
            before = list(self._subscribers)
        try:
            yield
        finally:
            with self._lock:
                self._subscribers = before

    def emit(self, event: Event) -> None:
        """Deliver an event to every subscriber before returning."""
        event = without_secrets(event)
        with self._lock:
            for subscriber in self._subscribers:
                try:
                    subscriber(event)
                    self._failing.pop(id(subscriber), None)
                except OSError as error:
                    self._not_written(subscriber, error)
                except Exception:
                    _logger.exception("an event subscriber failed")

    def _not_written(self, subscriber: Subscriber, error: OSError) -> None:
        """Report a full or read-only disk once, not for every event."""
        reason = error.strerror or str(error)
        if self._failing.get(id(subscriber)) != reason:
            self._failing[id(subscriber)] = reason
            where = f" ({error.filename})" if error.filename else ""
            _logger.warning("events are not recorded until this is repaired: %s%s", reason, where)
