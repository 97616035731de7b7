"""The files of an event log: an update has one file or, if it is long, several segments.

`<UTC start time>-<update_id>.jsonl` is the first segment of an update, `....0002.jsonl` the second.
Only the newest is appended to. `....0001-0007.jsonl` is a roll-up: it replaces the segments in its
name, which are then deleted. No file is rewritten.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

LATEST = "latest"

QUERIED = ".queried"
"""File in the folder of the log, touched when a query is planned that reads the files later."""

STARTED = "%Y%m%dT%H%M%S%fZ"
"""Format of the time in file names."""

_FILE = re.compile(r"([^-]+-.+?)(?:\.(\d{4,})(?:-(\d{4,}))?)?\.jsonl")
_SEQUENCE = re.compile(rb'"data_plane_id":\{"instance":"([^"]*)","seq_no":(\d+)\}')
_SEQUENCE_WITHIN = 400


class Segment(NamedTuple):
    """A file with events: a single segment, or a roll-up of the segments `first` to `last`."""

    path: Path
    first: int
    last: int
    is_roll_up: bool


@dataclass(frozen=True, kw_only=True)
class UpdateLog:
    """The recorded events of one update; `name` is the prefix of the names of its files.

    Updates sort by `started`, the time in their names.
    """

    update_id: str
    started: datetime
    directory: Path
    name: str
    files: tuple[Segment, ...] = ()

    def path(self, first: int, last: int | None = None) -> Path:
        numbers = f".{first:04}" if first > 1 or last is not None else ""
        if last is not None:
            numbers += f"-{last:04}"
        return self.directory / f"{self.name}{numbers}.jsonl"

    def listed(self) -> "UpdateLog":
        """The same update with its current files."""
        return replace(self, files=_files(self.directory).get(self.name, ()))

    def segments(self, after: int = 0) -> list[Segment]:
        """Files that together contain every event exactly once, in order.

        `after` is the number of a segment that was already read. If the next one was deleted, the
        first file is a roll-up, which may contain events that were already read.
        """
        chosen, rest = list[Segment](), list(self.files)
        while rest := [segment for segment in rest if segment.last > after]:
            chosen.append(
                min(rest, key=lambda s: (s.first != after + 1, s.first, -s.last, not s.is_roll_up))
            )
            after = chosen[-1].last
        return chosen

    def replaced(self) -> list[Segment]:
        """Files that still exist although a roll-up replaces them."""
        chosen = self.segments()
        return [segment for segment in self.files if segment not in chosen]

    def is_finished(self, segment: Segment) -> bool:
        """Whether a segment is complete; call it before reading its end."""
        return self.path(segment.last + 1).exists() or not segment.path.exists()

    @contextlib.contextmanager
    def opened(self, after: int = 0) -> Iterator[list[tuple[Segment, BinaryIO]]]:
        """The segments and their open files, which can be read to the end even if deleted."""
        update = self
        with contextlib.ExitStack() as files:
            while True:
                opened: list[tuple[Segment, BinaryIO]] = []
                try:
                    for segment in update.segments(after):
                        opened.append((segment, files.enter_context(segment.path.open("rb"))))
                    break
                except FileNotFoundError:
                    before, update = update, update.listed()
                    if update.files == before.files:
                        raise
            yield opened

    def lines(self, wait: Callable[[], bool] | None = None) -> Iterator[bytes]:
        """The lines of all events, in order.

        `wait` is called at the end and returns whether to check for more lines. Without it, only
        the current lines are returned, including a last line without a line break.
        """
        done, seen, update = 0, dict[bytes, int](), self
        while True:
            with update.opened(done) as files:
                for segment, file in files:
                    is_finished = wait is None or segment is not files[-1][0]
                    while True:
                        is_finished = is_finished or self.is_finished(segment)
                        file = _reopened(file, segment)
                        for line in file:
                            if not is_finished and not line.endswith(b"\n"):
                                file.seek(-len(line), os.SEEK_CUR)
                                break
                            if match := _SEQUENCE.search(line, 0, _SEQUENCE_WITHIN):
                                writer, number = match[1], int(match[2])
                                if segment.first <= done and number <= seen.get(writer, -1):
                                    continue
                                seen[writer] = number
                            yield line
                        if is_finished or wait is None:
                            break
                        if not wait():
                            return
                    done = segment.last
                    file.close()
            if wait is None or not (files or wait()):
                return
            update = self.listed()


def _reopened(file: BinaryIO, segment: Segment) -> BinaryIO:
    """The file of a segment at the same position, reopened if a download has replaced it."""
    with contextlib.suppress(FileNotFoundError):  # rolled up; the open file can be read to its end
        if not os.path.samestat(os.fstat(file.fileno()), segment.path.stat()):
            newer = segment.path.open("rb")
            newer.seek(file.tell())
            file.close()
            return newer
    return file


def updates(directory: Path) -> list[UpdateLog]:
    """All recorded updates, oldest first; empty for a missing folder."""
    recorded = []
    for name, files in sorted(_files(directory).items()):
        timestamp, _, update_id = name.partition("-")
        try:
            started = datetime.strptime(timestamp, STARTED).replace(tzinfo=UTC)
        except ValueError:
            continue
        recorded.append(
            UpdateLog(
                update_id=update_id, started=started, directory=directory, name=name, files=files
            )
        )
    return recorded


def created_with(update: UpdateLog) -> dict[str, Any]:
    """The properties of the `create_update` event, with which a log begins; empty without it."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return dict(_first_event(update)["details"]["create_update"])
    return {}


def began(update: UpdateLog) -> datetime:
    """The time of the first event: `started` is later if the clock was set back before."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return datetime.fromisoformat(_first_event(update)["timestamp"])
    return update.started


def _first_event(update: UpdateLog) -> Any:
    with update.opened() as files:
        return json.loads(files[0][1].readline())


def is_command(update: UpdateLog) -> bool:
    """Whether it is a command that changes tables, such as a backfill, and not an update."""
    return "command" in created_with(update)


def select_updates(directory: Path, update: str | None) -> list[UpdateLog]:
    """The recorded updates for an id, a prefix of one, `latest` or `None` (all).

    Commands are included, but are never the latest update.
    """
    recorded = updates(directory)
    if update is None:
        return recorded
    if update == LATEST:
        return list(islice((each for each in reversed(recorded) if not is_command(each)), 1))
    exact = [each for each in recorded if each.update_id == update]
    return exact or [each for each in recorded if each.update_id.startswith(update)]


def plan_query(directory: Path) -> set[str]:
    """Names of files that a query must skip because a roll-up replaces them.

    For readers that open files long after listing them. Replaced files are kept for an hour, except
    those of deleted updates and if the folder is not writable.
    """
    with contextlib.suppress(OSError):
        (directory / QUERIED).touch()
    return {segment.path.name for update in updates(directory) for segment in update.replaced()}


def _files(directory: Path) -> dict[str, tuple[Segment, ...]]:
    paths: list[Path] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        paths = list(directory.iterdir())
    files: dict[str, list[Segment]] = {}
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            first = int(match[2] or 1)
            segment = Segment(path, first, int(match[3] or first), match[3] is not None)
            files.setdefault(match[1], []).append(segment)
    return {name: tuple(sorted(of, key=lambda segment: segment[1:])) for name, of in files.items()}
