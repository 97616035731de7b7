"""Starts the queries of streaming flows, and watches them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from penstock._analysis.late_rows import LateRowFinder
from penstock._analysis.table_sources import DeltaSource, StreamStarts
from penstock._execution.admission import BatchAdmission
from penstock._execution.caught_up import is_caught_up
from penstock._execution.damage_check import DamageCheck
from penstock._execution.declaration import stream_order
from penstock._execution.flow_query import FlowQueries
from penstock._execution.flow_state import FlowState, check_state
from penstock._execution.lag_probe import LagProbe
from penstock._execution.listener import ProgressListener
from penstock._execution.running import RunningQuery
from penstock._execution.sink_writers import sink_writer
from penstock._graph.dataflow import FlowNode
from penstock._model.dataset import LateRows
from penstock._model.flow import OutputMode
from penstock._model.trigger import TriggerKind
from penstock._plan.steps import StartFlow
from penstock._runtime.ports import OnEnd
from penstock._spark import plans
from penstock._spark.failures import flow_error
from penstock._spark.session import jvm_exit_code
from penstock._tables.files import local_path
from penstock._tables.read.checkpoint_files import newest_of_checkpoint
from penstock.errors import PenstockError
from penstock.sinks.registry import sink_of
from penstock.sources import checkpoints
from penstock.sources.flow import distinct


class StreamingFlows:
    """Starts streaming queries, and watches them; the queries read from `source`."""

    def __init__(self, queries: FlowQueries, source: DeltaSource, damage: DamageCheck) -> None:
        self._queries = queries
        self._source = source
        self._damage = damage
        self.listener = ProgressListener()
        self._lag = LagProbe(queries.context.emit)
        self._admission = BatchAdmission(queries.spark)
        queries.spark.streams.addListener(self.listener)

    def finish(self) -> None:
        """Stop measuring the lag of flows."""
        self._lag.close()

    def close(self) -> None:
        """Detach from the session."""
        if jvm_exit_code(self._queries.spark) is None:
            self._queries.spark.streams.removeListener(self.listener)

    def start(self, step: StartFlow, on_end: OnEnd) -> RunningQuery:
        node = self._queries.graph.flows[step.flow]
        with self._queries.translated(node):
            sink = self._queries.graph.sinks.get(step.target)
            is_transient = sink is not None and sink_of(sink.format).is_transient
            before = None if is_transient else self._queries.state.flow(step.flow)
            if before is None and sink is not None and not is_transient:
                self._damage.check_state(node, None)
            elif before is not None and before.stateful_operators is not None:
                self._damage.check_files(node, before.epoch)
                if self._is_caught_up(node, step, before):
                    return self._ended(node, before, on_end)
                self._damage.check_checkpoint(node, before)
            elif before is not None and self._damage.has_batches_of_no_query(node, before.epoch):
                # Batches of the one-time flow already have the numbers of its batches.
                self._queries.warn(
                    node,
                    f"flow {step.flow} was a one-time flow, whose rows stay in the table: as a "
                    "stream, it reads its sources from the beginning",
                )
                before = None
            state = before or self._queries.state.new_flow(step.flow)
            starts = StreamStarts(dict(state.starts), is_open=state.stateful_operators is None)
            checkpoint = self._queries.tables.layout.checkpoint_path(step.flow, state.epoch)
            evaluate = partial(
                self._queries.evaluate,
                node,
                state.position,
                is_triggered=step.interval_seconds is None,
            )
            with self._source.starting(starts):
                df, sources = evaluate()
                if self._queries.prepare_start(node, sources, checkpoint):
                    df, sources = evaluate()
            node = self._queries.adopt(node, df)
            topics = _topics_in(step.flow, checkpoint, state)
            known = dict(topics)
            for source in distinct(sources):
                known |= source.check_identity(
                    topics, node.flow, self._queries.graph.target_name(node)
                )
            state = replace(state, starts=starts.chosen, topics=known)
            state = self._flow_state(node, df, step, state)
            if before is None and not is_transient:
                self._warn_of_former_flows(node, step, state.target_id)
            running = RunningQuery(
                node.flow,
                self._queries.origin(node),
                self._queries.context.emit,
                lambda error: on_end(self._checked_lease(node, error)),
                sources,
                checkpoint,
                on_success=(lambda: None) if is_transient else partial(self._record, node),
                remember=partial(self._remember_topics, step.flow),
            )
            running.has_batches = step.trigger is None
            if sink is None:
                writer = self._table_writer(node, df, state, step, running)
            else:
                writer = sink_writer(self._queries, sink, node, df, state.epoch, running)
            writer = writer.queryName(step.flow).option("checkpointLocation", checkpoint)
            query = self._queries.start(_triggered(writer, step), node)
            is_read = any(
                node.target in flow.upstream for flow in self._queries.graph.flows.values()
            )
            try:
                self._admission.attach(query, is_read=is_read, is_eager=step.is_eager)
                running.attach(query)
                running.measures_lag(self._lag.watch(self._queries.origin(node), sources, query))
                self.listener.watch(str(query.runId), running)
            except BaseException:
                # The query would write rows unobserved, and a retry could not use its name.
                for source in sources:
                    source.ended()
                query.stop()
                raise
            return running

    def _warn_of_former_flows(self, node: FlowNode, step: StartFlow, table: str | None) -> None:
        """Warn that a new flow may be a renamed one, whose rows it writes again.

        `table` is the id of its target, if that is a table.
        """
        if step.output_mode is not OutputMode.APPEND or node.flow.cdc is not None:
            return
        state, graph = self._queries.state, self._queries.graph
        for name in state.names("flows"):
            former = None if name in graph.flows else state.flow(name)
            if former is None or former.target_id != table:
                continue
            if former.deployed.get("target") == node.target:
                target = graph.target_name(node)
                self._queries.warn(
                    node,
                    f"flow {step.flow} reads its sources from the beginning, and {target} keeps "
                    f"the rows of flow {name}, which is not declared any more: if {step.flow} is "
                    f"a new name of {name}, its rows are written twice",
                )

    def _is_caught_up(self, node: FlowNode, step: StartFlow, state: FlowState) -> bool:
        """Whether a triggered flow into a table would read nothing, and change nothing else."""
        return (
            step.interval_seconds is None
            and step.target in self._queries.graph.datasets
            and state.output_mode == step.output_mode.value
            and self._queries.changed_declaration(node, state) is None
            and is_caught_up(self._queries.tables, node, state)
        )

    def _ended(self, node: FlowNode, state: FlowState, on_end: OnEnd) -> RunningQuery:
        """A flow whose query is not started because there are no new rows."""
        self._queries.tables.check_ownership(node, state)
        self._queries.reconcile(node, state)
        running = RunningQuery(
            node.flow, self._queries.origin(node), self._queries.context.emit, on_end
        )
        running.terminated(None)
        return running

    def _record(self, node: FlowNode) -> None:
        if self._queries.record(node):
            self._queries.state.forget_view(node.target)  # if the table was a view

    def _remember_topics(self, flow: str, ids: Mapping[str, str]) -> None:
        if (state := self._queries.state.flow(flow)) is not None:
            topics = {**state.topics, **ids}
            self._queries.state.save_flow(flow, replace(state, topics=topics))

    def _table_writer(
        self,
        node: FlowNode,
        df: DataFrame,
        state: FlowState,
        step: StartFlow,
        running: RunningQuery,
    ) -> Any:
        dataset = self._queries.graph.datasets[step.target]
        self._queries.reconcile(node, state)
        late = None
        if node.flow.cdc is None and plans.has_state(node.analysis.stateful_operators):
            keeps = dataset.declared.late_rows is LateRows.QUARANTINE
            late = LateRowFinder(running.execution, keeps=keeps)
        writer = self._queries.writers.stream_writer(
            dataset, node, df, epoch=state.epoch, mode=step.output_mode, late=late
        )
        running.writes_batches(writer.write, writer.close, writer.cancel)
        # In update mode, `foreachBatch` gets the changed rows, and the writer merges them.
        return writer.df.writeStream.outputMode(step.output_mode.value).foreachBatch(
            running.on_batch
        )

    def _flow_state(
        self, node: FlowNode, df: DataFrame, step: StartFlow, state: FlowState
    ) -> FlowState:
        operators = plans.stateful_operators(df)
        mode = step.output_mode.value
        display = self._queries.graph.target_name(node)
        order = stream_order(self._queries.graph, node.analysis)
        check_state(
            node.flow,
            state,
            operators=operators,
            order=order,
            output_mode=mode,
            display=display,
        )
        table_id = self._queries.tables.check_ownership(node, state)
        wanted = replace(
            state,
            stateful_operators=operators,
            output_mode=mode,
            target_id=table_id,
            pipeline=self._queries.state.pipeline_of(node.flow.name),
        )
        if wanted != self._queries.state.flow(node.flow.name):
            self._queries.state.save_flow(node.flow.name, wanted)
        return wanted

    def _checked_lease(self, node: FlowNode, error: PenstockError | None) -> PenstockError | None:
        """The error to report: `error`, or the loss of the lease that may have caused it."""
        failure = None if error is None else self._queries.context.lost_lease()
        return error if failure is None else flow_error(failure, node.flow)


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


def _topics_in(flow: str, path: str, state: FlowState) -> Mapping[str, str]:
    """Ids of the topics in the newest batch; a topic that is not in it starts at its first row."""
    if not state.topics:
        return {}
    checkpoint = newest_of_checkpoint(flow, state.epoch, local_path(path) or Path(path))
    names = {name for offset in checkpoints.last_offsets(checkpoint) for name in offset}
    return {t: i for t, i in state.topics.items() if t in names or not checkpoint.planned}
