"""The report of a migration, and the reasons to refuse it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._execution.flow_state import FlowState
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._launch import OpenPipeline
from penstock._model.pipeline import PipelineSettings
from penstock._model.quantity import plural
from penstock._plan.settings import reset_allowed
from penstock._spark.generated_names import stable_operators
from penstock._spark.plans import stateful_operators
from penstock._tables.delta_log import DeltaJvm, size_in_bytes
from penstock._tables.read.log_scan import replaced_at
from penstock._tables.write.table_spec import table_state
from penstock.errors import PenstockError, PlanError
from penstock.sources.base import StartReport, path_key
from penstock.sources.delta.source import DeltaStream

BUILDING, CUTTING, DONE = "building", "cutting", "done"
UNDOING, LEAVING = "undoing", "leaving"
"""Stages: the new table is built; it replaces the old one; done; the old one is restored; the
migration is discarded during its cut-over."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    migration_id: str  # epoch of the new checkpoint
    flow: str
    stage: str
    start: str  # for messages
    position: Mapping[str, Any]  # the resolved start position
    table_id: str  # Delta's id
    query: Mapping[str, Any]  # stateful operators, output mode and columns of the new query
    old: Mapping[str, Any]  # state of the flow before the cut-over
    old_version: int  # of the table before the cut-over
    old_quarantine: int  # version before the cut-over; -1 if there is none
    new_quarantine: int = -1  # version before an undo


def migration_of(**body: Any) -> Migration:
    """A stored migration; operators stored by earlier versions get comparable names."""
    for content, name in ((body["old"], "stateful_operators"), (body["query"], "operators")):
        if content.get(name) is not None:
            content[name] = list(stable_operators(content[name]))
    return Migration(**body)


@dataclass(frozen=True, kw_only=True)
class Reader:
    flow: str
    target: str  # its table or sink
    effect: str  # of the replacement: stops, skips or changes; recomputes without a stream

    @property
    def text(self) -> str:
        match self.effect:
            case "stops":
                return (
                    f"flow {self.flow} streams it and stops at the replacement: afterwards "
                    f"`penstock migrate {self.flow}` recomputes {self.target}, or "
                    f"`penstock checkpoint reset {self.flow} --from latest` keeps {self.target} "
                    "and continues with new rows"
                )
            case "skips":
                return (
                    f"flow {self.flow} streams it with skipChangeCommits: it skips the "
                    f"replacement, and {self.target} keeps the results of the old rows; "
                    f"`penstock migrate {self.flow}` recomputes it"
                )
            case "changes":
                return (
                    f"flow {self.flow} reads its change feed, with all old rows deleted and all "
                    "new rows inserted"
                )
            case _:
                return f"{self.target} is recomputed from it by each update, as before"


@dataclass(frozen=True, kw_only=True)
class MigrationReport:
    flow: str
    target: str
    state: str  # planned, done, undone or abandoned
    migration_id: str | None  # None for a plan
    resumed: bool
    start: str  # start position of its sources
    old_epoch: str
    old_version: int  # of the table
    new_epoch: str | None = None  # None for a plan
    new_version: int | None = None  # None for a plan
    rows: int | None = None  # old rows for a plan, otherwise new rows
    size: int | None = None  # of the old table in bytes
    columns: tuple[str, ...] = ()  # changes
    operators: tuple[str, ...] = ()  # changes
    sources: tuple[StartReport, ...] = ()
    readers: tuple[Reader, ...] = ()
    refused: str | None = None  # why it needs `--accept-less`
    steps: tuple[str, ...] = ()  # one sentence each


