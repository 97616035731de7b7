"""Plans an update from the graph and the options of the update. No side effects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode, deferred_error
from penstock._graph.index import nearest_name
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow, OutputMode
from penstock._model.name import find_name
from penstock._model.trigger import Trigger, TriggerKind
from penstock._plan.registration import registered_names
from penstock._plan.remarks import left_behind, notes_on, warnings_on
from penstock._plan.settings import check_settings, flow_retries, reset_allowed, update_retries
from penstock._plan.steps import (
    Plan,
    PrepareTable,
    RefreshView,
    ResetTable,
    RunOnceFlow,
    RunStep,
    StartFlow,
)
from penstock._plan.triggers import check_trigger, declared_trigger
from penstock.errors import PlanError, SpecError

STREAM_INTERVAL_SECONDS = 1.0
"""Default interval of checks for new rows in a continuous update, while there are none."""
VIEW_INTERVAL_SECONDS = 10.0
"""Default interval of checks of a materialized view's sources in a continuous update."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options that decide what an update does.

    The tables of `refresh` are updated; empty means all. The tables of `full_refresh`, or with
    `full_refresh_all` all tables that allow it, are emptied first.
    """

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False
    continuous: bool = False


def make_plan(
    graph: DataflowGraph,
    options: PlanOptions,
    *,
    configuration: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    registered_catalog: str | None = None,
) -> Plan:
    """Decide what an update does; `notes` become the first notes of the plan.

    Tables of the `registered_catalog` are registered in the metastore.

    Raises:
        SpecError: A name in the selection is not a dataset, options exclude each other, or a
            setting is invalid.
        PlanError: A table must not be reset, has a row filter, or cannot be registered; a flow does
            not support its trigger; or state grows without bound where that is not allowed.
    """
    conf = configuration or {}
    if options.full_refresh_all and (options.refresh or options.full_refresh):
        raise SpecError(
            "CONFLICTING_REFRESH_OPTIONS",
            "--full-refresh-all cannot be combined with --refresh or --full-refresh",
            hint="remove --refresh and --full-refresh, or --full-refresh-all",
        )
    check_settings(graph, conf)
    for flow in graph.flows.values():
        declared_trigger(graph, flow, conf)
    _refuse_row_filters(graph)
    all_notes = [*notes, *notes_on(graph)]
    refreshed = _select(graph, options.refresh)
    reset = _select(graph, options.full_refresh, is_reset=True)
    selected = {node.key for node in graph.stored()}
    if options.refresh or options.full_refresh:
        selected = refreshed | reset
    for key in sorted(reset):
        if not reset_allowed(graph.datasets[key], conf):
            raise PlanError(
                "TABLE_NOT_RESETTABLE",
                f"{graph.datasets[key].display!r} has pipelines.reset.allowed = false",
                origin=graph.datasets[key].declared.origin,
                hint="remove it from --full-refresh, or set that table property to true",
            )
    if options.full_refresh_all:
        reset = {node.key for node in graph.stored() if reset_allowed(node, conf)}
        for node in graph.stored():
            if node.key not in reset:
                all_notes.append(f"{node.display} keeps its rows: pipelines.reset.allowed is false")
    all_notes += left_behind(graph, reset)
    refused = {
        name: flow.analysis.refusal
        for name, flow in graph.flows.items()
        if flow.analysis.refusal is not None
    }
    # Views are always refreshed after a reset: their sources have new versions. A table is not
    # emptied if Spark refuses its flow: the rows could not be written again.
    resets = tuple(
        ResetTable(dataset=node.key, flows=node.flows)
        for node in graph.stored()
        if node.key in reset and refused.keys().isdisjoint(node.flows)
    )
    registered = registered_names(graph.stored(), registered_catalog)
    tables = tuple(
        PrepareTable(dataset=n.key, registered_as=registered.get(n.key))
        for n in graph.stored()
        if n.key in selected
    )
    sinks_too = not (options.refresh or options.full_refresh)
    runs = [
        _run_step(graph, flow, selected, reset, options.continuous, conf)
        for flow in graph.flows.values()
        if flow.target in selected or (flow.target in graph.sinks and sinks_too)
    ]
    return Plan(
        resets=resets,
        tables=tables,
        runs=tuple(_views_last(runs)),
        excluded=tuple(n.key for n in graph.stored() if n.key not in selected),
        excluded_sinks=tuple(n for n in graph.sinks if n not in selected and not sinks_too),
        continuous=options.continuous,
        notes=tuple(all_notes),
        setup_retries=update_retries(conf),
        warnings=tuple(warnings_on(graph, runs, conf, continuous=options.continuous)),
        refused={step.flow: refused[step.flow] for step in runs if step.flow in refused},
    )


def _select(graph: DataflowGraph, names: Iterable[str], *, is_reset: bool = False) -> set[str]:
    keys: set[str] = set()
    for name in names:
        node = graph.find(name)
        if node is not None and node.is_stored:
            keys.add(node.key)
            continue
        sink = find_name(name, graph.sinks) if node is None else None
        if sink is not None and is_reset:
            raise PlanError(
                "SINK_NOT_RESETTABLE",
                f"{sink!r} is a sink: its data is outside of the pipeline and cannot be reset",
                origin=graph.sinks[sink].origin,
                hint="to write everything again, rename its flow, which starts a new checkpoint",
            )
        if sink is not None:
            keys.add(sink)
            continue
        if node is not None and node.read_from is not None:
            raise deferred_error(graph, node)
        known = [*(n.display for n in graph.stored()), *graph.sinks]
        if node is not None:
            message, hint = f"{name!r} is a temporary view and holds no rows", None
        else:
            near = nearest_name(name, known)
            message = f"{name!r} is not a table of this pipeline"
            hint = f"did you mean {near!r}?" if near else f"tables: {', '.join(known)}"
        raise SpecError("UNKNOWN_DATASET_SELECTED", message, hint=hint)
    return keys


def _refuse_row_filters(graph: DataflowGraph) -> None:
    for node in graph.stored():
        if node.declared.row_filter:
            raise PlanError(
                "ROW_FILTER_NOT_SUPPORTED",
                f"{node.display!r} has a row filter, which open-source Spark does not support",
                origin=node.declared.origin,
                hint="remove row_filter and provide a view with the filter",
            )


def _run_step(
    graph: DataflowGraph,
    flow: FlowNode,
    selected: set[str],
    reset: set[str],
    continuous: bool,
    conf: Mapping[str, str],
) -> RunStep:
    upstream = tuple(sorted(flow.upstream & selected))
    node = graph.datasets.get(flow.target)
    is_repeated = _is_repeated(node, flow.flow)
    declared = declared_trigger(graph, flow, conf)
    trigger = _trigger(graph, flow, declared, is_repeated) if continuous else None
    interval = None if trigger is None else trigger.seconds
    retries = flow_retries(graph, flow, conf)
    if node is not None and is_repeated:
        return RefreshView(
            target=node.key,
            flow=flow.flow.name,
            interval_seconds=interval,
            upstream=upstream,
            full=node.key in reset,
            max_retries=retries,
        )
    if flow.flow.once:
        return RunOnceFlow(
            flow=flow.flow.name, target=flow.target, upstream=upstream, max_retries=retries
        )
    return StartFlow(
        flow=flow.flow.name,
        target=flow.target,
        output_mode=flow.analysis.output_mode or OutputMode.APPEND,
        interval_seconds=interval,
        is_eager=continuous and declared is None,
        trigger=trigger if trigger and trigger.kind is not TriggerKind.PROCESSING_TIME else None,
        upstream=upstream,
        max_retries=retries,
    )


def _trigger(
    graph: DataflowGraph, flow: FlowNode, declared: Trigger | None, is_repeated: bool
) -> Trigger:
    if declared is not None:
        check_trigger(graph, flow, declared)
        if declared.kind is not TriggerKind.DEFAULT:
            return declared
    interval = STREAM_INTERVAL_SECONDS if declared is None else 0.0
    seconds = VIEW_INTERVAL_SECONDS if is_repeated else interval
    return Trigger(TriggerKind.PROCESSING_TIME, seconds)


def _is_repeated(node: DatasetNode | None, flow: Flow) -> bool:
    """Whether a flow repeats a batch query: that of a view, or one into a streaming table."""
    is_view = node is not None and node.kind is DatasetKind.MATERIALIZED_VIEW
    return is_view or flow.snapshot is not None or replaces_rows(flow)


def _views_last(runs: list[RunStep]) -> list[RunStep]:
    """Keep the topological order, but move views after the flows that do not need them."""
    needed: set[str] = set()
    for step in reversed(runs):
        if not isinstance(step, RefreshView) or step.target in needed:
            needed.update(step.upstream)
    early = [step for step in runs if not isinstance(step, RefreshView) or step.target in needed]
    return early + [step for step in runs if step not in early]
