"""Writes micro-batches exactly once: one Spark job, one Delta commit per table.

Each commit carries `SetTransaction(app_id, batch_id)`. A batch that is committed already is not
written again; a stateful query still evaluates it, otherwise Spark never commits its state. The
quarantine is committed first, the target last: the commit of the target completes a batch. The
files of both are recorded before the first of two commits (`decision`), so that the rules are
applied to a batch once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Required, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from penstock._model.expectation import Expectation, OnViolation
from penstock._tables.commit_note import QUARANTINE, TARGET, CommitNote
from penstock._tables.commits import CommitResult, RuleCounts
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.kill_points import is_switched_off, kill_point
from penstock._tables.layout import QUARANTINE_SUFFIX, TableRef
from penstock._tables.write.decision import BatchDecision, DecisionFile
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.kept import release
from penstock._tables.write.key_joins import SMALL_ROWS
from penstock._tables.write.row_files import FindLateRows, RowFiles, Written
from penstock._tables.write.schema import (
    compare,
    conform,
    conformed,
    has_identity,
    is_identity,
    plain_schema,
)
from penstock._tables.write.staging import QUARANTINE_FIELDS, RowCounts
from penstock.errors import CheckpointError, ExpectationFailedError, InternalError
from penstock.quality.split import RowSplit


@dataclass(frozen=True)
class Batch:
    """A batch whose files are written, before its commits."""

    txn: TableTransaction
    written: Written
    result: CommitResult  # without the versions of the commits
    schema: StructType  # columns of the rows for the target
    quarantine_schema: StructType | None = None  # if the batch commits to the quarantine


class WriterOptions(TypedDict, total=False):
    flow: Required[str]
    app_id: Required[str]  # from `layout.app_id`; constant for a checkpoint
    target: Required[TableRef]
    split: RowSplit | None  # from `quality.split_rows`; None without expectations
    quarantine: TableRef | None  # for rows that violate a drop rule
    allow_missing: bool  # columns that the query lacks become NULL
    late: FindLateRows | None  # called when the batch is computed, before any commit
    stateful: bool
    apply_rules: Callable[[DataFrame], DataFrame] | None  # adds the split's columns
    decisions: DecisionFile | None  # None for `write_batch` only
    note: CommitNote | None


class FlowWriter:
    """Writes the batches of one flow. Not thread-safe: a flow has one batch at a time.

    The tables must exist (`prepare.prepare_table`). In complete mode, each batch `replaces` their
    contents. `where` is the condition of a window: all rows of the batch match it, and replace the
    rows of the tables that do. A repeated batch of a `stateful` query is evaluated without being
    written, and its small batches are not written by one task, which would compute the state of all
    partitions.
    """

    kind = "append"
    """How rows are written; a recorded decision is completed by a writer of the same kind."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        replaces: bool = False,
        where: str | None = None,
        row_rules: Sequence[Expectation] = (),  # about the number of rows, in complete mode
        **options: Unpack[WriterOptions],
    ) -> None:
        flow, app_id, split = options["flow"], options["app_id"], options.get("split")
        quarantine, late = options.get("quarantine"), options.get("late")
        keeps = (split is not None and split.quarantine) or (late is not None and late.keeps)
        if keeps and quarantine is None:
            raise InternalError("WRITER_MISUSED", "a split that keeps rows needs a quarantine")
        self._delta = DeltaJvm(spark)
        self._flow = flow
        self._app_id = app_id
        self._split = split
        self._target = FencedTable(self._delta, options["target"], app_id)
        # Even if rows are no longer kept, those of an earlier decision are written there.
        self._decided_quarantine = (
            None if quarantine is None else FencedTable(self._delta, quarantine, app_id)
        )
        self._quarantine = self._decided_quarantine if keeps else None
        self._replaces = replaces
        self._where = where
        self._files = RowFiles(
            self._delta, self._target, self._quarantine, split, replaces=replaces
        )
        self._allow_missing = options.get("allow_missing", False)
        self._row_rules = row_rules
        self._stateful = options.get("stateful", False)
        self._coalesce = not self._stateful
        self._late = late
        self._apply_rules = options.get("apply_rules")
        # With `replaces`, a repeated batch replaces both tables again.
        self._decisions = None if replaces else options.get("decisions")
        self._note = options.get("note")
        # Only the first batch after a start or a failure can have a recorded decision.
        self._may_repeat = True
        self._last_rows: int | None = None
        self._schema: tuple[int, StructType] | None = None
        self._fitting_generation = -1
        self._kept: DataFrame | None = None
        """The batch, if a writer reads it several times; unpersisted afterwards."""

    def write(self, df: DataFrame, batch_id: int) -> CommitResult:
        """Write one micro-batch; for `foreachBatch`. Writing it again has no effect.

        The batch has the split's helper columns if there is a split and no `apply_rules`.

        Raises:
            PlanError: `SCHEMA_INCOMPATIBLE`.
            CheckpointError: `BATCH_UNFINISHED`: an interrupted batch cannot be completed.
        """
        return self._run(df, batch_id, None)

    def write_batch(self, df: DataFrame, *, fingerprint: str | None = None) -> CommitResult:
        """Write the result of a batch query in one commit, without a fence.

        In complete mode the table's contents are replaced: readers see the old or the new rows. Its
        schema follows the query. With a window, the rows of the window are replaced.
        """
        return self._run(df, None, fingerprint)

    # -- one batch -----------------------------------------------------------------------------

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        try:
            return self._write(df, batch_id, fingerprint)
        finally:
            if self._kept is not None:
                release(self._kept)
                self._kept = None

    def _write(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        may_repeat, self._may_repeat = self._may_repeat, True
        kill_point("before_write", self._flow, batch_id)
        txn = self._target.begin(batch_id)
        if txn.is_committed:
            self._evaluate(df)
            result = self._target.recorded(batch_id) or CommitResult(
                flow=self._flow, app_id=self._app_id, batch_id=batch_id, version=None, replayed=True
            )
        else:
            decision = self._recorded_decision(txn, batch_id) if may_repeat else None
            if decision is None:
                batch = self._decide(df, txn, batch_id, fingerprint)
            else:
                self._evaluate(df)
                batch = self._resume(decision)
            result = self._commit(batch)
        if self._note is not None:
            commits = {role: table.last_commit for role, table in self._fenced().items()}
            self._note.update({role: last for role, last in commits.items() if last is not None})
        self._may_repeat = False
        return result

    def _fenced(self) -> dict[str, FencedTable]:
        tables = {TARGET: self._target}
        return tables if self._quarantine is None else {**tables, QUARANTINE: self._quarantine}

    def _decide(
        self, df: DataFrame, txn: TableTransaction, batch_id: int | None, fingerprint: str | None
    ) -> Batch:
        """Write the files of a batch, and record them if it has several commits."""
        df = self._fitting(df if self._apply_rules is None else self._apply_rules(df), txn)
        query = self._data_schema(df)
        schema = self._evolve(txn, query)
        if self._quarantine is not None and not self._replaces:  # files may be recorded
            txn = self._target.name_columns(txn, batch_id)
        written, late_rows, late_kept = self._write_files(self._small(df), txn, schema), 0, 0
        if self._late is not None:
            written, late_rows, late_kept = self._files.add_late(df, self._late, written, schema)
        counts = written.counts
        counts.rules |= self._check_row_rules(counts.clean_rows)
        self._last_rows = counts.clean_rows + counts.bad_rows
        keeps = self._split is None or self._split.quarantine
        result = CommitResult(
            flow=self._flow,
            app_id=self._app_id,
            batch_id=batch_id,
            version=None,
            rows_written=counts.clean_rows,
            rows_quarantined=(counts.bad_rows if keeps else 0) + late_kept,
            rows_dropped=0 if keeps else counts.bad_rows,
            rows_late=late_rows,
            rows_duplicate=written.duplicates,
            rules=counts.rules,
            fingerprint=fingerprint,
        )
        quarantine = None
        if self._quarantine is not None and (written.bad or self._removes):
            quarantine = StructType([*self._quarantine_fields(schema), *QUARANTINE_FIELDS])
        batch = Batch(txn, written, self._counted(result), query, quarantine)
        self._record(batch)
        return batch

    def _commit(self, batch: Batch) -> CommitResult:
        result, counts = batch.result, batch.written.counts
        if batch.quarantine_schema is not None:
            version = self._commit_quarantine(batch, batch.quarantine_schema)
            result = replace(result, quarantine_version=version)
        kill_point("after_quarantine_commit", self._flow, result.batch_id)
        # A batch without rows is not committed: if it is repeated, it has no rows again.
        counted = result.rows_late or result.rows_quarantined or result.rows_duplicate
        if counts.clean_rows or counts.bad_rows or counted or self._removes:
            result = self._commit_target(replace(batch, result=result))
        kill_point("after_target_commit", self._flow, result.batch_id)
        return result

    def _evaluate(self, df: DataFrame) -> None:
        """Compute a batch without writing it, if Spark needs that for its state."""
        if self._stateful:
            df.write.format("noop").mode("overwrite").save()

    @property
    def _removes(self) -> bool:
        return self._replaces or self._where is not None

    def _counted(self, result: CommitResult) -> CommitResult:
        return result

    def _quarantine_fields(self, schema: StructType) -> list[StructField]:
        return list(plain_schema(schema, nullable=True, keep_comments=False).fields)

    # -- decisions -----------------------------------------------------------------------------

    def _record(self, batch: Batch) -> None:
        batch_id = batch.result.batch_id
        if batch_id is None or not self._needs_decision(batch):
            return
        if self._decisions is None:
            raise InternalError("WRITER_MISUSED", f"{self._flow!r} cannot record its decisions")
        written = batch.written
        decision = BatchDecision(
            kind=self.kind,
            result=batch.result,
            schema=batch.schema,
            target_version=batch.txn.version,
            quarantine_schema=batch.quarantine_schema,
            bad=written.bad,
            counts={"clean": written.counts.clean_rows, "bad": written.counts.bad_rows},
        )
        self._decisions.save(self._with_rows(decision, batch))
        kill_point("after_decision", self._flow, batch_id)

    def _needs_decision(self, batch: Batch) -> bool:
        return batch.quarantine_schema is not None and not self._replaces

    def _with_rows(self, decision: BatchDecision, batch: Batch) -> BatchDecision:
        files = self._delta.file_contents(self._delta.seq(batch.written.actions))
        return replace(decision, files=files)

    @property
    def _files_path(self) -> str:
        return self._target.ref.path

    def _recorded_decision(
        self, txn: TableTransaction, batch_id: int | None
    ) -> BatchDecision | None:
        """The recorded decision about a batch; `None` if there is none to complete."""
        if batch_id is None or self._decisions is None or is_switched_off("decision"):
            return None
        decision = self._decisions.load(self._app_id, batch_id)
        if decision is None:
            return None
        # The table may have wider columns since the files were written.
        have = txn.metadata.schema
        decision = replace(decision, schema=conformed(decision.schema, have))
        has_bad = decision.quarantine_schema is not None
        table = self._decided_quarantine if has_bad else None
        path = self._target.ref.path if table is None else table.ref.path
        exists = not has_bad or (table and self._delta.version(path) >= 0)
        problem = ""
        if decision.kind != self.kind:
            problem = f"it was started in mode {decision.kind}, and the flow now has {self.kind}"
        elif decision.is_outdated:
            problem = "an earlier version of Penstock started it"
        elif not exists:
            problem = "the quarantine that it has rows for does not exist any more"
        elif not self._decisions.is_complete(decision, self._files_path, path):
            problem = "some of its files were deleted since"
        elif compare(have, decision.schema).conflicts:
            problem = "columns of its table have other types now"
        if not problem:
            return decision
        if not exists:
            # Read only, never written: it may be another dataset now.
            path = f"{self._target.ref.path}{QUARANTINE_SUFFIX}"
            former = FencedTable(self._delta, TableRef(path, path), self._app_id)
            table = former if self._delta.version(path) >= 0 else None
        if not self._is_partly_committed(decision, table):
            return None  # no part of it is committed: the rules can be applied again
        raise CheckpointError(
            "BATCH_UNFINISHED",
            f"batch {batch_id} of flow {self._flow!r} was interrupted between its commits and "
            f"cannot be completed: {problem}",
            flow=self._flow,
            hint=f"run the earlier version of the pipeline once, or restore the files; or "
            f"--full-refresh {self._target.ref.name} rebuilds the table from its sources",
        )

    def _is_partly_committed(self, decision: BatchDecision, quarantine: FencedTable | None) -> bool:
        return quarantine is not None and quarantine.begin(decision.result.batch_id).is_committed

    def _resume(self, decision: BatchDecision) -> Batch:
        result, recorded = decision.result, decision.counts
        txn = self._target.begin(result.batch_id)
        self._evolve(txn, decision.schema, allow_missing=True)
        counts = RowCounts(recorded["clean"], recorded["bad"], dict(result.rules))
        written = Written(counts, bad=decision.bad, duplicates=result.rows_duplicate)
        batch = Batch(txn, written, result, decision.schema, decision.quarantine_schema)
        return self._with_recorded_rows(batch, decision)

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        if not has_identity(batch.txn.metadata.schema):
            actions = self._delta.add_files(decision.files)
            return replace(batch, written=replace(batch.written, actions=actions))
        # The transaction that writes the files has the high-water mark of identity columns.
        batch, rows = self._recorded_rows(batch, decision)
        actions = self._delta.write_files(batch.txn.jvm, rows)
        return replace(batch, written=replace(batch.written, actions=actions))

    def _recorded_rows(self, batch: Batch, decision: BatchDecision) -> tuple[Batch, DataFrame]:
        """Read the files of a decision, which are in no version of the target."""
        txn = self._target.commit_evolution(batch.txn, batch.result.batch_id)
        files = self._delta.add_files(decision.files)
        rows = self._delta.read_files(txn.jvm.snapshot(), files)
        own = {column.name.lower() for column in decision.schema}
        computed = [
            column.name
            for column in txn.metadata.schema
            if is_identity(column) and column.name.lower() not in own
        ]
        return replace(batch, txn=txn), rows.drop(*computed)

    # -- rows ----------------------------------------------------------------------------------

    def _fitting(self, df: DataFrame, txn: TableTransaction) -> DataFrame:
        """The batch cast to the types of the table, which another flow may have widened."""
        if self._replaces or self._fitting_generation == self._target.generation:
            return df
        fitting = conform(df, txn.metadata.schema)
        if fitting is df:
            self._fitting_generation = self._target.generation
        return fitting

    def _data_schema(self, df: DataFrame) -> StructType:
        """The data columns of the batch, read from the JVM only if its schema may have changed."""
        identity = int(df._jdf.schema().hashCode())
        if self._schema is None or self._schema[0] != identity:
            data = None if self._split is None else set(self._split.data_columns)
            columns = [c for c in df.schema if data is None or c.name in data]
            self._schema = (identity, StructType(columns))
        return self._schema[1]

    def _evolve(
        self, txn: TableTransaction, query: StructType, *, allow_missing: bool = False
    ) -> StructType:
        allow_missing |= self._allow_missing
        return self._target.evolve(txn, query, allow_missing=allow_missing, replaces=self._replaces)

    def _small(self, df: DataFrame) -> DataFrame:
        if self._coalesce and self._last_rows is not None and self._last_rows < SMALL_ROWS:
            return df.coalesce(1)
        return df

    def _check_row_rules(self, rows: int) -> dict[str, RuleCounts]:
        """Apply the rules about the number of rows; before anything is committed."""
        counts = {}
        for rule in self._row_rules:
            holds = rule.rows is None or rule.rows.hold(rows)
            if not holds and rule.on_violation is OnViolation.FAIL:
                raise ExpectationFailedError(
                    "EXPECTATION_VIOLATED",
                    f"flow {self._flow!r}: the result has {rows} rows, but {rule.name!r} requires "
                    f"{rule.condition}",
                    flow=self._flow,
                    origin=rule.origin,
                    hint="nothing was written: the table keeps its last rows",
                )
            counts[rule.name] = RuleCounts(int(holds), int(not holds))
        return counts

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        return self._files.write(df, txn, schema)

    # -- commits -------------------------------------------------------------------------------

    def _commit_target(self, batch: Batch) -> CommitResult:
        removed, rows = self._removals(self._target, batch.txn)
        actions = [*removed, *batch.written.actions]
        result = replace(batch.result, rows_deleted=rows)
        if self._where is not None and not actions:
            return result  # the window was empty and stays empty
        version = self._target.commit(
            batch.txn, actions, result.batch_id, result, complete=self._removes, where=self._where
        )
        return replace(result, version=version)

    def _removals(self, table: FencedTable, txn: TableTransaction) -> tuple[list[Any], int]:
        """Actions that remove the rows that the batch replaces, and the row count of a window."""
        if self._where is not None:
            return self._delta.deletions(txn.jvm, self._where)
        return table.removals(txn) if self._replaces else [], 0

    def _commit_quarantine(self, batch: Batch, schema: StructType) -> int | None:
        written, result, table = batch.written, batch.result, self._decided_quarantine
        assert table is not None
        txn = self._files.replacing
        if txn is None:
            txn = table.begin(result.batch_id)
            if txn.is_committed and not self._replaces:
                return None
            schema = conformed(schema, txn.metadata.schema)
            table.evolve(txn, schema, allow_missing=True, replaces=self._replaces)
        removed, rows = self._removals(table, txn)
        actions = [*removed, *self._delta.add_files(written.bad)]
        if not actions and not txn.jvm.newMetadata().isDefined():
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
            txn, actions, result.batch_id, record, complete=self._removes, where=self._where
        )
