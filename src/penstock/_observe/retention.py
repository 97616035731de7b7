"""Keeps the event log from growing without end: old updates get smaller, and then go away.

Only files of updates that are over are touched, by the holder of the pipeline's lease. Each change
is one rename or one removal, so a kill at any moment leaves a log that is whole.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock._model.pipeline import EventLogSettings
from penstock._observe.log import (
    LAST_BATCHES,
    RecordedBatch,
    UpdateFile,
    commit_of_line,
    kept_batches,
    updates,
)

_COMPACTED = ".compacted"
_DAY = 86400.0
_NICENESS = 19
_FLOW = re.compile(rb'"flow_name":("(?:[^"\\]|\\.)*")')
_PROGRESS = re.compile(rb'"event_type":"(stream_progress|lag_progress)"\}$')

_logger = logging.getLogger(__name__)


class Retention:
    """Cleans an event log up on a thread of its own while an update goes on.

    Args:
        directory: Of the event log.
        settings: What to keep.
        own: Update id whose file is being written.
    """

    def __init__(self, directory: Path, settings: EventLogSettings, own: str) -> None:
        self._arguments = (directory, settings, own)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop soon; what is not done is done with the next update."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            # Linux: of this thread only.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        directory, settings, own = self._arguments
        try:
            clean(directory, settings, own=own, now=time.time(), stop=self._stop)
        except OSError as error:
            _logger.warning("the event log in %s could not be cleaned up: %s", directory, error)


def clean(
    directory: Path,
    settings: EventLogSettings,
    *,
    own: str,
    now: float,
    stop: threading.Event | None = None,
) -> None:
    """Remove what is older than it is kept, and take Spark's progress out of what is old.

    Args:
        directory: Of the event log.
        settings: What to keep.
        own: Update id whose file is left alone.
        now: Unix time.
        stop: Set it, on any thread, to end before the next file.
    """
    for leftover in directory.glob(".*.draft"):
        leftover.unlink(missing_ok=True)
    files = [file for file in updates(directory) if file.update_id != own]
    if settings.keep_days is not None:
        for file in _older(files, now - settings.keep_days * _DAY):
            if stop is not None and stop.is_set():
                return
            _remove(directory, file)
    if settings.keep_progress_days is not None:
        done = _read(directory / _COMPACTED)
        for file in _older(files, now - settings.keep_progress_days * _DAY):
            if stop is not None and stop.is_set():
                return
            if file.path.name > done and file.path.exists():
                compact(file.path)
                _write(directory / _COMPACTED, file.path.name)


def _older(files: list[UpdateFile], moment: float) -> Iterator[UpdateFile]:
    """The oldest updates, as long as their last event was before a moment."""
    for file in files:
        try:
            if file.path.stat().st_mtime >= moment:
                return
        except FileNotFoundError:
            continue
        yield file


def compact(path: Path) -> None:
    """Take the measurements of single batches out of a file; the last ones of each flow stay.

    What the update did, its counts, errors and definitions, is in other events. The time of the
    file stays that of its last event.
    """
    last: dict[tuple[bytes, bytes], int] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            if (key := _progress_of(line)) is not None:
                last[key] = number
    kept = set(last.values())
    draft = path.with_name(f".{path.name}.draft")
    status = path.stat()
    with path.open("rb") as lines, draft.open("wb") as out:
        for number, line in enumerate(lines):
            if number in kept or _progress_of(line) is None:
                out.write(line)
        out.flush()
        os.fsync(out.fileno())
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    draft.chmod(status.st_mode)
    draft.replace(path)


def _progress_of(line: bytes) -> tuple[bytes, bytes] | None:
    """Type and flow of a measurement."""
    found = _PROGRESS.search(line.rstrip())
    if found is None:
        return None
    flow = _FLOW.search(line)
    return found[1], flow[1] if flow is not None else b""


def _remove(directory: Path, file: UpdateFile) -> None:
    """Remove an update, but not what the next one must know of it: its last batches."""
    found: dict[str, RecordedBatch] = {}
    with file.path.open("rb") as lines:
        for line in lines:
            if (commit := commit_of_line(line)) is not None:
                found[commit[0]] = commit[1]
    if found:
        known = {**kept_batches(directory), **found}
        _write(directory / LAST_BATCHES, json.dumps(known))
    file.path.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
