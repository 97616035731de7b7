"""The new table of a migration: runs a flow to the end of its sources, into another table.

The engine runs it as in an update, so an update can continue with its checkpoint. Only the
locations of the table and of the flow's state differ.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from penstock._execution.flow_query import EngineContext
from penstock._execution.flow_state import FlowState
from penstock._execution.queries import SparkEngine
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, source_digest
from penstock._model.exception_text import first_line
from penstock._model.flow import OutputMode
from penstock._model.sql_text import delta_table
from penstock._observe.events import Event, EventOrigin, FlowProgress, PlanWarning, SourceRowsLost
from penstock._plan.steps import PrepareTable, StartFlow
from penstock._spark.failures import command_error
from penstock._spark.session import jvm_watch
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, TableMetadata
from penstock._tables.layout import TableRef
from penstock._tables.write.create import reset_table
from penstock._tables.write.fenced import FencedTable, last_number
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.table_spec import TableSpec, read_version
from penstock.errors import PenstockError, PlanError, SetupError

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Shadow:
    pipeline: OpenPipeline
    node: FlowNode
    dataset: DatasetNode
    epoch: str  # of the new checkpoint
    folder: str  # of the new table and the new state of the flow

    @property
    def table(self) -> TableRef:
        return TableRef(f"{self.folder}/table", f"the new {self.dataset.display}")

    @property
    def quarantine(self) -> TableRef:
        return TableRef(f"{self.folder}/table_quarantine", f"{self.table.name}, quarantine")

    @property
    def _state_file(self) -> str:
        return f"{self.folder}/flow.json"

    def flow_state(self) -> FlowState | None:
        with self.pipeline.state.apart(self.node.flow.name, self._state_file):
            return self.pipeline.state.flow(self.node.flow.name)

    def build(
        self,
        position: dict[str, Any],
        *,
        origin: EventOrigin,
        emit: Callable[[Event], None],
        on_batch: Callable[[int, int], None],
    ) -> None:
        """Read the sources to their end; called again after a kill, it resumes.

        `emit` is called with warnings, `on_batch` with the number of batches and rows of this call.
        """
        name, pipeline = self.node.flow.name, self.pipeline
        counts = {"batches": 0, "rows": 0}

        def on_event(event: Event) -> None:
            match event.body:
                # Other events of a batch apply to the flow only when its rows are in the table.
                case PlanWarning() | SourceRowsLost():
                    emit(event)
                case FlowProgress(metrics=metrics, table_version=int()) if metrics is not None:
                    counts["batches"] += 1
                    counts["rows"] += metrics.num_output_rows or metrics.num_upserted_rows or 0
                    on_batch(counts["batches"], counts["rows"])

        with pipeline.state.apart(name, self._state_file):
            if pipeline.state.flow(name) is None:
                pipeline.state.save_flow(name, FlowState(epoch=self.epoch, position=position))
            tables = PipelineTables(
                pipeline.spark,
                pipeline.graph,
                pipeline.tables.layout,
                pipeline.settings,
                pipeline.state,
                locations={self.dataset.key: self.table.path},
            )
            context = EngineContext(
                source_digest=source_digest(pipeline.settings),
                emit=on_event,
                origin=origin,
                last_batch=lambda _: (0, read_version(pipeline.spark, self.table.path)),
            )
            engine = pipeline.engine(tables, context)
            try:
                with jvm_watch(pipeline.spark, engine.jvm_died):
                    engine.prepare(PrepareTable(dataset=self.dataset.key))
                    self._run(engine)
            finally:
                engine.close()

    def _run(self, engine: SparkEngine) -> None:
        done = threading.Event()
        ended: list[PenstockError | None] = []

        def on_end(error: PenstockError | None) -> None:
            ended.append(error)
            done.set()

        step = StartFlow(
            flow=self.node.flow.name,
            target=self.node.target,
            output_mode=self.node.analysis.output_mode or OutputMode.APPEND,
        )
        running = engine.start_flow(step, on_end)
        try:
            while not done.wait(_POLL_SECONDS):
                pass  # so that Ctrl-C is handled
        except BaseException:
            running.interrupt()
            raise
        if ended[0] is not None:
            raise ended[0]

    def replace_tables(self, after_quarantine: Callable[[], None]) -> CommitResult:
        """Replace the old rows with the new ones: one commit per table, quarantine first."""
        spark, tables, flow = self.pipeline.spark, self.pipeline.tables, self.node.flow.name
        identity = tables.app_id(flow, self.epoch)
        last = last_number(DeltaJvm(spark), self.table.path, identity)
        quarantine = tables.quarantine(self.dataset)
        if read_version(spark, self.quarantine.path) is None:
            # Rows that violated rules of the old definition are in the new table, or were dropped.
            reset_table(spark, quarantine)
        else:
            if read_version(spark, quarantine.path) is None:
                schema = spark.read.format("delta").load(self.quarantine.path).schema
                prepare_table(spark, quarantine, TableSpec(schema=schema))
            swap_rows(spark, quarantine, self.quarantine, flow=flow, app_id=identity, last=last)
        after_quarantine()
        target = tables.table(self.dataset)
        return swap_rows(spark, target, self.table, flow=flow, app_id=identity, last=last)


def swap_rows(
    spark: SparkSession, target: TableRef, source: TableRef, *, flow: str, app_id: str, last: int
) -> CommitResult:
    """Replace the rows, columns and partitions of a table; id, properties and history stay.

    Readers see the old rows or the new ones. The commit records batch `last` of `app_id` (-1 means
    none), so a writer with that app id continues after it. Called again, it does nothing.
    """
    delta = DeltaJvm(spark)
    table = FencedTable(delta, target, app_id)
    batch_id = last if last >= 0 else None
    txn = table.begin(batch_id)
    result = CommitResult(flow=flow, app_id=app_id, batch_id=batch_id, version=None)
    if txn.is_committed:
        return table.recorded(batch_id) or replace(result, replayed=True)
    shape = _shape(delta.metadata(delta.snapshot(source.path)))
    if shape != _shape(txn.metadata):
        metadata = delta.action({"metaData": dict(txn.metadata.content, **shape)})
        txn.jvm.updateMetadataForTableOverwrite(metadata)
    rows = spark.read.format("delta").load(source.path)
    added = delta.write_files(txn.jvm, rows)
    result = replace(result, rows_written=rows.count())
    actions = [*table.removals(txn), *added]
    version = table.commit(txn, actions, batch_id, result, complete=True)
    return replace(result, version=version)


def _shape(metadata: TableMetadata) -> dict[str, Any]:
    """Columns and partition columns, without the ids of column mapping."""
    schema = json.loads(metadata.content["schemaString"])
    return {
        "schemaString": json.dumps(_unmapped(schema), separators=(",", ":")),
        "partitionColumns": list(metadata.partition_columns),
    }


def _unmapped(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {
            key: _unmapped(value)
            for key, value in part.items()
            if not key.startswith("delta.columnMapping.")
        }
    return [_unmapped(item) for item in part] if isinstance(part, list) else part


def restore_rows(spark: SparkSession, table: TableRef, version: int) -> None:
    """Restore an earlier version of a table in a commit; version -1 removes all rows."""
    if version < 0:
        reset_table(spark, table)
        return
    try:
        if DeltaJvm(spark).restore(table.path, version):
            return
        spark.sql(f"RESTORE TABLE {delta_table(table.path)} TO VERSION AS OF {version}").collect()
    except Exception as error:
        known = command_error(error, f"restore of {table.name}")
        if isinstance(known, SetupError):
            raise known from error
        raise PlanError(
            "RESTORE_NOT_POSSIBLE",
            f"{table.name} cannot be restored to version {version}: {first_line(error)}",
            hint="VACUUM or log retention has deleted its files; --full-refresh "
            f"{table.name} recomputes the table",
        ) from error
