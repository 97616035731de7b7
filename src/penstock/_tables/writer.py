"""The exactly-once writer: one job, one Delta commit per table, fence and counts in the commit.

A commit carries `SetTransaction(app_id, batch_id)`. A batch that is in already is not written
again; a stateful query still evaluates it, or Spark never commits its state. The quarantine commits
first, the target last; a batch is in when the target says so. What goes where is recorded before
the first of two commits (`decision`), so that a batch is judged once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from penstock._model.expectation import Expectation, OnViolation
from penstock._tables.commit_note import QUARANTINE, TARGET, CommitNote
from penstock._tables.commits import CommitResult, RuleCounts
from penstock._tables.decision import BatchDecision, DecisionFile, QuarantineFiles
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import Begun, FencedTable
from penstock._tables.kill_points import is_switched_off, kill_point
from penstock._tables.layout import QUARANTINE_SUFFIX, TableRef
from penstock._tables.move_files import delete_files, move_files
from penstock._tables.refused_rows import (
    FindLateRows,
    LateCounts,
)
from penstock._tables.row_files import RowFiles, Strategy, Written
from penstock._tables.schema import conform, has_identity, is_identity, plain_schema
from penstock._tables.staging import (
    QUARANTINE_FIELDS,
    StagedFiles,
)
from penstock.errors import CheckpointError, ExpectationFailedError, InternalError
from penstock.quality.split import RowSplit

# Batches of fewer rows are written by one task: fewer files, less to schedule.
_SMALL_ROWS = 50_000


class WriteMode(StrEnum):
    """What a batch does to the rows that are in the table."""

    APPEND = "append"
    COMPLETE = "complete"
    WINDOW = "window"
    """Those that fulfil a condition are replaced."""


def app_id(pipeline: str, flow: str, epoch: str, role: str = "writer") -> str:
    """The identity under which a flow's batches are counted, in one epoch of its checkpoint."""
    return f"{pipeline}/{flow}/{role}/{epoch}"


