"""Overrides, for one update, the conditions of flows that replace rows."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from penstock._graph.index import DefinitionIndex, nearest_name
from penstock._graph.replacing import replaces_rows
from penstock.errors import SpecError


def with_windows(index: DefinitionIndex, windows: Mapping[str, str]) -> DefinitionIndex:
    """Replace the conditions of flows that replace rows, by flow name."""
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
