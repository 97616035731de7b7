"""Builds the graph from the index and the analyses; reports all integrity errors at once."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from penstock._graph.cdc import check_sequences
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._graph.replacing import check_window, replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow, FlowAnalysis, OutputMode
from penstock._model.origin import SourceLocation
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError


def build_graph(
    index: DefinitionIndex,
    analyses: Mapping[str, FlowAnalysis],
    schemas: Mapping[str, str],
    errors: Mapping[str, PenstockError],
    selected: Collection[str] | None = None,
) -> DataflowGraph:
    """Build the graph, or raise all errors of the pipeline as `DefinitionErrors`.

    `schemas` are the schemas of datasets in Spark's JSON form, by key. `errors` are by name of a
    flow that could not be analysed, or by key of a table. `selected` are keys of datasets and names
    of sinks, `None` means all: errors of the others are ignored, and those that cannot be analysed
    are not in the graph.
    """
    targets = {name: index.flow_targets.get(name, name) for name in errors}
    if selected is not None:
        # Flows that read one of them have its error, too: no edge of the graph is cut.
        index = index.without(
            {targets[name] for name in errors if name in index.flows} - set(selected)
        )
        errors = {name: error for name, error in errors.items() if targets[name] in selected}
    problems: list[PenstockError] = [*index.errors, *errors.values()]
    kinds: dict[str, DatasetKind] = {}
    for key, dataset in index.datasets.items():
        known = [analyses[flow.name] for flow in dataset.flows if flow.name in analyses]
        if len(known) < len(dataset.flows) or not known:
            continue
        kinds[key] = dataset.declared.kind or (
            DatasetKind.STREAMING_TABLE if known[0].is_streaming else DatasetKind.MATERIALIZED_VIEW
        )
        if selected is None or key in selected:
            problems += _check_kind(index, dataset, kinds[key], analyses)
    for name, flow in index.flows.items():
        target = index.flow_targets[name]
        is_wanted = selected is None or target in selected
        if target in index.sinks and name in analyses and is_wanted:
            problems += _check_sink_flow(flow, analyses[name])
    problems += _check_exclusive_sinks(index, selected)
    if problems:
        # Flows that would otherwise fail alone when they start are reported, too.
        problems += [
            analysis.refusal
            for name, analysis in analyses.items()
            if analysis.refusal and (selected is None or index.flow_targets[name] in selected)
        ]
        distinct = {str(error): error for error in problems}
        raise DefinitionErrors(_in_order(index, distinct.values()))
    return _assemble(index, analyses, schemas, kinds)


def _in_order(index: DefinitionIndex, errors: Iterable[PenstockError]) -> tuple[PenstockError, ...]:
    declared = [dataset.declared.origin for dataset in index.datasets.values()]
    declared += [flow.origin for flow in index.flows.values()]
    declared += [sink.origin for sink in index.sinks.values()]
    files = list(dict.fromkeys(origin.file for origin in declared))

    def sort_key(error: PenstockError) -> tuple[int, str, int]:
        if error.origin is None:
            return (len(files) + 1, "", 0)
        file = error.origin.file
        return (files.index(file) if file in files else len(files), file, error.origin.line)

    return tuple(sorted(errors, key=sort_key))


def _check_exclusive_sinks(
    index: DefinitionIndex, selected: Collection[str] | None
) -> Iterator[PenstockError]:
    writers: dict[object, list[str]] = {}
    for flow in index.flows:
        sink = index.sinks.get(index.flow_targets[flow])
        if sink is not None and sink.facts.is_exclusive:
            writers.setdefault(sink.facts.location or sink.name, []).append(flow)
    for flows in writers.values():
        names = {index.flow_targets[flow]: None for flow in flows}
        if len(flows) > 1 and (selected is None or not names.keys().isdisjoint(selected)):
            first = index.sinks[next(iter(names))]
            yield DefinitionError(
                "SINK_TAKES_ONE_FLOW",
                f"several flows ({', '.join(flows)}) write to one location, sink "
                f"{' and '.join(map(repr, names))}, but a sink of format {first.format} "
                "identifies batches by their id only: rows would be lost",
                origin=first.origin,
                hint="use a sink with its own location for each flow; or append all of them to a "
                "table, and write the sink by a flow that reads this table",
            )


def _check_sink_flow(flow: Flow, analysis: FlowAnalysis) -> Iterator[PenstockError]:
    if not analysis.is_streaming:
        yield DefinitionError(
            "SINK_NEEDS_STREAM",
            f"flow {flow.name!r} writes a batch query to sink {flow.target!r}",
            origin=flow.origin,
            hint="read its source with spark.readStream",
        )
    elif flow.once:
        yield _once_reads_stream(flow)


def _once_reads_stream(flow: Flow) -> DefinitionError:
    return DefinitionError(
        "ONCE_FLOW_READS_STREAM",
        f"flow {flow.name!r} runs once, but returns a streaming DataFrame",
        origin=flow.origin,
        hint="read its source with spark.read (in SQL without STREAM), or remove once=True (ONCE)",
    )


def _check_kind(
    index: DefinitionIndex,
    dataset: DeclaredDataset,
    kind: DatasetKind,
    analyses: Mapping[str, FlowAnalysis],
) -> Iterator[PenstockError]:
    shown = index.display(dataset.name.key)
    for flow in dataset.flows:
        analysis = analyses[flow.name]
        if kind is DatasetKind.MATERIALIZED_VIEW and analysis.is_streaming:
            yield DefinitionError(
                "MATERIALIZED_VIEW_READS_STREAM",
                f"materialized view {shown!r} returns a streaming DataFrame",
                origin=flow.origin,
                hint="read its sources with spark.read (in SQL without STREAM), or declare it with "
                "@table (CREATE STREAMING TABLE)",
            )
        elif flow.snapshot is not None:
            continue  # always a batch query into a streaming table
        elif replaces_rows(flow):
            yield from check_window(shown, flow, analysis)
        elif kind is DatasetKind.STREAMING_TABLE and flow.once and analysis.is_streaming:
            if flow.cdc is None:  # a flow that runs once may read events from a streaming view
                yield _once_reads_stream(flow)
        elif kind is DatasetKind.STREAMING_TABLE and not flow.once and not analysis.is_streaming:
            yield DefinitionError(
                "STREAMING_TABLE_READS_BATCH",
                f"flow {flow.name!r} of streaming table {shown!r} returns a batch DataFrame",
                origin=flow.origin,
                hint="read its source with spark.readStream (STREAM in SQL), or give the flow "
                "once=True (INSERT INTO ONCE)",
            )
    yield from check_sequences(shown, dataset.flows, analyses)
    modes = {analyses[flow.name].output_mode for flow in dataset.flows}
    if len(dataset.flows) > 1 and OutputMode.COMPLETE in modes:
        yield DefinitionError(
            "COMPLETE_MODE_WITH_SEVERAL_FLOWS",
            f"{shown!r} has several flows and one of them is in complete mode, which would "
            "overwrite the rows of the others",
            origin=dataset.declared.origin,
            hint="define a watermark for the aggregation, or use a separate table",
        )


def _assemble(
    index: DefinitionIndex,
    analyses: Mapping[str, FlowAnalysis],
    schemas: Mapping[str, str],
    kinds: Mapping[str, DatasetKind],
) -> DataflowGraph:
    upstream = {
        key: frozenset().union(*(analyses[flow.name].inputs for flow in dataset.flows))
        for key, dataset in index.datasets.items()
    }
    try:
        # Not the sets themselves: their order differs between processes.
        ordered = {key: [up for up in upstream if up in ups] for key, ups in upstream.items()}
        order = tuple(TopologicalSorter(ordered).static_order())
    except CycleError as error:
        path = " -> ".join(index.display(key) for key in reversed(error.args[1]))
        first = index.datasets[error.args[1][0]].declared
        raise DefinitionErrors([cycle_error(path, first.origin)]) from None
    datasets = {
        key: DatasetNode(
            key=key,
            name=index.datasets[key].name,
            display=index.display(key),
            declared=index.datasets[key].declared,
            kind=kinds[key],
            flows=tuple(flow.name for flow in index.datasets[key].flows),
            upstream=upstream[key],
            downstream=frozenset(other for other, ups in upstream.items() if key in ups),
            schema_json=schemas[key],
        )
        for key in order
    }
    rank = {key: position for position, key in enumerate(order)}
    names = sorted(index.flows, key=lambda name: rank.get(index.flow_targets[name], len(rank)))
    flows = {
        name: FlowNode(
            flow=index.flows[name],
            analysis=analyses[name],
            target=index.flow_targets[name],
            upstream=_stored_inputs(analyses[name].inputs, datasets),
        )
        for name in names
    }
    return DataflowGraph(
        datasets=MappingProxyType(datasets),
        flows=MappingProxyType(flows),
        sinks=index.sinks,
        warnings=index.warnings,
    )


def cycle_error(path: str, origin: SourceLocation) -> DefinitionError:
    """The error for a circular dependency, with the path as `a -> b -> a`."""
    return DefinitionError(
        "CYCLIC_PIPELINE",
        f"circular dependency of datasets: {path}",
        origin=origin,
        hint="remove one of these reads",
    )


def _stored_inputs(inputs: frozenset[str], datasets: Mapping[str, DatasetNode]) -> frozenset[str]:
    seen: set[str] = set()
    todo = list(inputs)
    while todo:
        key = todo.pop()
        if key not in seen:
            seen.add(key)
            todo += () if datasets[key].is_stored else datasets[key].upstream
    return frozenset(key for key in seen if datasets[key].is_stored)
