"""Sends OpenLineage events, on threads of their own: no batch waits for a receiver."""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._model.export import LineageSettings
from penstock._model.redaction import redact, remember_secret
from penstock._observe.bus import EventBus
from penstock._observe.events import ErrorInfo, Event, EventOrigin, Level, definition
from penstock._observe.lineage import DEFAULT_NAMESPACE, RUNNING_SECONDS, LineageFold
from penstock.errors import MissingExtraError, SpecError

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

QUEUE_SIZE = 2000
"""So many events wait for the receiver; what does not fit is dropped and counted."""

_EVENT_TYPE = "lineage_progress"
_DRAIN_SECONDS = 10.0
_TELL_SECONDS = 30.0
_LONGEST_PAUSE = 30.0
_CONFIGURED = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_FILE = "openlineage.yml"
_UNHEARD = ("stream_progress", _EVENT_TYPE)

_logger = logging.getLogger(__name__)

Send = Callable[[Any], None]


def is_wanted(settings: LineageSettings, root: str, environ: Mapping[str, str]) -> bool:
    """Whether lineage is to be sent: as the settings say, or as OpenLineage is configured.

    Args:
        settings: Of the pipeline.
        root: Its folder, where an `openlineage.yml` may be.
        environ: Environment variables.
    """
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if settings.is_wanted is not None:
        return settings.is_wanted
    if any(environ.get(name) for name in _CONFIGURED):
        return True
    if any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    homes = (Path(root), Path(environ.get("HOME", "~")).expanduser() / ".openlineage")
    return any((home / _FILE).is_file() for home in homes)


def has_extra() -> bool:
    """Whether OpenLineage's client is installed."""
    try:
        import openlineage.client  # noqa: F401
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("openlineage"):
            raise
        return False
    return True


def missing_extra() -> MissingExtraError:
    """What to say when it is not."""
    return MissingExtraError(
        "MISSING_EXTRA",
        "lineage needs the package openlineage-python, which is not installed",
        hint='pip install "penstock[openlineage]"',
    )


def make_client(
    settings: LineageSettings, root: str, resolve_secrets: Callable[[str], str]
) -> "OpenLineageClient":
    """OpenLineage's client: its own configuration, with what the settings say over it.

    Raises:
        SpecError: `LINEAGE_NOT_CONFIGURED`.
    """
    import yaml
    from openlineage.client import OpenLineageClient

    try:
        config: dict[str, Any] = {}
        beside = Path(root) / _FILE
        if beside.is_file() and not os.environ.get("OPENLINEAGE_CONFIG"):
            config = dict(yaml.safe_load(beside.read_text(encoding="utf-8")) or {})
        if settings.transport:
            config["transport"] = _resolved(settings.transport, resolve_secrets)
        _remember(config.get("transport"))
        client = OpenLineageClient(config=config or None)
    except Exception as error:
        text = redact(f"{type(error).__name__}: {error}")
        raise SpecError(
            "LINEAGE_NOT_CONFIGURED",
            f"OpenLineage's client does not accept its configuration: {text}",
            hint="see `lineage.transport` in the settings, openlineage.yml and OPENLINEAGE_URL",
        ) from None
    chosen = client.config.transport or {}
    if client.transport.kind == "console" and chosen.get("type") != "console":
        raise SpecError(
            "LINEAGE_NOT_CONFIGURED",
            "lineage is on, but nothing says where to send it",
            hint="set OPENLINEAGE_URL, or `lineage.transport` in the settings",
        )
    return client


