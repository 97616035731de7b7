"""The event log: every event as one line of JSON, and its readers.

Only the local file system is used. If the tables are in an object store, the log is in a local
folder (`event_directory`), and `_project.event_store` copies it.
"""

import contextlib
import json
import math
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock._model.name import path_segment, plain_name
from penstock._model.paths import local_path, storage_key
from penstock._model.pipeline import PIPELINES, EventLogSettings, PipelineSettings
from penstock._observe.codec import (
    dump,
    encode,
    event_json,
    event_of,
    event_of_line,
    object_of_line,
)
from penstock._observe.events import TERMINAL_STATES, Event, FlowProgress, Level, UpdateProgress
from penstock._observe.segments import (
    LATEST,
    STARTED,
    UpdateLog,
    created_with,
    select_updates,
    updates,
)

LAST_BATCHES = ".last_batches"
"""File in the folder of the log with the newest micro-batches of deleted updates."""

MEGABYTE = 1 << 20
SEGMENTS = 8
"""A segment is limited to 1/`SEGMENTS` of the retained size and age of an update."""

_COPIED_SEGMENT = 256 << 10
_UPDATE_PROGRESS = f'"event_type":"{UpdateProgress.event_type}"'.encode()
_POLL_SECONDS = 0.25
_LATE_POLLS = 8  # for reports after the end of an update
_BLOCK = 1 << 20
_SEVERITY = {Level.INFO.value: 0, Level.WARN.value: 1, Level.ERROR.value: 2}


def event_directory(settings: PipelineSettings) -> Path:
    """The folder of the event log of a pipeline.

    It is below the storage root if that is local, otherwise in a folder per storage below the local
    folder of the settings. A log of an earlier version, which storages shared, continues to be used
    by the storage of its newest update.
    """
    home = local_path(settings.home)
    if home is not None:
        return home / "events"
    key = storage_key(settings.home)
    directory = Path(settings.local_folder, key, "events")
    own = (PIPELINES, path_segment(settings.name)) if settings.shared_storage else ()
    earlier = Path(settings.local_folder, *own, "events")
    if not directory.exists() and earlier.exists():
        storages = (created_with(log).get("storage") for log in reversed(updates(earlier)))
        # Updates of a local storage do not count: their log remains in this folder.
        remote = (each for each in storages if each and local_path(each) is None)
        if storage_key(next(remote, "")) == storage_key(settings.storage):
            return earlier
    return directory


def event_log(settings: PipelineSettings) -> "EventLog":
    """The log that an update of a pipeline writes.

    If it is copied to an object store, its segments are small because they are uploaded as a whole.
    """
    largest = _COPIED_SEGMENT if local_path(settings.home) is None else math.inf
    return EventLog(event_directory(settings), settings.events, segment_bytes=largest)


