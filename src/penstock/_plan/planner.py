"""Plans an update from the graph and the options of the update. No side effects."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock._graph.dataflow import DataflowGraph, FlowNode, deferred_error
from penstock._graph.index import nearest_name, taken_for
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow, OutputMode
from penstock._model.table_properties import is_tuning
from penstock._model.trigger import Trigger, TriggerKind
from penstock._plan.registration import registered_names
from penstock._plan.settings import (
    GROWING_STATE,
    check_settings,
    flow_retries,
    growing_state_action,
    reset_allowed,
    update_retries,
)
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
"""How often a flow in a continuous update looks for new rows by default, while there are none."""
VIEW_INTERVAL_SECONDS = 10.0
"""Default pause between two looks at a materialized view's sources in a continuous update."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options that decide what an update does.

    Attributes:
        refresh: Tables to update; empty = all.
        full_refresh: Tables to empty and rebuild.
        full_refresh_all: Empty and rebuild everything that allows it.
        continuous: Run until stopped.
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
        PlanError: A table does not allow to be reset, or asks for what Delta does not have; a flow
            cannot have its trigger; state grows where that is not allowed.
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
    _check_datasets(graph)
    all_notes = [*notes, *_other_formats(graph), *_streamed_changes(graph), *_text_numbers(graph)]
    refreshed = _select(graph, options.refresh)
    reset = _select(graph, options.full_refresh)
    _refuse_sinks(graph, options.full_refresh)
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
    all_notes += _left_behind(graph, reset)
    refused = {
        name: flow.analysis.refusal
        for name, flow in graph.flows.items()
        if flow.analysis.refusal is not None
    }
    # Views are refreshed after a reset in any case: their sources have new versions. A table that
    # must not be reset keeps rows that its flow could not write again.
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
        if (flow.target in selected)
        or (flow.target in graph.sinks and (sinks_too or flow.target in options.refresh))
    ]
    return Plan(
        resets=resets,
        tables=tables,
        runs=tuple(_views_last(runs)),
        excluded=tuple(n.key for n in graph.stored() if n.key not in selected),
        continuous=options.continuous,
        notes=tuple(all_notes),
        setup_retries=update_retries(conf),
        warnings=(
            *(() if graph.deferred is None else graph.deferred.warnings),
            *_taken_names(graph),
            *_lenient_queries(graph),
            *_tuning_properties(graph),
            *_missing_folders(graph),
            *_unmatched_filters(graph),
            *_growing_state(graph, runs, conf),
            *(() if options.continuous else _triggers_of_a_triggered_update(graph, runs, conf)),
            *_without_batches(graph, runs),
        ),
        refused={step.flow: refused[step.flow] for step in runs if step.flow in refused},
    )


def _select(graph: DataflowGraph, names: Iterable[str]) -> set[str]:
    keys: set[str] = set()
    for name in names:
        node = graph.find(name)
        if node is not None and node.is_stored:
            keys.add(node.key)
            continue
        if name in graph.sinks:
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


def _refuse_sinks(graph: DataflowGraph, names: Iterable[str]) -> None:
    for name in names:
        if graph.find(name) is None and name in graph.sinks:
            raise PlanError(
                "SINK_NOT_RESETTABLE",
                f"{name!r} is a sink: its data is outside of the pipeline and cannot be reset",
                origin=graph.sinks[name].origin,
                hint="to write everything again, rename its flow, which starts a new checkpoint",
            )


def _left_behind(graph: DataflowGraph, reset: set[str]) -> Iterator[str]:
    emptied = {key for key in reset if graph.datasets[key].kind is DatasetKind.STREAMING_TABLE}
    for name, flow in graph.flows.items():
        above = [
            graph.datasets[key].display for key in graph.datasets if key in flow.upstream & emptied
        ]
        if not above or not flow.analysis.is_streaming or flow.target in reset:
            continue
        node = graph.datasets.get(flow.target)
        if node is not None and not node.is_stored:
            continue
        way_out = (
            f"give flow {name} a new name"
            if node is None
            else f"--full-refresh {node.display} as well"
        )
        yield (
            f"flow {name} keeps its checkpoint while the rows of {', '.join(above)} are removed: "
            f"if it reads them as a stream it fails with SOURCE_ROWS_CHANGED; {way_out}"
        )


