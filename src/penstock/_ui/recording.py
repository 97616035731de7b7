"""A pipeline's event log, read as it grows: its updates, and the models of those in view."""

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from penstock._observe.codec import event_of_line
from penstock._observe.events import TERMINAL_STATES, CreateUpdate, Event, UpdateProgress
from penstock._observe.log import (
    LineAt,
    Place,
    UpdateFile,
    last_seen_line,
    place_of_line,
    updates,
)
from penstock._observe.masking import masked
from penstock._observe.status_file import writer_of
from penstock._ui.model import UpdateModel, error_view
from penstock._ui.ports import Control, Sources, Tables

_MAX_MODELS = 6
_SETTLED_SECONDS = 1.0
_BLOCK = 1 << 20
_MOST = 2 * _BLOCK
_RECENT = 8 * _BLOCK
_TAIL = 64 << 10
_PLACE_BYTES = 1 << 10
_METRICS_LINE = b'"event_type":"stream_progress"'
LATEST = "latest"


class Recorded:
    """One file of an event log and the model of its update, brought up to date by `refresh`."""

    def __init__(self, file: UpdateFile) -> None:
        self.file = file
        self.model = UpdateModel()
        self.version = 0
        self._offset = 0
        self._size = 0
        self._known: tuple[int, int, int] | None = None
        self._seen: Place | None = None
        self._mark: LineAt | None = None

    @property
    def read_percent(self) -> int | None:
        """How much of a long log is read; `None` when nothing but its newest events may miss."""
        if self._size - self._offset <= _BLOCK:
            return None
        return 100 * self._offset // self._size

    def refresh(self) -> bool:
        """Read what was added; whether there was anything. A last line without end waits.

        Of a long log only a part is read at a time, so that others are served in between.
        """
        folded = self.model.folded
        try:
            lines = self.file.path.open("rb")
        except OSError:
            return False
        with lines:
            # Of the file that is open: another one may have its name by now.
            status = os.fstat(lines.fileno())
            size = status.st_size
            known = (status.st_ino, size, status.st_mtime_ns)
            if known != self._known and self._is_replaced(lines, status.st_ino):
                folded = self._go_on_in(lines)
            self._known = known
            if size <= self._offset:
                return False
            self._size = size
            until = min(size, self._offset + _MOST)
            lines.seek(self._offset)
            while self._offset < until:
                block = lines.read(_BLOCK)
                end = block.rfind(b"\n") + 1
                if not block or (end == 0 and len(block) < _BLOCK):
                    break
                if end == 0:
                    block += lines.readline()
                    end = len(block)
                    if not block.endswith(b"\n"):
                        break
                # Of long ago, Spark's own progress is not shown: only the newest of each flow is.
                skips = size - self._offset > _RECENT
                self._fold(block[:end], skips_metrics=skips)
                self._offset += end
                lines.seek(self._offset)
        self.version += self.model.folded != folded
        return self.model.folded != folded

    def _is_replaced(self, lines: BinaryIO, inode: int) -> bool:
        """Whether the line before the first unread one is no longer where it was.

        The number of a file does not tell: it is given to another one when it is free.
        """
        if self._mark is None:
            return self._known is not None and self._known[0] != inode
        lines.seek(self._mark.start)
        return place_of_line(lines.read(_PLACE_BYTES)) != self._mark.place

    def _go_on_in(self, lines: BinaryIO) -> int:
        """The log was cleaned up, its lines are in other places now: find the first unseen one.

        Where that cannot be told it begins again. Returns how much the model has folded.
        """
        found = last_seen_line(lines, self._seen) if self._seen is not None else None
        if found is not None:
            self._mark, self._offset = found, found.end
            return self.model.folded
        structure = self.model.structure
        self.model = UpdateModel()
        self.model.structure = structure + 1
        self._offset = 0
        self._seen = self._mark = None
        return 0

    def _fold(self, block: bytes, *, skips_metrics: bool) -> None:
        whole = block.split(b"\n")
        end = self._offset + len(block)
        for line in reversed(whole):
            if (place := place_of_line(line)) is not None:
                self._seen, self._mark = place, LineAt(place, end - len(line), end + 1)
                break
            end -= len(line) + 1
        for line in whole:
            if not line or (skips_metrics and _METRICS_LINE in line[-200:]):
                continue
            event = event_of_line(masked(line))
            if event is not None:
                self.model.fold(event)


