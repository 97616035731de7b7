"""Bounds the size of the event log: old events are rolled up and later deleted.

The holder of the pipeline's lease does this on a background thread, for finished updates and the
running one. Each change is a single rename or removal, so a crash leaves a consistent log.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock._model.pipeline import EventLogSettings
from penstock._observe.compaction import Pace, Stopped, survey, write
from penstock._observe.log import (
    LAST_BATCHES,
    MEGABYTE,
    SEGMENTS,
    EventLog,
    RecordedBatch,
    commit_of_line,
    kept_batches,
)
from penstock._observe.segments import QUERIED, Segment, UpdateLog, updates

_DAY = 86400.0
_NICENESS = 19
_LOOK_SECONDS = 10.0
_PUBLISHED_SECONDS = 0.2
_QUERY_SECONDS = 3600.0

_logger = logging.getLogger(__name__)


def lower_priority() -> None:
    """Give the current thread the lowest priority if the system supports thread priorities."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class Retention:
    """Cleans up an event log on a background thread while an update runs.

    `log` and `own` are the event log and the id of this update, whose size is checked every
    `look_seconds`. Nothing is changed before `start`.
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
        self.published: float = math.inf
        """Number of the first segment of this update that may have events that are not in the
        tables of events yet. Such segments are not cleaned up; 0 includes earlier updates."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)

    def start(self) -> None:
        """Start the cleanup; the caller holds all leases of the pipeline."""
        self._thread.start()

    def close(self) -> None:
        """Stop soon, also if it was not started; the next update continues the cleanup."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        lower_priority()
        directory, settings = self._log.directory, self._settings
        while not self.published:
            if self._stop.wait(_PUBLISHED_SECONDS):
                return
        try:
            clean(directory, settings, own=self._own, now=time.time(), stop=self._stop)
        except OSError as error:
            _logger.warning("the event log in %s could not be cleaned up: %s", directory, error)
        has_failed = False
        while not self._stop.wait(self._look_seconds):
            update = self._log.update
            try:
                if update is not None:
                    now = time.time()
                    roll_up(
                        update.listed(),
                        settings,
                        now=now,
                        is_over=False,
                        stop=self._stop,
                        published=self.published,
                    )
            except OSError as error:
                if not has_failed:
                    _logger.warning("the event log %s stays large: %s", self._log.path, error)
                has_failed = True


def clean(
    directory: Path,
    settings: EventLogSettings,
    *,
    own: str,
    now: float,
    stop: threading.Event | None = None,
) -> None:
    """Delete events and logs of Spark older than their retention; roll up what is old or large.

    `own` is the id of the running update, which is not changed; set `stop` to end early.
    """
    stop = stop if stop is not None else threading.Event()
    shutil.rmtree(directory / ".held", ignore_errors=True)  # of earlier versions
    for leftover in directory.glob(".*.draft"):
        leftover.unlink(missing_ok=True)
    is_old = settings.keep_days is not None
    oldest = now - (settings.keep_days or 0) * _DAY
    for log in (directory.parent / "logs").glob("*.log") if is_old else ():
        with contextlib.suppress(FileNotFoundError):
            if log.stem != f"spark-{own}" and log.stat().st_mtime < oldest:
                log.unlink()
    for update in updates(directory):
        if stop.is_set():
            return
        if update.update_id == own:
            continue
        # An update is deleted only if all earlier ones are old as well.
        is_old = is_old and _modified(update) < oldest
        if is_old:
            with contextlib.suppress(Stopped):
                _remove(update, Pace(stop))
        else:
            roll_up(update, settings, now=now, is_over=True, stop=stop)


def roll_up(
    update: UpdateLog,
    settings: EventLogSettings,
    *,
    now: float,
    is_over: bool,
    stop: threading.Event,
    published: float = math.inf,
) -> bool:
    """Replace segments by a roll-up if due, and delete the segments that it replaces.

    `is_over` means that the newest segment is complete; set `stop` to end early. Segments from the
    number `published` on are kept. Returns whether segments were replaced; after an `OSError` the
    log is unchanged.
    """
    segments = update.segments()
    count = due([_size_of(segment) for segment in segments], settings, now=now, is_over=is_over)
    if count and segments[count - 1].last >= published:
        count = 0
    if count:
        try:
            _publish(update, count, Pace(stop))
        except Stopped:
            return False
        update = update.listed()
    _delete_replaced(update, now)
    return bool(count)


class SegmentSize(NamedTuple):
    """Size of a segment and time of its last event, which determine whether it is rolled up."""

    size: int
    modified: float
    is_roll_up: bool


def due(
    segments: Sequence[SegmentSize], settings: EventLogSettings, *, now: float, is_over: bool
) -> int:
    """Number of the oldest segments to replace by a roll-up now.

    These are the segments that are too old and, if the log is too large, the oldest ones until half
    of the maximum size is left. An existing roll-up is merged into the next one, unless the new
    segments are too small to justify reading it again.
    """
    first = int(bool(segments) and segments[0].is_roll_up)
    count, end = first, len(segments) - (not is_over)
    if settings.keep_progress_days is not None:
        oldest = now - settings.keep_progress_days * _DAY
        while count < end and segments[count].modified < oldest:
            count += 1
    if settings.max_progress_mb is not None:
        most = settings.max_progress_mb * MEGABYTE
        size = sum(segment.size for segment in segments[count:])
        if size > most * (1 - 1 / SEGMENTS):
            # The newest segment is always kept; in logs of earlier versions it is the whole log.
            while size > most / 2 and count < len(segments) - 1:
                size -= segments[count].size
                count += 1
    gain = sum(segment.size for segment in segments[first:count])
    # A finished update is rolled up once: a single file is not rolled up again.
    is_worth = count == len(segments) or gain * 4 >= sum(each.size for each in segments[:first])
    return count if count > first and is_worth else 0


def _size_of(segment: Segment) -> SegmentSize:
    status = segment.path.stat()
    return SegmentSize(status.st_size, status.st_mtime, segment.is_roll_up)


def _publish(update: UpdateLog, count: int, pace: Pace) -> None:
    """Write the roll-up of the oldest segments, with the time of their last event as its mtime."""
    segments = update.segments()
    old = segments[:count]
    path = update.path(old[0].first, old[-1].last)
    draft = path.with_name(f".{path.name}.draft")
    surveyed = survey(_lines(segments), pace=pace)
    status = old[-1].path.stat()
    try:
        with draft.open("wb") as out:
            write(_lines(old), out, surveyed, pace=pace)
            out.flush()
            os.fsync(out.fileno())
        os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
        draft.chmod(status.st_mode)
        draft.replace(path)
    finally:
        # Removes the temporary file on any exception; only a kill leaves it.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    # fsync of the folder: the new name is durable before the segments are deleted.
    folder = os.open(update.directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _lines(segments: list[Segment]) -> Iterator[bytes]:
    for segment in segments:
        with segment.path.open("rb") as file:
            for line in file:
                # The last line of a segment is truncated if its writer was killed.
                yield line if line.endswith(b"\n") else line + b"\n"


def _delete_replaced(update: UpdateLog, now: float) -> None:
    """Delete the segments that a roll-up replaces, except those that a query may still read."""
    segments = update.segments()
    for replaced in update.replaced():
        with contextlib.suppress(FileNotFoundError):
            queried = (update.directory / QUERIED).stat().st_mtime
            # Queries planned after that time read the roll-up.
            published = segments[0].path.stat().st_ctime
            if min(queried, published) > now - _QUERY_SECONDS:
                continue
        replaced.path.unlink(missing_ok=True)


def _modified(update: UpdateLog) -> float:
    return max((_size_of(segment).modified for segment in update.segments()), default=0.0)


def _remove(update: UpdateLog, pace: Pace) -> None:
    """Delete an update, after recording the last batches that later updates need."""
    batches: dict[str, RecordedBatch] = {}
    for line in update.lines():
        pace()
        if (commit := commit_of_line(line)) is not None:
            batches[commit[0]] = commit[1]
    if batches:
        path = update.directory / LAST_BATCHES
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(json.dumps({**kept_batches(update.directory), **batches}), "utf-8")
        draft.replace(path)
    # The newest segment is deleted last: after a kill, the rest still has the age of the update.
    for segment in update.files:
        segment.path.unlink(missing_ok=True)