def check_flow(graph: DataflowGraph, settings: PipelineSettings, node: FlowNode) -> DatasetNode:
    name = node.flow.name
    dataset = graph.datasets.get(node.target)
    declared = {} if dataset is None else dataset.declared.table_properties
    properties = {key.lower(): str(value).lower() for key, value in declared.items()}
    reason = hint = ""
    if dataset is None:
        reason = "it writes to a sink, whose rows cannot be replaced"
        hint = f"`penstock checkpoint reset {name} --from latest` continues with new rows"
    elif not dataset.is_stored:
        reason = f"{dataset.display} is a temporary view, which has no rows"
        hint = "migrate the flows that read it"
    elif not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it has no checkpoint: it is not a streaming flow, or one that runs once"
        hint = f"each update recomputes it, or --full-refresh {node.flow.target} does"
    elif is_cdc(node.flow):
        reason = "its rows are made from change events, and the table has its own CDC state"
        hint = f"--full-refresh {dataset.display}, or `penstock checkpoint reset {name} --from "
        hint += "earliest --truncate`, empties both and applies all events again"
    elif len(dataset.flows) > 1:
        others = ", ".join(other for other in dataset.flows if other != name)
        reason = f"{dataset.display} has rows of other flows ({others}), which would be deleted"
        hint = f"--full-refresh {dataset.display} empties it and restarts all of them"
    elif not reset_allowed(dataset, settings.configuration):
        reason = f"{dataset.display} has pipelines.reset.allowed = false"
        hint = "change the property, or declare the changed query as a flow into a new table"
    elif properties.get("delta.appendonly") == "true":
        reason = f"{dataset.display} has delta.appendOnly = true: its rows cannot be replaced"
        hint = "change the property, or declare the changed query as a flow into a new table"
    elif "AS IDENTITY" in str(dataset.declared.schema or "").upper():
        reason = f"{dataset.display} has an identity column, whose numbers would change"
        hint = f"--full-refresh {dataset.display} if the numbers are not used elsewhere"
    if reason or dataset is None:
        raise not_possible(node, f"flow {name!r} cannot be migrated: {reason}", hint)
    return dataset


def not_possible(node: FlowNode, message: str, hint: str) -> PlanError:
    return PlanError("MIGRATION_NOT_POSSIBLE", message, origin=node.flow.origin, hint=hint)


def check_columns(
    dataset: DatasetNode, properties: Mapping[str, str], changes: Sequence[str]
) -> None:
    """Refuse changes of columns if Delta cannot replace them together with the rows."""
    has_feed = properties.get("delta.enableChangeDataFeed", "false").lower() == "true"
    is_mapped = properties.get("delta.columnMapping.mode", "none").lower() != "none"
    if has_feed and is_mapped and changes:
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"{dataset.display} has a change feed and column mapping: Delta cannot replace its "
            f"columns and its rows in one commit ({'; '.join(changes)})",
            origin=dataset.declared.origin,
            hint=f"switch delta.enableChangeDataFeed off; or --full-refresh {dataset.display}",
        )


def why_refused(sources: Sequence[StartReport]) -> str | None:
    """Why the new table would lack rows; `None` if it would not."""
    lost = [f"{source.source}: {source.missing}" for source in sources if source.missing]
    reason = "its sources have lost rows that its table was computed from"
    return f"{reason}: {'; '.join(lost)}" if lost else None


def steps_forth(
    migration: Migration,
    display: str,
    sources: Sequence[StartReport],
    readers: Sequence[Reader],
    table: Mapping[str, Any],
) -> Iterator[str]:
    for source in sources:
        again = "an unknown number of" if source.again is None else f"{source.again:,}"
        size = "" if source.size is None else f" ({source.size:,} bytes)"
        start = f"starting at {migration.start}"
        yield f"{source.source}: {again} {source.unit}{size} are read again, {start}"
        if source.missing:
            yield f"{source.source}: {source.missing}"
        if source.note:
            yield f"{source.source}: {source.note}"
    yield f"a new table is built next to {display}, with a new checkpoint; {display} stays readable"
    yield (
        f"then one commit replaces {plural(table['rows'], 'row')} ({table['size']:,} bytes) of "
        f"{display} by the new ones, after another one has replaced its quarantine"
    )
    yield (
        f"flow {migration.flow} continues with the new checkpoint; that of epoch "
        f"{migration.old['epoch']} and version {table['version']} of the table stay, and --undo "
        "restores them"
    )
    yield from (reader.text for reader in readers)
    yield f"other streams that read {display} see one commit that replaces all rows"


