"""Notifies the targets of alerts on a background thread; no event waits for the network."""

import json
import logging
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock._model.alert import AlertSettings, AlertTarget
from penstock._observe.alerts import OBSERVED, AlertBook
from penstock._observe.bus import EventBus
from penstock._observe.codec import details_of
from penstock._observe.events import AlertProgress, ErrorInfo, Event, EventOrigin
from penstock._observe.transport import (
    PAUSES_SECONDS,
    SLACK_TEXT,
    TIMEOUT_SECONDS,
    post_json,
    send_mail,
    slack_body,
    slack_text,
)

_TICK_SECONDS = 1.0
_DRAIN_SECONDS = 20.0

_logger = logging.getLogger(__name__)


@dataclass
class _Notification:
    """An alert; `done` is the number of targets tried, `delivered` are those that accepted it."""

    notice: AlertProgress
    done: int = 0
    delivered: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Alerts:
    """Evaluates the alerts of an update and notifies their targets; a subscriber of the bus.

    Each alert becomes an `alert_progress` event with the notified targets and the failures. Secrets
    are resolved when a target is notified; `pauses_seconds` are the pauses before retries.
    """

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        settings: AlertSettings,
        *,
        resolve_secrets: Callable[[str], str] = str,
        pauses_seconds: tuple[float, ...] = PAUSES_SECONDS,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._settings = settings
        self._resolve = resolve_secrets
        self._pauses_seconds = pauses_seconds
        self._book = AlertBook(
            settings.rules, repeat_seconds=settings.repeat_seconds, schemas=schemas
        )
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._queue: deque[_Notification] = deque()
        self._is_closed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alerts", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event. Thread-safe, never blocks."""
        if isinstance(event.body, OBSERVED):
            self._events.put(event)

    def close(self, timeout_seconds: float = _DRAIN_SECONDS) -> None:
        """Send what is queued; after the timeout the rest is reported as not sent. Idempotent."""
        self._events.put(None)
        self._closing.set()
        self._thread.join(timeout_seconds)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            # The thread may be blocked by a receiver: the rest is evaluated here, but not sent.
            while not self._events.empty():
                event = self._events.get()
                if event is not None:
                    self._decide(event)
            unsent, self._queue = list(self._queue), deque()
        for notification in unsent:
            for target in self._settings.targets[notification.done :]:
                text = f"{target.label}: was not notified before the update ended"
                notification.errors.append(text)
            self._emit(notification)

    def _watch(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                event = None
            else:
                if event is None:
                    return
            with self._lock:
                if self._is_closed:
                    return
                self._decide(event)
            while (notification := self._next()) is not None:
                self._deliver(notification)

    def _next(self) -> _Notification | None:
        with self._lock:
            return self._queue[0] if self._queue else None

    def _decide(self, event: Event | None) -> None:
        try:
            if event is not None:
                notices = self._book.observe(event)
            else:
                notices = self._book.tick(datetime.now(UTC))
        except Exception:
            # For example an event of another version. Later events are still evaluated.
            _logger.warning("alerts could not be evaluated for an event", exc_info=True)
        else:
            self._queue.extend(_Notification(notice) for notice in notices)

    def _deliver(self, notification: _Notification) -> None:
        """Notify the targets and emit the result, unless `close` has timed out and reported it."""
        for target in self._settings.targets:
            error = self._try(target, notification.notice)
            with self._lock:
                if self._is_closed:
                    return
                notification.done += 1
                if error is None:
                    notification.delivered.append(target.label)
                else:
                    notification.errors.append(f"{target.label}: {error}")
        with self._lock:
            if self._is_closed:
                return
            self._queue.popleft()
        self._emit(notification)

    def _emit(self, notification: _Notification) -> None:
        notice, info = notification.notice, None
        if notification.errors:
            info = ErrorInfo(
                condition="ALERT_NOT_DELIVERED",
                class_name="AlertError",
                message="; ".join(notification.errors),
                fatal=False,
            )
        body = replace(
            notice, told=tuple(notification.delivered), not_told=tuple(notification.errors)
        )
        text = f"alert {notice.alert} is {notice.state}: {notice.message}"
        self._bus.emit(Event(self._origin, body, text, error=info))

    def _try(self, target: AlertTarget, notice: AlertProgress) -> str | None:
        for pause in (*self._pauses_seconds, None):
            try:
                deliver(target, notice, self._resolve)
            except Exception as error:
                # The message may contain the URL.
                reason = f"{type(error).__name__}: {error}"
                if pause is None or self._closing.is_set():
                    return reason.replace(target.webhook, "...") if target.webhook else reason
                self._closing.wait(pause)
            else:
                return None
        return None


def deliver(
    target: AlertTarget, notice: AlertProgress, resolve_secrets: Callable[[str], str]
) -> None:
    if target.webhook:
        body = slack_form(notice) if target.slack else notice_json(notice)
        headers = {key: resolve_secrets(value) for key, value in target.headers.items()}
        post_json(resolve_secrets(target.webhook), body, headers)
    elif target.command:
        subprocess.run(  # noqa: S603 - the program is configured in the settings of the pipeline
            target.command,
            input=json.dumps(notice_json(notice)),
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    else:
        details = json.dumps(notice_json(notice), indent=2, ensure_ascii=False)
        send_mail(
            {key: resolve_secrets(value) for key, value in target.mail.items()},
            target.mail_to,
            f"[{notice.pipeline}] {notice.alert} is {notice.state}",
            f"{notice.message}\n\n{details}\n",
        )


def notice_json(notice: AlertProgress) -> dict[str, Any]:
    """The JSON form that webhooks and commands receive."""
    body = details_of(notice)[notice.event_type]
    return {key: body[key] for key in body if key not in ("told", "not_told")}


def slack_form(notice: AlertProgress) -> dict[str, Any]:
    sign = ":rotating_light:" if notice.state == "firing" else ":white_check_mark:"
    text = f"{sign} *{notice.pipeline}*: {notice.alert} is {notice.state}"
    safe = slack_text(notice.message)
    return slack_body(f"{text}: {safe}", f"{text}\n{safe}"[:SLACK_TEXT])
