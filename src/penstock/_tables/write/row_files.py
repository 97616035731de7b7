"""Writes the rows of a batch as files that are not committed yet, in one job or in two.

Also writes the rows that a stateful operator refused, which are not in the result of the query.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.expectation import FAILED_RULES
from penstock._model.sql_text import quoted
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.jvm import iterate
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.kept import keep_and_count, kept_rows, release
from penstock._tables.write.schema import columns_as, plain_schema
from penstock._tables.write.staging import (
    BAD_FOLDER,
    RowCounts,
    can_stage,
    data_columns,
    delete_files,
    sort_files,
    staging_metadata,
    valid_rows,
)
from penstock.quality.split import DESTINATION, QUARANTINE_COLUMNS, TO_TABLE, RowSplit

LATE = "late"
"""Reason for a row behind the watermark."""
NO_EVENT_TIME = "no_event_time"
"""Reason for a row that belongs to no window, because its event time is NULL."""
NO_SESSION_GAP = "no_session_gap"
"""Reason for a row whose session window has a gap that is NULL or not positive."""


@dataclass(frozen=True)
class Refused:
    """Rows of one batch that a stateful operator refused."""

    late: int = 0  # behind the watermark; -1 means counted when `frame` is written
    frame: DataFrame | None = None  # with the columns of the quarantine, if they are kept


class FindLateRows(Protocol):
    """Finds refused rows; called once per batch, after the batch was computed."""

    @property
    def keeps(self) -> bool:
        """Whether the rows go to quarantine."""

    def find(self, df: DataFrame) -> Refused:
        """The refused rows of the batch `df` of the writer."""


@dataclass(frozen=True)
class Written:
    """The files of one batch, not committed yet."""

    counts: RowCounts
    actions: Sequence[Any] = ()  # for the target's commit
    bad: Sequence[Mapping[str, Any]] = ()  # `AddFile` contents below the quarantine table
    duplicates: int = 0  # rows whose key is already in the table or in the batch
    rows: DataFrame | None = None  # the valid rows, for writers that merge them


class RowFiles:
    """Writes the rows of one flow's batches into the folders of its tables.

    One job writes the files of both tables, if `can_stage`; otherwise the batch is kept, and its
    valid and invalid rows are written by two jobs.
    """

    def __init__(
        self,
        delta: DeltaJvm,
        target: FencedTable,
        quarantine: FencedTable | None,
        split: RowSplit | None,  # None without expectations
        *,
        replaces: bool,  # each batch replaces the contents of the tables
    ) -> None:
        self._delta = delta
        self._target = target
        self._quarantine = quarantine
        self._split = split
        self._replaces = replaces
        self._staging: Any = None
        self._staging_generation = -1
        self.replacing: TableTransaction | None = None
        """Wrote the rows that replace the quarantine; has the physical names of their columns."""

    def write(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        """Write all rows of a batch; `schema` is the schema of the target after the batch."""
        self.replacing = None
        if self._split is None:
            files = txn.jvm.writeFiles(df._jdf)
            rows = self.row_count(self._delta.file_contents(files))
            return Written(RowCounts(rows, 0, {}), list(iterate(files)))
        if self._uses_one_job(df, txn):
            return self._one_job(df, txn, schema, self._split)
        return self._two_jobs(df, txn, self._split)

    def row_count(self, files: Sequence[Mapping[str, Any]]) -> int:
        """Rows in new files: from their statistics, or from their footers without statistics."""
        if all(file.get("stats") for file in files):
            return sum(int(json.loads(file["stats"])["numRecords"]) for file in files)
        root = self._target.ref.path
        paths = [f"{root}/{unquote(file['path'])}" for file in files]
        return self._delta.spark.read.parquet(*paths).count()

    def _uses_one_job(self, df: DataFrame, txn: TableTransaction) -> bool:
        collects = df.sparkSession.conf.get("spark.databricks.delta.stats.collect", "true")
        return collects == "true" and can_stage(self._delta, txn.metadata)

    def _one_job(
        self, df: DataFrame, txn: TableTransaction, schema: StructType, split: RowSplit
    ) -> Written:
        if self._staging is None or self._staging_generation != self._target.generation:
            self._staging = staging_metadata(self._delta, txn.metadata, schema, split)
            self._staging_generation = self._target.generation
        target = self._target.ref.path
        quarantine = self._quarantine.ref.path if split.quarantine and self._quarantine else None
        own, log, snapshot = self._delta.own, self._delta.log(target), txn.jvm.snapshot()
        if quarantine is None:
            staging = own.WriteTransaction(log, snapshot)
        else:
            absent = [*split.null_in_valid]
            staging = own.SplitTransaction(log, snapshot, BAD_FOLDER, quarantine, absent)
        staging.updateMetadata(self._staging, False)
        good, bad, counts = sort_files(
            df.sparkSession,
            self._delta.file_contents(staging.writeFiles(df._jdf)),
            split,
            (target, quarantine or target),
        )
        if quarantine is None:
            delete_files(self._delta, [file["path"] for file in bad], target)
            bad = []
        return Written(counts, self._delta.add_files(good), bad)

    def _two_jobs(self, df: DataFrame, txn: TableTransaction, split: RowSplit) -> Written:
        kept, counts = keep_and_count(self._delta, df, split)
        try:
            bad = self.write_bad(kept, counts)
            files = self._delta.write_files(txn.jvm, valid_rows(kept, split))
            return Written(counts, files, bad)
        finally:
            release(kept)

    def write_bad(self, kept: DataFrame, counts: RowCounts) -> list[dict[str, Any]]:
        """Write those rows of a batch, which has the split's columns, that go to the quarantine."""
        split = self._split
        if not counts.bad_rows or self._quarantine is None or not (split and split.quarantine):
            return []
        helpers = [F.col(column) for column in QUARANTINE_COLUMNS]
        frame = kept.where(F.col(DESTINATION) != TO_TABLE).select(*data_columns(split), *helpers)
        return self._write_quarantine(self._quarantine, frame, replaces=self._replaces)

    def add_late(
        self, df: DataFrame, late: FindLateRows, written: Written, schema: StructType
    ) -> tuple[Written, int, int]:
        """Write the refused rows to keep; also returns the number of late and of kept rows."""
        refused = late.find(df)
        if refused.frame is None or self._quarantine is None:
            return written, refused.late, 0
        with kept_rows(refused.frame) as kept:
            is_late = F.array_contains(F.col(FAILED_RULES), LATE)
            row: Any = kept.agg(F.count(F.when(is_late, 1)), F.count(F.lit(1))).head()
            if not row[1]:
                return written, 0, 0
            frame = _as_quarantine_rows(kept, plain_schema(schema, nullable=True))
            files = self._write_quarantine(self._quarantine, frame, replaces=False)
            written = replace(written, bad=[*written.bad, *files])
            return written, int(row[0]), int(row[1])

    def _write_quarantine(
        self, table: FencedTable, rows: DataFrame, *, replaces: bool
    ) -> list[dict[str, Any]]:
        txn = table.begin(None)
        schema = table.evolve(txn, rows.schema, allow_missing=True, replaces=replaces)
        if replaces:
            self.replacing = txn
        else:
            txn = table.name_columns(txn, None)
        # The quarantine may be partitioned by a column that Delta generates in the target.
        rows = rows.select(*columns_as(schema, rows.schema.fields))
        return self._delta.file_contents(txn.jvm.writeFiles(rows._jdf))


def _as_quarantine_rows(df: DataFrame, schema: StructType) -> DataFrame:
    """Refused rows with the columns of the table; NULL without a column of that name and type."""
    have = {field.name: field.dataType for field in df.schema}
    columns: list[Column] = []
    for field in schema:
        is_same = have.get(field.name) == field.dataType
        value = F.col(quoted(field.name)) if is_same else F.lit(None).cast(field.dataType)
        columns.append(value.alias(field.name))
    return df.select(*columns, *[F.col(name) for name in QUARANTINE_COLUMNS])
