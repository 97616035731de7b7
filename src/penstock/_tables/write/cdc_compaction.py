"""Compaction of the state of a CDC target, on a separate thread.

Batches wait for it only while keys are dropped.
"""

import contextlib
import logging
import threading
import time
import uuid
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock._model.exception_text import first_line
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_history import (
    StateColumns,
    merged,
    outlives_truncate,
    with_truncate,
)
from penstock._tables.write.fenced import FencedTable
from penstock._tables.write.key_joins import in_one_task

_logger = logging.getLogger(__name__)
_EVERY = 16
_AT_LEAST = 8
_SMALL_FILE = 32 * 1024 * 1024
_CLOSE_SECONDS = 10.0


class StateCompaction:
    """Merges the smallest 8 files of a state, and larger ones up to the total of all smaller ones.

    So each row is rewritten only a few times, regardless of the number of batches. Batches only
    append: their commits do not conflict with those of a compaction. If two compactions conflict,
    one has no effect.

    Keys that are permanently dead are dropped only if all files are merged: some files may have the
    delete of a key, and others its upserts. `lock` blocks batches meanwhile: rows of the target
    would otherwise be computed from a delete that the state no longer has.
    """

    def __init__(
        self,
        delta: DeltaJvm,
        ref: TableRef,
        app_id: str,
        lock: threading.RLock,
        *,
        tombstone_seconds: float | None,  # how long deletes are kept; None means forever
    ) -> None:
        self._delta = delta
        self._table = FencedTable(delta, ref, f"{app_id}/compaction")
        self._lock = lock
        self._tombstone_seconds = tombstone_seconds
        self._thread: threading.Thread | None = None
        self._group = f"compaction-{uuid.uuid4()}"
        self._is_cancelled = False

    def start_if_due(self, version: int | None, session: SparkSession) -> None:
        """Start after every 16th version of the state, unless a compaction is still running."""
        is_running = self._thread is not None and self._thread.is_alive()
        if version is None or version % _EVERY or is_running or self._is_cancelled:
            return
        name = f"compact {self._table.ref.name}"
        self._thread = threading.Thread(target=self._run, args=(session,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait up to 10 s for a running compaction, which then continues and may still commit."""
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def cancel(self) -> None:
        """Cancel a running compaction, for which a batch may wait, and do not start others."""
        self._is_cancelled = True
        if self._thread is not None and self._thread.is_alive():
            context: Any = self._delta.spark.sparkContext
            # The JVM is gone, or the owner of the session has stopped it.
            with contextlib.suppress(Py4JError, ConnectionError, AttributeError):
                context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def compact(self, session: SparkSession) -> None:
        if not self._merge(session, drops=False):
            with self._lock:
                self._merge(session, drops=True)

    def _run(self, session: SparkSession) -> None:
        try:
            session.sparkContext.setJobGroup(self._group, "compaction of an auto CDC state")
            self.compact(session)
        except Exception as error:
            if self._is_cancelled:
                return
            # The files stay as they are until the next compaction.
            name = self._table.ref.name
            _logger.warning("the state %s was not compacted: %s", name, first_line(error))

    def _merge(self, session: SparkSession, *, drops: bool) -> bool:
        """Merge files; returns `False` if there are keys to drop, but `drops` is false."""
        txn = self._table.begin(None)
        files = list(iterate(self._table.files(txn)))
        chosen: list[Any] = []
        total = 0
        for file in sorted(files, key=lambda file: int(file.size())):
            if len(chosen) >= _AT_LEAST and int(file.size()) > total:
                break
            chosen.append(file)
            total += int(file.size())
        whole = len(chosen) == len(files)
        if len(chosen) < 2:
            return True
        columns = StateColumns(txn.metadata.schema)
        rows = self._delta.read_files(txn.jvm.snapshot(), chosen, session)
        if total < _SMALL_FILE:
            rows = in_one_task(rows)
        rows = merged(rows, columns)
        if whole and "kind" in columns.schema.fieldNames():
            keys = with_truncate(rows).withColumn("dead", self._is_dead(columns))
            if drops:
                kept = keys.where("NOT dead").select(*rows.columns)
                rows = kept.unionByName(rows.where(F.col("kind") == 1))
            elif not keys.where("dead").isEmpty():
                return False
        if total < _SMALL_FILE:
            rows = rows.coalesce(1)
        # Without `dataChange`, the commit does not conflict with concurrent appends.
        written = self._delta.file_contents(txn.jvm.writeFiles(rows._jdf))
        added = self._delta.add_files([{**file, "dataChange": False} for file in written])
        now = int(time.time() * 1000)
        removed = [file.removeWithTimestamp(now, False) for file in chosen]
        app_id = self._table.app_id
        record = CommitResult(flow="compaction", app_id=app_id, batch_id=None, version=None)
        self._table.commit(txn, [*removed, *added], None, record, complete=whole)
        return True

    def _is_dead(self, columns: StateColumns) -> Any:
        is_dead = ~columns.truncated.is_alive
        dead = is_dead & ~F.coalesce(
            outlives_truncate(F.col("del"), F.col("truncated")), F.lit(False)
        )
        if self._tombstone_seconds is not None:
            oldest = int((time.time() - self._tombstone_seconds) * 1000)
            dead = dead | (is_dead & (F.col("at") < oldest))
        return F.coalesce(dead, F.lit(False))
