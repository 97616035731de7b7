"""Cleans up a source: files that were read are deleted or moved, some time after their commit.

Spark's logs do not have the commit time of a batch, and keep only the last hundred batches. So each
pass notes how far the source was committed at that time; files up to a note that is older than the
retention are removed, each only if it is still the version that was read. An interrupted pass is
repeated: files that no longer exist are skipped.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError

from penstock._model.exception_text import first_line
from penstock._model.sql_text import literal
from penstock._tables.files import hadoop_path
from penstock.errors import ConnectorError
from penstock.sources.files.batch_log import SourceLogs
from penstock.sources.files.listing import file_name_of_uri, folder_of
from penstock.sources.files.opening import OpenedFiles

_logger = logging.getLogger(__name__)
_NOTE = "clean_source"
_PAUSE_SECONDS = 60.0
# Number of notes within the retention.
_NOTES = 100


def refuse_shared(source: OpenedFiles, others: Iterable[str]) -> None:
    """Refuse a folder that another stream of the query reads: it may not have read the file yet."""
    for path in others:
        folders = [(folder_of(path), folder_of(root)) for root in source.roots.paths]
        if any(a.startswith(b) or b.startswith(a) for a, b in folders):
            raise ConnectorError(
                "AUTOLOADER_OPTION_INVALID",
                f"cloudFiles.cleanSource is set, and another stream of the query reads {path}",
                hint="read the folder once, in a table of its own, and that table twice",
            )


class Cleaner:
    """Removes the files of one source that a checkpoint has read."""

    def __init__(
        self, source: OpenedFiles, checkpoint: str, now: Callable[[], float] = time.time
    ) -> None:
        assert source.options.cleaning is not None
        self._source = source
        self._cleaning = source.options.cleaning
        self._checkpoint = checkpoint
        self._now = now

    def run(self, stop: threading.Event) -> None:
        """Clean up periodically until `stop` is set."""
        while not stop.is_set():
            try:
                self.clean(stop)
            except (Py4JError, OSError, ValueError) as error:
                if not stop.is_set():
                    where = ", ".join(self._source.roots.paths)
                    _logger.warning("cleanSource of %s: %s", where, first_line(error))
            stop.wait(_PAUSE_SECONDS)

    def clean(self, stop: threading.Event) -> None:
        """Note what is committed now, and remove what was committed before the retention."""
        logs = SourceLogs(self._source.spark, self._checkpoint)
        state = self._source.state.note(_NOTE) or {"done": [], "notes": []}
        notes, now = state["notes"], self._now()
        retention = self._cleaning.retention_seconds
        ends = logs.committed()
        last = notes[-1] if notes else {"ends": state["done"], "at": 0.0}
        if ends and ends != last["ends"] and now - last["at"] >= retention / _NOTES:
            notes.append({"at": now, "ends": ends})
            self._source.state.save_note(_NOTE, state)
        due = [note for note in notes if note["at"] + retention <= now]
        if not due:
            return
        upto, done = due[-1]["ends"], state["done"]
        for number, end in enumerate(upto):
            start = done[number] if number < len(done) else None
            if end is not None and end != start:
                self._remove(logs.entries(number), -1 if start is None else start, end, stop)
        if not stop.is_set():
            left = [note for note in notes if note not in due]
            self._source.state.save_note(_NOTE, {"done": upto, "notes": left})

    def _remove(
        self, entries: list[tuple[str, int, int]], start: int, end: int, stop: threading.Event
    ) -> None:
        kept = self._source.quarantined | set(self._source.existing)
        earliest, latest = self._times()
        for uri, read, batch in entries:
            if stop.is_set():
                return
            path = file_name_of_uri(uri)
            # A fragment marks an earlier version.
            if not start < batch <= end or "#" in uri or path in kept:
                continue
            if not self._source.roots.includes(path):
                continue
            system, file = hadoop_path(self._source.spark, path)
            if not system.exists(file):
                continue
            modified = system.getFileStatus(file).getModificationTime()
            if modified <= read and earliest < modified < latest:
                self._put_away(system, file, modified)

    def _put_away(self, system: Any, file: Any, modified: int) -> None:
        if self._cleaning.destination is None:
            system.delete(file, False)
            return
        hadoop: Any = self._source.spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        target = hadoop.Path(self._cleaning.destination + str(file.toUri().getPath()))
        if system.exists(target):  # an earlier version, or a move that was interrupted
            target = target.suffix(f".{modified}")
            system.delete(target, False)
        system.mkdirs(target.getParent())
        if not system.rename(file, target):
            raise OSError(f"{file} could not be moved to {target}")

    def _times(self) -> tuple[float, float]:
        """The limits of the modification times, in milliseconds, of files that the stream reads."""
        options = self._source.options

        def millis(text: str | None, default: float) -> float:
            if text is None:
                return default
            sql = f"SELECT unix_millis(cast({literal(text)} AS timestamp))"
            return float(self._source.spark.sql(sql).head()[0])  # type: ignore[index]

        return (
            millis(options.modified_after, float("-inf")),
            millis(options.modified_before, float("inf")),
        )
