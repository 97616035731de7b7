"""A Delta table that gets the lines of event logs, each exactly once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.schema import plain_schema
from penstock._tables.write.table_spec import TableSpec, TableState, parse_schema
from penstock.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class LogTableSpec:
    """`columns` are DDL; `owner` is the pipeline, in a storage that several of them share."""

    ref: TableRef
    columns: str
    comment: str
    pipeline: str
    owner: str | None = None


@dataclass
class LogTable:
    """Appends rows that were made of the lines of event logs.

    Each writer of a log numbers its lines. A commit has, for each writer of its lines, Delta's
    `SetTransaction` with the number of the last line, so a line that the table has is not appended
    again. Not thread-safe.
    """

    spark: SparkSession
    spec: LogTableSpec
    _delta: DeltaJvm = field(init=False)
    _schema: Any = field(init=False)
    _version: int = -1  # up to which `_last` is known
    _last: dict[str, int] = field(default_factory=dict)  # per application id, in the table
    _pending: dict[str, int] = field(default_factory=dict)
    _rows: list[str] = field(default_factory=list)

    def open(self) -> TableState:
        """Create or alter the table, and look up what it has; rows not committed are dropped."""
        self._delta = DeltaJvm(self.spark)
        schema = parse_schema(self.spark, self.spec.columns)
        self._schema = plain_schema(schema, nullable=True, keep_comments=False)
        spec = TableSpec(
            schema=schema, declared=True, comment=self.spec.comment, owner=self.spec.owner
        )
        state = prepare_table(self.spark, self.spec.ref, spec)
        self._pending, self._rows = {}, []
        self._look_up(self._delta.snapshot(self.spec.ref.path))
        return state

    def has(self, writer: str, number: int) -> bool:
        """Whether a line is in the table."""
        return number <= self._last.get(self._app_id(writer), -1)

    def add(self, writer: str, number: int, rows: Sequence[str]) -> None:
        """Add the rows of a line, JSON objects, to the next commit, unless the table has them."""
        if not self.has(writer, number):
            self._pending[self._app_id(writer)] = number
            self._rows += rows

    def commit(self, *, without_rows: bool) -> bool:
        """Commit what was added, whether there was any; lines without rows alone only if wanted."""
        if not self._pending or not (self._rows or without_rows):
            return False
        transaction = self._delta.begin(self.spec.ref.path)
        if int(transaction.snapshot().version()) != self._version:
            before = self._last
            self._look_up(transaction.snapshot())
            if any(self._last.get(app) != before.get(app) for app in self._pending):
                raise SetupError(
                    "EVENT_TABLE_TAKEN_OVER",
                    f"another driver has written events of this update to {self.spec.ref.name}",
                )
        for app in self._pending:
            transaction.readTxn().addOne(app)  # a concurrent commit of it must conflict with ours
        files = self._delta.write_files(transaction, self._frame()) if self._rows else []
        now = int(time.time() * 1000)
        numbers = [self._delta.set_transaction(*last, now) for last in self._pending.items()]
        operation = self._delta.write_operation("", overwrite=False)
        version = self._delta.commit(transaction, [*numbers, *files], operation)
        self._last |= self._pending
        is_next = version == int(transaction.snapshot().version()) + 1
        self._version = version if is_next else -1
        self._pending, self._rows = {}, []
        return True

    def await_checkpoints(self, seconds: int) -> None:
        self._delta.await_checkpoints(seconds)

    def _look_up(self, snapshot: Any) -> None:
        self._version = int(snapshot.version())
        self._last = self._delta.last_transactions(snapshot)

    def _app_id(self, writer: str) -> str:
        return f"{self.spec.pipeline}/events/{writer}"

    def _frame(self) -> DataFrame:
        """The rows as one partition, without Python workers."""
        jvm: Any = self.spark._jvm
        encoder = jvm.org.apache.spark.sql.Encoders.STRING()
        lines = self.spark._jsparkSession.createDataset(self._rows, encoder).toDF()
        frame = DataFrame(lines, self.spark).coalesce(1)
        return frame.select(F.from_json("value", self._schema).alias("row")).select("row.*")
