"""Announces the new files of a source: adds them to the log that Spark reads for its folder.

Spark reads each path once. So files are announced again if a process ended before it stored that
they were, and no file is lost.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock._model.exception_text import first_line
from penstock.errors import FlowError, PenstockError
from penstock.sources.files.announced import AnnouncedFiles
from penstock.sources.files.batch_log import SourceLogs
from penstock.sources.files.listing import (
    FileRoots,
    FoundFile,
    file_name,
    file_name_of_uri,
    file_uri,
)
from penstock.sources.files.opening import LISTED, OpenedFiles

_logger = logging.getLogger(__name__)
_RETRY_SECONDS = 10.0
# Spark reads the whole log at each trigger: files that were read are removed from it soon.
_SHORT_LOG = 100
# A long log is rewritten and shortened less often.
_LONG_LOG = 10_000
_LONGEST_PAUSE = 600.0
_PRUNE_FACTOR = 20.0
# Listings take at most a tenth of the time of a processor.
PAUSE_FACTOR = 9.0


class FileInbox(ABC):
    """Announces the files of one source; `roots` are those of each stream of files in the query.

    `problem` is why new files cannot be found at present.
    """

    def __init__(
        self,
        source: OpenedFiles,
        checkpoint: str,
        roots: Sequence[FileRoots | None],
        flow: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        assert source.announced is not None
        self._source = source
        self._roots = roots
        self._flow = flow
        self._now = now
        self._logs = SourceLogs(source.spark, checkpoint)
        self._log = AnnouncedFiles(source.spark, source.announced)
        self._count = 0
        self._prune_after = 0.0
        self._left_out = frozenset(source.existing if source.skips_existing else ())
        self.problem: str | None = None

    def prepare(self) -> None:
        """Announce all files that exist at the start; raises if they cannot be listed."""
        if self._is_due() or self._source.options.allow_overwrites:
            self._list()
        else:
            self._prune()

    def run(self, stop: threading.Event) -> None:
        """Announce new files until `stop` is set."""
        while not stop.is_set():
            try:
                if self._is_due():
                    self._list()
                pause = self._look(stop)
                self.problem = None
            # A `PySparkException` if a folder disappears between two requests of a listing.
            except (PenstockError, PySparkException, Py4JError, RuntimeError, OSError) as error:
                if stop.is_set():
                    return
                pause, self.problem = _RETRY_SECONDS, first_line(error)
                _logger.warning("new files of flow %s: %s", self._flow, self.problem)
            stop.wait(pause)

    @abstractmethod
    def _look(self, stop: threading.Event) -> float:
        """Announce new files; returns how long to wait before the next call, in seconds."""

    def _is_due(self) -> bool:
        listed, every = self._source.state.note(LISTED), self._source.options.backfill_seconds
        return listed is None or (every is not None and self._now() - listed >= every)

    def _list(self) -> None:
        started = self._now()
        self._list_all()
        self._source.state.save_note(LISTED, started)

    def _list_all(self) -> list[FoundFile]:
        spark, left_out = self._source.spark, self._left_out
        files = [f for f in self._source.roots.list() if file_name(f.path) not in left_out]
        self._prune({file_uri(spark, file.path): (file.size, file.modified) for file in files})
        return files

    def _announce(self, files: Mapping[str, tuple[int, int]]) -> float:
        """Add files to the log; returns the minimum seconds to wait before the next ones."""
        if files:
            self._count = self._log.update(files)
        if self._count > _SHORT_LOG and time.monotonic() > self._prune_after:
            self._prune()
        return min(self._count // _LONG_LOG, _LONGEST_PAUSE)

    def _not_readable(self, error: Exception) -> FlowError:
        return FlowError(
            "FOLDER_NOT_READABLE",
            f"new files could not be searched: {first_line(error)}",
            flow=self._flow,
            retryable=True,
            hint="check that the user that runs the update may list the folder",
        )

    def _prune(self, new: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Add files that Spark has not read, and remove those that it has."""
        started = time.monotonic()
        self._count = self._log.update(new or {}, self._read_before())
        spent = time.monotonic() - started
        self._prune_after = time.monotonic() + max(self._count / 1000, _PRUNE_FACTOR * spent)

    def _read_before(self) -> Callable[[str], bool]:
        numbers = [int(name) for name in self._logs.names("sources") if name.isdecimal()]
        logs = [{path for path, _, _ in self._logs.entries(number)} for number in numbers]
        counts = Counter(path for log in logs for path in log)

        if len(self._roots) == 1:
            return counts.__contains__

        def is_read(path: str) -> bool:
            name = file_name_of_uri(path)
            readers = [r for r in self._roots if r is None or r.includes(name)]
            # Which log belongs to which stream is unknown.
            return counts[path] >= max(1, len(readers))

        return is_read
