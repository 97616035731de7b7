"""The dataflow graph: frozen nodes and edges, complete and valid once built."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock._model.dataset import Dataset, DatasetKind, Sink
from penstock._model.flow import Flow, FlowAnalysis
from penstock._model.name import DatasetName, split_name


@dataclass(frozen=True, kw_only=True)
class FlowNode:
    """A flow and its analysis; `upstream` are keys of *stored* datasets: views are resolved."""

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
    """A dataset with its kind; `upstream` and `downstream` are keys of datasets, also views."""

    key: str
    name: DatasetName
    display: str
    declared: Dataset
    kind: DatasetKind
    flows: tuple[str, ...]
    upstream: frozenset[str]
    downstream: frozenset[str]
    schema_json: str

    @property
    def spellings(self) -> frozenset[str]:
        """All names, in lower case, that refer to this dataset in its pipeline."""
        shown = self.display.lower()
        names = {self.key, shown}
        if shown == self.name.name.lower():  # it lies in the default schema of the default catalog
            names.add(f"{self.name.schema}.{self.name.name}".lower())
        return frozenset(names)

    @property
    def is_stored(self) -> bool:
        """Whether it is a Delta table (a temporary view is not)."""
        return self.kind is not DatasetKind.TEMPORARY_VIEW


@dataclass(frozen=True, kw_only=True)
class DataflowGraph:
    """All nodes of a pipeline, upstream before downstream. Built by `_graph.build` only."""

    datasets: Mapping[str, DatasetNode]
    flows: Mapping[str, FlowNode]
    sinks: Mapping[str, Sink]

    def stored(self) -> tuple[DatasetNode, ...]:
        return tuple(node for node in self.datasets.values() if node.is_stored)

    def find(self, display: str) -> DatasetNode | None:
        """Look up a name as written: one to three parts, `LIVE.`, backticks, any case."""
        try:
            parts = [part.lower() for part in split_name(display)]
        except ValueError:
            return None
        if len(parts) > 1 and parts[0] == "live":
            del parts[0]
        wanted = ".".join(parts)
        for node in self.datasets.values():
            if wanted in node.spellings:
                return node
        return None
