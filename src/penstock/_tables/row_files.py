"""The rows of a batch as files that no commit names yet: in one job for two tables, or in two."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import Begun, FencedTable
from penstock._tables.move_files import renames_cheaply
from penstock._tables.refused_rows import (
    FindLateRows,
    LateCounts,
    as_quarantine_rows,
    count_refused,
)
from penstock._tables.schema import plain_schema
from penstock._tables.staging import (
    StagedFiles,
    can_stage,
    count_masks,
    count_rows,
    data_columns,
    sort_files,
    staging_metadata,
)
from penstock.quality.split import DESTINATION, QUARANTINE_COLUMNS, TO_TABLE, RowSplit


class Strategy(StrEnum):
    """How the rows of one batch get into two tables."""

    ONE_JOB = "one job"
    """One job writes both; the files of the quarantine are moved into their table."""
    TWO_JOBS = "two jobs"
    """The batch is kept in memory and written twice: where a rename is a copy, and for tables with
    column mapping or identity columns."""


@dataclass(frozen=True)
class Written:
    """What the jobs of one batch produced, not committed yet.

    Attributes:
        counts: Rows and rules, and the files that still have to move to the quarantine table.
        actions: For the target's commit.
        bad: `AddFile` contents for the quarantine table that lie there already.
        duplicates: Rows that were left out because the table has their key.
        rows: The rows that passed, for writers that merge them.
    """

    counts: StagedFiles
    actions: Sequence[Any] = ()
    bad: Sequence[Mapping[str, Any]] = ()
    duplicates: int = 0
    rows: DataFrame | None = None


class RowFiles:
    """Writes the rows of one flow's batches into the folders of its tables.

    Args:
        delta: The bridge.
        target: The table.
        quarantine: Where rows that break a drop rule go, if they are kept.
        split: What `quality.split_rows` made of the query; `None` without expectations.
        strategy: Force one; by default the table decides.
        replaces: Whether each batch replaces the contents of the tables.
    """

    def __init__(
        self,
        delta: DeltaJvm,
        target: FencedTable,
        quarantine: FencedTable | None,
        split: RowSplit | None,
        strategy: Strategy | None,
        *,
        replaces: bool,
    ) -> None:
        self._delta = delta
        self._target = target
        self._quarantine = quarantine
        self._split = split
        self._strategy = strategy
        self._replaces = replaces
        self._staging: Any = None
        self._staging_generation = -1

    def write(self, df: DataFrame, begun: Begun, schema: StructType) -> Written:
        """Write all rows of a batch.

        Args:
            df: The batch, with the split's helper columns if there is a split.
            begun: Transaction on the target.
            schema: Of the target after the batch.
        """
        if self._split is None:
            files = begun.transaction.writeFiles(df._jdf)
            rows = self.row_count(self._delta.file_contents(files))
            return Written(StagedFiles([], [], rows, 0, {}), list(self._delta.items(files)))
        if self._uses_one_job(df, begun):
            return self._one_job(df, begun, schema, self._split)
        return self._two_jobs(df, begun, self._split)

    def row_count(self, files: Sequence[Mapping[str, Any]]) -> int:
        """Rows in new files: from their statistics, or their footers where those are off."""
        if all(file.get("stats") for file in files):
            return sum(int(json.loads(file["stats"])["numRecords"]) for file in files)
        root = self._target.ref.path
        paths = [f"{root}/{unquote(file['path'])}" for file in files]
        return self._delta.spark.read.parquet(*paths).count()

    def _uses_one_job(self, df: DataFrame, begun: Begun) -> bool:
        if self._strategy is not None:
            return self._strategy is Strategy.ONE_JOB
        collects = df.sparkSession.conf.get("spark.databricks.delta.stats.collect", "true")
        return (
            can_stage(begun.metadata)
            and collects == "true"
            and renames_cheaply(self._target.ref.path)
        )

    def _one_job(self, df: DataFrame, begun: Begun, schema: StructType, split: RowSplit) -> Written:
        if self._staging is None or self._staging_generation != self._target.generation:
            self._staging = staging_metadata(self._delta, begun.metadata, schema, split)
            self._staging_generation = self._target.generation
        staging = self._delta.log(self._target.ref.path).startTransaction(
            self._delta.none, self._delta.option(begun.transaction.snapshot())
        )
        staging.updateMetadata(self._staging, False)
        staged = sort_files(
            self._delta.file_contents(staging.writeFiles(df._jdf)),
            split,
            lambda files: count_masks(df.sparkSession, self._target.ref.path, files, split),
        )
        return Written(staged, self._delta.add_files(staged.clean))

    def _two_jobs(self, df: DataFrame, begun: Begun, split: RowSplit) -> Written:
        kept = df.persist()
        try:
            counts = count_rows(kept, split)
            bad = self.write_bad(kept, counts, split)
            clean = kept.where(F.col(DESTINATION) == TO_TABLE).select(*data_columns(split))
            files = begun.transaction.writeFiles(clean._jdf)
            return Written(counts, list(self._delta.items(files)), bad)
        finally:
            kept.unpersist()

    def write_bad(
        self, kept: DataFrame, counts: StagedFiles, split: RowSplit
    ) -> list[dict[str, Any]]:
        """Write rows that broke a drop rule into the folder of the quarantine table."""
        if not counts.bad_rows or self._quarantine is None or not split.quarantine:
            return []
        helpers = [F.col(column) for column in QUARANTINE_COLUMNS]
        frame = kept.where(F.col(DESTINATION) != TO_TABLE).select(*data_columns(split), *helpers)
        begun = self._quarantine.begin(None)
        self._quarantine.evolve(begun, frame.schema, allow_missing=True, replaces=self._replaces)
        return self._delta.file_contents(begun.transaction.writeFiles(frame._jdf))

    def add_late(
        self, df: DataFrame, late: FindLateRows, written: Written, schema: StructType
    ) -> tuple[Written, LateCounts]:
        """Find the rows that a stateful operator refused; those to keep become files."""
        refused = late.find(df)
        if refused.frame is None or self._quarantine is None:
            return written, LateCounts(refused.late)
        kept = refused.frame.persist()
        try:
            refused_late, rows = count_refused(kept)
            if not rows:
                return written, LateCounts()
            frame = as_quarantine_rows(kept, plain_schema(schema, nullable=True))
            begun = self._quarantine.begin(None)
            self._quarantine.evolve(begun, frame.schema, allow_missing=True, replaces=False)
            files = self._delta.file_contents(begun.transaction.writeFiles(frame._jdf))
            return replace(written, bad=[*written.bad, *files]), LateCounts(refused_late, rows)
        finally:
            kept.unpersist()
