"""Compares a project with what is deployed at its storage; writes nothing.

The deployed state consists of the declarations that flows and views recorded at their last start,
the operators of the checkpoints, and the tables in Delta's logs.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from penstock._execution.declaration import Declaration, declaration_of, stored_declaration
from penstock._execution.declaration_changes import Difference, Need, flow_differences
from penstock._execution.flow_state import FlowState, ViewState, check_state
from penstock._execution.savepoints import restore_unfinished, unfinished_restore
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._launch import OpenPipeline, open_pipeline, source_digest
from penstock._model.dataset import DatasetKind
from penstock._model.flow import OutputMode
from penstock._model.pipeline import PipelineSettings
from penstock._plan.settings import reset_allowed
from penstock._repair.deployment_plan import Change, DeploymentPlan, Size, effect_of
from penstock._repair.journal import Journal
from penstock._repair.migration_plan import DONE, check_flow, migration_of
from penstock._repair.reset import effect_on_target, why_refused
from penstock._spark.plans import has_state
from penstock._tables.delta_log import DeltaJvm, file_count, size_in_bytes
from penstock._tables.files import StorageFiles
from penstock._tables.layout import TableRef
from penstock._tables.write.alter import planned_changes
from penstock._tables.write.schema import compare as compare_columns
from penstock._tables.write.table_spec import state_of
from penstock.errors import CheckpointError, PlanError
from penstock.sinks.registry import sink_of
from penstock.sources.delta.source import DeltaSource
from penstock.sources.registry import source_of

_UNKNOWN = (
    "whether its query, rules, keys and sources changed is unknown: it was deployed by an earlier "
    "version, or has not succeeded yet; the next update records them"
)


def plan_deployment(settings: PipelineSettings) -> DeploymentPlan:
    """Compare a project with its storage, also while the pipeline runs.

    Called on the main thread.

    Raises:
        DefinitionErrors: All definition errors of the project.
        PlanError: `RESTORE_UNFINISHED`, or a table cannot be changed as declared.
    """
    with open_pipeline(settings) as pipeline:
        return compare(pipeline)


def compare(pipeline: OpenPipeline) -> DeploymentPlan:
    savepoint = unfinished_restore(StorageFiles(pipeline.spark), pipeline.tables.layout)
    if savepoint is not None:
        raise restore_unfinished(savepoint)
    comparison = _Comparison(pipeline)
    targets = (*(node.key for node in pipeline.graph.stored()), *pipeline.graph.sinks)
    changes = {target: comparison.target(target) for target in targets}
    unchanged = [comparison.display(target) for target, change in changes.items() if not change]
    return DeploymentPlan(
        pipeline=pipeline.settings.name,
        storage=pipeline.settings.storage,
        changes=(*filter(None, changes.values()), *comparison.removed()),
        unchanged=tuple(unchanged),
        deferred={
            pipeline.graph.datasets[key].display: text
            for key, text in pipeline.graph.deferral_texts().items()
        },
    )


@dataclass(frozen=True)
class _Flow:
    """A declared flow and what is recorded about it."""

    node: FlowNode
    now: Declaration
    state: FlowState | None
    view: ViewState | None
    before: Declaration | None

    @property
    def name(self) -> str:
        return self.node.flow.name

    @property
    def has_started(self) -> bool:
        state = self.state
        is_known = self.before is not None or self.view is not None
        return is_known or (
            state is not None and (state.stateful_operators is not None or state.once_done)
        )


class _Comparison:
    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._graph = pipeline.graph
        self._delta = DeltaJvm(pipeline.spark)
        self._files = StorageFiles(pipeline.spark)
        self._replaced: set[str] = set()  # tables whose rows are replaced: streams of them stop
        digest = source_digest(pipeline.settings)
        self._flows = [
            self._flow(node, declaration_of(pipeline.tables, node, digest))
            for node in self._graph.flows.values()
            if node.target in self._graph.sinks or self._graph.datasets[node.target].is_stored
        ]
        self._sizes: dict[str, Size] = {}
        self._former = {  # declarations of removed flows
            name: declared
            for name in pipeline.state.names("flows")
            if name not in self._graph.flows
            and (declared := stored_declaration(pipeline.state.flow(name))) is not None
        }

    def _flow(self, node: FlowNode, now: Declaration) -> _Flow:
        state = self._pipeline.state.flow(node.flow.name)
        view = self._pipeline.state.view(now.target)
        of_view, of_flow = stored_declaration(view), stored_declaration(state)
        is_refreshed = now.kind == DatasetKind.MATERIALIZED_VIEW or replaces_rows(node.flow)
        before = (of_view or of_flow) if is_refreshed else (of_flow or of_view)
        return _Flow(node, now, state, view, before)

    def display(self, target: str) -> str:
        node = self._graph.datasets.get(target)
        return target if node is None else node.display

    def target(self, target: str) -> Change | None:
        """The change of a table or sink, if any; upstream tables must be compared first."""
        flows = [flow for flow in self._flows if flow.node.target == target]
        node = self._graph.datasets.get(target)
        if node is None and sink_of(self._graph.sinks[target].format).is_transient:
            return None
        differences = [each for flow in flows for each in self._of_flow(flow, node)]
        is_new = not any(flow.has_started for flow in flows)
        if node is not None:
            is_new = is_new and self._delta.version(self._pipeline.tables.paths[target]) < 0
            differences += self._of_table(node, flows)
        differences = self._resolved(node, flows, differences)
        if not differences:
            return None
        need = max(each.need for each in differences)
        restarting: list[_Flow] = []
        if need is Need.CHECKPOINT:
            concerned = {each.flow for each in differences if each.need is need}
            restarting = [flow for flow in flows if flow.name in concerned]
        elif need in (Need.MIGRATION, Need.FULL_REFRESH):
            self._replaced.add(target)
            restarting = flows
        restarted = tuple(flow.name for flow in restarting)
        kind = "sink" if node is None else node.kind.value
        concerns_rows = any(each.flow for each in differences)
        change = Change(
            key=target,
            name=self.display(target),
            kind=kind,
            change="new" if is_new else "changed",
            need=need,
            reasons=tuple(dict.fromkeys(each.text for each in differences)),
            effect=effect_of(need, kind, restarted, is_new=is_new, concerns_rows=concerns_rows),
            flows=restarted,
            resumes=any(self._is_migrating(flow) for flow in flows),
            refused=self._refused(restarting) if need is Need.CHECKPOINT else None,
        )
        if all(each.text == _UNKNOWN for each in differences):
            return replace(change, change="unknown")
        is_view = kind == DatasetKind.MATERIALIZED_VIEW
        reading = [
            flow
            for flow in flows
            if flow.name in restarted or not flow.has_started or (is_view and concerns_rows)
        ]
        return self._measured(change, node, reading) if reading else change

    # -- flows -------------------------------------------------------------------------------

    def _of_flow(self, flow: _Flow, node: DatasetNode | None) -> Iterator[Difference]:
        name, state, analysis = flow.name, flow.state, flow.node.analysis
        if state is not None and state.reset_pending:
            yield Difference(
                Need.FULL_REFRESH, f"a full refresh of flow {name} is unfinished", name
            )
            return
        if node is not None and self._is_migrating(flow):
            yield Difference(Need.MIGRATION, f"the migration of flow {name} is unfinished", name)
            return
        if not flow.has_started:
            yield Difference(Need.UPDATE, f"flow {name} starts with the next update")
            return
        is_batch = not analysis.is_streaming and flow.node.flow.snapshot is None
        if flow.before is not None:
            yield from flow_differences(
                name,
                flow.before,
                flow.now,
                has_checkpoint=not (is_batch or flow.node.flow.once),
                has_state=has_state(analysis.stateful_operators),
            )
            is_batch_before = flow.view is not None and flow.view.deployed != {}
            if is_batch_before and analysis.is_streaming and flow.before.kind == flow.now.kind:
                yield Difference(Need.FULL_REFRESH, "stored rows are those of a batch query", name)
        elif flow.view is not None and analysis.is_streaming:
            yield Difference(Need.FULL_REFRESH, "it was a materialized view", name)
        else:
            yield Difference(Need.UPDATE, _UNKNOWN)
        if state is None or not analysis.is_streaming or flow.node.flow.once:
            return
        mode = OutputMode.APPEND if analysis.output_mode is None else analysis.output_mode
        try:
            check_state(
                flow.node.flow,
                state,
                operators=analysis.stateful_operators,
                order=flow.now.order,
                output_mode=mode.value,
                display=flow.now.display,
            )
        except CheckpointError as error:
            need = Need.CHECKPOINT if is_cdc(flow.node.flow) else Need.REBUILD
            yield Difference(need, error.message, name)
        for key in analysis.plain_streams:
            if key in self._replaced and state.stateful_operators is not None:
                need = Need.CHECKPOINT if node is None else Need.FULL_REFRESH
                text = f"flow {name} streams {self.display(key)}, whose rows are replaced"
                yield Difference(need, text, name)

    def _is_migrating(self, flow: _Flow) -> bool:
        folder = self._pipeline.tables.layout.migration_folder(flow.name)
        known = Journal(self._files, folder, migration_of, "migration.json").load()
        return known is not None and known.stage != DONE

    # -- tables ------------------------------------------------------------------------------

    def _of_table(self, node: DatasetNode, flows: list[_Flow]) -> Iterator[Difference]:
        tables = self._pipeline.tables
        table = tables.table(node)
        snapshot = self._delta.snapshot(table.path)
        state = state_of(self._delta, snapshot) if snapshot.version() >= 0 else None
        if state is not None:
            spec = tables.spec(node, [flow.node for flow in flows])
            has_rows = file_count(snapshot) > 0
            try:
                for change in planned_changes(table, spec, state, has_rows=has_rows):
                    yield Difference(Need.UPDATE, change)
            except PlanError as error:
                if error.condition not in ("SCHEMA_INCOMPATIBLE", "PARTITIONING_CHANGED"):
                    raise
                yield Difference(Need.REBUILD, error.message)
            if has_rows and len(flows) == 1 and _needs_all_columns(node, flows[0].node):
                for column in compare_columns(state.schema, spec.schema).missing:
                    yield Difference(
                        Need.REBUILD, f"column {column!r} is not in the query any more"
                    )
        for flow in flows:
            target_id = None if flow.state is None else flow.state.target_id
            if target_id not in (None, None if state is None else state.id):
                text = f"the table of flow {flow.name} was dropped, or created again, since"
                if flow.before is not None and flow.before.target != node.key:
                    text = f"the checkpoint of flow {flow.name} belongs to that table"
                yield Difference(Need.FULL_REFRESH, text, flow.name)
        for name, declared in self._former.items():
            if declared.target == node.key:
                text = f"flow {name} is not declared any more: its rows and checkpoint stay"
                yield Difference(Need.NOTHING, text)

    def _resolved(
        self, node: DatasetNode | None, flows: list[_Flow], differences: list[Difference]
    ) -> list[Difference]:
        """Choose how a table is rebuilt: by a migration if possible, which loses no rows."""
        need = max((each.need for each in differences), default=Need.NOTHING)
        if need not in (Need.REBUILD, Need.FULL_REFRESH):
            return differences
        chosen = Need.CHECKPOINT if node is None else Need.FULL_REFRESH
        if node is not None and need is Need.REBUILD and len(flows) == 1:
            state = flows[0].state
            with suppress(PlanError):
                check_flow(self._graph, self._pipeline.settings, flows[0].node)
                if state is not None and state.stateful_operators is not None:
                    chosen = Need.MIGRATION
        more = []
        conf = self._pipeline.settings.configuration
        if chosen is Need.FULL_REFRESH and node is not None and not reset_allowed(node, conf):
            chosen = Need.IMPOSSIBLE
            text = "pipelines.reset.allowed is false: revert the change, or change the property"
            more = [Difference(chosen, text)]
        rebuilding = (Need.REBUILD, Need.FULL_REFRESH)
        return more + [
            replace(each, need=chosen) if each.need in rebuilding else each for each in differences
        ]

    def _refused(self, restarting: list[_Flow]) -> str | None:
        for flow in restarting:
            effect = effect_on_target(self._graph, flow.node)
            if effect == "added":
                return "its target is append-only: rows that are read again would be duplicated"
            if effect == "refused":
                return why_refused(effect, (), is_whole=True)
        return None

    # -- removed tables and sinks --------------------------------------------------------------

    def removed(self) -> Iterator[Change]:
        """Tables and sinks that are no longer declared."""
        state = self._pipeline.state
        stored = [stored_declaration(state.view(key)) for key in state.names("views")]
        stored += self._former.values()
        former = {declared.target: declared for declared in stored if declared is not None}
        for target, declared in former.items():
            if target in self._graph.datasets or target in self._graph.sinks:
                continue
            is_table = declared.kind != "sink"
            size = self._size([TableRef(declared.path, target)]) if is_table else None
            if is_table and size is None:
                continue  # it was deleted
            stays = f"its table stays in {declared.path}" if is_table else "its rows stay"
            yield Change(
                key=target,
                name=declared.display,
                kind=declared.kind,
                change="removed",
                need=Need.NOTHING,
                reasons=(f"it is not declared any more: {stays}, and so does its checkpoint",),
                table=size,
            )

    # -- statistics ----------------------------------------------------------------------------

    def _measured(self, change: Change, node: DatasetNode | None, reading: list[_Flow]) -> Change:
        tables = self._pipeline.tables
        upstream = {key for flow in reading for key in flow.node.upstream}
        keys = sorted(key for key in upstream if self._graph.datasets[key].is_stored)
        own = [tables.table(self._graph.datasets[key]) for key in keys]
        external = dict.fromkeys(text for flow in reading for text in flow.now.external)
        paths = {text: text.partition(" ") for text in external}
        stored = {
            text: TableRef(path, path)
            for text, (kind, _, path) in paths.items()
            if isinstance(source_of(kind), DeltaSource)
        }
        return replace(
            change,
            reads=self._size([*own, *stored.values()]),
            unmeasured=tuple(text for text in external if text not in stored),
            table=None if node is None else self._size([tables.table(node)]),
        )

    def _size(self, refs: list[TableRef]) -> Size | None:
        sizes = [size for ref in refs if (size := self._table_size(ref.path)) is not None]
        rows = [size.rows for size in sizes if size.rows is not None]
        is_known = len(rows) == len(sizes)
        total = Size(rows=sum(rows) if is_known else None, bytes=sum(size.bytes for size in sizes))
        return total if sizes else None

    def _table_size(self, path: str) -> Size | None:
        snapshot = self._delta.snapshot(path)
        if path not in self._sizes and snapshot.version() >= 0:
            files = DataFrame(snapshot.withStats(), self._pipeline.spark)
            row = files.selectExpr(
                "sum(stats.numRecords - coalesce(deletionVector.cardinality, 0)) AS rows",
                "count_if(stats.numRecords IS NULL) AS unknown",
            ).first()
            assert row is not None
            rows = None if row.unknown else int(row.rows or 0)
            self._sizes[path] = Size(rows=rows, bytes=size_in_bytes(snapshot))
        return self._sizes.get(path)


def _needs_all_columns(node: DatasetNode, flow: FlowNode) -> bool:
    """Whether the writer refuses a query without a column of the table."""
    is_view = node.kind is DatasetKind.MATERIALIZED_VIEW
    replaces = is_view or flow.analysis.output_mode is OutputMode.COMPLETE
    return not replaces and node.declared.schema is None
