"""The event log: every event as one line of JSON, one file per update, and its readers.

Only the local file system is touched. Where the tables live in an object store, the log stays on
the machine that runs the driver; `event_directory` decides.
"""

import contextlib
import json
import os
import re
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock._model.pipeline import PipelineSettings
from penstock._observe.codec import dump, encode, event_json, event_of_line
from penstock._observe.events import TERMINAL_STATES, Event, FlowProgress, Level, UpdateProgress

LATEST = "latest"

LAST_BATCHES = ".last_batches"
"""In the folder of the log: the newest micro-batches of updates that were removed from it."""

_UPDATE_PROGRESS = f'"event_type":"{UpdateProgress.event_type}"'.encode()
_SUFFIX = ".jsonl"
_STARTED = "%Y%m%dT%H%M%S%fZ"
_POLL_SECONDS = 0.25
_BLOCK = 1 << 20
_PLACE = re.compile(rb'"data_plane_id":\{"instance":"([^"]*)","seq_no":(\d+)\}')
_PLACE_WITHIN = 400
_SEVERITY = {Level.INFO.value: 0, Level.WARN.value: 1, Level.ERROR.value: 2}


def event_directory(settings: PipelineSettings) -> Path:
    """Where the events of a pipeline are written and read.

    `events` below the storage root when that is on this machine, else `.penstock/events` below
    the project.
    """
    scheme, colon, rest = settings.storage.partition(":")
    if not colon or "/" in scheme:
        return Path(settings.storage) / "events"
    if scheme.lower() == "file":
        # Storage URIs are as Hadoop reads them: nothing in them is percent-encoded.
        return Path("/" + rest.lstrip("/")) / "events"
    return Path(settings.root) / ".penstock" / "events"


class EventLog:
    """Appends the events of one update to a file of its own. Subscribe it to the bus.

    The file `<UTC start time>-<update_id>.jsonl` is made by the first event. Each event is with
    the operating system before the call returns, so it can be read at once and survives a
    `kill -9` of this process; the loss of power may take the newest ones. A line that could be
    written only in part (a full disk) does not spoil the next one. Any thread may call.

    Attributes:
        directory: The folder of the pipeline's event log; made when it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._instance = str(uuid.uuid4())
        self._seq_no = 0
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._closed = False
        self._torn = False
        self._lock = threading.Lock()

    @property
    def path(self) -> Path | None:
        """The file, once there was an event."""
        return self._path

    def __call__(self, event: Event) -> None:
        """Append one event.

        Raises:
            OSError: The event could not be written; later ones are tried again.
        """
        with self._lock:
            if self._closed:
                return
            file = self._file or self._open(event)
            line = encode(event_json(event, instance=self._instance, seq_no=self._seq_no)) + b"\n"
            if self._torn:
                line = b"\n" + line
            self._torn = True
            try:
                written = file.write(line)
            except OSError as error:
                error.filename = str(self._path)  # the system names files only when it opens them
                raise
            if written != len(line):
                raise OSError(f"the event log {self._path} took only {written} bytes of a line")
            self._torn = False
            self._seq_no += 1

    def replace(self, draft: Path, copied: int) -> bool:
        """Go on in a draft that has the older events in fewer bytes, under the name of the file.

        Events wait while what came meanwhile is copied: a reader has all of them, in the old file
        or in the new one. After a failure the old file goes on.

        Args:
            draft: In the same folder.
            copied: So many bytes of the file are in it; the rest follows.

        Returns:
            Whether it was done: not after the end, nor before the first event.

        Raises:
            OSError: It could not be copied or renamed.
        """
        with self._lock:
            if self._closed or self._path is None or self._file is None:
                return False
            out = draft.open("ab", buffering=0)
            try:
                copy_bytes(self._path, out, copied)
                draft.replace(self._path)
            except BaseException:
                out.close()
                raise
            old, self._file = self._file, out
        # That may take long: the last one to close a file that has no name frees its blocks.
        with contextlib.suppress(OSError):
            old.close()
        return True

    def close(self) -> None:
        """Close the file; later events are ignored. May be called again."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def _open(self, event: Event) -> BinaryIO:
        self.directory.mkdir(parents=True, exist_ok=True)
        started = event.timestamp.astimezone(UTC).strftime(_STARTED)
        update_id = event.origin.update_id or self._instance
        self._path = self.directory / f"{started}-{update_id}{_SUFFIX}"
        self._file = self._path.open("ab", buffering=0)
        return self._file


