"""The runtime's `Engine` port: the only module that starts and stops Spark queries."""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock._analysis.evaluation import Evaluator
from penstock._analysis.late_rows import LateRowFinder
from penstock._analysis.table_sources import DeltaSource, StreamStarts
from penstock._execution.admission import BatchAdmission
from penstock._execution.damage_check import DamageCheck
from penstock._execution.flow_conf import FlowConfs
from penstock._execution.flow_state import (
    FlowState,
    StateStore,
    ViewState,
    check_migration,
    check_state,
)
from penstock._execution.lag_probe import LagProbe
from penstock._execution.listener import ProgressListener
from penstock._execution.maintained import maintained_tables
from penstock._execution.maintenance import MaintenanceThread
from penstock._execution.running import RunningQuery
from penstock._execution.sink_writers import SinkWriters
from penstock._execution.snapshots import SnapshotProgress
from penstock._execution.tables import PipelineTables
from penstock._execution.writers import BatchWriter, Commit, TableWriters
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import LateRows
from penstock._model.flow import Flow, OutputMode
from penstock._model.pipeline import MaintenanceSettings
from penstock._model.trigger import TriggerKind
from penstock._observe.events import Event, EventOrigin, PlanningInformation, PlanWarning
from penstock._plan.maintenance import table_maintenance
from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock._runtime.ports import FlowEnded, RunOutcome
from penstock._spark import plans
from penstock._spark.failures import flow_error, full_text, java_causes
from penstock._spark.session import jvm_died, jvm_exit_code
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.read.log_scan import keeps_rows
from penstock._tables.write.schema import with_types
from penstock.errors import PenstockError
from penstock.sinks.registry import sink_of
from penstock.sources.base import NOWHERE, OpenedSource, Position, explained


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """Context of the engine.

    `emit` may be called on any thread. `source_digest` is of the project's source files, for views
    that use Python functions. `last_batch` is the newest micro-batch of a flow in the event log.
    `lost_lease` looks whether another driver has taken over, and returns the failure if so.
    """

    pipeline: str
    source_digest: str
    emit: Callable[[Any], None]
    origin: EventOrigin
    last_batch: Callable[[str], tuple[int, int | None] | None]
    resolve_secrets: Callable[[str], str]
    lost_lease: Callable[[], str | None] = lambda: None


