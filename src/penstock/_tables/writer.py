"""The exactly-once writer: one job, one Delta commit per table, fence and counts in the commit.

A commit carries `SetTransaction(app_id, batch_id)`. A batch that is in already is not written
again, but still evaluated: a stateful query must compute every batch that Spark hands out. The
quarantine commits first, the target last; a batch is in when the target says so.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.expectation import Expectation, OnViolation
from penstock._tables.commits import CommitResult, RuleCounts
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import Begun, FencedTable
from penstock._tables.kill_points import kill_point
from penstock._tables.late import (
    FindLateRows,
    LateCounts,
    as_quarantine_rows,
    count_refused,
)
from penstock._tables.layout import TableRef
from penstock._tables.moving import delete_files, move_files, renames_cheaply
from penstock._tables.schema import conform, plain_schema
from penstock._tables.staging import (
    QUARANTINE_FIELDS,
    StagedFiles,
    can_stage,
    count_masks,
    sort_files,
    staging_metadata,
)
from penstock.errors import ExpectationFailedError, InternalError
from penstock.quality.rules import quoted
from penstock.quality.split import DESTINATION, QUARANTINE_COLUMNS, TO_TABLE, RowSplit, is_broken

# Batches of fewer rows are written by one task: fewer files, less to schedule.
_SMALL_ROWS = 50_000


class WriteMode(StrEnum):
    """What a batch does to the rows that are in the table."""

    APPEND = "append"
    COMPLETE = "complete"
    WINDOW = "window"
    """Those that fulfil a condition are replaced."""


class Strategy(StrEnum):
    """How the rows of one batch get into two tables."""

    ONE_JOB = "one job"
    """One job writes both; the files of the quarantine are moved into their table."""
    TWO_JOBS = "two jobs"
    """The batch is kept in memory and written twice: where a rename is a copy, and for tables with
    column mapping or identity columns."""


def app_id(pipeline: str, flow: str, epoch: str, role: str = "writer") -> str:
    """The identity under which a flow's batches are counted, in one epoch of its checkpoint."""
    return f"{pipeline}/{flow}/{role}/{epoch}"


@dataclass(frozen=True)
class Written:
    """What the jobs of one batch produced, not committed yet.

    Attributes:
        actions: For the target's commit.
        counts: Rows and rules, and the files that still have to move to the quarantine table.
        bad: Files for the quarantine table that lie there already.
        duplicates: Rows that were left out because the table has their key.
    """

    actions: Sequence[Any]
    counts: StagedFiles
    bad: Sequence[Any] = ()
    duplicates: int = 0


