"""Maintenance of the tables of an update, on a separate thread while its flows run."""

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._execution.table_care import TableCare
from penstock._model.exception_text import first_line
from penstock._observe.events import Event
from penstock._spark.failures import full_text
from penstock._spark.session import jvm_exit_code

_logger = logging.getLogger(__name__)
_LOOK_SECONDS = 5.0
# Maintenance of a table takes at most half of the time.
_PAUSE_FACTOR = 1.0
_CLOSE_SECONDS = 2.0
_POOL = "maintenance"
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"
_CONFLICT = re.compile(
    r"Concurrent\w*Exception|DELTA_CONCURRENT|MetadataChangedException|ProtocolChangedException"
)


class MaintenanceThread:
    """Maintains tables while flows run, one after the other. Never fails a flow.

    `find_tables` is called once, before the first table is checked: a short update does not wait.
    Delta's auto compaction, which delays batches, is disabled in the meantime unless it is set.
    """

    def __init__(
        self,
        spark: SparkSession,
        find_tables: Callable[[], Sequence[TableCare]],
        emit: Callable[[Event], None],
    ) -> None:
        self._spark = spark
        self._find_tables = find_tables
        self._tables: Sequence[TableCare] | None = None
        self._emit = emit
        self._over = threading.Event()
        self._due: dict[TableCare, float] = {}
        self._reported: set[str] = set()
        self._group = f"maintenance-{uuid.uuid4()}"
        self._replaces_delta = spark.conf.get(_AUTO_COMPACT, None) is None
        if self._replaces_delta:
            spark.conf.set(_AUTO_COMPACT, "false")
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._thread.start()

    def finish(self, *, compact: bool) -> None:
        """Stop and cancel running maintenance; with `compact`, compact tables that request it."""
        self._stop()
        for table in self._found() if compact else self._tables or ():
            if compact:
                self._attempt(table, table.compact_at_end)
            self._report(table.pending_events())

    def close(self) -> None:
        """Stop, also after a failure or without a JVM."""
        self._stop()
        if self._replaces_delta:
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM has ended
                self._spark.conf.unset(_AUTO_COMPACT)

    def _stop(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        try:
            self._spark.sparkContext.cancelJobGroup(self._group)
        except (Py4JError, ConnectionError):
            return
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        context = self._spark.sparkContext
        context.setJobGroup(self._group, "maintenance of tables", interruptOnCancel=False)
        context.setLocalProperty("spark.scheduler.pool", _POOL)
        while not self._over.wait(_LOOK_SECONDS):
            for table in self._found():
                if self._over.is_set():
                    return
                if time.monotonic() >= self._due.get(table, 0.0):
                    started = time.monotonic()
                    self._attempt(table, table.look)
                    now = time.monotonic()
                    self._due[table] = now + _PAUSE_FACTOR * (now - started)

    def _found(self) -> Sequence[TableCare]:
        if self._tables is None:
            try:
                self._tables = self._find_tables()
            except Exception as error:  # any exception: the flows continue
                _logger.warning("tables are not maintained: %s", first_line(error))
                self._tables = ()
        return self._tables

    def _attempt(self, table: TableCare, act: Callable[[], list[Event]]) -> None:
        try:
            self._report(act())
        except Exception as error:  # any exception: the flows continue
            if self._over.is_set() and self._thread is threading.current_thread():
                return  # cancelled
            if jvm_exit_code(self._spark, error) is not None:
                self._over.set()
                return
            text = first_line(error)
            if _CONFLICT.search(f"{type(error).__name__} {full_text(error)}"):
                _logger.debug("%s is looked at again: %s", table.name, text)
                return
            # A repeated error is reported once.
            if f"{table.name} {text}" not in self._reported:
                self._reported.add(f"{table.name} {text}")
                self._report([table.failed(text)])

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            self._emit(event)
