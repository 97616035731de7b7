"""Finds new files in local folders by their names, without accessing known files."""

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pyspark.sql import SparkSession

from penstock._tables.kill_points import kill_point
from penstock.sources.files.inbox import PAUSE_FACTOR, FileInbox
from penstock.sources.files.listing import FileRoots, file_uri

_logger = logging.getLogger(__name__)
_SHORTEST_PAUSE = 0.1
# Python's characters for bytes of a name that it cannot decode.
_NOT_UTF_8 = re.compile("[\ud800-\udfff]")


class NameInbox(FileInbox):
    """Announces the files whose names were not in their folders at the last listing."""

    _names: "LocalNames | None" = None

    def prepare(self) -> None:
        is_read = self._read_before()
        names = LocalNames(self._source.spark, self._source.roots, self._left_out)
        try:
            files = names.new(is_read)
        except OSError as error:
            raise self._not_readable(error) from None
        self._count = self._log.update(files, is_read)
        kill_point("after_announcement", self._flow, None)
        names.confirm()
        self._names = names

    def _is_due(self) -> bool:
        return False  # each listing has all names

    def _look(self, stop: threading.Event) -> float:
        started, pause = time.monotonic(), _SHORTEST_PAUSE
        if self._names is None:
            self.prepare()
        else:
            pause = max(pause, self._announce(self._names.new()))
            self._names.confirm()
        return max(pause, PAUSE_FACTOR * (time.monotonic() - started))


class LocalNames:
    """The names in the folders of local roots; `left_out` are paths that are never new."""

    def __init__(
        self, spark: SparkSession, roots: FileRoots, left_out: Collection[str] = ()
    ) -> None:
        self._spark = spark
        self._roots = roots
        self._left_out = left_out
        self._known: dict[str, set[str]] = {}
        self._next: dict[str, set[str]] = {}

    def new(self, is_read: Callable[[str], bool] = lambda uri: False) -> dict[str, tuple[int, int]]:
        """URIs of the files that are new since `confirm`, with bytes and time in milliseconds.

        Files for which `is_read` is true count as known from then on, like `left_out`.

        Raises:
            OSError: A folder cannot be read.
        """
        files: dict[str, tuple[int, int]] = {}
        names: dict[str, set[str]] = {}
        todo = [*self._roots.first_folders()]
        while todo:
            folder = todo.pop()
            if folder in names:
                continue
            names[folder], subfolders = _entries(folder)
            for name in names[folder] - self._known.get(folder, set()):
                path = f"{folder.rstrip('/')}/{name}" if name else folder
                if path in self._left_out or not self._roots.includes(path):
                    continue
                if _NOT_UTF_8.search(path):
                    _logger.warning("%a is not read: its name is not UTF-8, as Java needs it", path)
                    continue
                uri = f"file://{file_uri(self._spark, path)}"
                if is_read(uri):
                    continue
                status = _status(path)
                if status is None:
                    names[folder].discard(name)
                elif stat.S_ISREG(status.st_mode):
                    files[uri] = (status.st_size, status.st_mtime_ns // 1_000_000)
            todo += [path for path in subfolders if self._roots.may_contain(path)]
        self._next = names
        return files

    def confirm(self) -> None:
        """Treat the files of the last call of `new` as known."""
        self._known = self._next


def _entries(folder: str) -> tuple[set[str], list[str]]:
    """The names of files in a folder, and its subfolders; empty if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            names: set[str] = set()
            subfolders: list[str] = []
            for entry in entries:
                if _is_folder(entry):
                    subfolders.append(entry.path)
                else:
                    names.add(entry.name)
            return names, subfolders
    except FileNotFoundError:
        return set(), []
    except NotADirectoryError:  # a root may be one file
        return {""}, []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _status(path: str) -> os.stat_result | None:
    """The status of the file at a path, following links; `None` if there is none."""
    try:
        return Path(path).stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