def steps_back(
    migration: Migration, display: str, readers: Sequence[Reader], *, is_old_query: bool
) -> Iterator[str]:
    version, epoch = migration.old_version, migration.old["epoch"]
    yield f"{display} and its quarantine are restored: {display} to version {version}"
    yield f"the flow continues with the checkpoint of epoch {epoch}"
    yield "it reads later rows again, as far as its sources still have them: this is not checked"
    yield "rows that a replay of quarantine, a backfill or other writers added since are lost"
    if not is_old_query:
        yield "its query is still the new one: revert the change before the next update"
    yield from (reader.text for reader in readers)


@dataclass(frozen=True)
class MigrationFacts:
    pipeline: OpenPipeline
    node: FlowNode
    dataset: DatasetNode

    def table(self) -> dict[str, Any] | None:
        """Id, version, rows, bytes, columns and properties; `None` without a table."""
        spark, path = self.pipeline.spark, self.pipeline.tables.paths[self.dataset.key]
        state = table_state(spark, path)
        if state is None:
            return None
        return {
            "id": state.id,
            "version": state.version,
            "rows": spark.read.format("delta").load(path).count(),
            "size": size_in_bytes(DeltaJvm(spark).snapshot(path)),
            "columns": {c.name: c.dataType.simpleString() for c in state.schema},
            "properties": dict(state.properties),
        }

    def replaced_at(self) -> int:
        delta, path = DeltaJvm(self.pipeline.spark), self.pipeline.tables.paths[self.dataset.key]
        return replaced_at(delta, path, delta.version(path))

    def quarantine_version(self) -> int:
        path = self.pipeline.tables.quarantine(self.dataset).path
        return DeltaJvm(self.pipeline.spark).version(path)

    def query(self, df: Any) -> dict[str, Any]:
        mode = self.node.analysis.output_mode
        return {
            "operators": list(stateful_operators(df)),
            "output_mode": None if mode is None else mode.value,
            "columns": {c.name: c.dataType.simpleString() for c in df.schema},
        }

    def readers(self) -> tuple[Reader, ...]:
        pipeline, key = self.pipeline, self.dataset.key
        readers = []
        for name, node in pipeline.graph.flows.items():
            is_stored = node.target in pipeline.tables.paths or node.target in pipeline.graph.sinks
            if not is_stored or name == self.node.flow.name or not reads(pipeline.graph, node, key):
                continue
            effect = "recomputes"
            if node.analysis.is_streaming:
                try:
                    path = path_key(pipeline.tables.paths[key])
                    effects = {
                        source.on_replacement
                        for source in pipeline.query(node)[1]
                        if isinstance(source, DeltaStream) and source.path == path
                    }
                    order = ("stops", "skips", "changes")
                    effect = next((each for each in order if each in effects), "changes")
                except PenstockError:
                    effect = "stops"  # the worst case: another source of it is not available
            readers.append(
                Reader(flow=name, target=pipeline.graph.target_name(node), effect=effect)
            )
        return tuple(readers)


def reads(graph: DataflowGraph, node: FlowNode, key: str) -> bool:
    """Whether a flow reads a dataset, also through temporary views."""
    views = (name for name in node.upstream if not graph.datasets[name].is_stored)
    return key in node.upstream or any(
        reads(graph, graph.flows[flow], key)
        for view in views
        for flow in graph.datasets[view].flows
    )


def changed_columns(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    old = {name.lower(): kind for name, kind in before.items()}
    new = {name.lower() for name in now}
    gone = [f"{name} is removed" for name in before if name.lower() not in new]
    new_columns = [f"{name} {kind} is new" for name, kind in now.items() if name.lower() not in old]
    other = [
        f"{name} was {old[name.lower()]} and is {kind}"
        for name, kind in now.items()
        if old.get(name.lower(), kind) != kind
    ]
    return (*gone, *new_columns, *other)


def changed_operators(old: FlowState, query: Mapping[str, Any]) -> tuple[str, ...]:
    before, now = list(old.stateful_operators or ()), list(query["operators"])
    changes = [f"gone: {line}" for line in before if line not in now]
    changes += [f"new: {line}" for line in now if line not in before]
    if old.output_mode is not None and old.output_mode != query["output_mode"]:
        changes.append(f"output mode: {old.output_mode}, now {query['output_mode']}")
    return tuple(changes)
