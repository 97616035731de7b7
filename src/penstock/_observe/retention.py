"""Keeps the event log from growing without end: old events get smaller, and then go away.

That is done by the holder of the pipeline's lease, on a thread of its own, to files of updates that
are over and to that of the update that runs. Each change is one rename or one removal, so a kill at
any moment leaves a log that is whole.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from penstock._model.pipeline import EventLogSettings
from penstock._observe.compaction import Pace, Stopped, survey, write
from penstock._observe.held import release_held
from penstock._observe.log import (
    LAST_BATCHES,
    EventLog,
    RecordedBatch,
    UpdateFile,
    commit_of_line,
    copy_bytes,
    kept_batches,
    updates,
)

_COMPACTED = ".compacted"
_SIZES = ".sizes"
_DAY = 86400.0
_NICENESS = 19
_LOOK_SECONDS = 10.0
_QUIET_SECONDS = 3600.0
_MEGABYTE = 1 << 20
_SHARE = 16
_SHORT = 64 << 10
_ROUNDS = 20
_ALL = b"~"

_logger = logging.getLogger(__name__)


class Retention:
    """Cleans an event log up on a thread of its own while an update goes on.

    Args:
        log: Of the update that runs.
        settings: What to keep.
        own: Id of that update.
        look_seconds: Pause between two looks at the size of its file.
    """

    def __init__(
        self,
        log: EventLog,
        settings: EventLogSettings,
        own: str,
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._log = log
        self._settings = settings
        self._own = own
        self._look_seconds = look_seconds
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
        directory, settings = self._log.directory, self._settings
        try:
            clean(directory, settings, own=self._own, now=time.time(), stop=self._stop)
        except OSError as error:
            _logger.warning("the event log in %s could not be cleaned up: %s", directory, error)
        growth = Growth(settings, now=time.time())
        has_failed = False
        while not self._stop.wait(self._look_seconds):
            try:
                self._look(growth)
            except OSError as error:
                if not has_failed:
                    _logger.warning("the event log %s stays large: %s", self._log.path, error)
                has_failed = True

    def _look(self, growth: "Growth") -> None:
        path, now = self._log.path, time.time()
        release_held(self._log.directory, now=now)
        if path is None or not growth.is_due(path.stat().st_size, now):
            return
        try:
            compact_running(self._log, self._settings, now=now, stop=self._stop)
        except Stopped:
            return
        finally:
            # Also after a failure: another try is worth it when there is more to gain.
            growth.looked(path.stat().st_size, now)


class Growth:
    """When the file of the running update is worth another look.

    Only when it has grown by a quarter, so that all looks together cost no more than some times
    what was written; and then when that may be too much, or when days have passed.
    """

    def __init__(self, settings: EventLogSettings, *, now: float) -> None:
        self._settings = settings
        self._size = 0
        self._moment = now

    def is_due(self, size: int, now: float) -> bool:
        """Whether to look at it now."""
        added = size - self._size
        if added <= self._size / 4:
            return False
        most, days = self._settings.max_progress_mb, self._settings.keep_progress_days
        if most is not None and added >= most * _MEGABYTE / 4:
            return True
        return days is not None and now - self._moment >= min(1.0, days / 4) * _DAY

    def looked(self, size: int, now: float) -> None:
        """It was looked at."""
        self._size, self._moment = size, now


def clean(
    directory: Path,
    settings: EventLogSettings,
    *,
    own: str,
    now: float,
    stop: threading.Event | None = None,
) -> None:
    """Remove what is older than it is kept, and make smaller what is old or too large.

    Args:
        directory: Of the event log.
        settings: What to keep.
        own: Update id whose file is left alone.
        now: Unix time.
        stop: Set it, on any thread, to end early.
    """
    stop = stop if stop is not None else threading.Event()
    for leftover in directory.glob(".*.draft"):
        leftover.unlink(missing_ok=True)
    release_held(directory, now=now)
    files = [file for file in updates(directory) if file.update_id != own]
    if settings.keep_days is not None:
        for file in _older(files, now - settings.keep_days * _DAY):
            if stop.is_set():
                return
            with contextlib.suppress(Stopped):
                _remove(directory, file, Pace(stop))
    with contextlib.suppress(Stopped):
        if settings.keep_progress_days is not None:
            done = _read(directory / _COMPACTED)
            for file in _older(files, now - settings.keep_progress_days * _DAY):
                if file.path.name > done and file.path.exists():
                    compact(file.path, stop=stop)
                    _write(directory / _COMPACTED, file.path.name)
        if settings.max_progress_mb is not None:
            _compact_large(directory, files, int(settings.max_progress_mb * _MEGABYTE), now, stop)


def _compact_large(
    directory: Path, files: list[UpdateFile], most: int, now: float, stop: threading.Event
) -> None:
    """Make files of updates that are over smaller; one that stays large is not read again."""
    try:
        known = json.loads(_read(directory / _SIZES) or "{}")
    except ValueError:
        known = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            status = file.path.stat()
            # A command beside the pipeline has a file, too, that is not this update's.
            if status.st_size <= most or now - status.st_mtime < _QUIET_SECONDS:
                continue
            if known.get(file.path.name) == [status.st_size, most]:
                continue
            compact(file.path, most=most, stop=stop)
            names = {other.path.name for other in files}
            known = {name: known[name] for name in known if name in names}
            known[file.path.name] = [file.path.stat().st_size, most]
            _write(directory / _SIZES, json.dumps(known))


def _older(files: list[UpdateFile], moment: float) -> Iterator[UpdateFile]:
    """The oldest updates, as long as their last event was before a moment."""
    for file in files:
        try:
            if file.path.stat().st_mtime >= moment:
                return
        except FileNotFoundError:
            continue
        yield file


def compact(path: Path, *, most: int | None = None, stop: threading.Event | None = None) -> None:
    """Roll up the details of single batches in the file of an update that is over.

    The newest ones of each flow stay, and all that tells what the update did: states, errors,
    definitions. The time of the file stays that of its last event.

    Args:
        path: The file.
        most: So many bytes of details stay, the newest ones; `None` for none.
        stop: Set it, on any thread, to end early.

    Raises:
        Stopped: It ended early; the file is as it was.
    """
    pace = Pace(stop if stop is not None else threading.Event())
    draft = path.with_name(f".{path.name}.draft")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        before = _ALL if most is None else None
        size = status.st_size
        found = survey(file, end=size, before=before, most=most, rest=most or 0, pace=pace)
        if not found.gain:
            return
        with _drafted(draft):
            with draft.open("wb") as out:
                file.seek(0)
                write(file, out, found, pace=pace)
                copy_bytes(path, out, found.cut)
                out.flush()
                os.fsync(out.fileno())
            os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
            draft.chmod(status.st_mode)
            draft.replace(path)


def compact_running(
    log: EventLog, settings: EventLogSettings, *, now: float, stop: threading.Event
) -> bool:
    """Roll up the details of old batches in the file that a log is writing.

    Those go that are too old; and, where there are too many, the oldest ones until half of what
    may be is left. Emitters of events wait only while the last of them are copied.

    Args:
        log: Of the running update.
        settings: What to keep.
        now: Unix time.
        stop: Set it, on any thread, to end early.

    Returns:
        Whether the file was replaced; it is not where that would make it little smaller.

    Raises:
        OSError: No disk, no permission: the file is as it was.
        Stopped: It ended early; the file is as it was.
    """
    path, pace = log.path, Pace(stop)
    if path is None:
        return False
    most = rest = None
    if settings.max_progress_mb is not None:
        # Looked at when a quarter was added: so there is never more than may be.
        most = int(settings.max_progress_mb * _MEGABYTE * 3 / 4)
        rest = int(settings.max_progress_mb * _MEGABYTE / 2)
    before = None
    if settings.keep_progress_days is not None:
        oldest = datetime.fromtimestamp(now - settings.keep_progress_days * _DAY, UTC)
        before = oldest.isoformat(timespec="milliseconds").encode()
    draft = path.with_name(f".{path.name}.draft")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        end = status.st_size
        found = survey(file, end=end, before=before, most=most, rest=rest or 0, pace=pace)
        if found.gain * _SHARE < end:
            return False
        with _drafted(draft):
            with draft.open("wb") as out:
                file.seek(0)
                write(file, out, found, pace=pace)
                if (found.cut - out.tell()) * _SHARE < end:
                    return False
                copied = copy_bytes(path, out, found.cut)
                out.flush()
                os.fsync(out.fileno())
                for _ in range(_ROUNDS):
                    if stop.is_set():
                        raise Stopped
                    if path.stat().st_size - copied <= _SHORT:
                        break
                    copied = copy_bytes(path, out, copied)
            draft.chmod(status.st_mode)
            return log.replace(draft, copied)


@contextlib.contextmanager
def _drafted(draft: Path) -> Iterator[None]:
    """Leaves no draft behind, whatever happens but a kill."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _remove(directory: Path, file: UpdateFile, pace: Pace) -> None:
    """Remove an update, but not what the next one must know of it: its last batches."""
    found: dict[str, RecordedBatch] = {}
    with file.path.open("rb") as lines:
        for line in lines:
            pace()
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
