"""The declaration of a flow and its target, which updates record for `penstock plan`.

Delta's log has columns, properties, partitioning and comment of a table, and the state of a flow
has the operators of its checkpoint. Neither has queries without state, rules, keys and sources.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock._execution.flow_state import FlowState, ViewState
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import DataflowGraph, FlowNode
from penstock._model.cdc import CdcSpec, TrackHistory
from penstock._model.dataset import LateRows
from penstock._model.flow import Flow, FlowAnalysis

_Texts = Mapping[str, str]
_LISTS = ("reads", "external", "order")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The declaration of a flow and of its target.

    Attributes:
        target: Key of the table, or name of the sink.
        display: Name of the target for messages.
        kind: Kind of the dataset, or `sink`.
        path: Path of the table; for a sink, its format and location.
        query: Digest of the query.
        code: Digest of the source files, if it calls Python functions.
        reads: Names of the datasets that it reads.
        external: Sources outside of the pipeline.
        order: The streams of a query that reads several: its checkpoint identifies them by number.
        rules: Condition and action, by name.
        history: For auto CDC and snapshots: the settings by which the rows were computed.
        options: Settings that apply to new rows.
    """

    target: str
    display: str
    kind: str
    path: str
    query: str
    code: str = ""
    reads: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    rules: _Texts = field(default_factory=dict)
    history: _Texts = field(default_factory=dict)
    options: _Texts = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, equal to the form that is read back from a file."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {**asdict(self), **lists}


def stored_declaration(state: FlowState | ViewState | None) -> Declaration | None:
    """A recorded declaration; `None` if there is none, as in the state of an earlier version."""
    if state is None or not state.deployed:
        return None
    known = {each.name for each in fields(Declaration)}
    texts = {name: value for name, value in state.deployed.items() if name in known}
    for name in _LISTS:
        texts[name] = tuple(texts.get(name, ()))
    return Declaration(**texts)


def declaration_of(tables: PipelineTables, node: FlowNode, source_digest: str) -> Declaration:
    """The current declaration of a flow."""
    graph, analysis = tables.graph, node.analysis
    upstream = [graph.datasets[key] for key in node.upstream]
    reads = tuple(sorted(each.display for each in upstream if each.read_from is None))
    deferred = [f"delta {each.read_from}" for each in upstream if each.read_from is not None]
    external = tuple(sorted({*analysis.external_inputs, *deferred}))
    order = stream_order(graph, analysis)
    sink = graph.sinks.get(node.target)
    if sink is not None:
        runs_python = analysis.runs_python or sink.write_batch is not None
        location = sink.facts.location
        return Declaration(
            target=sink.name,
            display=sink.name,
            kind="sink",
            path=sink.format if location is None else f"{sink.format} {location.name}",
            query=analysis.query,
            code=source_digest if runs_python else "",
            reads=reads,
            external=external,
            order=order,
        )
    dataset = graph.datasets[node.target]
    declared = dataset.declared
    options = {
        "quarantine": "on" if tables.keeps_dropped(dataset) else "off",
        "late rows": declared.late_rows.value if declared.late_rows is not LateRows.DROP else "",
        "deduplicate_by": ", ".join(declared.deduplicate_by),
        **_event_options(node.flow),
    }
    return Declaration(
        target=dataset.key,
        display=dataset.display,
        kind=dataset.kind.value,
        path=tables.paths[dataset.key],
        query=analysis.query,
        code=source_digest if analysis.runs_python else "",
        reads=reads,
        external=external,
        order=order,
        rules={
            rule.name: f"{rule.condition} [{rule.on_violation.value}]"
            for rule in declared.expectations
        },
        history=_history(node.flow),
        options={name: value for name, value in options.items() if value},
    )


def stream_order(graph: DataflowGraph, analysis: FlowAnalysis) -> tuple[str, ...]:
    """`Declaration.order` of a query."""
    streams = sum(line.startswith("source") for line in analysis.stateful_operators)
    if streams < 2 or analysis.lineage is None:
        return ()
    return tuple(
        graph.datasets[source.dataset].display if source.dataset else source.name
        for source in analysis.lineage.sources
        if not source.dataset or source.dataset in analysis.streams
    )


def _history(flow: Flow) -> dict[str, str]:
    spec = flow.cdc or flow.snapshot
    if spec is None:
        return {}
    texts = {
        "keys": ", ".join(sorted(key.lower() for key in spec.keys)),
        "SCD type": spec.scd_type.value,
        "tracked columns": "" if spec.track_history == TrackHistory() else str(spec.track_history),
    }
    if isinstance(spec, CdcSpec):
        texts["sequence"] = str(spec.sequence_by)
    return {name: value for name, value in texts.items() if value}


def _event_options(flow: Flow) -> dict[str, str]:
    spec = flow.cdc
    if spec is None:
        return {}
    names = ("apply_as_deletes", "apply_as_truncates", "columns", "except_columns")
    more = ("ignore_null_updates", "ignore_null_columns", "ignore_null_except_columns")
    values = {name: getattr(spec, name) for name in (*names, *more, "columns_to_update")}
    # As strings: Columns cannot be compared.
    return {
        name: str(value)
        for name, value in values.items()
        if value is not None and value is not False
    }