class SparkEngine:
    """See `penstock._runtime.ports.Engine`; `evaluator` reads from `source`."""

    def __init__(
        self,
        spark: SparkSession,
        graph: DataflowGraph,
        evaluator: Evaluator,
        source: DeltaSource,
        tables: PipelineTables,
        state: StateStore,
        context: EngineContext,
    ) -> None:
        self._spark = spark
        self._graph = graph
        self._evaluator = evaluator
        self._source = source
        self._tables = tables
        self._writers = TableWriters(tables, self._warn)
        self._state = state
        self._context = context
        self._sinks = SinkWriters(
            spark, evaluator, tables.layout, context.pipeline, context.resolve_secrets
        )
        self._damage = DamageCheck(spark, tables, self._warn)
        self._listener = ProgressListener()
        self._lag = LagProbe(context.emit)
        self._admission = BatchAdmission(spark)
        self._running: list[RunningQuery] = []
        # Flows whose query has other columns than in the analysis.
        self._grown: dict[str, FlowNode] = {}
        spark.streams.addListener(self._listener)
        self._confs = FlowConfs(spark, graph)
        self._maintenance: MaintenanceThread | None = None
        self._compacts_at_end = False
        self._is_cancelled = False

    def maintain(self, datasets: Collection[str], settings: MaintenanceSettings) -> None:
        """Maintain the tables of some datasets from now on."""
        context = self._context
        find_tables = partial(
            maintained_tables,
            self._spark,
            self._graph,
            self._tables,
            self._state,
            settings,
            context.origin,
            datasets,
        )
        self._compacts_at_end = any(
            table_maintenance(self._graph, node, {}).compacts_at_end
            for node in self._graph.stored()
            if node.key in datasets
        )
        self._maintenance = MaintenanceThread(self._spark, find_tables, context.emit)

    def finish(self) -> None:
        self._lag.close()
        if self._maintenance is not None:
            self._maintenance.finish(compact=self._compacts_at_end and not self._is_cancelled)

    def close(self) -> None:
        """Detach from the session."""
        self._lag.close()
        if self._maintenance is not None:
            self._maintenance.close()
        if jvm_exit_code(self._spark) is None:
            self._spark.streams.removeListener(self._listener)

    def jvm_died(self, exit_code: int) -> None:
        """End every running flow after the end of Spark's JVM."""
        for running in list(self._running):
            running.abandoned(jvm_died(exit_code, flow=running.flow))

    def abandon(self, failure: str) -> None:
        """End every running flow with a failure that they have in common."""
        for running in list(self._running):
            node = self._graph.flows[running.flow]
            running.abandoned(flow_error(failure, node.flow))

    # -- tables --------------------------------------------------------------------------------

    def reset(self, step: ResetTable) -> None:
        node = self._graph.datasets[step.dataset]
        with self._translated(self._graph.flows[step.flows[0]]):
            for flow in step.flows:
                self._state.mark_reset(flow)
            self._tables.reset(node)
            for flow in step.flows:
                self._state.new_flow(flow)

    def prepare(self, step: PrepareTable) -> None:
        node = self._graph.datasets[step.dataset]
        first = self._graph.flows[node.flows[0]]
        with self._translated(first):
            states = {flow: self._state.flow(flow) for flow in node.flows}
            for flow, state in states.items():
                check_migration(self._graph.flows[flow].flow, state)
            if any(state is not None and state.reset_pending for state in states.values()):
                self._tables.reset(node)
                for flow in node.flows:
                    self._state.new_flow(flow)
            else:
                flows = {flow: self._graph.flows[flow] for flow in node.flows}
                self._damage.check_tables(node, flows, states)
            self._tables.prepare(node, [self._graph.flows[flow] for flow in node.flows])

    # -- streaming flows -----------------------------------------------------------------------

    def start_flow(self, step: StartFlow, on_end: Callable[[FlowEnded], None]) -> RunningQuery:
        node = self._graph.flows[step.flow]
        with self._translated(node):
            sink = self._graph.sinks.get(step.target)
            is_transient = sink is not None and sink_of(sink.format).is_transient
            before = None if is_transient else self._state.flow(step.flow)
            if before is None and sink is not None and not is_transient:
                self._damage.check_state(node, None)
            elif before is not None and before.stateful_operators is not None:
                self._damage.check_checkpoint(node, before.epoch)
            state = before or self._state.new_flow(step.flow)
            starts = StreamStarts(dict(state.starts), is_open=state.stateful_operators is None)
            checkpoint = self._tables.layout.checkpoint_path(step.flow, state.epoch)
            with self._source.starting(starts):
                df, sources = self._evaluate(node, state.position)
                if self._prepared(node, sources, checkpoint):
                    df, sources = self._evaluate(node, state.position)
            node = self._adopt(node, df)
            known = dict(state.topics)
            for source in sources:
                known |= source.check_identity(state.topics, node.flow, self._display(node))
            state = replace(state, starts=starts.chosen, topics=known)
            state = self._flow_state(node, df, step, state)
            running = RunningQuery(
                node.flow,
                self._origin(node),
                self._context.emit,
                lambda ended: on_end(self._checked_lease(node, ended)),
                sources,
                checkpoint,
            )
            has_batches = step.trigger is None
            writer = (
                self._sinks.writer(
                    sink, node, df, state.epoch, checkpoint, running, has_batches=has_batches
                )
                if sink is not None
                else self._table_writer(node, df, state, step, running)
            )
            running.measures_lag(self._lag.watch(self._origin(node), sources))
            writer = writer.queryName(step.flow).option("checkpointLocation", checkpoint)
            writer = _triggered(writer, step)
            running.has_batches = has_batches
            query = self._start(writer, node)
            is_read = any(node.target in flow.upstream for flow in self._graph.flows.values())
            self._admission.attach(query, is_read=is_read)
            running.attach(query)
            self._running.append(running)
            self._listener.watch(str(query.runId), running)
            return running

    def _start(self, writer: Any, node: FlowNode) -> StreamingQuery:
        # Data sources in Python are looked up in the active session of the thread.
        jvm: Any = self._spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        # The query copies the session, with its confs, when it starts.
        with self._pool(node.flow.name), self._confs.applied(node):
            query: StreamingQuery = writer.start()
        return query

    def _table_writer(
        self,
        node: FlowNode,
        df: DataFrame,
        state: FlowState,
        step: StartFlow,
        running: RunningQuery,
    ) -> Any:
        dataset = self._graph.datasets[step.target]
        self._reconcile(node, dataset, state)
        late = None
        if node.flow.cdc is None and plans.has_state(node.analysis.stateful_operators):
            keeps = dataset.declared.late_rows is LateRows.QUARANTINE
            late = LateRowFinder(running.execution, keeps=keeps)
        writer = self._writers.stream_writer(
            dataset, node, df, epoch=state.epoch, mode=step.output_mode, late=late
        )
        running.writes_batches(writer.write)
        # In update mode, `foreachBatch` gets the changed rows, and the writer merges them.
        return writer.df.writeStream.outputMode(step.output_mode.value).foreachBatch(
            running.on_batch
        )

    def _flow_state(
        self, node: FlowNode, df: DataFrame, step: StartFlow, state: FlowState
    ) -> FlowState:
        operators = plans.stateful_operators(df)
        mode = step.output_mode.value
        display = self._display(node)
        check_state(node.flow, state, operators=operators, output_mode=mode, display=display)
        table_id = self._tables.check_ownership(node, state)
        wanted = replace(state, stateful_operators=operators, output_mode=mode, target_id=table_id)
        if wanted != self._state.flow(node.flow.name):
            self._state.save_flow(node.flow.name, wanted)
        return wanted

    def _reconcile(self, node: FlowNode, dataset: DatasetNode, state: FlowState) -> None:
        """Report micro-batches that were committed, but not reported before a crash."""
        known = self._context.last_batch(node.flow.name)
        for commit in self._writers.unreported(dataset, node, state.epoch, known):
            # Without its number the next start would report it again.
            origin = replace(self._origin(node), batch_id=commit.result.batch_id)
            text = "recorded by the table, reported after a restart"
            self._context.emit(commit.event(origin, text))

    # -- batch flows ---------------------------------------------------------------------------

    def run_once(self, step: RunOnceFlow) -> RunOutcome:
        node = self._graph.flows[step.flow]
        sources: list[OpenedSource] = []
        with self._translated(node, sources), self._pool(step.flow):
            state = self._state.flow(step.flow) or self._state.new_flow(step.flow)
            if state.once_done:
                return RunOutcome(changed=False, reason="it already ran; a full refresh repeats it")
            dataset = self._graph.datasets[step.target]
            df, opened = self._evaluate(node)
            sources += opened
            node = self._adopt(node, df)
            df = self._confs.bound(df, node)
            writer = self._writers.stream_writer(
                dataset, node, df, epoch=state.epoch, mode=OutputMode.APPEND
            )
            if writer.df.isStreaming:
                return self._stream_once(step, node, state, writer)
            result = writer.write(writer.df, 0)
            table_id = self._tables.check_ownership(node, state)
            self._state.save_flow(step.flow, replace(state, once_done=True, target_id=table_id))
            if not result.replayed:
                self._context.emit(result.event(self._origin(node), "one-time flow"))
            return RunOutcome(changed=True, reason="one-time flow", rows=result.rows_written)

    def _stream_once(
        self, step: RunOnceFlow, node: FlowNode, state: FlowState, writer: BatchWriter
    ) -> RunOutcome:
        """Apply the available rows of a streaming view; resumes after a kill."""
        table_id = self._tables.check_ownership(node, state)
        self._state.save_flow(step.flow, replace(state, target_id=table_id))
        rows = 0

        def on_batch(df: DataFrame, batch_id: int) -> None:
            nonlocal rows
            result = writer.write(df, batch_id)
            rows += result.rows_written
            if not result.replayed:
                origin = replace(self._origin(node), batch_id=batch_id)
                self._context.emit(result.event(origin, "one-time flow"))

        checkpoint = self._tables.layout.checkpoint_path(step.flow, state.epoch)
        stream: Any = writer.df.writeStream.foreachBatch(on_batch).queryName(step.flow)
        stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = self._start(stream, node)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self._state.save_flow(step.flow, replace(state, once_done=True, target_id=table_id))
        return RunOutcome(changed=True, reason="one-time flow", rows=rows)

    def refresh(self, step: RefreshView) -> RunOutcome:
        node = self._graph.flows[step.flow]
        if node.flow.snapshot is not None:
            with self._translated(node), self._pool(step.flow):
                return self._follow_snapshots(step, node)
        dataset = self._graph.datasets[step.dataset]
        sources: list[OpenedSource] = []
        with self._translated(node, sources), self._pool(step.flow):
            started = time.monotonic()
            df, opened = self._evaluate(node)
            sources += opened
            node = self._adopt(node, df)
            df = self._confs.bound(df, node)
            where = None
            versions = plans.batch_sources(df)
            if replaces_rows(node.flow):
                window = self._writers.window(dataset, node, df)
                df, where = window.df, window.where
            fingerprint = self._fingerprint(df, dataset)
            before = self._state.view(step.dataset)
            version = self._tables.version(dataset)
            same_rows = before is not None and self._have_same_rows(before, versions)
            reason = _why_recompute(step, before, versions, fingerprint, version, same_rows)
            if where is not None and reason == _QUERY_CHANGED:
                reason = "its window moved, or the query changed"
            origin = self._origin(node)
            if reason is None:
                self._context.emit(_refresh(origin, "NO_OP", "no source changed"))
                return RunOutcome(changed=False, reason="no source changed")
            self._context.emit(_refresh(origin, "COMPLETE_RECOMPUTE", reason))
            result = self._writers.replace(dataset, node, df, fingerprint, where=where)
            view_state = ViewState(
                fingerprint=fingerprint,
                sources=versions.versions,
                table_version=self._tables.version(dataset)
                if result.version is None
                else result.version,
            )
            self._state.save_view(step.dataset, view_state)
            spent = round((time.monotonic() - started) * 1000)
            self._context.emit(result.event(origin, reason, duration_ms=spent))
            return RunOutcome(changed=True, reason=reason, rows=result.rows_written)

    def _follow_snapshots(self, step: RefreshView, node: FlowNode) -> RunOutcome:
        """Apply the snapshots that are newer than the last one.

        The version of a snapshot is recorded before it is applied; after a kill the number of the
        last commit shows whether it was applied.
        """
        dataset = self._graph.datasets[step.dataset]
        state = self._state.flow(step.flow) or self._state.new_flow(step.flow)
        if node.flow.once and state.once_done:
            return RunOutcome(changed=False, reason="it already ran; a full refresh repeats it")
        state = replace(state, target_id=self._tables.check_ownership(node, state))
        last = self._writers.last_batch(dataset, node, state.epoch)
        progress = SnapshotProgress(
            node.flow, self._evaluate_flow, last, state, self._state.save_flow
        )
        rows, applied, latest = 0, 0, self._state.view(step.dataset)
        for snapshot in progress.newer(
            lambda shape: self._writers.snapshot_writer(dataset, node, shape, state.epoch)
        ):
            if snapshot.is_named and self._is_known(snapshot.df, latest, state.epoch):
                continue
            result = snapshot.apply()
            if snapshot.is_named:
                self._remember(step.dataset, snapshot.df, state.epoch)
            if result is None:
                continue
            applied += 1
            rows += result.rows_written + result.rows_deleted
            if not result.replayed:
                commit = Commit(result, dataset.key, True, True)
                self._context.emit(commit.event(self._origin(node), snapshot.text))
        if node.flow.once:
            self._state.save_flow(step.flow, replace(progress.state, once_done=True))
        if not applied:
            return RunOutcome(changed=False, reason="no changes since the last snapshot")
        return RunOutcome(changed=True, reason=f"{applied} snapshot(s)", rows=rows)

    def _is_known(self, df: DataFrame, before: ViewState | None, epoch: str) -> bool:
        """Whether a source still has the versions of the last comparison."""
        sources = plans.batch_sources(df)
        return (
            before is not None
            and before.fingerprint == epoch
            and sources.unversioned is None
            and self._have_same_rows(before, sources)
        )

    def _have_same_rows(self, before: ViewState, sources: plans.BatchSources) -> bool:
        """Whether the sources have the rows of the last refresh, in the same files or others."""
        old, new = dict(before.sources), dict(sources.versions)
        changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        return all(
            old.get(path, "").isdecimal()
            and new.get(path, "").isdecimal()
            and keeps_rows(DeltaJvm(self._spark), path, int(old[path]), int(new[path]))
            for path in changed
        )

    def _remember(self, dataset: str, df: DataFrame, epoch: str) -> None:
        versions = plans.batch_sources(df).versions
        view_state = ViewState(fingerprint=epoch, sources=versions, table_version=None)
        self._state.save_view(dataset, view_state)

    def cancel(self) -> None:
        self._is_cancelled = True
        self._spark.sparkContext.cancelAllJobs()

    # -- parts ---------------------------------------------------------------------------------

    def _fingerprint(self, df: DataFrame, dataset: DatasetNode) -> str:
        text = plans.query_text(df)
        rules = [
            f"{rule.name}:{rule.condition}:{rule.on_violation}"
            for rule in dataset.declared.expectations
        ]
        # A plan does not contain the code of Python functions.
        code = self._context.source_digest if "Python" in text or "UDF" in text else ""
        return plans.fingerprint(text, *rules, code)

    def _evaluate(
        self, node: FlowNode, position: Position = NOWHERE
    ) -> tuple[DataFrame, list[OpenedSource]]:
        with self._confs.applied(node):
            df, evaluation = self._evaluator.evaluate(node.flow, position)
        declared = None if is_cdc(node.flow) else self._tables.declared_columns(node.target)
        return with_types(df, declared), evaluation.sources

    def _evaluate_flow(self, flow: Flow) -> DataFrame:
        with self._confs.applied(self._graph.flows[flow.name]):
            df, _ = self._evaluator.evaluate(flow)
        return with_types(df)

    def _adopt(self, node: FlowNode, df: DataFrame) -> FlowNode:
        """The flow with the current schema of its query; new columns are added to its table.

        The schema of a source may have changed since the analysis: files with new fields, or an
        upstream table with new columns.
        """
        if is_cdc(node.flow):
            return node  # its writer adds new columns
        known = self._grown.get(node.flow.name, node)
        analysed = StructType.fromJson(json.loads(known.analysis.schema_json))
        if analysed.simpleString() == df.schema.simpleString():
            return known
        grown = replace(known, analysis=replace(known.analysis, schema_json=df.schema.json()))
        dataset = self._graph.datasets.get(node.target)
        with self._confs.lock:
            self._grown[node.flow.name] = grown
            if dataset is not None and dataset.declared.schema is None:
                flows = [self._grown.get(f, self._graph.flows[f]) for f in dataset.flows]
                self._tables.prepare(dataset, flows)
        return grown

    def _prepared(self, node: FlowNode, sources: Sequence[OpenedSource], checkpoint: str) -> bool:
        """Whether the query must be evaluated again after its sources have read its checkpoint."""
        reasons = [
            reason for s in sources if (reason := s.prepare_start(checkpoint, sources)) is not None
        ]
        for reason in reasons:
            self._warn(node, f"flow {node.flow.name}: {reason}")
        return bool(reasons)

    def _checked_lease(self, node: FlowNode, ended: FlowEnded) -> FlowEnded:
        """Another driver makes the flows of this one fail in many ways: report the cause."""
        failure = None if ended.error is None else self._context.lost_lease()
        return ended if failure is None else replace(ended, error=flow_error(failure, node.flow))

    @contextlib.contextmanager
    def _pool(self, flow: str) -> Iterator[None]:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", flow)
        try:
            yield
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _translated(self, node: FlowNode, sources: Sequence[OpenedSource] = ()) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            exit_code = jvm_exit_code(self._spark, error)
            if exit_code is not None:
                raise jvm_died(exit_code, flow=node.flow.name) from None
            known = explained(f"{full_text(error)}\n{java_causes(error)}", sources, node.flow)
            if known is not None:
                raise known from error
            raise flow_error(error, node.flow) from error

    def _warn(self, node: FlowNode, text: str) -> None:
        self._context.emit(Event(self._origin(node), PlanWarning(text), text))

    def _display(self, node: FlowNode) -> str:
        dataset = self._graph.datasets.get(node.target)
        return dataset.display if dataset is not None else node.target

    def _origin(self, node: FlowNode) -> EventOrigin:
        is_sink = node.target in self._graph.sinks
        return replace(
            self._context.origin,
            flow_name=node.flow.name,
            dataset_name="" if is_sink else node.target,
            sink_name=node.target if is_sink else "",
        )


