"""A table in the making: a flow run to the end of its sources, into a table beside its own.

It is run by the engine as in an update, so its checkpoint is one that an update goes on with. Only
the place of the table and the flow's state are others.
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
from penstock._runtime.ports import FlowEnded
from penstock._spark.session import jvm_watch
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import last_number
from penstock._tables.layout import StorageLayout, TableRef
from penstock._tables.prepare import TableSpec, prepare_table, read_version, reset_table
from penstock._tables.swap_rows import swap_rows
from penstock._tables.writer import app_id
from penstock.errors import PenstockError

_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """The new table of a flow, until it takes the place of the old one.

    Attributes:
        spark: The session.
        graph: The pipeline.
        settings: Of it.
        evaluator: Over `source`.
        source: The real tables.
        state: Epochs of the real flows.
        node: The flow.
        dataset: Its table.
        epoch: Of the new checkpoint.
        folder: Where the new table lies, and the new state of the flow.
    """

    spark: SparkSession
    graph: DataflowGraph
    settings: PipelineSettings
    evaluator: Evaluator
    source: DeltaSource
    state: StateStore
    node: FlowNode
    dataset: DatasetNode
    epoch: str
    folder: str

    @property
    def table(self) -> TableRef:
        """Where the rows are."""
        return TableRef(f"{self.folder}/table", f"{self.dataset.display} in the making")

    @property
    def quarantine(self) -> TableRef:
        """Where the rows in quarantine are; there may be none."""
        return TableRef(f"{self.folder}/table_quarantine", f"{self.table.name}, quarantine")

    @property
    def _state_file(self) -> str:
        return f"{self.folder}/flow.json"

    def flow_state(self) -> FlowState | None:
        """What the flow will remember; `None` before the first start."""
        with self.state.apart(self.node.flow.name, self._state_file):
            return self.state.flow(self.node.flow.name)

    def build(
        self,
        position: dict[str, Any],
        *,
        origin: EventOrigin,
        emit: Callable[[Event], None],
        told: Callable[[int, int], None],
    ) -> None:
        """Read the sources to their end; killed half-way and called again, it goes on.

        Args:
            position: Where to begin.
            origin: Of the update.
            emit: Takes warnings.
            told: Called after each batch that was committed, with the number of batches and rows of
                this call.

        Raises:
            PenstockError: As the flow would end with.
        """
        name = self.node.flow.name
        layout = StorageLayout(self.settings.storage)
        counts = {"batches": 0, "rows": 0}

        def hear(event: Event) -> None:
            match event.body:
                # What else a batch reports counts for the flow only when its rows are in the table.
                case PlanWarning() | SourceRowsLost():
                    emit(event)
                case FlowProgress(metrics=metrics, table_version=int()) if metrics is not None:
                    counts["batches"] += 1
                    counts["rows"] += metrics.num_output_rows or metrics.num_upserted_rows or 0
                    told(counts["batches"], counts["rows"])

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
                    emit=hear,
                    origin=origin,
                    last_batch=lambda _: (0, read_version(self.spark, self.table.path)),
                    resolve_secrets=str,  # of sinks, which it has none of
                ),
            )
            try:
                with jvm_watch(self.spark, engine.jvm_died):
                    engine.prepare(PrepareTable(dataset=self.dataset.key))
                    self._run(engine)
            finally:
                engine.close()

    def _run(self, engine: SparkEngine) -> None:
        over = threading.Event()
        ended: list[PenstockError | None] = []

        def on_end(end: FlowEnded) -> None:
            ended.append(end.error)
            over.set()

        step = StartFlow(
            flow=self.node.flow.name,
            target=self.node.target,
            output_mode=self.node.analysis.output_mode or OutputMode.APPEND,
        )
        running = engine.start_flow(step, on_end)
        try:
            while not over.wait(_POLL_SECONDS):
                pass  # so that Ctrl-C is heard
        except BaseException:
            running.interrupt()
            raise
        if ended[0] is not None:
            raise ended[0]

    # -- the cut-over --------------------------------------------------------------------------

    def take_over(self, tables: PipelineTables, quarantined: Callable[[], None]) -> Any:
        """Put the new rows in the place of the old ones: one commit per table, quarantine first.

        Args:
            tables: The real ones.
            quarantined: Called between the two commits.

        Returns:
            The `CommitResult` of the table.
        """
        name = self.node.flow.name
        identity = app_id(self.settings.name, name, self.epoch)
        last = last_number(DeltaJvm(self.spark), self.table.path, identity)
        quarantine = TableRef(
            tables.quarantine_path(self.dataset), f"{self.dataset.display}_quarantine"
        )
        self._take_quarantine(quarantine, identity, last)
        quarantined()
        target = TableRef(tables.paths[self.dataset.key], self.dataset.display)
        return swap_rows(
            self.spark, target=target, made=self.table, flow=name, app_id=identity, last=last
        )

    def _take_quarantine(self, target: TableRef, identity: str, last: int) -> None:
        if read_version(self.spark, self.quarantine.path) is None:
            # The rows that broke rules of the old definition are in the new table, or were dropped.
            reset_table(self.spark, target)
            return
        if read_version(self.spark, target.path) is None:
            made = self.spark.read.format("delta").load(self.quarantine.path).schema
            prepare_table(self.spark, target, TableSpec(schema=made))
        swap_rows(
            self.spark,
            target=target,
            made=self.quarantine,
            flow=self.node.flow.name,
            app_id=identity,
            last=last,
        )