def _check_datasets(graph: DataflowGraph) -> None:
    for node in graph.stored():
        declared = node.declared
        if declared.row_filter:
            raise PlanError(
                "ROW_FILTER_NOT_SUPPORTED",
                f"{node.display!r} has a row filter, which open-source Spark does not support",
                origin=declared.origin,
                hint="remove row_filter and provide a view with the filter",
            )


def _other_formats(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.stored():
        wanted = node.declared.format
        if wanted and wanted.lower() != "delta":
            yield f"{node.display} has format {wanted} but is written as Delta"


def _taken_names(graph: DataflowGraph) -> Iterator[str]:
    flows = graph.flows.values()
    for text, name in dict.fromkeys(pair for flow in flows for pair in flow.analysis.taken_for):
        yield taken_for(text, name)


def _lenient_queries(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.flows.values():
        if node.analysis.needs_ansi_off:
            yield (
                f"the query of {node.flow.name} computes with strings, which ANSI mode refuses: it "
                "runs without ANSI mode, and strings that are not numbers become NULL instead of "
                "an error; use casts, or set `spark.sql.ansi.enabled`, to override this"
            )


def _text_numbers(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.flows.values():
        if node.analysis.text_numbers:
            yield (
                f"the query of {node.flow.name} uses strings as numbers: "
                f"{', '.join(node.analysis.text_numbers)}; in ANSI mode a string that is not a "
                "number fails the batch: cast the column; try_cast returns NULL instead, as does "
                "`spark.sql.ansi.enabled: false`"
            )


def _tuning_properties(graph: DataflowGraph) -> Iterator[str]:
    tables: dict[str, list[str]] = {}
    for node in graph.stored():
        for key, value in node.declared.table_properties.items():
            if is_tuning(key, value):
                tables.setdefault(f"{key} = {value}", []).append(node.display)
    if tables:
        shown = "; ".join(f"{setting} ({', '.join(names)})" for setting, names in tables.items())
        yield (f"table properties that only tune Databricks are ignored: {shown}")


def _missing_folders(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.flows.values():
        for folder in node.analysis.missing_folders:
            yield (
                f"the folder {folder} does not exist: {node.flow.name} has nothing to read until "
                "it does; if it is elsewhere, map its prefix in `paths` of the settings"
            )


def _streamed_changes(graph: DataflowGraph) -> Iterator[str]:
    changing = {key: None for flow in graph.flows.values() for key in flow.analysis.changing_inputs}
    for key in changing:
        yield (
            f"{graph.datasets[key].display} is read as a stream, and auto CDC changes its rows in "
            "place: the stream fails at the first change after its start; set the reader option "
            "`readChangeFeed` or `skipChangeCommits`"
        )


def _run_step(
    graph: DataflowGraph,
    flow: FlowNode,
    selected: set[str],
    reset: set[str],
    continuous: bool,
    conf: Mapping[str, str],
) -> RunStep:
    upstream = tuple(sorted(key for key in flow.upstream if key in selected))
    node = graph.datasets.get(flow.target)
    trigger = _trigger(graph, flow, conf) if continuous else None
    interval = None if trigger is None else trigger.seconds
    retries = flow_retries(graph, flow, conf)
    is_view = node is not None and node.kind is DatasetKind.MATERIALIZED_VIEW
    if node is not None and (is_view or _looks(flow.flow)):
        return RefreshView(
            dataset=node.key,
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
        is_eager=continuous and declared_trigger(graph, flow, conf) is None,
        trigger=_special(trigger),
        upstream=upstream,
        max_retries=retries,
    )


def _special(trigger: Trigger | None) -> Trigger | None:
    is_plain = trigger is None or trigger.kind is TriggerKind.PROCESSING_TIME
    return None if is_plain else trigger


def _unmatched_filters(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.flows.values():
        for pattern, folder in node.analysis.unmatched_filters:
            yield (
                f"no file in {folder} matches the pathGlobFilter {pattern!r}: {node.flow.name} has "
                "nothing to read until one does; the filter applies to the file name, not the path"
            )


def _growing_state(
    graph: DataflowGraph, runs: Iterable[RunStep], conf: Mapping[str, str]
) -> Iterator[str]:
    """Warn of state that grows for ever, or refuse it, as `penstock.growingState` says."""
    for step in runs:
        flow = graph.flows[step.flow]
        growing = flow.analysis.growing_state
        if not growing:
            continue
        wanted = growing_state_action(graph, flow, conf)
        if wanted == "error":
            raise PlanError(
                "STATE_GROWS",
                f"flow {flow.flow.name!r}: {'; '.join(growing)}",
                origin=flow.flow.origin,
                hint=f"bound the state, or set {GROWING_STATE} to warn or allow for this flow",
            )
        if wanted == "warn":
            yield from (f"{flow.flow.name}: {text}" for text in growing)


def _trigger(graph: DataflowGraph, flow: FlowNode, conf: Mapping[str, str]) -> Trigger:
    trigger = declared_trigger(graph, flow, conf)
    node = graph.datasets.get(flow.target)
    is_view = node is not None and node.kind is DatasetKind.MATERIALIZED_VIEW
    looks = is_view or _looks(flow.flow)
    if trigger is None:
        seconds = VIEW_INTERVAL_SECONDS if looks else STREAM_INTERVAL_SECONDS
        return Trigger(TriggerKind.PROCESSING_TIME, seconds)
    check_trigger(graph, flow, trigger)
    if trigger.kind is TriggerKind.DEFAULT:
        seconds = VIEW_INTERVAL_SECONDS if looks else 0.0
        return Trigger(TriggerKind.PROCESSING_TIME, seconds)
    return trigger


def _triggers_of_a_triggered_update(
    graph: DataflowGraph, runs: Iterable[RunStep], conf: Mapping[str, str]
) -> Iterator[str]:
    """What is told of triggers that an update which ends by itself does not use as they are."""
    once, special = [], []
    for step in runs:
        if not isinstance(step, StartFlow):
            continue
        trigger = declared_trigger(graph, graph.flows[step.flow], conf)
        if trigger is not None and trigger.kind is TriggerKind.ONCE:
            once.append(step.flow)
        elif trigger is not None and trigger.kind in (
            TriggerKind.CONTINUOUS,
            TriggerKind.REAL_TIME,
        ):
            special.append(f"{step.flow} ({trigger})")
    if once:
        yield (
            f"{', '.join(once)}: the trigger once is deprecated and processes everything in one "
            "batch; availableNow is used instead, which keeps the limits per batch"
        )
    if special:
        yield (
            f"{', '.join(special)}: a triggered update processes everything that is available; the "
            "trigger only applies with --continuous"
        )


def _without_batches(graph: DataflowGraph, runs: Iterable[RunStep]) -> Iterator[str]:
    """What readers of sinks lose where there are no micro-batches."""
    for step in runs:
        if isinstance(step, StartFlow) and step.trigger is not None:
            sink = graph.sinks.get(step.target)
            if sink is not None and sink.facts.unbatched_warning:
                warning = sink.facts.unbatched_warning
                yield f"{step.flow}: with the trigger {step.trigger} {warning}"


def _looks(flow: Flow) -> bool:
    """Whether a flow of a streaming table is a batch query that is repeated, as a view's is."""
    return flow.snapshot is not None or replaces_rows(flow)


def _views_last(runs: list[RunStep]) -> list[RunStep]:
    """Keep the topological order, but put views behind the flows that do not need them."""
    needed: set[str] = set()
    for step in reversed(runs):
        if not isinstance(step, RefreshView) or step.dataset in needed:
            needed.update(step.upstream)
    early = [step for step in runs if not isinstance(step, RefreshView) or step.dataset in needed]
    return early + [step for step in runs if step not in early]
