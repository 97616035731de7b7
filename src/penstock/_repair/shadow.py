"""The new table of a migration: runs a flow to the end of its sources, into another table.

The engine runs it as in an update, so an update can continue with its checkpoint. Only the location
of the table and the flow's state differ.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from penstock._analysis.evaluation import Evaluator
from penstock._analysis.table_sources import DeltaSource
from penstock._execution.flow_state import FlowState, StateStore
from penstock._execution.queries import EngineContext, SparkEngine
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._model.flow import OutputMode
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import (
    Event,
    EventOrigin,
    FlowProgress,
    PlanWarning,
    SourceRowsLost,
)
from penstock._plan.steps import PrepareTable, StartFlow
from penstock._repair.swap_rows import swap_rows
from penstock._runtime.ports import FlowEnded
from penstock._spark.session import jvm_watch
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import StorageLayout, TableRef
from penstock._tables.write.fenced import last_number
from penstock._tables.write.prepare import TableSpec, prepare_table, read_version, reset_table
from penstock._tables.write.writer import app_id
from penstock.errors import PenstockError

_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """The new table of a flow, until it replaces the old one."""

    spark: SparkSession
    graph: DataflowGraph
    settings: PipelineSettings
    evaluator: Evaluator  # over `source`
    source: DeltaSource  # the present tables
    state: StateStore
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
        """The new state of the flow; `None` before the first start."""
        with self.state.apart(self.node.flow.name, self._state_file):
            return self.state.flow(self.node.flow.name)

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
        name = self.node.flow.name
        layout = StorageLayout(self.settings.storage)
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

        with self.state.apart(name, self._state_file):
            if self.state.flow(name) is None:
                self.state.save_flow(name, FlowState(epoch=self.epoch, position=position))
            tables = PipelineTables(
                self.spark,
                self.graph,
                layout,
                self.settings,
                locations={self.dataset.key: self.table.path},
            )
            engine = SparkEngine(
                self.spark,
                self.graph,
                self.evaluator,
                self.source,
                tables,
                self.state,
                EngineContext(
                    pipeline=self.settings.name,
                    source_digest="",
                    emit=on_event,
                    origin=origin,
                    last_batch=lambda _: (0, read_version(self.spark, self.table.path)),
                    resolve_secrets=str,  # for sinks only
                ),
            )
            try:
                with jvm_watch(self.spark, engine.jvm_died):
                    engine.prepare(PrepareTable(dataset=self.dataset.key))
                    self._run(engine)
            finally:
                engine.close()

    def _run(self, engine: SparkEngine) -> None:
        done = threading.Event()
        ended: list[PenstockError | None] = []

        def on_end(end: FlowEnded) -> None:
            ended.append(end.error)
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

    def replace_tables(
        self, tables: PipelineTables, after_quarantine: Callable[[], None]
    ) -> CommitResult:
        """Replace the old rows by the new ones: one commit per table, quarantine first."""
        name = self.node.flow.name
        identity = app_id(self.settings.name, name, self.epoch)
        last = last_number(DeltaJvm(self.spark), self.table.path, identity)
        quarantine = TableRef(
            tables.quarantine_path(self.dataset), f"{self.dataset.display}_quarantine"
        )
        self._replace_quarantine(quarantine, identity, last)
        after_quarantine()
        target = TableRef(tables.paths[self.dataset.key], self.dataset.display)
        return swap_rows(
            self.spark, target=target, source=self.table, flow=name, app_id=identity, last=last
        )

    def _replace_quarantine(self, target: TableRef, identity: str, last: int) -> None:
        if read_version(self.spark, self.quarantine.path) is None:
            # Rows that broke rules of the old definition are in the new table, or were dropped.
            reset_table(self.spark, target)
            return
        if read_version(self.spark, target.path) is None:
            schema = self.spark.read.format("delta").load(self.quarantine.path).schema
            prepare_table(self.spark, target, TableSpec(schema=schema))
        swap_rows(
            self.spark,
            target=target,
            source=self.quarantine,
            flow=self.node.flow.name,
            app_id=identity,
            last=last,
        )