class EventLog:
    """Appends the events of one update to its own segments. Subscribe it to the bus.

    The first event creates the first segment; a new one is created when the newest is large or old
    enough (`keep`). Each event is passed to the operating system before the call returns, so it can
    be read at once and survives a `kill -9` of this process; a power loss may lose the newest
    events. A partially written line (full disk) does not corrupt the next one. Thread-safe.
    """

    def __init__(
        self,
        directory: Path,
        keep: EventLogSettings | None = None,
        *,
        segment_bytes: float = math.inf,
    ) -> None:
        keep = keep or EventLogSettings()
        self.directory = directory
        self.update: UpdateLog | None = None
        self._days = keep.keep_progress_days
        self._most = segment_bytes
        if keep.max_progress_mb is not None:
            self._most = min(self._most, keep.max_progress_mb * MEGABYTE / SEGMENTS)
        self._instance = str(uuid.uuid4())
        self._seq_no = 0
        self._file: BinaryIO | None = None
        self._segment = 0
        self._size = 0
        self._began = datetime.min.replace(tzinfo=UTC)
        self._closed = False
        self._torn = False
        self._lock = threading.Lock()

    @property
    def path(self) -> Path | None:
        return self.update.path(self._segment) if self.update is not None else None

    def __call__(self, event: Event) -> None:
        """Append one event; an `OSError` does not prevent later events from being written."""
        with self._lock:
            if self._closed:
                return
            file = self._file
            if file is None or self._is_full(event):
                file = self._next(event)
            line = encode(event_json(event, instance=self._instance, seq_no=self._seq_no)) + b"\n"
            if self._torn:
                line = b"\n" + line
            self._torn = True
            try:
                written = file.write(line)
            except OSError as error:
                error.filename = str(self.path)  # only errors of `open` contain the name
                raise
            if written != len(line):
                raise OSError(f"the event log {self.path} took only {written} bytes of a line")
            self._torn = False
            self._seq_no += 1
            self._size += len(line)

    def close(self) -> None:
        """Close the file; later events are ignored. Idempotent."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def _is_full(self, event: Event) -> bool:
        if self._size >= self._most:
            return True
        age = event.timestamp - self._began
        return self._days is not None and age >= timedelta(days=self._days) / SEGMENTS

    def _next(self, event: Event) -> BinaryIO:
        if self.update is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            started = event.timestamp.astimezone(UTC)
            for earlier in updates(self.directory)[-1:]:
                # If the clock was set back: names must sort in the order of the updates.
                if earlier.started > started:
                    started = earlier.started + timedelta(microseconds=1)
            update_id = event.origin.update_id or self._instance
            self.update = UpdateLog(
                update_id=update_id,
                started=started,
                directory=self.directory,
                name=f"{started.strftime(STARTED)}-{update_id}",
            )
        try:
            file = self.update.path(self._segment + 1).open("ab", buffering=0)
        except OSError:
            if self._file is None:
                raise
            return self._file
        if self._file is not None:
            self._file.close()
        self._file, self._segment = file, self._segment + 1
        self._size, self._began, self._torn = 0, event.timestamp, False
        return file


class RecordedBatch(NamedTuple):
    """A micro-batch in the event log, and the table version that it committed."""

    batch_id: int
    table_version: int


def _accepts(
    event: dict[str, Any],
    *,
    event_type: str | None = None,
    dataset: str | None = None,
    level: str | None = None,
) -> bool:
    if event_type is not None and event.get("event_type") != event_type:
        return False
    if dataset is not None:
        wanted = plain_name(dataset)
        origin = event.get("origin", {})
        names = [plain_name(origin.get(key, "")) for key in ("dataset_name", "sink_name")]
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            return False
    if level is not None:
        wanted_level, severity = level.upper(), event.get("level", "")
        if wanted_level not in _SEVERITY:
            return bool(severity == wanted_level)
        return _SEVERITY.get(severity, -1) >= _SEVERITY[wanted_level]
    return True


def read_events(
    directory: Path, *, update: str | None = None, **wanted: str | None
) -> Iterator[dict[str, Any]]:
    """Recorded events as JSON values, in order; truncated lines are skipped.

    They can be read while an update runs. `update` is `latest`, an id or a prefix of one; `None`
    means all. `wanted` are `event_type`, `level` (INFO, WARN and ERROR include higher severities,
    METRICS does not) and `dataset`: a dataset or sink, where a bare name matches any catalog and
    schema.
    """
    for recorded in select_updates(directory, update):
        with contextlib.suppress(FileNotFoundError):
            for line in recorded.lines():
                event = object_of_line(line)
                if event is not None and _accepts(event, **wanted):
                    yield event


def recorded_events(directory: Path, update: str | None, **wanted: str | None) -> Iterator[Event]:
    """Recorded events without unreadable lines; arguments as for `read_events`."""
    for body in read_events(directory, update=update, **wanted):
        if (event := event_of(body)) is not None:
            yield event


def follow(
    directory: Path,
    *,
    update: str | None = None,
    stop: threading.Event | None = None,
    **wanted: str | None,
) -> Iterator[dict[str, Any]]:
    """The JSON form of recorded events, then of new events as they are written.

    With an update id it ends after the last events of this update; otherwise it starts with the
    newest update, continues with later ones and ends only when stopped. The folder need not exist
    yet. Set `stop`, on any thread, to end within a quarter of a second.
    """
    stop = stop if stop is not None else threading.Event()
    endless = update is None or update == LATEST
    last: UpdateLog | None = None
    while not stop.is_set():
        recorded = select_updates(directory, LATEST if endless and last is None else update)
        if endless and last is not None:
            recorded = [each for each in updates(directory) if each.name > last.name]
        if not recorded:
            stop.wait(_POLL_SECONDS)
            continue
        last = recorded[0]
        for event in _tail(last, stop, endless=endless):
            if _accepts(event, **wanted):
                yield event
        if not endless:
            return


def _tail(update: UpdateLog, stop: threading.Event, *, endless: bool) -> Iterator[dict[str, Any]]:
    """Events of an update until a newer one begins (`endless`) or until it has ended.

    The end is followed by a short wait for reports of alerts, exports and hooks.
    """
    has_ended = is_last = False
    left = _LATE_POLLS

    def wait() -> bool:
        nonlocal is_last, left
        if is_last or stop.wait(_POLL_SECONDS):
            return False
        # Lines that were written before this check are still read.
        newest = updates(update.directory)[-1:]
        left -= has_ended
        is_last = any(each.name > update.name for each in newest) if endless else left <= 0
        return True

    for line in update.lines(wait):
        event = object_of_line(line)
        if event is None:
            continue
        yield event
        progress = event.get("details", {}).get("update_progress", {})
        has_ended = has_ended or progress.get("state") in TERMINAL_STATES


def last_batch(directory: Path, flow: str) -> RecordedBatch | None:
    """The newest recorded micro-batch of a flow that committed a table version, or `None`.

    A full refresh restarts batch ids and creates another table; until its first batch, earlier
    batches are still returned. Reads backwards from the newest update, so the cost does not depend
    on the size of the log for a flow that ran recently.
    """
    needle = f'"flow_name":{dump(flow)}'.encode("utf-8", "backslashreplace")
    for update in reversed(updates(directory)):
        # The last batches of an update are recorded before its files are deleted.
        with contextlib.suppress(FileNotFoundError):
            for line in _lines_backwards(update):
                if needle in line and (commit := commit_of_line(line)) is not None:
                    name, batch = commit
                    if name == flow:
                        return batch
    return kept_batches(directory).get(flow)


def commit_of_line(line: bytes) -> tuple[str, RecordedBatch] | None:
    """The flow and micro-batch of a line that reports a commit; `None` for other lines."""
    if b'"table_version"' not in line:
        return None
    event = event_of_line(line)
    if event is None or not isinstance(event.body, FlowProgress):
        return None
    origin, version = event.origin, event.body.table_version
    if origin.batch_id is None or version is None or not origin.flow_name:
        return None
    return origin.flow_name, RecordedBatch(origin.batch_id, version)


def kept_batches(directory: Path) -> dict[str, RecordedBatch]:
    """The newest micro-batches, by flow, of updates that were deleted from the log."""
    try:
        text = (directory / LAST_BATCHES).read_text(encoding="utf-8")
        return {flow: RecordedBatch(*batch) for flow, batch in json.loads(text).items()}
    except (FileNotFoundError, ValueError):  # the latter after a power loss
        return {}


def last_progress(update: UpdateLog) -> Event | None:
    """The newest `update_progress` event of an update, read from its end."""
    for line in _lines_backwards(update):
        if _UPDATE_PROGRESS in line:
            event = event_of_line(line)
            if event is not None and event.event_type == UpdateProgress.event_type:
                return event
    return None


def last_place(update: UpdateLog) -> tuple[str, int] | None:
    """Writer and number of the last event of an update; `None` if its last line is truncated."""
    for line in _lines_backwards(update):
        if line:
            return place_of(object_of_line(line))
    return None


def place_of(event: dict[str, Any] | None) -> tuple[str, int] | None:
    """The writer of a recorded event, and its number among the events of that writer."""
    try:
        place = event["sequence"]["data_plane_id"] if event is not None else None
        return None if place is None else (str(place["instance"]), int(place["seq_no"]))
    except (KeyError, TypeError, ValueError):
        return None


def _lines_backwards(update: UpdateLog) -> Iterator[bytes]:
    """The lines of an update from the end; the first is what follows the last line break."""
    with update.opened() as files:
        for _, file in reversed(files):
            position = file.seek(0, os.SEEK_END)
            pieces: deque[bytes] = deque()  # of the line whose beginning is not read yet
            while position > 0:
                size = min(_BLOCK, position)
                position -= size
                file.seek(position)
                first, *lines = file.read(size).split(b"\n")
                if lines:
                    pieces.appendleft(lines.pop())
                    yield b"".join(pieces)
                    pieces.clear()
                    yield from reversed(lines)
                pieces.appendleft(first)
            yield b"".join(pieces)
