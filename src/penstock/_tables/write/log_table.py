"""A Delta table to which the lines of event logs are appended, each exactly once."""

import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.read.log_scan import NEWEST, last_batches
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.schema import plain_schema
from penstock._tables.write.table_spec import TableSpec, TableState
from penstock.errors import SetupError


class LogTable:
    """Appends the rows of lines of event logs.

    Each writer of a log numbers its lines. A commit has, for each writer of its lines, Delta's
    `SetTransaction` with the number of the last line, so a line that is in the table is not
    appended again. Not thread-safe.
    """

    def __init__(self, spark: SparkSession, ref: TableRef, spec: TableSpec) -> None:
        self.ref = ref
        self._spec = spec
        self._delta = DeltaJvm(spark)
        self._schema = plain_schema(spec.schema, nullable=True, keep_comments=False)
        self._version = -1  # the newest version that was read or committed
        self._is_whole = False  # whether `_last` has every application id
        self._last: dict[str, int] = {}  # per application id, in the table
        self._pending: dict[str, int] = {}
        self._rows: list[str] = []

    def open(self) -> TableState:
        """Create or alter the table, and read the last lines of writers in its newest commits."""
        state = prepare_table(self._delta.spark, self.ref, self._spec)
        self._version = self._delta.version(self.ref.path)
        self._last = last_batches(self._delta, self.ref.path, self._version)
        return state

    def has(self, writer: str, number: int, *, is_new: bool = False) -> bool:
        """Whether a line is in the table.

        With `is_new`, lines of the writer are only written by this object. A writer that is neither
        new nor in the newest commits is searched in the state of the table, which takes seconds to
        compute.
        """
        app = _app_id(writer)
        if app not in self._last and not is_new and not self._is_whole:
            snapshot = self._delta.snapshot(self.ref.path)
            self._last = {**self._delta.last_transactions(snapshot), **self._last}
            self._is_whole = True
        return number <= self._last.get(app, -1)

    def add(self, writer: str, number: int, rows: Sequence[str]) -> None:
        """Add the rows (JSON objects) of a line that is not in the table to the next commit."""
        self._pending[_app_id(writer)] = number
        self._rows += rows

    def commit(self, *, without_rows: bool) -> bool:
        """Commit the added lines; returns whether there was a commit.

        If no line has rows, they are committed only with `without_rows`.
        """
        if not self._pending or not (self._rows or without_rows):
            return False
        transaction = self._delta.begin(self.ref.path)
        snapshot = transaction.snapshot()
        newest = int(snapshot.version())
        others = (
            last_batches(self._delta, self.ref.path, newest, after=self._version)
            if newest - self._version <= NEWEST
            else self._delta.last_transactions(snapshot)
        )
        if any(others.get(app, -1) > self._last.get(app, -1) for app in self._pending):
            raise SetupError(
                "EVENT_TABLE_TAKEN_OVER",
                f"another driver has written events of this update to {self.ref.name}",
            )
        for app in self._pending:
            transaction.readTxn().addOne(app)  # a concurrent commit of it must conflict with ours
        files = self._delta.write_files(transaction, self._frame()) if self._rows else []
        now = int(time.time() * 1000)
        numbers = [self._delta.set_transaction(*last, now) for last in self._pending.items()]
        operation = self._delta.write_operation("", overwrite=False)
        self._version = self._delta.commit(transaction, [*numbers, *files], operation)
        self._last |= self._pending
        self._pending, self._rows = {}, []
        return True

    def _frame(self) -> DataFrame:
        """The rows as one partition, without Python workers."""
        spark = self._delta.spark
        encoder = self._delta.jvm.org.apache.spark.sql.Encoders.STRING()
        lines = spark._jsparkSession.createDataset(self._rows, encoder).toDF()
        frame = DataFrame(lines, spark).coalesce(1)
        return frame.select(F.from_json("value", self._schema).alias("row")).select("row.*")


def _app_id(writer: str) -> str:
    # Without the name of the pipeline, which may change: writers have UUIDs.
    return f"events/{writer}"