_QUERY_CHANGED = "the query changed"


def _triggered(writer: Any, step: StartFlow) -> Any:
    if step.interval_seconds is None:
        return writer.trigger(availableNow=True)
    every = f"{step.interval_seconds * 1000:.0f} milliseconds"
    match step.trigger and step.trigger.kind:
        case TriggerKind.CONTINUOUS:
            return writer.trigger(continuous=every)
        case TriggerKind.REAL_TIME:
            return writer.outputMode(OutputMode.UPDATE.value).trigger(realTime=every)
        case _:
            return writer.trigger(processingTime=every)


def _refresh(origin: EventOrigin, technique: str, reason: str) -> Event:
    text = f"{technique} of {origin.dataset_name} ({reason})"
    return Event(origin, PlanningInformation(technique, reason), text)


def _why_recompute(
    step: RefreshView,
    before: ViewState | None,
    sources: plans.BatchSources,
    fingerprint: str,
    version: int | None,
    same_rows: bool,
) -> str | None:
    if step.full:
        return "full refresh"
    if before is None or version is None:
        return "first refresh"
    if before.fingerprint != fingerprint:
        return _QUERY_CHANGED
    if version != before.table_version:
        return "the table was changed by another writer"
    if sources.unversioned is not None:
        return sources.unversioned
    if not same_rows:
        return "a source changed"
    return None