class FlowWriter:
    """Writes the batches of one flow. Not thread-safe: a flow has one batch at a time.

    Args:
        spark: Any session of the application.
        flow: Name of the flow.
        app_id: From `app_id`; the same as long as the checkpoint is the same.
        target: The table; must exist (`prepare.prepare_table`).
        split: What `quality.split_rows` made of the query; `None` without expectations.
        quarantine: Where rows that break a drop rule go; must exist if the split keeps them.
        mode: Append, or replace the contents, or those of a window, with every batch.
        where: Condition of the rows in the window, SQL text. The caller gives no other rows.
        allow_missing: Columns of the table that the query lacks become NULL.
        strategy: Force one; by default the table decides.
        row_rules: Expectations about the number of rows, in complete mode.
        late: Finds rows of a batch that a stateful operator refused; asked when the batch is
            computed, before anything is committed.
        coalesce: Write small batches from one task. Off for stateful queries, where it would
            compute the state of all partitions in one task.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        flow: str,
        app_id: str,
        target: TableRef,
        split: RowSplit | None = None,
        quarantine: TableRef | None = None,
        mode: WriteMode = WriteMode.APPEND,
        where: str | None = None,
        allow_missing: bool = False,
        strategy: Strategy | None = None,
        row_rules: Sequence[Expectation] = (),
        late: FindLateRows | None = None,
        coalesce: bool = True,
    ) -> None:
        keeps = (split is not None and split.quarantine) or (late is not None and late.keeps)
        if keeps and quarantine is None:
            raise InternalError("WRITER_MISUSED", "a split that keeps rows needs a quarantine")
        self._delta = DeltaJvm(spark)
        self._flow = flow
        self._app_id = app_id
        self._split = split
        self._target = FencedTable(self._delta, target, app_id)
        self._quarantine = (
            FencedTable(self._delta, quarantine, app_id) if keeps and quarantine else None
        )
        if (mode is WriteMode.WINDOW) is not (where is not None):
            raise InternalError("WRITER_MISUSED", f"the window of {flow!r} needs a condition")
        self._replaces = mode is WriteMode.COMPLETE
        self._where = where
        self._allow_missing = allow_missing
        self._strategy = strategy
        self._row_rules = row_rules
        self._coalesce = coalesce
        self._late = late
        self._last_rows: int | None = None
        self._schema: tuple[int, StructType] | None = None
        self._staging: Any = None
        self._staging_generation = -1
        self._fitting_generation = -1

    @property
    def target(self) -> TableRef:
        """The table that it writes."""
        return self._target.ref

    def write(self, df: DataFrame, batch_id: int) -> CommitResult:
        """Write one micro-batch; for `foreachBatch`. Writing it again has no effect.

        Args:
            df: The batch, with the split's helper columns if there is a split.
            batch_id: Spark's.

        Raises:
            PlanError: `SCHEMA_INCOMPATIBLE`.
        """
        return self._run(df, batch_id, None)

    def write_batch(self, df: DataFrame, *, fingerprint: str | None = None) -> CommitResult:
        """Write the result of a batch query in one commit, without a fence.

        In complete mode the table's contents are replaced: readers see the old or the new rows,
        never none. Its schema follows the query. With a window, so are the rows of the window.

        Args:
            df: With the split's helper columns if there is a split.
            fingerprint: Recorded in the commit.

        Raises:
            PlanError: `SCHEMA_INCOMPATIBLE`, in append mode.
        """
        return self._run(df, None, fingerprint)

    # -- one batch -----------------------------------------------------------------------------

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        started = time.monotonic()
        kill_point("before_write", self._flow, batch_id)
        begun = self._target.begin(batch_id)
        if begun.done:
            return self._replay(df, batch_id)
        df = self._fitting(df, begun)
        schema = self._evolve(begun, self._data_schema(df))
        written = self._write_files(self._small(df), begun, schema)
        written, late = self._add_late(df, written, schema)
        counts = written.counts
        counts.rules |= self._judge_rows(counts.clean_rows)
        self._last_rows = counts.clean_rows + counts.bad_rows
        keeps = self._split is None or self._split.quarantine
        to_drop = [] if keeps else [file["path"] for file in counts.bad]
        if to_drop:
            written = replace(written, counts=replace(counts, bad=[]))
        quarantined = (counts.bad_rows if keeps else 0) + late.kept
        result = CommitResult(
            flow=self._flow,
            app_id=self._app_id,
            batch_id=batch_id,
            version=None,
            rows_written=counts.clean_rows,
            rows_quarantined=quarantined,
            rows_dropped=0 if keeps else counts.bad_rows,
            rows_late=late.rows,
            rows_duplicate=written.duplicates,
            rules=counts.rules,
            fingerprint=fingerprint,
        )
        removes = self._replaces or self._where is not None
        if self._quarantine is not None and (written.counts.bad or written.bad or removes):
            version = self._commit_quarantine(self._quarantine, written, schema, result)
            result = replace(result, quarantine_version=version)
        kill_point("after_quarantine_commit", self._flow, batch_id)
        # A batch without rows leaves no commit: running it again finds no rows again.
        counted = late.rows or late.kept or written.duplicates
        if self._last_rows or counted or removes:
            result = self._commit_target(df, begun, written, result)
        kill_point("after_target_commit", self._flow, batch_id)
        if to_drop:
            delete_files(self._delta, to_drop, self._target.ref.path)
        return replace(result, duration_seconds=time.monotonic() - started)

    def _replay(self, df: DataFrame, batch_id: int | None) -> CommitResult:
        df.write.format("noop").mode("overwrite").save()
        return self._target.recorded(batch_id) or CommitResult(
            flow=self._flow, app_id=self._app_id, batch_id=batch_id, version=None, replayed=True
        )

    def _fitting(self, df: DataFrame, begun: Begun) -> DataFrame:
        """The batch in the types of the table, which another flow may have made wider meanwhile."""
        if self._replaces or self._fitting_generation == self._target.generation:
            return df
        fitting = conform(df, begun.metadata.schema)
        if fitting is df:
            self._fitting_generation = self._target.generation
        return fitting

    def _data_schema(self, df: DataFrame) -> StructType:
        """The batch's own columns; fetched from the JVM only when it is not the last batch's."""
        identity = int(df._jdf.schema().hashCode())
        if self._schema is None or self._schema[0] != identity:
            data = None if self._split is None else set(self._split.data_columns)
            columns = [c for c in df.schema if data is None or c.name in data]
            self._schema = (identity, StructType(columns))
        return self._schema[1]

    def _evolve(self, begun: Begun, query: StructType) -> StructType:
        return self._target.evolve(
            begun, query, allow_missing=self._allow_missing, replaces=self._replaces
        )

    def _small(self, df: DataFrame) -> DataFrame:
        if self._coalesce and self._last_rows is not None and self._last_rows < _SMALL_ROWS:
            return df.coalesce(1)
        return df

    def _judge_rows(self, rows: int) -> dict[str, RuleCounts]:
        """Apply the rules about the number of rows; before anything is committed."""
        found = {}
        for rule in self._row_rules:
            holds = rule.rows is None or rule.rows.hold(rows)
            if not holds and rule.on_violation is OnViolation.FAIL:
                raise ExpectationFailedError(
                    "EXPECTATION_VIOLATED",
                    f"flow {self._flow!r}: the result has {rows} rows, but {rule.name!r} wants "
                    f"{rule.condition}",
                    flow=self._flow,
                    origin=rule.origin,
                    hint="nothing was written: the table keeps its last rows",
                )
            found[rule.name] = RuleCounts(int(holds), int(not holds))
        return found

    # -- files ---------------------------------------------------------------------------------

    def _write_files(self, df: DataFrame, begun: Begun, schema: StructType) -> Written:
        if self._split is None:
            files = begun.transaction.writeFiles(df._jdf)
            rows = self._row_count(self._delta.file_contents(files))
            return Written(list(self._delta.items(files)), StagedFiles([], [], rows, 0, {}))
        if self._uses_one_job(df, begun):
            return self._one_job(df, begun, schema, self._split)
        return self._two_jobs(df, begun, self._split)

    def _row_count(self, files: Sequence[Mapping[str, Any]]) -> int:
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
        return Written(self._delta.add_files(staged.clean), staged)

    def _two_jobs(self, df: DataFrame, begun: Begun, split: RowSplit) -> Written:
        kept = df.persist()
        try:
            counts = count_rows(kept, split)
            bad = self._write_bad(kept, counts, split)
            clean = kept.where(F.col(DESTINATION) == TO_TABLE).select(*data_columns(split))
            files = begun.transaction.writeFiles(clean._jdf)
            return Written(list(self._delta.items(files)), counts, bad)
        finally:
            kept.unpersist()

    def _write_bad(self, kept: DataFrame, counts: StagedFiles, split: RowSplit) -> list[Any]:
        """Write rows that broke a drop rule into the folder of the quarantine table."""
        if not counts.bad_rows or self._quarantine is None or not split.quarantine:
            return []
        helpers = [F.col(column) for column in QUARANTINE_COLUMNS]
        frame = kept.where(F.col(DESTINATION) != TO_TABLE).select(*data_columns(split), *helpers)
        begun = self._quarantine.begin(None)
        self._quarantine.evolve(begun, frame.schema, allow_missing=True, replaces=self._replaces)
        return list(self._delta.items(begun.transaction.writeFiles(frame._jdf)))

    def _add_late(
        self, df: DataFrame, written: Written, schema: StructType
    ) -> tuple[Written, LateCounts]:
        """Find the rows that a stateful operator refused; those to keep become files."""
        if self._late is None:
            return written, LateCounts()
        refused = self._late.find(df)
        if refused.frame is None or self._quarantine is None:
            return written, LateCounts(refused.late)
        kept = refused.frame.persist()
        try:
            late, rows = count_refused(kept)
            if not rows:
                return written, LateCounts()
            frame = as_quarantine_rows(kept, plain_schema(schema, nullable=True))
            begun = self._quarantine.begin(None)
            self._quarantine.evolve(begun, frame.schema, allow_missing=True, replaces=False)
            files = list(self._delta.items(begun.transaction.writeFiles(frame._jdf)))
            return replace(written, bad=[*written.bad, *files]), LateCounts(late, rows)
        finally:
            kept.unpersist()

    # -- commits -------------------------------------------------------------------------------

    def _commit_target(
        self, df: DataFrame, begun: Begun, written: Written, result: CommitResult
    ) -> CommitResult:
        removed, rows = self._removals(self._target, begun)
        actions = [*removed, *written.actions]
        result = replace(result, rows_deleted=rows)
        if self._where is not None and not actions:
            return result  # an empty window stays one
        version = self._target.commit(
            begun,
            actions,
            result.batch_id,
            result,
            complete=bool(self._replaces or self._where),
            where=self._where,
        )
        return replace(result, version=version)

    def _removals(self, table: FencedTable, begun: Begun) -> tuple[list[Any], int]:
        """Actions that take away what the batch replaces, and the rows of a window as a number."""
        if self._where is not None:
            return table.removals_where(begun, self._where)
        return table.removals(begun) if self._replaces else [], 0

    def _commit_quarantine(
        self, table: FencedTable, written: Written, schema: StructType, result: CommitResult
    ) -> int | None:
        begun = table.begin(result.batch_id)
        paths = [file["path"] for file in written.counts.bad]
        if begun.done:
            # A run before this one died between the two commits: these rows are in.
            delete_files(self._delta, paths, self._target.ref.path)
            return None
        fields = plain_schema(schema, nullable=True, keep_comments=False).fields
        evolved = table.evolve(
            begun,
            StructType([*fields, *QUARANTINE_FIELDS]),
            allow_missing=True,
            replaces=self._replaces,
        )
        move_files(self._delta, paths, self._target.ref.path, table.ref.path)
        removed, rows = self._removals(table, begun)
        actions = [*removed, *self._delta.add_files(written.counts.bad), *written.bad]
        if not actions and evolved == begun.metadata.schema:
            return None
        record = replace(
            result,
            rows_written=result.rows_quarantined,
            rows_quarantined=0,
            rows_deleted=rows,
            rules={},
            fingerprint=None,
        )
        return table.commit(
            begun,
            actions,
            result.batch_id,
            record,
            complete=bool(self._replaces or self._where),
            where=self._where,
        )


def data_columns(split: RowSplit) -> list[Column]:
    """The user's columns of a split."""
    return [F.col(quoted(column)) for column in split.data_columns]