@dataclass(frozen=True)
class Batch:
    """One batch whose rows are decided upon.

    Attributes:
        begun: Transaction on the target.
        written: Its files.
        result: The record, without the versions that the commits will make.
        schema: Columns of the rows that go to the target.
        quarantine: Its table, if the batch commits there.
        quarantine_schema: Columns of the rows that go there.
    """

    begun: Begun
    written: Written
    result: CommitResult
    schema: StructType
    quarantine: FencedTable | None = None
    quarantine_schema: StructType | None = None


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
        stateful: Whether the query keeps state: then a repeated batch is evaluated, though nothing
            of it is written, and small batches are not written from one task, which would compute
            the state of all partitions.
        apply_rules: Adds the helper columns of the split to a batch that lacks them; see `write`.
        decisions: Where decisions about batches are recorded; `None` for `write_batch` only.
        note: Where the commits of a batch are noted.
    """

    kind = "append"
    """How rows get into the target; a recorded decision is carried out by a writer of its kind."""

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
        stateful: bool = False,
        apply_rules: Callable[[DataFrame], DataFrame] | None = None,
        decisions: DecisionFile | None = None,
        note: CommitNote | None = None,
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
        self._files = RowFiles(
            self._delta, self._target, self._quarantine, split, strategy, replaces=self._replaces
        )
        self._allow_missing = allow_missing
        self._row_rules = row_rules
        self._coalesce = not stateful
        self._late = late
        self._stateful = stateful
        self._apply_rules = apply_rules
        self._decisions = decisions
        self._note = note
        # Only the first batch after a start or a failure can have been decided upon before.
        self._may_repeat = True
        self._last_rows: int | None = None
        self._schema: tuple[int, StructType] | None = None
        self._fitting_generation = -1

    @property
    def target(self) -> TableRef:
        """The table that it writes."""
        return self._target.ref

    def write(self, df: DataFrame, batch_id: int) -> CommitResult:
        """Write one micro-batch; for `foreachBatch`. Writing it again has no effect.

        Args:
            df: The batch, with the split's helper columns if there is a split and no `apply_rules`.
            batch_id: Spark's.

        Raises:
            PlanError: `SCHEMA_INCOMPATIBLE`.
            CheckpointError: `BATCH_UNFINISHED`: an interrupted batch cannot be completed.
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
        may_repeat, self._may_repeat = self._may_repeat, True
        kill_point("before_write", self._flow, batch_id)
        begun = self._target.begin(batch_id)
        if begun.done:
            result = self._replay(df, batch_id)
        else:
            decision = self._recorded_decision(batch_id) if may_repeat else None
            if decision is None:
                batch = self._decide(df, begun, batch_id, fingerprint)
            else:
                self._evaluate(df)
                batch = self._resume(decision)
            result = replace(self._commit(batch), duration_seconds=time.monotonic() - started)
        if self._note is not None:
            commits = {role: table.last_commit for role, table in self._fenced().items()}
            self._note.update({role: last for role, last in commits.items() if last is not None})
        self._may_repeat = False
        return result

    def _fenced(self) -> dict[str, FencedTable]:
        """The tables that a batch commits to, by role."""
        tables = {TARGET: self._target}
        return tables if self._quarantine is None else {**tables, QUARANTINE: self._quarantine}

    def _decide(
        self, df: DataFrame, begun: Begun, batch_id: int | None, fingerprint: str | None
    ) -> Batch:
        """Compute a batch: which rows go where; recorded where two tables are to be committed."""
        df = self._fitting(df if self._apply_rules is None else self._apply_rules(df), begun)
        query = self._data_schema(df)
        schema = self._evolve(begun, query)
        written, late = self._write_files(self._small(df), begun, schema), LateCounts()
        if self._late is not None:
            written, late = self._files.add_late(df, self._late, written, schema)
        counts = written.counts
        counts.rules |= self._judge_rows(counts.clean_rows)
        self._last_rows = counts.clean_rows + counts.bad_rows
        keeps = self._split is None or self._split.quarantine
        if not keeps and counts.bad:
            delete_files(self._delta, [file["path"] for file in counts.bad], self._target.ref.path)
            written = replace(written, counts=replace(counts, bad=[]))
        result = CommitResult(
            flow=self._flow,
            app_id=self._app_id,
            batch_id=batch_id,
            version=None,
            rows_written=counts.clean_rows,
            rows_quarantined=(counts.bad_rows if keeps else 0) + late.kept,
            rows_dropped=0 if keeps else counts.bad_rows,
            rows_late=late.rows,
            rows_duplicate=written.duplicates,
            rules=counts.rules,
            fingerprint=fingerprint,
        )
        batch = Batch(begun, written, self._counted(result), query)
        if self._quarantine is not None and (written.counts.bad or written.bad or self._removes):
            fields = self._quarantine_fields(schema)
            batch = replace(
                batch,
                quarantine=self._quarantine,
                quarantine_schema=StructType([*fields, *QUARANTINE_FIELDS]),
            )
        self._record(batch)
        return batch

    def _commit(self, batch: Batch) -> CommitResult:
        result, counts = batch.result, batch.written.counts
        if batch.quarantine is not None:
            version = self._commit_quarantine(batch, batch.quarantine)
            result = replace(result, quarantine_version=version)
        kill_point("after_quarantine_commit", self._flow, result.batch_id)
        # A batch without rows leaves no commit: running it again finds no rows again.
        counted = result.rows_late or result.rows_quarantined or result.rows_duplicate
        if counts.clean_rows or counts.bad_rows or counted or self._removes:
            result = self._commit_target(replace(batch, result=result))
        kill_point("after_target_commit", self._flow, result.batch_id)
        return result

    def _replay(self, df: DataFrame, batch_id: int | None) -> CommitResult:
        self._evaluate(df)
        return self._target.recorded(batch_id) or CommitResult(
            flow=self._flow, app_id=self._app_id, batch_id=batch_id, version=None, replayed=True
        )

    def _evaluate(self, df: DataFrame) -> None:
        """Compute a batch of which nothing is written, where Spark needs that for its state."""
        if self._stateful:
            df.write.format("noop").mode("overwrite").save()

    @property
    def _removes(self) -> bool:
        """Whether a batch takes rows out of the tables."""
        return self._replaces or self._where is not None

    def _counted(self, result: CommitResult) -> CommitResult:
        """The record of a batch as its commit shows it."""
        return result

    def _quarantine_fields(self, schema: StructType) -> list[StructField]:
        """Columns of the quarantine beside its own, given the schema of the target."""
        return list(plain_schema(schema, nullable=True, keep_comments=False).fields)

    # -- decisions -----------------------------------------------------------------------------

    def _record(self, batch: Batch) -> None:
        """Make the decision about a batch durable, unless one commit holds all of it."""
        batch_id = batch.result.batch_id
        if batch_id is None or not self._needs_decision(batch):
            return
        if self._decisions is None:
            raise InternalError("WRITER_MISUSED", f"{self._flow!r} cannot record its decisions")
        written, quarantine = batch.written, None
        if batch.quarantine is not None and batch.quarantine_schema is not None:
            quarantine = QuarantineFiles(
                schema=batch.quarantine_schema, staged=written.counts.bad, written=written.bad
            )
        decision = BatchDecision(
            kind=self.kind,
            result=batch.result,
            schema=batch.schema,
            target_version=batch.begun.version,
            quarantine=quarantine,
            counts={"clean": written.counts.clean_rows, "bad": written.counts.bad_rows},
        )
        self._decisions.save(self._with_rows(decision, batch, self._decisions))
        kill_point("after_decision", self._flow, batch_id)

    def _needs_decision(self, batch: Batch) -> bool:
        """Whether the batch has more than one commit."""
        return batch.quarantine is not None

    def _with_rows(
        self, decision: BatchDecision, batch: Batch, file: DecisionFile
    ) -> BatchDecision:
        """The decision with the rows that passed."""
        files = self._delta.file_contents(self._delta.seq(batch.written.actions))
        return replace(decision, files=files)

    @property
    def _files_path(self) -> str:
        """Path of the table below which the files of a decision lie."""
        return self._target.ref.path

    def _recorded_decision(self, batch_id: int | None) -> BatchDecision | None:
        """What was decided about a batch before; `None` if it is still to be decided.

        Raises:
            CheckpointError: `BATCH_UNFINISHED`.
        """
        if batch_id is None or self._decisions is None or is_switched_off("decision"):
            return None
        decision = self._decisions.load(self._app_id, batch_id)
        if decision is None:
            return None
        table = self._quarantine_of(decision)
        exists = table is None or int(self._delta.snapshot(table.ref.path).version()) >= 0
        place = self._target.ref.path if table is None else table.ref.path
        problem = ""
        if decision.kind != self.kind:
            problem = f"it was begun as {decision.kind}, and the flow now writes as {self.kind}"
        elif not exists or not self._decisions.is_complete(decision, self._files_path, place):
            problem = "files of it were deleted since"
        if not problem:
            return decision
        if not self._is_begun(decision, table if exists else None):
            return None  # nothing of it is in any table: it can be judged anew
        raise CheckpointError(
            "BATCH_UNFINISHED",
            f"batch {batch_id} of flow {self._flow!r} was interrupted between its commits and "
            f"cannot be completed: {problem}",
            flow=self._flow,
            hint=f"run the earlier version of the pipeline once, or restore the files; or "
            f"--full-refresh {self._target.ref.name} rebuilds the table from its sources",
        )

    def _is_begun(self, decision: BatchDecision, quarantine: FencedTable | None) -> bool:
        """Whether one of the commits of a decision was made."""
        return quarantine is not None and quarantine.begin(decision.result.batch_id).done

    def _quarantine_of(self, decision: BatchDecision) -> FencedTable | None:
        if decision.quarantine is None:
            return None
        if self._quarantine is not None:
            return self._quarantine
        # The rules were removed since; the rows still go where they were decided to go.
        ref = self._target.ref
        place = TableRef(f"{ref.path}{QUARANTINE_SUFFIX}", f"{ref.name}{QUARANTINE_SUFFIX}")
        return FencedTable(self._delta, place, self._app_id)

    def _resume(self, decision: BatchDecision) -> Batch:
        """The batch that a decision is about, ready for its commits."""
        result, quarantine = decision.result, decision.quarantine
        begun = self._target.begin(result.batch_id)
        self._evolve(begun, decision.schema)
        counts = StagedFiles(
            clean=[],
            bad=[dict(file) for file in quarantine.staged] if quarantine is not None else [],
            clean_rows=decision.counts["clean"],
            bad_rows=decision.counts["bad"],
            rules=dict(result.rules),
        )
        bad = quarantine.written if quarantine is not None else ()
        batch = Batch(
            begun,
            Written(counts, bad=bad, duplicates=result.rows_duplicate),
            result,
            decision.schema,
            None if quarantine is None else self._quarantine_of(decision),
            None if quarantine is None else quarantine.schema,
        )
        return self._with_recorded_rows(batch, decision)

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        """A resumed batch with what a decision recorded of the rows that passed."""
        if not has_identity(batch.begun.metadata.schema):
            actions = self._delta.add_files(decision.files)
            return replace(batch, written=replace(batch.written, actions=actions))
        # How far an identity column has counted is in the transaction that writes the files.
        batch, rows = self._recorded_rows(batch, decision)
        files = batch.begun.transaction.writeFiles(rows._jdf)
        return replace(batch, written=replace(batch.written, actions=[*self._delta.items(files)]))

    def _recorded_rows(self, batch: Batch, decision: BatchDecision) -> tuple[Batch, DataFrame]:
        """Read the files of a decision, which are in no version of the target."""
        begun = self._target.commit_evolution(batch.begun, batch.result.batch_id)
        log, files = self._delta.log(self._target.ref.path), self._delta.add_files(decision.files)
        snapshot = begun.transaction.snapshot()
        frame = log.createDataFrame(snapshot, self._delta.seq(files), False, self._delta.none)
        identity = [column.name for column in begun.metadata.schema if is_identity(column)]
        return replace(batch, begun=begun), DataFrame(frame, self._delta.spark).drop(*identity)

    # -- rows ----------------------------------------------------------------------------------

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

    def _write_files(self, df: DataFrame, begun: Begun, schema: StructType) -> Written:
        return self._files.write(df, begun, schema)

    # -- commits -------------------------------------------------------------------------------

    def _commit_target(self, batch: Batch) -> CommitResult:
        removed, rows = self._removals(self._target, batch.begun)
        actions = [*removed, *batch.written.actions]
        result = replace(batch.result, rows_deleted=rows)
        if self._where is not None and not actions:
            return result  # an empty window stays one
        version = self._target.commit(
            batch.begun,
            actions,
            result.batch_id,
            result,
            complete=self._removes,
            where=self._where,
        )
        return replace(result, version=version)

    def _removals(self, table: FencedTable, begun: Begun) -> tuple[list[Any], int]:
        """Actions that take away what the batch replaces, and the rows of a window as a number."""
        if self._where is not None:
            return table.removals_where(begun, self._where)
        return table.removals(begun) if self._replaces else [], 0

    def _commit_quarantine(self, batch: Batch, table: FencedTable) -> int | None:
        written, result = batch.written, batch.result
        begun = table.begin(result.batch_id)
        paths = [file["path"] for file in written.counts.bad]
        if begun.done:
            # In without a decision that says so, it was judged by a version that recorded none.
            delete_files(self._delta, paths, self._target.ref.path)
            return None
        assert batch.quarantine_schema is not None
        evolved = table.evolve(
            begun, batch.quarantine_schema, allow_missing=True, replaces=self._replaces
        )
        move_files(self._delta, paths, self._target.ref.path, table.ref.path)
        removed, rows = self._removals(table, begun)
        actions = [*removed, *self._delta.add_files([*written.counts.bad, *written.bad])]
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
            begun, actions, result.batch_id, record, complete=self._removes, where=self._where
        )