def copy_bytes(path: Path, out: BinaryIO, start: int) -> int:
    """Copy a file from an offset to its present end; how far that is."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while block := file.read(_BLOCK):
            start += len(block)
            rest = memoryview(block)
            while rest:
                # A file without a buffer may take less than it is given.
                rest = rest[out.write(rest) :]
    return start


@dataclass(frozen=True, kw_only=True)
class UpdateFile:
    """The recorded events of one update."""

    update_id: str
    started: datetime
    path: Path


class RecordedBatch(NamedTuple):
    """A micro-batch in the event log, and the version of the table that it made."""

    batch_id: int
    table_version: int


def updates(directory: Path) -> list[UpdateFile]:
    """All recorded updates, oldest first. A missing folder has none."""
    found = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        started, _, update_id = path.name.removesuffix(_SUFFIX).partition("-")
        try:
            moment = datetime.strptime(started, _STARTED).replace(tzinfo=UTC)
        except ValueError:
            continue
        found.append(UpdateFile(update_id=update_id, started=moment, path=path))
    return found


def select_updates(directory: Path, update: str | None) -> list[UpdateFile]:
    """The recorded updates that an id, the beginning of one, `latest` or `None` (all) means."""
    found = updates(directory)
    if update is None:
        return found
    if update == LATEST:
        return found[-1:]
    exact = [file for file in found if file.update_id == update]
    return exact or [file for file in found if file.update_id.startswith(update)]


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Which events a reader wants; an unset field wants all.

    Attributes:
        event_type: `flow_progress`, ...
        dataset: Name of a dataset or sink, any case; a bare name fits any catalog and schema.
        level: INFO, WARN and ERROR include what is more severe; METRICS means METRICS only.
    """

    event_type: str | None = None
    dataset: str | None = None
    level: str | None = None

    def accepts(self, event: dict[str, Any]) -> bool:
        """Whether the event is wanted."""
        if self.event_type is not None and event.get("event_type") != self.event_type:
            return False
        if self.dataset is not None:
            wanted = self.dataset.lower()
            origin = event.get("origin", {})
            names = [origin.get(key, "").lower() for key in ("dataset_name", "sink_name")]
            if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
                return False
        if self.level is not None:
            wanted_level = self.level.upper()
            level = event.get("level", "")
            if wanted_level not in _SEVERITY:
                return bool(level == wanted_level)
            return _SEVERITY.get(level, -1) >= _SEVERITY[wanted_level]
        return True


