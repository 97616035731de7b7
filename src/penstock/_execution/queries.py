"""Implements the runtime's `Engine` port: runs the steps of an update on Spark."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock._analysis.evaluation import Evaluator
from penstock._analysis.table_sources import DeltaSource
from penstock._execution.damage_check import DamageCheck
from penstock._execution.declaration import stored_declaration
from penstock._execution.flow_query import EngineContext, FlowQueries
from penstock._execution.flow_state import FlowState, check_migration
from penstock._execution.maintained import maintained_tables
from penstock._execution.maintenance import MaintenanceThread
from penstock._execution.running import RunningQuery
from penstock._execution.streaming_flows import StreamingFlows
from penstock._execution.tables import PipelineTables
from penstock._execution.views import ViewRefresh
from penstock._execution.writers import BatchWriter
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._model.dataset import DatasetKind
from penstock._model.flow import OutputMode
from penstock._model.pipeline import MaintenanceSettings
from penstock._plan.maintenance import table_maintenance
from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock._runtime.ports import OnEnd, RunOutcome
from penstock._spark.failures import flow_error
from penstock._spark.session import jvm_died, jvm_exit_code
from penstock._tables.delta_log import DeltaJvm
from penstock.errors import PlanError
from penstock.sources.base import OpenedSource

_CHECKPOINT_SECONDS = 60


class SparkEngine:
    """See `penstock._runtime.ports.Engine`; `evaluator` reads from `source`."""

    def __init__(
        self,
        evaluator: Evaluator,
        source: DeltaSource,
        tables: PipelineTables,
        context: EngineContext,
    ) -> None:
        self._queries = FlowQueries(evaluator, tables, context)
        self._views = ViewRefresh(self._queries)
        self._damage = DamageCheck(tables, self._queries.warn)
        self._streams = StreamingFlows(self._queries, source, self._damage)
        self._spark = tables.spark
        self._graph = tables.graph
        self._tables = tables
        self._state = tables.state
        self._context = context
        self._unmarked = list(context.resets)
        self._marking = Lock()
        self._maintenance: MaintenanceThread | None = None
        self._compacts_at_end = False
        self._once: set[StreamingQuery] = set()
        self._is_cancelled = False

    def maintain(self, datasets: Collection[str], settings: MaintenanceSettings) -> None:
        """Maintain the tables of some datasets from now on."""
        origin, emit = self._context.origin, self._context.emit
        find_tables = partial(maintained_tables, self._tables, settings, origin, datasets)
        self._compacts_at_end = any(
            table_maintenance(self._graph, node, {}).compacts_at_end
            for node in self._graph.stored()
            if node.key in datasets
        )
        self._maintenance = MaintenanceThread(self._spark, find_tables, emit)

    def finish(self, *, is_stopped: bool) -> None:
        self._streams.finish()
        if self._maintenance is not None:
            self._maintenance.finish(compact=self._compacts_at_end and not is_stopped)
        if jvm_exit_code(self._spark) is None:
            DeltaJvm(self._spark).await_checkpoints(_CHECKPOINT_SECONDS)

    def close(self) -> None:
        """Detach from the session."""
        self._streams.finish()
        if self._maintenance is not None:
            self._maintenance.close()
        self._streams.close()

    def jvm_died(self, exit_code: int) -> None:
        """End every running flow after the end of Spark's JVM."""
        for running in self._streams.listener.watchers():
            running.abandoned(jvm_died(exit_code, flow=running.flow))

    def abandon(self, failure: str) -> None:
        """End every running flow with the same failure."""
        for running in self._streams.listener.watchers():
            node = self._graph.flows[running.flow]
            running.abandoned(flow_error(failure, node.flow))

    # -- tables --------------------------------------------------------------------------------

    def reset(self, step: ResetTable) -> None:
        node = self._graph.datasets[step.dataset]
        with self._queries.translated(self._graph.flows[step.flows[0]]):
            with self._marking:
                # All flows are marked before a table is emptied: otherwise, after a kill in
                # between, a stream would find the rows of its source gone. Downstream first, for a
                # kill between two marks.
                while self._unmarked:
                    self._state.mark_reset(self._unmarked[0])
                    self._unmarked.pop(0)
            self._reset(node)

    def prepare(self, step: PrepareTable) -> None:
        node = self._graph.datasets[step.dataset]
        flows = {flow: self._graph.flows[flow] for flow in node.flows}
        with self._queries.translated(flows[node.flows[0]]):
            states = {flow: self._state.flow(flow) for flow in flows}
            for flow, state in states.items():
                check_migration(flows[flow].flow, state)
            if any(state is not None and state.reset_pending for state in states.values()):
                self._reset(node)
            else:
                self._check_kind(node)
                self._damage.check_tables(node, flows, states)
            self._tables.prepare(node, list(flows.values()))

    def _reset(self, node: DatasetNode) -> None:
        self._tables.reset(node)
        if node.kind is DatasetKind.STREAMING_TABLE:
            self._state.forget_view(node.key)  # if the table was a view
        for flow in node.flows:
            self._state.new_flow(flow)

    def _check_kind(self, node: DatasetNode) -> None:
        """Refuse to stream into a table with rows of a batch query: flows would add them again."""
        if not any(self._graph.flows[flow].analysis.is_streaming for flow in node.flows):
            return
        before = stored_declaration(self._state.view(node.key))
        if before is not None and self._tables.version(node) is not None:
            was = "was a materialized view"
            if before.kind != DatasetKind.MATERIALIZED_VIEW.value:
                was = "had a batch query with replace_where"
            raise PlanError(
                "DATASET_KIND_CHANGED",
                f"{node.display} {was}, and is filled by streams now: its rows would stay, and be "
                "added again",
                origin=node.declared.origin,
                hint=f"--full-refresh {node.display} removes them first; or give the streaming "
                "table another name",
            )

    # -- flows ---------------------------------------------------------------------------------

    def start_flow(self, step: StartFlow, on_end: OnEnd) -> RunningQuery:
        return self._streams.start(step, on_end)

    def refresh(self, step: RefreshView) -> RunOutcome:
        return self._views.refresh(step)

    def run_once(self, step: RunOnceFlow) -> RunOutcome:
        node = self._graph.flows[step.flow]
        sources: list[OpenedSource] = []
        with self._queries.translated(node, sources):
            before = self._state.flow(step.flow)
            state = before or self._state.new_flow(step.flow)
            if state.once_done:
                self._queries.record(node)
                return RunOutcome(changed=False, reason="it already ran; a full refresh repeats it")
            if before is not None:  # otherwise it would read the whole log of its table
                self._queries.reconcile(node, state)
            dataset = self._graph.datasets[step.target]
            checkpoint = self._tables.layout.checkpoint_path(step.flow, state.epoch)
            df, opened = self._queries.evaluate(node)
            if df.isStreaming and self._queries.prepare_start(node, opened, checkpoint):
                df, opened = self._queries.evaluate(node)
            sources += opened
            node = self._queries.adopt(node, df)
            df = self._queries.confs.bound(df, node)
            if state.stateful_operators is not None and not df.isStreaming:
                # A batch of the streaming query already has the number of this batch.
                text = f"flow {step.flow} was a stream, whose rows stay in the table"
                self._queries.warn(node, text)
                state = self._state.new_flow(step.flow)
            writer = self._queries.writers.stream_writer(
                dataset, node, df, epoch=state.epoch, mode=OutputMode.APPEND
            )
            state = replace(state, target_id=self._tables.check_ownership(node, state))
            if writer.df.isStreaming:
                self._damage.check_checkpoint(node, state)
                self._stream_once(node, state, writer, opened)
            else:
                self._write(node, writer, writer.df, 0)
            self._state.save_flow(step.flow, replace(state, once_done=True))
            self._queries.record(node)
            return RunOutcome(changed=True, reason="one-time flow")

    def _write(self, node: FlowNode, writer: BatchWriter, df: DataFrame, batch: int) -> None:
        started = time.monotonic()
        result = writer.write(df, batch)
        duration = round((time.monotonic() - started) * 1000)
        if not result.replayed:
            origin = replace(self._queries.origin(node), batch_id=batch)
            self._context.emit(result.event(origin, "one-time flow", duration_ms=duration))

    def _stream_once(
        self,
        node: FlowNode,
        state: FlowState,
        writer: BatchWriter,
        sources: Sequence[OpenedSource],
    ) -> None:
        """Apply the available rows of a streaming view; resumes after a kill."""
        flow = node.flow.name
        self._state.save_flow(flow, state)
        checkpoint = self._tables.layout.checkpoint_path(flow, state.epoch)

        def on_batch(df: DataFrame, batch_id: int) -> None:
            for source in sources:
                source.check_batch(checkpoint, batch_id)
            self._write(node, writer, df, batch_id)

        stream: Any = writer.df.writeStream.foreachBatch(on_batch).queryName(flow)
        stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = self._queries.start(stream, node)
        self._once.add(query)
        try:
            if self._is_cancelled:
                query.stop()
            query.awaitTermination()
        finally:
            self._once.discard(query)
            query.stop()
        if self._is_cancelled:  # a query that is stopped ends without an error
            raise flow_error("the query was interrupted", node.flow)

    def cancel(self) -> None:
        self._is_cancelled = True
        self._spark.sparkContext.cancelJobsWithTag(self._queries.tag)
        for query in list(self._once):
            query.stop()
