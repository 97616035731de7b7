"""Reads the event log of a pipeline as it grows: its updates and their models."""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock._observe.codec import event_of_line, millis
from penstock._observe.events import Event
from penstock._observe.masking import masked
from penstock._observe.segments import LATEST, Segment, UpdateLog, is_command, updates
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import failed_flows, writer_of
from penstock._ui.model import UpdateModel
from penstock._ui.ports import CodeOf, Control, Tables
from penstock._ui.views import error_view

_MAX_MODELS = 6
_SETTLED_SECONDS = 1.0
_BLOCK = 1 << 20
_MOST = 2 * _BLOCK
_RECENT = 8 * _BLOCK
_HEAD = 64 << 10
# Hooks and exports report failures after the last state, and an error may be long.
_TAIL = _BLOCK
_METRICS_LINE = b'"event_type":"stream_progress"'


class Recorded:
    """The events of an update and the model made of them, brought up to date by `refresh`."""

    def __init__(self, log: UpdateLog) -> None:
        self.log = log
        self.model = UpdateModel()
        self.version = 0
        # Segments that are not read yet; `_offset` is the position in the first one.
        self._segments: list[Segment] = []
        self._finished = self._offset = 0
        self._read = self._left = 0

    @property
    def read_percent(self) -> int | None:
        """How much of a long log is read; `None` when only the newest events may be missing."""
        if self._left <= _BLOCK:
            return None
        return 100 * self._read // (self._read + self._left)

    def refresh(self) -> bool:
        """Read new events; returns whether there were any. An incomplete last line is read later.

        Only a part of a long log is read at a time, so that other requests can be served.
        """
        model, folded = self.model, self.model.folded
        with contextlib.suppress(OSError):
            while True:
                try:
                    self._read_on()
                    break
                except FileNotFoundError:
                    log = self.log.listed()
                    if log.files in ((), self.log.files):
                        break
                    self._continue_in(log)
        is_new = self.model is not model or self.model.folded != folded
        self.version += is_new
        return is_new

    def _continue_in(self, log: UpdateLog) -> None:
        current, self.log = self._segments[:1], log
        self._segments = log.segments(self._finished)
        if not self._segments:
            return
        first = self._segments[0]
        if [first] != current if self._offset else first.first <= self._finished:
            # A roll-up replaces events that are in the model and events that are not.
            structure = self.model.structure
            self.model = UpdateModel()
            self.model.structure = structure + 1
            self._segments = log.segments()
            self._finished = self._offset = self._read = 0

    def _read_on(self) -> None:
        if not self._segments:
            self._continue_in(self.log.listed())
        self._left = sum(each.path.stat().st_size for each in self._segments) - self._offset
        until = self._read + _MOST
        while self._segments and self._read < until:
            segment = self._segments[0]
            is_finished = self.log.is_finished(segment)
            with segment.path.open("rb") as lines:
                lines.seek(self._offset)
                block = lines.read(_BLOCK) + lines.readline()
            end = len(block) if is_finished else block.rfind(b"\n") + 1
            if end:
                # Only the newest progress of Spark per flow is shown.
                self._fold(block[:end], skips_metrics=self._left > _RECENT)
                self._offset += end
                self._read += end
                self._left -= end
            elif is_finished:
                self._finished, self._offset = segment.last, 0
                self._segments.pop(0)
                if not self._segments:
                    self._continue_in(self.log.listed())
            else:
                return

    def _fold(self, block: bytes, *, skips_metrics: bool) -> None:
        for line in block.split(b"\n"):
            if not line or (skips_metrics and _METRICS_LINE in line[-200:]):
                continue
            event = event_of_line(masked(line))
            if event is not None:
                self.model.fold(event)


@dataclass(frozen=True, kw_only=True)
class UpdateSummary:
    """One update in the history; times are in milliseconds since the epoch.

    `ended` of an interrupted update is the time of its last event. `is_over`: a final state was
    recorded; `is_gone`: its process is gone, or a later update has begun. `failed_flows` are
    those of a running update.
    """

    update_id: str
    pipeline_name: str
    started: int
    ended: int | None
    state: str
    is_over: bool
    is_gone: bool = False
    failed_flows: int = 0
    continuous: bool
    full_refresh: bool
    error: dict[str, Any] | None
    message: str


@dataclass(eq=False, kw_only=True)
class WatchedLog:
    """A pipeline to show; `label` is shown before it has events. The folder need not exist yet."""

    label: str
    directory: Path
    tables: Tables | None = None
    code_of: CodeOf | None = None
    control: Control | None = None