@dataclass(frozen=True, kw_only=True)
class UpdateSummary:
    """One update in the history.

    Attributes:
        update_id: Of the update.
        pipeline_name: Label of the pipeline.
        started: In milliseconds since the epoch.
        ended: The same, where it has ended; of one that broke off, its last event.
        state: Its last state; empty when unknown.
        is_over: Whether a final state was recorded.
        is_gone: Whether it broke off: its process is gone, or a later update has begun.
        continuous: Whether it ran until stopped.
        full_refresh: Whether any table was started over.
        error: Why it failed.
        message: Of its last change of state.
    """

    update_id: str
    pipeline_name: str
    started: int
    ended: int | None
    state: str
    is_over: bool
    is_gone: bool = False
    continuous: bool
    full_refresh: bool
    error: dict[str, Any] | None
    message: str


class Recording:
    """The event log of one pipeline. Any thread may call; one at a time is served.

    Attributes:
        key: Names the pipeline in addresses.
        label: What to call it before it has events.
        directory: The folder of its event log; it need not be there yet.
        tables: Looks into its tables; `None` where their storage is not known.
        sources: Looks into its sources; `None` where its project is not known.
        control: Acts on it; `None` where its project is not known.
    """

    def __init__(
        self,
        key: str,
        label: str,
        directory: Path,
        *,
        tables: Tables | None = None,
        sources: Sources | None = None,
        control: Control | None = None,
    ) -> None:
        self.sources = sources
        self.key = key
        self.label = label
        self.directory = directory
        self.tables = tables
        self.control = control
        self._lock = threading.RLock()
        self._files: list[UpdateFile] = []
        self._by_id: dict[str, UpdateFile] = {}
        self._listed: tuple[int, int] | None = None
        self._models: OrderedDict[Path, Recorded] = OrderedDict()
        self._summaries: dict[Path, tuple[int, UpdateSummary]] = {}

    def newest(self) -> str | None:
        """Id of the newest update; `None` before the first one."""
        with self._lock:
            self._list()
            return self._files[-1].update_id if self._files else None

    def has(self, update: str) -> bool:
        """Whether there is an update with this id, or `latest`, which may still come."""
        with self._lock:
            self._list()
            return update == LATEST or update in self._by_id

    def count(self) -> int:
        """How many updates are recorded."""
        with self._lock:
            self._list()
            return len(self._files)

    def recorded(self, update: str) -> Recorded | None:
        """The update with this id, or `latest`, brought up to date; `None` if there is none.

        The caller reads the model under `lock`.
        """
        with self._lock:
            self._list()
            file = self._files[-1] if update == LATEST and self._files else self._by_id.get(update)
            if file is None:
                return None
            found = self._models.get(file.path)
            if found is None:
                found = self._models[file.path] = Recorded(file)
            self._models.move_to_end(file.path)
            while len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
            found.refresh()
            return found

    @property
    def lock(self) -> threading.RLock:
        """Held while a model is read."""
        return self._lock

    def is_writer_gone(self, update: str) -> bool:
        """Whether the process of an update is known to be gone; only this machine's are known."""
        writer = writer_of(self.directory)
        if writer is None or writer[0] != update:
            return False
        try:
            os.kill(writer[1], 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def has_broken_off(self, recorded: Recorded) -> bool:
        """Whether an update ended without a word, as far as that is known."""
        if recorded.model.view().has_ended:
            return False
        update = recorded.file.update_id
        return self.newest() != update or self.is_writer_gone(update)

    def history(self, *, before: int | None = None, limit: int = 50) -> list[UpdateSummary]:
        """Updates, newest first.

        Args:
            before: Only those at positions below this one, counted from the oldest; all if `None`.
            limit: How many at most.
        """
        with self._lock:
            self._list()
            end = len(self._files) if before is None else max(0, min(before, len(self._files)))
            files = self._files[max(0, end - limit) : end]
            return [self._with_life(self._summary(file)) for file in reversed(files)]

    def _with_life(self, summary: UpdateSummary) -> UpdateSummary:
        if summary.is_over:
            return summary
        is_newest = summary.update_id == self._files[-1].update_id
        is_gone = not is_newest or self.is_writer_gone(summary.update_id)
        return replace(summary, is_gone=is_gone)

    def _list(self) -> None:
        """List the folder again if something was added to it or taken away."""
        try:
            status = self.directory.stat()
        except OSError:
            self._files, self._by_id, self._listed = [], {}, None
            return
        # The clock of a file system is coarse: what came a moment ago may not be all.
        is_settled = time.time() - status.st_mtime > _SETTLED_SECONDS
        seen = (status.st_mtime_ns, status.st_ino)
        if seen == self._listed:
            return
        self._files = updates(self.directory)
        self._by_id = {file.update_id: file for file in self._files}
        self._listed = seen if is_settled else None

    def _summary(self, file: UpdateFile) -> UpdateSummary:
        try:
            size = file.path.stat().st_size
        except OSError:
            size = 0
        known = self._summaries.get(file.path)
        if known is not None and known[0] == size:
            return known[1]
        summary = _summary_of(file)
        self._summaries[file.path] = (size, summary)
        return summary


def _summary_of(file: UpdateFile) -> UpdateSummary:
    """From the first events of a file and its last ones, however long it is."""
    first, last = _ends_of(file.path)
    events = [*first, *last]
    pipeline = next(
        (event.origin.pipeline_name for event in first if event.origin.pipeline_name), ""
    )
    options = next(
        (
            event.body.properties
            for event in reversed(first)
            if isinstance(event.body, CreateUpdate)
        ),
        {},
    )
    change = next(
        (event for event in reversed(events) if isinstance(event.body, UpdateProgress)), None
    )
    body = change.body if change is not None else None
    state = body.state if isinstance(body, UpdateProgress) else None
    is_over = state in TERMINAL_STATES
    ending = change if is_over else next(reversed(events), None)
    return UpdateSummary(
        update_id=file.update_id,
        pipeline_name=pipeline,
        started=_millis(file.started),
        ended=_millis(ending.timestamp) if ending is not None else None,
        state=state.value if state is not None else "",
        is_over=is_over,
        continuous=bool(options.get("continuous")),
        full_refresh=bool(options.get("full_refresh") or options.get("full_refresh_selection")),
        error=error_view(change.error) if change is not None else None,
        message=change.message if change is not None else "",
    )


def _ends_of(path: Path) -> tuple[list[Event], list[Event]]:
    try:
        with path.open("rb") as file:
            head = file.read(_TAIL)
            size = os.fstat(file.fileno()).st_size  # it may be another file by now
            file.seek(max(len(head), size - _TAIL))
            tail = file.read(_TAIL)
    except OSError:
        return [], []
    return _events(head.split(b"\n")), _events(tail.split(b"\n"))


def _events(lines: list[bytes]) -> list[Event]:
    wanted = (b'"create_update"', b'"update_progress"')
    chosen = [
        line for at, line in enumerate(lines) if at < 2 or any(word in line for word in wanted)
    ]
    if lines and (ending := next((line for line in reversed(lines) if line), None)):
        chosen.append(ending)
    found = (event_of_line(masked(line)) for line in chosen if line)
    return [event for event in found if event is not None]


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
