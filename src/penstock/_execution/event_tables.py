"""Copies event logs to Delta tables, on a separate thread while the flows of an update run."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._analysis.table_functions import EVENT_COLUMNS
from penstock._model.exception_text import first_line
from penstock._model.pipeline import PipelineSettings
from penstock._observe.codec import dump, event_of, object_of_line
from penstock._observe.events import ErrorInfo, Event, EventOrigin, FlowMetrics, PlanWarning
from penstock._observe.log import event_directory, last_place, place_of
from penstock._observe.retention import Retention, lower_priority
from penstock._observe.rule_counts import rule_counts
from penstock._observe.segments import UpdateLog, select_updates, updates
from penstock._spark.session import jvm_exit_code
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import event_table
from penstock._tables.metastore import HiveMetastore, Registration
from penstock._tables.write.log_table import LogTable
from penstock._tables.write.table_spec import OWNER, TableSpec, parse_schema
from penstock.errors import PenstockError

_COMMIT_SECONDS = 60.0
_RETRY_SECONDS = 600.0
_FINISH_SECONDS = 60.0
_CANCEL_SECONDS = 5.0
_CHECKPOINT_SECONDS = 10
_MOST_LINES = 5_000
_POOL = "maintenance"
_QUALITY_COLUMNS = (
    "timestamp TIMESTAMP, update_id STRING, flow STRING, dataset STRING, "
    "batch_id BIGINT COMMENT 'micro-batch of the flow; NULL for a materialized view', "
    "batches INT COMMENT '1, or the number of batches that a roll-up replaces', "
    "rule STRING, passed BIGINT, failed BIGINT, "
    "batch_dropped BIGINT COMMENT 'rows of the batch that violated a drop rule, "
    "in each of its rows', "
    "batch_quarantined BIGINT COMMENT 'those of them that are in quarantine, in each of its rows'"
)

MakeRows = Callable[[bytes, Any], list[str]]
"""The rows of a line of the log, from its text and its value, as JSON."""


class EventTables:
    """Copies the events of earlier updates, and of this one, while a `with` block runs.

    A failure is reported as a warning, and the next update continues. `published` of `retention`
    records what was copied.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        origin: EventOrigin,
        emit: Callable[[Event], None],
        retention: Retention,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._origin = origin
        self._emit = emit
        self._retention = retention
        self._directory = event_directory(settings)
        self._tables: list[tuple[LogTable, MakeRows]] = []
        self._lines = 0
        self._newest = 1
        self._is_new = True
        self._reported: set[str] = set()
        self._group = f"event-tables-{origin.update_id}"
        self._over = threading.Event()
        self._is_cancelled = False
        self._reads_last = False
        self._thread = threading.Thread(target=self._run, name="event tables", daemon=True)

    def __enter__(self) -> None:
        if self._settings.events.tables:
            self._retention.published = 0
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Copy the events so far, and end; after a timeout, the next update copies the rest."""
        self._over.set()
        if not self._settings.events.tables:
            return
        self._thread.join(_FINISH_SECONDS)
        if self._thread.is_alive():
            self._is_cancelled = True
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM has ended
                self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_SECONDS)

    def _run(self) -> None:
        lower_priority()
        while True:
            try:
                context = self._spark.sparkContext
                context.setJobGroup(self._group, "tables of events", interruptOnCancel=False)
                context.setLocalProperty("spark.scheduler.pool", _POOL)
                self._copy()
                return
            except Exception as error:  # any exception: the flows continue
                if self._is_cancelled or jvm_exit_code(self._spark, error) is not None:
                    return
                self._warn(error)
            if self._over.wait(_RETRY_SECONDS):
                return

    def _copy(self) -> None:
        """Copy missing events, oldest first, and then the events of this update until its end."""
        # After a failure, this update may be in the tables already.
        self._is_new = not self._reported
        self._lines, self._newest, self._reads_last = 0, 1, False
        events = self._settings.events
        self._tables = [
            (self._open(name, columns, comment), make_rows)
            for name, columns, comment, make_rows in (
                (events.table, EVENT_COLUMNS, "event log", _event_rows),
                (events.quality_table, _QUALITY_COLUMNS, "counts of rules", _quality_rows),
            )
            if name is not None
        ]
        for update in self._incomplete():
            with contextlib.suppress(FileNotFoundError):  # deleted manually
                self._add(update.lines())
        self._commit(without_rows=True)
        self._retention.published = 1
        # The first lines of an update are not worth a commit.
        self._reads_last = self._over.wait(_COMMIT_SECONDS)
        for update in select_updates(self._directory, self._origin.update_id):
            self._add(update.lines(self._wait), is_new=self._is_new)
        self._commit(without_rows=True)
        DeltaJvm(self._spark).await_checkpoints(_CHECKPOINT_SECONDS)

    def _incomplete(self) -> list[UpdateLog]:
        """Earlier updates whose last event is missing in a table.

        Updates before a complete one are complete, because they were copied first.
        """
        incomplete: list[UpdateLog] = []
        for update in reversed(updates(self._directory)):
            if update.update_id == self._origin.update_id:
                continue
            place = last_place(update)
            if place is not None and all(table.has(*place) for table, _ in self._tables):
                break
            incomplete.append(update)
        return incomplete[::-1]

    def _wait(self) -> bool:
        """Commit and wait. Returns whether there may be more lines of this update."""
        if self._reads_last:
            return False
        self._commit(without_rows=False)
        # All segments before the one that was the newest at the last call were read to their end.
        self._retention.published = self._newest
        (update,) = select_updates(self._directory, self._origin.update_id)
        self._newest = update.segments()[-1].last
        self._reads_last = self._over.wait(_COMMIT_SECONDS)
        return True

    def _add(self, lines: Iterable[bytes], *, is_new: bool = False) -> None:
        for line in lines:
            event = object_of_line(line)
            place = place_of(event)
            if place is None:  # truncated
                continue
            for table, make_rows in self._tables:
                if not table.has(*place, is_new=is_new):
                    table.add(*place, make_rows(line, event))
            self._lines += 1
            if self._lines >= _MOST_LINES:
                self._commit(without_rows=False)

    def _commit(self, *, without_rows: bool) -> None:
        for table, _ in self._tables:
            if self._is_cancelled:
                return
            if table.commit(without_rows=without_rows):
                kill_point("after_event_table", table.ref.name, None)
        self._lines = 0

    def _open(self, text: str, columns: str, comment: str) -> LogTable:
        """Create or alter a table, and register it in the metastore, if there is one."""
        settings = self._settings
        name, ref = event_table(settings, text)
        owner = settings.name if settings.shared_storage else None
        spec = TableSpec(
            schema=parse_schema(self._spark, columns),
            declared=True,
            comment=f"{comment} of pipeline {settings.name}",
            properties={} if owner is None else {OWNER: owner},
            owner=owner,
        )
        table = LogTable(self._spark, ref, spec)
        state = table.open()
        # A metastore has the schemas of one catalog.
        if settings.metastore is not None and name.catalog.lower() == settings.catalog.lower():
            wanted = Registration(
                schema=name.schema.lower(),
                name=name.name.lower(),
                table=ref,
                columns=state.schema,
                comment=state.comment,
                properties={**state.properties, "penstock.pipeline": settings.name},
            )
            HiveMetastore(self._spark).register(wanted)
        return table

    def _warn(self, error: Exception) -> None:
        reason = first_line(error)
        if isinstance(error, PenstockError):
            reason = "; ".join(filter(None, (error.message, error.hint)))
        if reason in self._reported:
            return
        self._reported.add(reason)
        names = ", ".join(self._settings.events.tables)
        text = f"events are not copied to {names}: {reason}"
        info = ErrorInfo(
            condition="EVENT_TABLE_NOT_WRITTEN",
            class_name=type(error).__name__,
            message=text,
            fatal=False,
        )
        self._emit(Event(self._origin, PlanWarning(text), text, error=info))


def _event_rows(line: bytes, _: Any) -> list[str]:
    return [line.decode("utf-8").rstrip("\n")]


def _quality_rows(line: bytes, value: Any) -> list[str]:
    event = event_of(value) if b'"expectations":[' in line else None
    if event is None:
        return []
    metrics = getattr(event.body, "metrics", None) or FlowMetrics()
    of_batch = {
        "batch_dropped": metrics.dropped_records,
        "batch_quarantined": metrics.quarantined_records,
    }
    return [dump({**counts, **of_batch}) for counts in rule_counts(event)]
