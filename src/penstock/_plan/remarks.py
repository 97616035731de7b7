"""Notes and warnings in the plan of an update."""

from collections.abc import Iterable, Iterator, Mapping

from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import taken_for
from penstock._model.dataset import DatasetKind
from penstock._model.similar import nearest
from penstock._model.table_properties import is_tuning
from penstock._model.trigger import TriggerKind
from penstock._plan.maintenance import MANAGED, Z_ORDER
from penstock._plan.settings import (
    FLOW_RETRIES,
    GROWING_STATE,
    RESET_ALLOWED,
    TOMBSTONES,
    UPDATE_RETRIES,
    WIDENING,
    growing_state_action,
)
from penstock._plan.steps import RunStep, StartFlow
from penstock._plan.triggers import INTERVAL, TRIGGER, declared_trigger
from penstock.errors import PlanError

_SETTINGS = (
    *(RESET_ALLOWED, WIDENING, *FLOW_RETRIES, UPDATE_RETRIES, GROWING_STATE, *TOMBSTONES),
    *(TRIGGER, INTERVAL, MANAGED, Z_ORDER),
    *("pipelines.incompatibleViewCheck.enabled", "penstock.lease.duration"),
)


def notes_on(graph: DataflowGraph) -> Iterator[str]:
    for table in graph.stored():
        wanted = table.declared.format
        if wanted and wanted.lower() != "delta":
            yield f"{table.display} has format {wanted} but is written as Delta"
    flows = graph.flows.values()
    for key in dict.fromkeys(key for flow in flows for key in flow.analysis.changing_inputs):
        yield (
            f"{graph.datasets[key].display} is read as a stream, and auto CDC changes its rows in "
            "place: the stream fails at the first change after its start; set the reader option "
            "`readChangeFeed` or `skipChangeCommits`"
        )
    for node in flows:
        if node.analysis.text_numbers:
            yield (
                f"the query of {node.flow.name} uses strings as numbers: "
                f"{', '.join(node.analysis.text_numbers)}; in ANSI mode a string that is not a "
                "number fails the batch: cast the column; try_cast returns NULL instead, as does "
                "`spark.sql.ansi.enabled: false`"
            )


def warnings_on(
    graph: DataflowGraph, runs: Iterable[RunStep], conf: Mapping[str, str], *, continuous: bool
) -> Iterator[str]:
    """The warnings of a plan.

    Raises:
        PlanError: `STATE_GROWS`: State grows without bound where that is not allowed.
    """
    yield from graph.warnings
    yield from _similar_settings(graph, conf)
    yield from () if graph.deferred is None else graph.deferred.warnings
    names = (pair for flow in graph.flows.values() for pair in flow.analysis.taken_for)
    yield from (taken_for(text, name) for text, name in dict.fromkeys(names))
    yield from _of_queries(graph)
    yield from _tuning_properties(graph)
    yield from _growing_state(graph, runs, conf)
    if not continuous:
        yield from _triggers_of_a_triggered_update(graph, runs, conf)
    yield from _without_batches(graph, runs)


def left_behind(graph: DataflowGraph, reset: set[str]) -> Iterator[str]:
    """Notes on flows that keep their checkpoints while their upstream tables are emptied."""
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
            f"then use `penstock checkpoint reset {name} --from POSITION`"
            if node is None
            else f"--full-refresh {node.display} as well"
        )
        yield (
            f"flow {name} keeps its checkpoint while the rows of {', '.join(above)} are removed: "
            f"if it reads them as a stream it fails with SOURCE_ROWS_CHANGED; {way_out}"
        )


def _of_queries(graph: DataflowGraph) -> Iterator[str]:
    for node in graph.flows.values():
        if node.analysis.needs_ansi_off:
            yield (
                f"the query of {node.flow.name} computes with strings, which ANSI mode refuses: it "
                "runs without ANSI mode, and strings that are not numbers become NULL instead of "
                "an error; use casts, or set `spark.sql.ansi.enabled`, to override this"
            )
        for folder in node.analysis.missing_folders:
            yield (
                f"the folder {folder} does not exist: {node.flow.name} has nothing to read until "
                "it does; if it is elsewhere, map its prefix in `paths` of the settings"
            )
        for pattern, folder in node.analysis.unmatched_filters:
            yield (
                f"no file in {folder} matches the pathGlobFilter {pattern!r}: {node.flow.name} has "
                "nothing to read until one does; the filter applies to the file name, not the path"
            )


def _similar_settings(graph: DataflowGraph, conf: Mapping[str, str]) -> Iterator[str]:
    """Settings that have no effect because their name is misspelt. Names of users are allowed."""
    places = [conf, *(node.flow.spark_conf for node in graph.flows.values())]
    for table in graph.datasets.values():
        places += [table.declared.spark_conf, table.declared.table_properties]
    for key in dict.fromkeys(key for place in places for key in place):
        near = nearest(key, _SETTINGS, cutoff=0.9)
        if near is not None and near.lower() != key.lower():
            yield f"the setting `{key}` is unknown and has no effect; did you mean `{near}`?"


def _tuning_properties(graph: DataflowGraph) -> Iterator[str]:
    tables: dict[str, list[str]] = {}
    for node in graph.stored():
        for key, value in node.declared.table_properties.items():
            if is_tuning(key, value):
                tables.setdefault(f"{key} = {value}", []).append(node.display)
    if tables:
        shown = "; ".join(f"{setting} ({', '.join(names)})" for setting, names in tables.items())
        yield (f"table properties that only tune Databricks are ignored: {shown}")


def _growing_state(
    graph: DataflowGraph, runs: Iterable[RunStep], conf: Mapping[str, str]
) -> Iterator[str]:
    """Warn about unbounded state, or refuse it, according to `penstock.growingState`."""
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


def _triggers_of_a_triggered_update(
    graph: DataflowGraph, runs: Iterable[RunStep], conf: Mapping[str, str]
) -> Iterator[str]:
    """Warn about declared triggers that a triggered update replaces or ignores."""
    once, special = [], []
    for step in runs:
        trigger = declared_trigger(graph, graph.flows[step.flow], conf)
        if trigger is None or not isinstance(step, StartFlow):
            continue
        if trigger.kind is TriggerKind.ONCE:
            once.append(step.flow)
        elif trigger.kind in (TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME):
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
    """Warn about what the readers of a sink lose without micro-batches."""
    for step in runs:
        if isinstance(step, StartFlow) and step.trigger is not None:
            sink = graph.sinks.get(step.target)
            if sink is not None and sink.facts.unbatched_warning:
                warning = sink.facts.unbatched_warning
                yield f"{step.flow}: with the trigger {step.trigger} {warning}"