@dataclass(eq=False, kw_only=True)
class Recording(WatchedLog):
    """The event log of one pipeline. Thread-safe; calls are serialized.

    `key` identifies the pipeline in URLs. Commands such as backfills are not listed, but can be
    read by their id.
    """

    key: str

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self._logs: list[UpdateLog] = []
        self._updates: set[str] = set()
        self._last: str | None = None
        self._by_id: dict[str, UpdateLog] = {}
        self._listed: tuple[int, int] | None = None
        self._models: OrderedDict[str, Recorded] = OrderedDict()
        self._summaries: dict[str, tuple[Segment, int, UpdateSummary]] = {}

    def newest(self) -> str | None:
        """Id of the newest update; `None` before the first one."""
        with self.lock:
            self._list()
            return self._logs[-1].update_id if self._logs else None

    def has(self, update: str) -> bool:
        """Whether there is an update with this id; always true for `latest`."""
        with self.lock:
            self._list()
            return update == LATEST or update in self._by_id

    def count(self) -> int:
        with self.lock:
            self._list()
            return len(self._logs)

    def recorded(self, update: str) -> Recorded | None:
        """The update with this id, or `latest`, brought up to date; `None` if there is none.

        The caller reads the model under `lock`.
        """
        with self.lock:
            self._list()
            log = self._logs[-1] if update == LATEST and self._logs else self._by_id.get(update)
            if log is None:
                return None
            recorded = self._models.get(log.name)
            if recorded is None:
                recorded = self._models[log.name] = Recorded(log)
            self._models.move_to_end(log.name)
            while len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
            recorded.refresh()
            return recorded

    def defined(self) -> Recorded | None:
        """The newest update with definitions of datasets; updates that fail early have none."""
        with self.lock:
            self._list()
            newest = (self.recorded(log.update_id) for log in self._logs[: -_MAX_MODELS - 1 : -1])
            return next((each for each in newest if each and each.model.tables()), None)

    def was_interrupted(self, recorded: Recorded) -> bool:
        """Whether an update ended without a final state, as far as that is known."""
        if recorded.model.has_ended:
            return False
        with self.lock:
            self._list()
            return self._is_gone(recorded.log.update_id)

    def history(self, *, before: int | None = None, limit: int = 50) -> list[UpdateSummary]:
        """Updates, newest first; `before` is a position counted from the oldest."""
        with self.lock:
            self._list()
            end = len(self._logs) if before is None else max(0, min(before, len(self._logs)))
            logs = self._logs[max(0, end - limit) : end]
            summaries = [self._summary(log) for log in reversed(logs)]
            return [each if each.is_over else self._unfinished(each) for each in summaries]

    def _unfinished(self, summary: UpdateSummary) -> UpdateSummary:
        if self._is_gone(summary.update_id):
            return replace(summary, is_gone=True)
        return replace(summary, failed_flows=failed_flows(self.directory, summary.update_id))

    def _is_gone(self, update: str) -> bool:
        """Whether a later update has begun, or the process ran on this machine and is gone."""
        if self._last != update:
            return True
        writer = writer_of(self.directory)
        if writer is None or writer[0] != update:
            return False
        try:
            os.kill(writer[1], 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False

    def _list(self) -> None:
        """List the folder again if files were added or removed."""
        try:
            status = self.directory.stat()
            # Timestamps of file systems are coarse: another change may get the same one.
            is_settled = time.time() - status.st_mtime > _SETTLED_SECONDS
            seen = (status.st_mtime_ns, status.st_ino)
            if seen == self._listed:
                return
            logs = updates(self.directory)
        except OSError:
            self._logs, self._by_id, self._last, self._listed = [], {}, None, None
            return
        self._logs = [log for log in logs if log.name in self._updates or not is_command(log)]
        # Without the last log: its first event may not be written yet.
        self._updates = {log.name for log in self._logs if log is not logs[-1]}
        self._by_id = {log.update_id: log for log in logs}
        self._last = logs[-1].update_id if logs else None
        self._listed = seen if is_settled else None

    def _summary(self, log: UpdateLog) -> UpdateSummary:
        newest = log.segments()[-1]
        try:
            size = newest.path.stat().st_size
        except OSError:
            size = 0
        known = self._summaries.get(log.name)
        if known is not None and known[:2] == (newest, size):
            return known[2]
        summary = _summary_of(log)
        self._summaries[log.name] = newest, size, summary
        return summary


def _summary_of(log: UpdateLog) -> UpdateSummary:
    """The summary of an update, from the first and last events of its log only."""
    update = ObservedUpdate()
    for event in _ends_of(log):
        # As in `UpdateModel.fold`.
        with contextlib.suppress(LookupError, ValueError, TypeError, AttributeError):
            update(event)
    options, ended = update.properties, update.ended or update.last_event
    return UpdateSummary(
        update_id=log.update_id,
        pipeline_name=update.pipeline_name,
        started=millis(update.started or log.started),
        ended=millis(ended) if ended is not None else None,
        state=update.state.value if update.state is not None else "",
        is_over=update.ended is not None,
        continuous=bool(options.get("continuous")),
        full_refresh=bool(options.get("full_refresh") or options.get("full_refresh_selection")),
        error=error_view(update.error),
        message=update.message,
    )


def _ends_of(log: UpdateLog) -> list[Event]:
    try:
        with log.opened() as files:
            first, last = files[0][1], files[-1][1]
            head = first.read(_HEAD)
            begin = len(head) if last is first else 0
            last.seek(max(begin, os.fstat(last.fileno()).st_size - _TAIL))
            tail = last.read(_TAIL)
    except (OSError, IndexError):
        return []
    return [*_events(head), *_events(tail)]


def _events(block: bytes) -> list[Event]:
    wanted = (b'"create_update"', b'"update_progress"')
    lines = [line for line in block.split(b"\n") if line]
    ends = (*lines[:2], *lines[-1:])
    decoded = (
        event_of_line(masked(line))
        for line in lines
        if line in ends or any(word in line for word in wanted)
    )
    return [event for event in decoded if event is not None]