def _resolved(value: Any, resolve: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return resolve(value)
    if isinstance(value, Mapping):
        return {str(key): _resolved(one, resolve) for key, one in value.items()}
    return [_resolved(one, resolve) for one in value] if isinstance(value, list) else value


def _remember(value: Any, *, is_secret: bool = False) -> None:
    """What stands below `auth` and the like must not be in any message."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            named = str(key).lower()
            hidden = is_secret or any(w in named for w in ("auth", "key", "token", "secret"))
            _remember(one, is_secret=hidden and named != "type")
    elif is_secret and isinstance(value, str):
        remember_secret(value)


class Lineage:
    """Turns the events of an update into OpenLineage's and sends them. Subscribe it to the bus.

    One thread folds, so that the queue before it is always short; another one sends, from a queue
    that is bounded. How it goes becomes `lineage_progress` events with the sums of what was sent,
    failed and dropped: a warning at the first failure, then at most twice a minute, and at the end.

    Args:
        bus: Takes those events.
        origin: Of those events.
        send: Sends one event and raises if that fails.
        namespace: Of the jobs.
        running_seconds: A running flow is told about at most so often.
        queue_size: See `QUEUE_SIZE`.
    """

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        send: Send,
        *,
        namespace: str = "",
        running_seconds: float = RUNNING_SECONDS,
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._send = send
        chosen = namespace or os.environ.get("OPENLINEAGE_NAMESPACE", "") or DEFAULT_NAMESPACE
        self._fold = LineageFold(chosen, running_seconds=running_seconds)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._waiting: queue.Queue[Any] = queue.Queue(maxsize=queue_size)
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._sums = {"sent": 0, "failed": 0, "dropped": 0}
        self._counting = threading.Lock()
        self._told_at = -_TELL_SECONDS
        self._told: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=target, name=f"lineage {name}", daemon=True)
            for name, target in (("fold", self._fold_all), ("send", self._send_all))
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event; any thread, never blocks."""
        if event.event_type not in _UNHEARD:
            self._events.put(event)

    def close(self, timeout_seconds: float = _DRAIN_SECONDS) -> None:
        """Send what is waiting; after the timeout the rest is dropped, and that is told."""
        if self._closing.is_set():
            return
        self._deadline = time.monotonic() + timeout_seconds
        self._events.put(None)
        self._threads[0].join(timeout_seconds)
        self._closing.set()
        self._threads[1].join(max(0.5, self._deadline - time.monotonic()))
        # One that hangs in the receiver is a daemon; whatever it still holds was not delivered.
        self._count("dropped", self._waiting.qsize() + int(self._threads[1].is_alive()))
        self._tell(None, at_the_end=True)

    # -- threads -------------------------------------------------------------------------------

    def _fold_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                for made in self._fold(event):
                    try:
                        self._waiting.put_nowait(made)
                    except queue.Full:
                        self._count("dropped")
            except Exception as error:
                _logger.debug("an event could not be told as lineage", exc_info=True)
                self._count("failed")
                self._tell(error)

    def _send_all(self) -> None:
        failures = 0
        while True:
            try:
                event = self._waiting.get(timeout=0.2)
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            # After a failure at the end there is no more waiting for a receiver that is down.
            if self._closing.is_set() and (failures or time.monotonic() > self._deadline):
                self._count("dropped")
                continue
            try:
                self._send(event)
            except Exception as error:
                failures += 1
                self._count("failed")
                self._tell(error)
                self._closing.wait(min(2.0 ** (failures - 1), _LONGEST_PAUSE))
            else:
                failures = 0
                self._count("sent")
                self._tell(None)

    # -- what became of it ---------------------------------------------------------------------

    def _count(self, outcome: str, number: int = 1) -> None:
        with self._counting:
            self._sums[outcome] += number

    def _tell(self, error: Exception | None, *, at_the_end: bool = False) -> None:
        with self._counting:
            now, sums = time.monotonic(), dict(self._sums)
            is_first = error is not None and not self._told.get("failed")
            due = now - self._told_at >= _TELL_SECONDS
            if not (at_the_end or is_first or due) or sums == self._told:
                return
            lost = any(sums[key] > self._told.get(key, 0) for key in ("failed", "dropped"))
            self._told, self._told_at = sums, now
        text = f"lineage: {sums['sent']} events sent"
        if sums["failed"] or sums["dropped"]:
            text += f", {sums['failed']} failed, {sums['dropped']} dropped"
        info = None
        if error is not None:
            reason = redact(f"{type(error).__name__}: {error}")
            text += f" ({reason[:500]})"
        if lost:
            info = ErrorInfo(
                condition="LINEAGE_NOT_DELIVERED",
                class_name="LineageError",
                message=text,
                fatal=False,
            )
        self._bus.emit(_progress(self._origin, text, sums, info))


def _progress(
    origin: EventOrigin, text: str, sums: Mapping[str, int], error: ErrorInfo | None
) -> Event:
    event = definition(_EVENT_TYPE, origin, text, sums)
    return replace(event, level=Level.INFO if error is None else Level.WARN, error=error)


def close_client(client: "OpenLineageClient") -> None:
    """Close its connections, whatever they say."""
    with contextlib.suppress(Exception):
        client.close(timeout=1.0)
