"""The dataflow graph: frozen nodes and edges, complete and valid once built."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from penstock._model.dataset import Dataset, DatasetKind, Sink
from penstock._model.flow import Flow, FlowAnalysis
from penstock._model.name import DatasetName, comparable_parts
from penstock.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class FlowNode:
    """A flow and its analysis; `upstream` are keys of stored datasets, with views resolved."""

    flow: Flow
    analysis: FlowAnalysis
    target: str
    upstream: frozenset[str]

    def type_name(self, target: "DatasetNode | None") -> str:
        """Type of the flow in the event log; `target` is `None` for a sink."""
        if self.flow.cdc is not None:
            return "CHANGE"
        if self.flow.snapshot is not None:
            return "SNAPSHOT_CHANGE"
        if self.flow.replace_where is not None:
            return "REPLACE_WHERE"
        if target is not None and target.kind is not DatasetKind.STREAMING_TABLE:
            return target.kind.value.upper().replace(" ", "_").removeprefix("TEMPORARY_")
        mode = self.analysis.output_mode
        return "APPEND" if mode is None else mode.value.upper()


@dataclass(frozen=True, kw_only=True)
class DatasetNode:
    """A dataset with its kind; `upstream` and `downstream` are keys of datasets, including views.

    `read_from` is the path of a deployed table that is read instead; the dataset then has no flows.
    """

    key: str
    name: DatasetName
    display: str
    declared: Dataset
    kind: DatasetKind
    flows: tuple[str, ...]
    upstream: frozenset[str]
    downstream: frozenset[str]
    schema_json: str
    read_from: str | None = None

    @property
    def spellings(self) -> frozenset[str]:
        """All names, in lower case, that refer to this dataset in its pipeline."""
        shown = self.display.lower()
        names = {self.key, shown}
        if shown == self.name.name.lower():  # it is in the default schema of the default catalog
            names.add(f"{self.name.schema}.{self.name.name}".lower())
        return frozenset(names)

    @property
    def is_stored(self) -> bool:
        """Whether it is a Delta table of this pipeline, as opposed to a temporary view."""
        return self.kind is not DatasetKind.TEMPORARY_VIEW and self.read_from is None


@dataclass(frozen=True, kw_only=True)
class Deferred:
    """A deployed pipeline whose tables are read; `name` is its target or storage.

    `built` are the reasons why datasets are built here, by key.
    """

    name: str
    built: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataflowGraph:
    """All nodes of a pipeline, upstream before downstream; see `build_graph`."""

    datasets: Mapping[str, DatasetNode]
    flows: Mapping[str, FlowNode]
    sinks: Mapping[str, Sink]
    warnings: tuple[str, ...] = ()
    deferred: Deferred | None = None

    def stored(self) -> tuple[DatasetNode, ...]:
        return tuple(node for node in self.datasets.values() if node.is_stored)

    def target_name(self, flow: FlowNode) -> str:
        """The name of the table or sink of a flow, for messages."""
        dataset = self.datasets.get(flow.target)
        return flow.target if dataset is None else dataset.display

    def deferral_text(self, node: DatasetNode) -> str:
        """Where a dataset is read from or why it is built; empty if no datasets are deferred."""
        if self.deferred is None:
            return ""
        if node.read_from is not None:
            return f"read from {self.deferred.name} (unchanged)"
        reason = self.deferred.built.get(node.key)
        return "" if reason is None else f"built here: {reason}"

    def deferral_texts(self) -> dict[str, str]:
        """`deferral_text` of all datasets that have one, by key."""
        texts = {key: self.deferral_text(node) for key, node in self.datasets.items()}
        return {key: text for key, text in texts.items() if text}

    def find(self, display: str) -> DatasetNode | None:
        """Look up a displayed name or a name in code: any case, with `LIVE.` or backticks."""
        nodes = self.datasets.values()
        parts = comparable_parts(display)
        if parts is None:
            return next((node for node in nodes if node.display == display), None)
        return next((node for node in nodes if ".".join(parts) in node.spellings), None)


def deferring(
    graph: DataflowGraph,
    name: str,
    paths: Mapping[str, str],
    built: Mapping[str, str],
    warnings: tuple[str, ...],
) -> DataflowGraph:
    """A graph in which some datasets have no flows and are read from `paths`, by key.

    Nothing upstream of them is built either.
    """
    widening: set[str] = set()  # deferred tables whose types may be widened
    flows: dict[str, FlowNode] = {}
    for flow_name, flow in graph.flows.items():
        widens = flow.analysis.widens_types or not widening.isdisjoint(flow.upstream)
        if flow.target in paths:
            widening |= {flow.target} if widens else set()
        else:
            analysis = replace(flow.analysis, widens_types=widens)
            flows[flow_name] = replace(flow, analysis=analysis)
    datasets = {
        key: replace(node, read_from=paths[key], flows=()) if key in paths else node
        for key, node in graph.datasets.items()
    }
    return replace(
        graph,
        datasets=MappingProxyType(datasets),
        flows=MappingProxyType(flows),
        deferred=Deferred(name=name, built=built, warnings=warnings),
    )


def deferred_error(graph: DataflowGraph, node: DatasetNode) -> PlanError:
    """The error for a command on a dataset that is not built here."""
    where = "production" if graph.deferred is None else graph.deferred.name
    return PlanError(
        "DATASET_DEFERRED",
        f"{node.display!r} is unchanged and read from {where}: it is not built here",
        origin=node.declared.origin,
        hint="leave it out; or build everything in this storage, by a target without `defer_to`",
    )