def count_rows(kept: DataFrame, split: RowSplit) -> StagedFiles:
    """Count a persisted batch by destination and rule, without files."""
    return count_rows_and(kept, split, {})[0]


def count_rows_and(
    kept: DataFrame, split: RowSplit, more: Mapping[str, Column]
) -> tuple[StagedFiles, dict[str, int]]:
    """Count a persisted batch as `count_rows` does, and whatever else, in the same job.

    Args:
        kept: The batch, with the split's helper columns.
        split: Its split.
        more: Further counts by name.
    """
    sums = [
        F.count(F.when(is_broken(*place), 1)).alias(f"rule_{number}")
        for number, place in enumerate(split.bits.values())
    ]
    is_bad = F.when(F.col(DESTINATION) != TO_TABLE, 1)
    row: Any = kept.agg(
        F.count(F.lit(1)).alias("total"),
        F.count(is_bad).alias("bad"),
        *sums,
        *[column.alias(f"more_{name}") for name, column in more.items()],
    ).first()
    total, bad = int(row["total"]), int(row["bad"])
    failed = {rule: int(row[f"rule_{number}"]) for number, rule in enumerate(split.bits)}
    rules = {
        rule: RuleCounts(total - failed.get(rule, 0), failed.get(rule, 0)) for rule in split.rules
    }
    found = {name: int(row[f"more_{name}"]) for name in more}
    return StagedFiles([], [], total - bad, bad, rules), found