def read_events(
    directory: Path,
    *,
    update: str | None = None,
    event_type: str | None = None,
    dataset: str | None = None,
    level: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Recorded events in the order in which they happened; may be read while an update runs.

    A line that a crash cut short is left out.

    Args:
        directory: The folder of the event log.
        update: Id of an update or its beginning, or `latest`; all updates when `None`.
        event_type: See `EventFilter`.
        dataset: See `EventFilter`.
        level: See `EventFilter`.
    """
    wanted = EventFilter(event_type=event_type, dataset=dataset, level=level)
    for file in select_updates(directory, update):
        # One that was removed since it was listed has no events any more.
        with contextlib.suppress(FileNotFoundError), file.path.open("rb") as lines:
            for line in lines:
                event = _decode(line)
                if event is not None and wanted.accepts(event):
                    yield event


def follow(
    directory: Path,
    *,
    update: str | None = None,
    event_type: str | None = None,
    dataset: str | None = None,
    level: str | None = None,
    stop: threading.Event | None = None,
) -> Iterator[dict[str, Any]]:
    """Recorded events, then new ones as they are written.

    With the id of an update it ends after the update's last event; otherwise it begins with the
    newest update, goes on to later ones and ends only when stopped.

    Args:
        directory: The folder of the event log; it need not be there yet.
        update: Id of an update or its beginning; `latest` and `None` follow the newest ones.
        event_type: See `EventFilter`.
        dataset: See `EventFilter`.
        level: See `EventFilter`.
        stop: Set it, on any thread, to end within a quarter of a second.
    """
    wanted = EventFilter(event_type=event_type, dataset=dataset, level=level)
    stop = stop if stop is not None else threading.Event()
    endless = update is None or update == LATEST
    last_path: Path | None = None
    while not stop.is_set():
        files = select_updates(directory, LATEST if endless and last_path is None else update)
        if endless and last_path is not None:
            files = [file for file in updates(directory) if file.path > last_path]
        if not files:
            stop.wait(_POLL_SECONDS)
            continue
        last_path = files[0].path
        for event in _tail(directory, last_path, stop, endless=endless):
            if wanted.accepts(event):
                yield event
        if not endless:
            return


def _tail(
    directory: Path, path: Path, stop: threading.Event, *, endless: bool
) -> Iterator[dict[str, Any]]:
    """Events of a file until its update has ended, or a newer one began (`endless`)."""
    seen: dict[bytes, int] = {}
    told: dict[bytes, int] = {}
    with contextlib.ExitStack() as files:
        file = files.enter_context(path.open("rb"))
        while True:
            # Asked before the read: whatever was written until then is still read below.
            superseded = endless and any(newer.path > path for newer in updates(directory))
            is_replaced = _is_replaced(path, file)
            for line in _whole_lines(file):
                place = place_of_line(line)
                if place is not None:
                    if place.seq_no <= told.get(place.instance, -1):
                        continue
                    seen[place.instance] = place.seq_no
                event = _decode(line)
                if event is None:
                    continue
                yield event
                progress = event.get("details", {}).get("update_progress", {})
                if progress.get("state") in TERMINAL_STATES:
                    return
            if is_replaced:
                # Read to its end, to which nobody adds any more: the rest is in the new file.
                told = dict(seen)
                files.close()
                file = files.enter_context(path.open("rb"))
            elif superseded or stop.wait(_POLL_SECONDS):
                return


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines from where the file is to its end; what has no end yet is there the next time."""
    for line in file:
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


class Place(NamedTuple):
    """Where an event is among those of its writer."""

    instance: bytes
    seq_no: int


def place_of_line(line: bytes) -> Place | None:
    """Where the event of a line is; `None` if that is not where it should be."""
    found = _PLACE.search(line, 0, _PLACE_WITHIN)
    return Place(found[1], int(found[2])) if found is not None else None


class LineAt(NamedTuple):
    """Where the line of an event is in a file; `end` is after its line break."""

    place: Place
    start: int
    end: int


def last_seen_line(file: BinaryIO, seen: Place) -> LineAt | None:
    """After which line a reader of a rewritten file goes on, if it has seen all up to a place.

    `None` if what follows may stand for events that the reader has seen, too.
    """
    end = file.seek(0, os.SEEK_END)
    for line in _lines_backwards(file):
        place = place_of_line(line)
        if place is not None and place.instance == seen.instance and place.seq_no <= seen.seq_no:
            return LineAt(place, end - len(line), end + 1)
        if b'"rolled_up":{' in line:
            return None
        end -= len(line) + 1
    return None


def last_batch(directory: Path, flow: str) -> RecordedBatch | None:
    """The newest recorded micro-batch of a flow that made a table version, or `None`.

    A full refresh starts batch ids over and makes another table; what was recorded before it is
    still found here until the first batch after it.

    Reads from the end of the newest file backwards, so that the size of the log does not matter
    for a flow that ran lately.
    """
    needle = f'"flow_name":{dump(flow)}'.encode("utf-8", "backslashreplace")
    for file in reversed(updates(directory)):
        # One that is removed meanwhile has left its last batches behind before.
        with contextlib.suppress(FileNotFoundError), file.path.open("rb") as lines:
            for line in _lines_backwards(lines):
                if needle in line and (commit := commit_of_line(line)) is not None:
                    name, batch = commit
                    if name == flow:
                        return batch
    return kept_batches(directory).get(flow)


def commit_of_line(line: bytes) -> tuple[str, RecordedBatch] | None:
    """The flow and micro-batch of a line that tells of a commit; `None` for any other line."""
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
    """The newest micro-batches, by flow, of updates that were removed from the log."""
    try:
        text = (directory / LAST_BATCHES).read_text(encoding="utf-8")
        return {flow: RecordedBatch(*batch) for flow, batch in json.loads(text).items()}
    except FileNotFoundError:
        return {}


def last_progress(file: UpdateFile) -> Event | None:
    """The newest `update_progress` event of an update, read from the end of its file."""
    with file.path.open("rb") as lines:
        for line in _lines_backwards(lines):
            if _UPDATE_PROGRESS in line:
                event = event_of_line(line)
                if event is not None and event.event_type == UpdateProgress.event_type:
                    return event
    return None


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, last one first: that is what follows the last line break."""
    position = file.seek(0, os.SEEK_END)
    pieces: deque[bytes] = deque()  # the beginning-less line that continues to the left
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


def _decode(line: bytes) -> dict[str, Any] | None:
    """The event of a line; `None` for an empty or torn one."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
