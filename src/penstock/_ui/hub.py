"""Streams changes to browsers: reads growing logs once for all watchers and sends what changed.

However many browsers watch an update, its log is read once per beat and each message is encoded
once. A slow watcher misses beats but no changes: it receives all cards that are newer than those it
has.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._observe.codec import encode
from penstock._observe.events import FlowStatus
from penstock._observe.segments import LATEST
from penstock._ui.recording import Recording

_BEAT_SECONDS = 0.4
_LONGEST_BEAT_SECONDS = 1.5
_REST = 25
_IDLE_BEATS = 12
_KEEPALIVE_SECONDS = 15.0
MAX_WATCHERS = 100
INTERRUPTED = "INTERRUPTED"
_AT_WORK = frozenset({FlowStatus.QUEUED, FlowStatus.STARTING, FlowStatus.RUNNING})
_PARTS = (("cards", "id"), ("flows", "name"))

_logger = logging.getLogger(__name__)


def whole_update(recording: Recording, update: str) -> dict[str, Any] | None:
    """Everything that the page of an update shows; `None` if there is no such update."""
    recorded = recording.recorded(update)
    if recorded is None:
        return None
    with recording.lock:
        model = recorded.model
        head, newest = model.head(), recording.newest() == recorded.log.update_id
        is_gone = recording.was_interrupted(recorded)
        return {
            "pipeline": recording.key,
            "newest": newest,
            "read_percent": recorded.read_percent,
            "update": head | {"update_id": recorded.log.update_id, "is_gone": is_gone},
            "cards": with_interrupted(model.cards(), is_gone=is_gone),
            "edges": model.edges(),
            "flows": with_interrupted(model.flows(), is_gone=is_gone),
        }


def with_interrupted(items: list[dict[str, Any]], *, is_gone: bool) -> list[dict[str, Any]]:
    """Cards or flows; the active ones of an interrupted update become `INTERRUPTED`."""
    if not is_gone:
        return items
    return [item | {"state": INTERRUPTED} if item["state"] in _AT_WORK else item for item in items]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """State of an update at one time. Immutable, so that a message is consistent.

    `version` increases with each change, `structure` changes with the set of datasets or flows.
    `stamps` has each part with the version of its last change; watchers that have version
    `whole_at` or later receive only changes. `encoded` is used by the event loop only.
    """

    version: int = 0
    seen: tuple[str, int] | None = None
    structure: int = -1
    body: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, tuple[int, Any]] = field(default_factory=dict)
    whole_at: int = 0
    encoded: dict[int, bytes] = field(default_factory=dict)

    def message(self, since: int) -> bytes:
        """A server-sent event with what is newer than a version; encoded once for all watchers."""
        if since not in self.encoded:
            name, body = "update", self.body
            if since and since >= self.whole_at:
                name, body = "changes", dict(self.body)
                del body["edges"]
                for kind, key in _PARTS:
                    body[kind] = [
                        item for item in body[kind] if self.stamps[f"{kind}:{item[key]}"][0] > since
                    ]
            self.encoded[since] = _event(name, body)
        return self.encoded[since]


@dataclass
class _Topic:
    """A watched update of a pipeline; used by the event loop only, except for `look`."""

    recording: Recording
    update: str
    watchers: int = 0
    wake: asyncio.Condition = field(default_factory=asyncio.Condition)
    beats: int = 0
    shown: _Shown = field(default_factory=_Shown)
    task: asyncio.Task[None] | None = None

    def look(self) -> _Shown:
        """The current state; called on another thread, never concurrently; does not modify self."""
        shown = self.shown
        recorded = self.recording.recorded(self.update)
        if recorded is None:
            return shown
        seen = (recorded.log.update_id, recorded.version)
        # Updated occasionally without new events as well, because rates become outdated.
        if seen == shown.seen and self.beats % _IDLE_BEATS:
            return shown
        body = whole_update(self.recording, recorded.log.update_id)
        if body is None:
            return shown
        version, structure = shown.version + 1, recorded.model.structure
        same_update = shown.seen is not None and shown.seen[0] == seen[0]
        whole = not same_update or structure != shown.structure
        parts: dict[str, Any] = {
            f"{kind}:{item[key]}": item for kind, key in _PARTS for item in body[kind]
        }
        parts["head"] = (body["newest"], body["read_percent"], body["update"])
        known = {} if whole else shown.stamps
        stamps = {
            name: known[name] if name in known and known[name][1] == part else (version, part)
            for name, part in parts.items()
        }
        if stamps == known:
            return replace(shown, seen=seen)
        return _Shown(
            version=version,
            seen=seen,
            structure=structure,
            body=body,
            stamps=stamps,
            whole_at=version if whole else shown.whole_at,
        )


class Hub:
    """Topics and their watchers. All methods run on the event loop of the server."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, str], _Topic] = {}
        self.watchers = 0
        self._closed = False

    async def close(self) -> None:
        """End all streams, so that the server can end."""
        self._closed = True
        # A copy, because the last watcher of a topic removes it.
        for topic in list(self._topics.values()):
            async with topic.wake:
                topic.wake.notify_all()

    async def watch(self, recording: Recording, update: str = LATEST) -> AsyncIterator[bytes]:
        """Server-sent events of an update, from its current state on, until the reader disconnects.

        If the update is not recorded (any longer), there is a single `missing` event.
        """
        if not await asyncio.to_thread(recording.has, update):
            yield _event("missing", {})
            return
        key = (recording.key, update)
        topic = self._topics.setdefault(key, _Topic(recording, update))
        topic.watchers += 1
        self.watchers += 1
        if topic.task is None:
            topic.task = asyncio.create_task(self._beat(topic))
        sent = 0
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                try:
                    async with asyncio.timeout(_KEEPALIVE_SECONDS), topic.wake:
                        while topic.shown.version == sent and not self._closed:
                            await topic.wake.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                shown = topic.shown
                if shown.version == sent:
                    return
                message, sent = shown.message(sent), shown.version
                yield message
        finally:
            topic.watchers -= 1
            self.watchers -= 1
            if topic.watchers == 0:
                del self._topics[key]
                topic.task.cancel()

    async def _beat(self, topic: _Topic) -> None:
        has_failed = False
        while True:
            before, began = topic.shown, time.monotonic()
            topic.beats += 1
            try:
                topic.shown = await asyncio.to_thread(topic.look)
            except Exception:
                # The log may become readable later.
                if not has_failed:
                    _logger.warning("an event log cannot be read now", exc_info=True)
                has_failed = True
                await asyncio.sleep(_LONGEST_BEAT_SECONDS)
                continue
            has_failed = False
            # The shortest pause if more of a long log is left to read.
            is_behind = topic.shown.body.get("read_percent") is not None
            took = 0.0 if is_behind else time.monotonic() - began
            if topic.shown.version != before.version:
                async with topic.wake:
                    topic.wake.notify_all()
            # A large pipeline is read less often, so that watching stays cheap.
            await asyncio.sleep(max(_BEAT_SECONDS, min(_LONGEST_BEAT_SECONDS, _REST * took)))


def _event(name: str, body: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(body) + b"\n\n"
