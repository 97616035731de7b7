"""Flows that replace the rows of a window of their table: checks, and overridden windows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from penstock._graph.index import DefinitionIndex, nearest_name
from penstock._model.flow import Flow, FlowAnalysis
from penstock.errors import DefinitionError, PenstockError, SpecError


def replaces_rows(flow: Flow) -> bool:
    """Whether a flow replaces the rows that match a condition in every update."""
    return flow.replace_where is not None


def window_text(flow: Flow) -> str:
    """The condition of the rows that a flow replaces, as written."""
    where = flow.replace_where
    if isinstance(where, str):
        return " ".join(where.split())
    return str(where).removeprefix("Column<'").removesuffix("'>")


def check_alone(shown: str, flows: Sequence[Flow]) -> Iterator[PenstockError]:
    """Check that a flow that replaces rows is the only flow of its table."""
    replacing = [flow for flow in flows if replaces_rows(flow)]
    if not replacing or len(flows) == 1:
        return
    for flow in flows:
        if flow is not replacing[0]:
            yield DefinitionError(
                "REPLACE_WHERE_TARGET_SHARED",
                f"flow {replacing[0].name!r} replaces rows of {shown!r}, and flow {flow.name!r} "
                "writes to it as well: its rows would be lost where they match the condition",
                origin=flow.origin,
                hint="use a separate table for one of the flows",
            )


def check_window(shown: str, flow: Flow, analysis: FlowAnalysis) -> Iterator[PenstockError]:
    if analysis.is_streaming:
        yield DefinitionError(
            "REPLACE_WHERE_READS_STREAM",
            f"flow {flow.name!r} replaces rows of {shown!r}, but returns a streaming DataFrame",
            origin=flow.origin,
            hint="read its sources with spark.read; or remove `replace_where`",
        )


def with_windows(index: DefinitionIndex, windows: Mapping[str, str]) -> DefinitionIndex:
    """Override the conditions of flows that replace rows for one update, by flow name."""
    if not windows:
        return index
    flows = dict(index.flows)
    replacing = {name.lower(): name for name, flow in flows.items() if replaces_rows(flow)}
    for flow, where in windows.items():
        name = replacing.get(flow.lower())
        if name is None or not where.strip():
            near = nearest_name(flow, replacing.values())
            listed = ", ".join(replacing.values()) or "none"
            raise SpecError(
                "UNKNOWN_REPLACE_WHERE_FLOW",
                f"{flow!r} is not a flow that replaces rows"
                if name is None
                else f"the condition for flow {flow!r} is empty",
                hint=f"did you mean {near!r}?" if near and name is None else f"there are: {listed}",
            )
        flows[name] = replace(flows[name], replace_where=where)
    datasets = {
        key: replace(dataset, flows=tuple(flows[flow.name] for flow in dataset.flows))
        for key, dataset in index.datasets.items()
    }
    return replace(index, flows=MappingProxyType(flows), datasets=MappingProxyType(datasets))
