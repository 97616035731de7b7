"""The writer of auto CDC flows: adds events to the state, and computes rows of the target from it.

Up to three commits, each with the fence of the batch: quarantine, state, target. The files of the
first two are recorded before they are committed, so an interrupted batch is completed with the same
files; the rows of the touched keys follow from the state alone.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from penstock._model.cdc import ScdType
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.origin import SourceLocation
from penstock._model.quantity import plural
from penstock._tables.commit_note import CDC_STATE
from penstock._tables.commits import CommitResult, RuleCounts
from penstock._tables.delta_log import file_count
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_compaction import StateCompaction
from penstock._tables.write.cdc_events import DELETE, TRUNCATE, UPSERT, EventShape
from penstock._tables.write.cdc_history import current_rows, history_rows, merged
from penstock._tables.write.cdc_state import CdcState
from penstock._tables.write.decision import BatchDecision
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.kept import keep_and_count
from penstock._tables.write.key_joins import SMALL_ROWS, in_one_task, key_struct
from penstock._tables.write.keyed import REWRITE_BYTES, KeyedTable, Way
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.row_files import Written
from penstock._tables.write.schema import column_mapping
from penstock._tables.write.staging import QUARANTINE_FIELDS, RowCounts, valid_rows
from penstock._tables.write.table_spec import TableSpec
from penstock._tables.write.writer import Batch, FlowWriter, WriterOptions
from penstock.errors import FlowError
from penstock.quality.rules import condition_column
from penstock.quality.split import MASK_PREFIX, RowSplit, split_rows

HAS_SEQUENCE = "sequence_by is not null"
HAS_KEY = "keys are not null"
_OWN_RULES = (HAS_SEQUENCE, HAS_KEY)
_OP = f"{MASK_PREFIX}op"  # a reserved name


target_locks: dict[str, threading.RLock] = {}
"""One lock per target: its flows write one batch at a time."""


def split_events(
    df: DataFrame,
    events: EventShape,
    expectations: Sequence[Expectation],
    *,
    quarantine: bool,
    origin: SourceLocation,
) -> RowSplit:
    """Separate the events that can be applied from the others.

    The rules of the target apply to upserts; a delete or a truncate passes. An event without a
    sequence or without its key cannot be applied.
    """
    is_upsert = events.op() == UPSERT
    own = {HAS_SEQUENCE: events.has_sequence(), HAS_KEY: events.has_key()}
    rules = [
        Expectation(name=name, condition=condition, on_violation=OnViolation.DROP, origin=origin)
        for name, condition in own.items()
    ]
    for rule in expectations:
        condition = condition_column(df.sparkSession, rule)
        rules.append(replace(rule, condition=F.when(is_upsert, condition).otherwise(F.lit(True))))
    split = split_rows(df, rules, quarantine=quarantine)
    assert split is not None
    return split


@dataclass(frozen=True)
class _Events:
    """The valid events of one batch."""

    txn: TableTransaction
    files: Sequence[Mapping[str, Any]]  # `AddFile` contents below the state
    rows: DataFrame  # their keys in `k`, for a `kind` of 0


class CdcWriter(FlowWriter):
    """Writes the batches of one auto CDC flow; `split` is from `split_events`.

    Creates the state and, when it is needed, the quarantine. `way`, `is_streamed` and `on_vectors`
    are as in `KeyedTable`. Deleted keys are kept in the state for `tombstone_seconds`; `None` means
    forever.
    """

    kind = "auto CDC"

    def __init__(
        self,
        spark: SparkSession,
        *,
        state: TableRef,
        events: EventShape,
        tombstone_seconds: float | None = None,
        way: Way | None = None,
        is_streamed: bool = False,
        on_vectors: Callable[[], None] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(spark, **options)
        self._events = events
        self._target.keys = events.spec.keys
        target = self._target.ref.path
        self._lock = target_locks.setdefault(target, threading.RLock())
        self._keyed = KeyedTable(self._target, way, is_streamed, on_vectors)
        self._compaction = StateCompaction(
            self._delta, state, self._app_id, self._lock, tombstone_seconds=tombstone_seconds
        )
        with self._lock:
            has_rows = file_count(self._delta.snapshot(target)) > 0
            self._state = CdcState(
                self._delta, state, self._app_id, events, target_has_rows=has_rows, flow=self._flow
            )
        self._events_of_batch: _Events | None = None
        self._counts: Mapping[str, int] = {}

    def cancel(self) -> None:
        """Cancel a running compaction, before a stop."""
        self._compaction.cancel()

    def close(self) -> None:
        """Wait for a running compaction, after the last batch."""
        self._compaction.close()

    def _run(self, df: DataFrame, batch_id: int | None, fingerprint: str | None) -> CommitResult:
        with self._lock:
            try:
                return super()._run(df, batch_id, fingerprint)
            finally:
                self._events_of_batch = None

    def _fenced(self) -> dict[str, FencedTable]:
        return {**super()._fenced(), CDC_STATE: self._state.table}

    def _fitting(self, df: DataFrame, txn: TableTransaction) -> DataFrame:
        return df  # events are not rows of the table

    def _data_schema(self, df: DataFrame) -> StructType:
        return self._events.target_schema()

    def _evolve(
        self, txn: TableTransaction, query: StructType, *, allow_missing: bool = False
    ) -> StructType:
        # The rows follow from the state, even in a batch of an earlier version of the flow.
        return super()._evolve(txn, self._events.target_schema())

    def _write_files(self, df: DataFrame, txn: TableTransaction, schema: StructType) -> Written:
        # The batch is read several times: it is counted, added to the state, and joined with it.
        with_op = df.withColumn(_OP, self._events.op())
        self._kept, counts = keep_and_count(self._delta, with_op, self._split, by=_OP)
        self._counts = {"deletes": counts.by[DELETE], "truncates": counts.by[TRUNCATE]}
        self._refuse_invalid(counts)
        rules = {
            name: rows
            for name, rows in counts.rules.items()
            if name not in _OWN_RULES or rows.failed
        }
        if counts.bad_rows and self._quarantine is not None:
            columns = StructType([*self._quarantine_fields(schema), *QUARANTINE_FIELDS])
            spec = TableSpec(
                schema=columns,
                comment="events that violated a drop rule or cannot be applied",
                properties=column_mapping(columns),
            )
            prepare_table(self._delta.spark, self._quarantine.ref, spec)
        counts = replace(counts, rules=rules)
        return Written(counts, bad=self._files.write_bad(self._kept, counts))

    def _counted(self, result: CommitResult) -> CommitResult:
        deletes = self._counts["deletes"]
        upserts = result.rows_written - deletes - self._counts["truncates"]
        return replace(result, rows_written=upserts, rows_deleted=deletes)

    def _refuse_invalid(self, counts: RowCounts) -> None:
        if self._quarantine is not None:
            return
        for name, problem in ((HAS_SEQUENCE, "no sequence"), (HAS_KEY, "NULL in a key column")):
            failed = counts.rules.get(name, RuleCounts(0, 0)).failed
            if failed:
                spec = self._events.spec
                shown = "sequence_by" if name == HAS_SEQUENCE else ", ".join(spec.keys)
                raise FlowError(
                    "CDC_EVENT_INVALID",
                    f"flow {self._flow!r}: {plural(failed, 'event')} of one batch cannot be "
                    f"applied: {problem} ({shown})",
                    flow=self._flow,
                    retryable=False,
                    hint="filter them out in a view, or switch quarantine on",
                )

    def _quarantine_fields(self, schema: StructType) -> list[StructField]:
        # The quarantine has the columns of the source, so that an event can be replayed.
        assert self._kept is not None and self._split is not None
        names = set(self._split.data_columns)
        return [field for field in self._kept.schema if field.name in names]

    def _needs_decision(self, batch: Batch) -> bool:
        return batch.quarantine_schema is not None or batch.written.counts.clean_rows > 0

    def _with_rows(self, decision: BatchDecision, batch: Batch) -> BatchDecision:
        counts = {**decision.counts, **self._counts}
        valid = batch.written.counts.clean_rows
        if not valid:
            return replace(decision, counts=counts)
        assert self._kept is not None
        clean = valid_rows(self._kept, self._split)
        state = self._state.begin(batch.result.batch_id)
        events = self._state.events(clean)
        files = self._state.write(state, events, small=valid <= SMALL_ROWS)
        self._events_of_batch = _Events(state, files, events)
        return replace(decision, counts=counts, files=files)

    @property
    def _files_path(self) -> str:
        return self._state.table.ref.path

    def _is_partly_committed(self, decision: BatchDecision, quarantine: FencedTable | None) -> bool:
        batch_id = decision.result.batch_id
        is_in_state = bool(decision.files) and self._state.begin(batch_id).is_committed
        return is_in_state or super()._is_partly_committed(decision, quarantine)

    def _with_recorded_rows(self, batch: Batch, decision: BatchDecision) -> Batch:
        self._counts = decision.counts
        if decision.files:
            state = self._state.begin(batch.result.batch_id)
            events = self._state.written(state, decision.files)
            self._events_of_batch = _Events(state, decision.files, events)
        return batch

    def _commit_target(self, batch: Batch) -> CommitResult:
        result, events = batch.result, self._events_of_batch
        if events is None:
            version: int | None = self._target.commit(
                batch.txn, [], result.batch_id, result, complete=False
            )
            return replace(result, version=version)
        appended = self._state.commit(events.txn, events.files, result)
        kill_point("after_state_commit", self._flow, result.batch_id)
        count = batch.written.counts.clean_rows
        touched = events.rows.where(F.col("kind") == 0).select("k")
        keys = None
        if self._searches(batch.txn, touched, count):
            keys = self._keyed.collected(batch.txn, touched)
            state = in_one_task(self._state.rows_of(keys, events.rows))
            rows = self._rows_of_target(state)
        else:
            touched, rows = self._derive(batch.txn, touched.distinct(), count)
        version = self._keyed.replace(batch.txn, touched, rows, result, count=count, keys=keys)
        self._compaction.start_if_due(appended, events.rows.sparkSession)
        return replace(result, version=version)

    def _searches(self, txn: TableTransaction, touched: DataFrame, count: int) -> bool:
        """Whether the rows of the keys are searched, in the state and in the target."""
        needs_all = self._counts["truncates"] or self._state.truncates
        if needs_all or count > SMALL_ROWS or not self._state.can_search():
            return False
        return self._state.size() > REWRITE_BYTES and self._keyed.searches(txn, touched, count)

    def _derive(
        self, txn: TableTransaction, touched: DataFrame, count: int
    ) -> tuple[DataFrame, DataFrame]:
        columns, shape = self._state.columns, self._events.shape
        rows = self._state.rows(touched)
        is_small = self._state.size() <= REWRITE_BYTES and count <= SMALL_ROWS
        if is_small:
            rows = in_one_task(rows)
        if self._counts["truncates"]:
            # Before a batch is repeated, a compaction may have removed keys from the state only.
            key: Any = rows.schema["k"].dataType
            have = key_struct(key.names).cast(key)
            keys = self._target.rows(txn, rows).select(have.alias("k"))
            touched = rows.where(F.col("kind") == 0).select("k").unionAll(keys).distinct()
            return touched, current_rows(merged(rows, columns), columns, truncates=True)
        nearby = F.broadcast(touched) if count <= SMALL_ROWS else touched
        if is_small:
            touched = nearby = in_one_task(touched)
        if shape.scd_type is ScdType.TWO:
            return touched, self._rows_of_target(rows.join(nearby, "k"))
        relevant = rows.where(F.col("kind") == 0).join(nearby, "k").select(*rows.columns)
        if self._state.truncates:
            relevant = relevant.unionByName(rows.where(F.col("kind") == 1))
            relevant = relevant.coalesce(1) if is_small else relevant
        return touched, self._rows_of_target(relevant)

    def _rows_of_target(self, state: DataFrame) -> DataFrame:
        columns, shape = self._state.columns, self._events.shape
        if shape.scd_type is ScdType.TWO:
            return history_rows(state, columns.schema, shape)
        return current_rows(merged(state, columns), columns, truncates=self._state.truncates)
