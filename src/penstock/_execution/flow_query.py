"""Queries of flows: their evaluation, their start, and their shared context."""

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock._analysis.evaluation import Evaluator
from penstock._execution.declaration import declaration_of
from penstock._execution.flow_conf import FlowConfs
from penstock._execution.flow_state import FlowState
from penstock._execution.tables import PipelineTables
from penstock._execution.writers import TableWriters
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import FlowNode
from penstock._model.flow import Flow
from penstock._observe.events import Event, EventOrigin, PlanWarning
from penstock._spark.failures import flow_error, full_text, java_causes
from penstock._spark.session import jvm_died, jvm_exit_code
from penstock.errors import CheckpointError, PenstockError, PlanError
from penstock.sources.base import NOWHERE, OpenedSource, Position, explained


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """Context of the engine.

    `emit` may be called on any thread. `source_digest` is the digest of the project's source files,
    for queries that call Python functions. `last_batch` returns the newest micro-batch of a flow in
    the event log. `lost_lease` returns the failure if another driver has taken over. `resets` are
    the flows of a full refresh, downstream before upstream.
    """

    source_digest: str
    emit: Callable[[Any], None]
    origin: EventOrigin
    last_batch: Callable[[str], tuple[int, int | None] | None]
    lost_lease: Callable[[], str | None] = lambda: None
    resets: Sequence[str] = ()


class FlowQueries:
    """Evaluates and starts the queries of flows, both streaming and batch."""

    def __init__(
        self,
        evaluator: Evaluator,
        tables: PipelineTables,
        context: EngineContext,
    ) -> None:
        self.spark = tables.spark
        self.graph = tables.graph
        self.tables = tables
        self.state = tables.state
        self.context = context
        self.writers = TableWriters(tables, self.warn)
        self.confs = FlowConfs(self.spark, self.graph)
        self.tag = f"penstock-{uuid.uuid4()}"
        """Tag of the jobs of this engine: a borrowed session also has jobs of other code."""
        self.evaluator = evaluator
        # Flows whose query has different columns than in the analysis.
        self._grown: dict[str, FlowNode] = {}

    def evaluate(
        self, node: FlowNode, position: Position = NOWHERE, *, is_triggered: bool = True
    ) -> tuple[DataFrame, list[OpenedSource]]:
        with self.confs.applied(node):
            df, evaluation = self.evaluator.evaluate(node.flow, position, is_triggered=is_triggered)
        return self.tables.typed(node, df), evaluation.sources

    def prepare_start(
        self, node: FlowNode, sources: Sequence[OpenedSource], checkpoint: str
    ) -> bool:
        """Prepare the sources of a streaming query; whether it must be evaluated again."""
        reasons = [
            reason for s in sources if (reason := s.prepare_start(checkpoint, sources)) is not None
        ]
        for reason in reasons:
            self.warn(node, f"flow {node.flow.name}: {reason}")
        return bool(reasons)

    def evaluate_flow(self, flow: Flow) -> DataFrame:
        node = replace(self.graph.flows[flow.name], flow=flow)
        df, _ = self.evaluate(node)
        return self.confs.bound(df, node)

    def adopt(self, node: FlowNode, df: DataFrame) -> FlowNode:
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
        dataset = self.graph.datasets.get(node.target)
        with self.confs.lock:
            self._grown[node.flow.name] = grown
            if dataset is not None and dataset.declared.schema is None:
                flows = [self._grown.get(f, self.graph.flows[f]) for f in dataset.flows]
                self.tables.prepare(dataset, flows)
        return grown

    def start(self, writer: Any, node: FlowNode) -> StreamingQuery:
        # A query has its own job group, which `stop` cancels. Python listeners fail if it has job
        # tags: PySpark's `QueryStartedEvent.fromJObject` treats them as Java objects.
        context: Any = self.spark.sparkContext
        context.removeJobTag(self.tag)
        # The query copies the session, with its confs, when it starts.
        with self.confs.applied(node):
            query: StreamingQuery = writer.start()
        return query

    @contextlib.contextmanager
    def translated(self, node: FlowNode, sources: Sequence[OpenedSource] = ()) -> Iterator[None]:
        """Run a step of the update: its jobs have the engine's tag and the flow's scheduler pool.

        Exceptions are converted to Penstock errors. A query that is started in it inherits the
        pool.
        """
        context: Any = self.spark.sparkContext
        jvm: Any = self.spark._jvm
        try:
            # The session of this thread: query functions may use it, and Spark looks up Python data
            # sources in it.
            sessions = jvm.org.apache.spark.sql.classic.SparkSession
            sessions.setActiveSession(self.spark._jsparkSession)
            context.setLocalProperty("spark.scheduler.pool", node.flow.name)
            context.addJobTag(self.tag)
            yield
        except PenstockError as error:
            # Checks of a table or a source do not have the origin of the flow.
            if isinstance(error, PlanError | CheckpointError):
                error.origin = error.origin or node.flow.origin
            raise
        except Exception as error:
            exit_code = jvm_exit_code(self.spark, error)
            if exit_code is not None:
                raise jvm_died(exit_code, flow=node.flow.name) from None
            known = explained(f"{full_text(error)}\n{java_causes(error)}", sources, node.flow)
            if known is not None:
                raise known from error
            raise flow_error(error, node.flow) from error
        finally:
            # The JVM has ended, or the owner of the session has stopped it.
            with contextlib.suppress(Py4JError, ConnectionError, AttributeError):
                context.setLocalProperty("spark.scheduler.pool", None)
                context.removeJobTag(self.tag)

    def declaration(self, node: FlowNode) -> dict[str, Any]:
        """The declaration to record for a flow or a view that has run."""
        return declaration_of(self.tables, node, self.context.source_digest).to_json()

    def record(self, node: FlowNode) -> bool:
        """Record the declaration of a flow that has run. Returns whether it has changed."""
        state = self.state.flow(node.flow.name)
        declared = None if state is None else self.changed_declaration(node, state)
        if state is None or declared is None:
            return False
        self.state.save_flow(node.flow.name, replace(state, deployed=declared))
        return True

    def changed_declaration(self, node: FlowNode, state: FlowState) -> dict[str, Any] | None:
        """The declaration of a flow; `None` if it is that of the last run."""
        declared = self.declaration(node)
        # Stored rows belong to the keys by which the checkpoint's first rows were computed.
        declared["history"] = state.deployed.get("history") or declared["history"]
        return None if declared == state.deployed else declared

    def reconcile(self, node: FlowNode, state: FlowState) -> None:
        """Report batches that were committed, but not reported before a crash."""
        known, dataset = self.context.last_batch(node.flow.name), self.graph.datasets[node.target]
        for commit in self.writers.unreported(dataset, node, state.epoch, known):
            # Without the batch number, the next start would report the batch again.
            origin = replace(self.origin(node), batch_id=commit.result.batch_id)
            text = "recorded by the table, reported after a restart"
            self.context.emit(commit.event(origin, text))

    def warn(self, node: FlowNode, text: str) -> None:
        self.context.emit(Event(self.origin(node), PlanWarning(text), text))

    def origin(self, node: FlowNode) -> EventOrigin:
        is_sink = node.target in self.graph.sinks
        return replace(
            self.context.origin,
            flow_name=node.flow.name,
            dataset_name="" if is_sink else node.target,
            sink_name=node.target if is_sink else "",
        )
