"""The graph of a pipeline, built from the definitions in its events."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock._observe.events import DatasetDefinition, Event
from penstock._observe.snapshot import STATE_ORDER, short_names
from penstock._observe.state import ObservedUpdate

_SHAPES = {"source": ("[/", "/]"), "sink": ("[\\", "\\]"), "view": ("([", "])")}
_DOT_SHAPES = {"source": "parallelogram", "sink": "invhouse", "view": "ellipse"}
_COLOURS = {"FAILED": "#d64545", "COMPLETED": "#2e8b57", "RUNNING": "#2f7fbf"}


@dataclass
class GraphNode:
    """A dataset, a sink, or an external source; `state` is `None` before the first run."""

    id: str
    name: str
    kind: str
    expectations: list[str] = field(default_factory=list)
    state: str | None = None
    declared_at: str | None = None


@dataclass(frozen=True)
class GraphEdge:
    """A flow reads `source` and writes to `target`."""

    source: str
    target: str
    flow: str
    flow_type: str


@dataclass
class FlowGraph:
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: dict[GraphEdge, None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        edges = [
            {"from": edge.source, "to": edge.target, "flow": edge.flow, "flow_type": edge.flow_type}
            for edge in self.edges
        ]
        return {
            "version": 1,
            "nodes": [asdict(node) for node in self.nodes.values()],
            "edges": edges,
        }


def flow_graph(events: Iterable[Event]) -> FlowGraph:
    """The graph that the events of one update define, with the latest states."""
    graph, update = FlowGraph(), ObservedUpdate()
    for event in events:
        update(event)
    for name, dataset in update.datasets.items():
        declared = dataset.definition
        if declared is None:
            continue
        node = GraphNode(name, name, dataset.kind.removeprefix("temporary "))
        if isinstance(declared, DatasetDefinition):
            node.expectations = [rule.name for rule in declared.expectations]
            node.declared_at = declared.declared_at or None
        states = {flow.status for flow in dataset.flows.values()} or {dataset.status}
        node.state = next((state.value for state in STATE_ORDER if state in states), None)
        graph.nodes[name] = node
    for flow, observed in update.flows.items():
        definition = observed.definition
        if definition is None:
            continue
        target, kind = definition.target, definition.flow_type
        for source in definition.external_inputs:
            graph.nodes.setdefault(source, GraphNode(source, source, "source"))
            graph.edges[GraphEdge(source, target, flow, kind)] = None
        for source in definition.input_datasets:
            graph.edges[GraphEdge(source, target, flow, kind)] = None
    own = [node.id for node in graph.nodes.values() if node.kind != "source"]
    for full, short in short_names(own).items():
        graph.nodes[full].name = short
    return graph


def text_lines(graph: FlowGraph) -> Iterator[str]:
    """A tree from sources to targets; each node is printed once."""
    below: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.target not in below.setdefault(edge.source, []):
            below[edge.source].append(edge.target)
    read = {target for targets in below.values() for target in targets}
    seen: set[str] = set()

    def tree(name: str, head: str, rest: str) -> Iterator[str]:
        node = graph.nodes.get(name) or GraphNode(name, name, "?")
        again = name in seen
        seen.add(name)
        number = len(node.expectations)
        rules = f", {number} rule{'' if number == 1 else 's'}" if number else ""
        state = f" {node.state}" if node.state else ""
        yield f"{head}{node.name} [{node.kind}{rules}]{state}{' (shown above)' if again else ''}"
        if again:
            return
        targets = below.get(name, [])
        for at, target in enumerate(targets):
            last = at == len(targets) - 1
            yield from tree(
                target, rest + ("`- " if last else "|- "), rest + ("   " if last else "|  ")
            )

    # Sources first, then cycles, which the log of a failed update may contain.
    for name in sorted(graph.nodes, key=lambda name: name in read):
        if name not in seen:
            yield from tree(name, "", "")


def mermaid_lines(graph: FlowGraph) -> Iterator[str]:
    yield "flowchart LR"
    ids = {name: f"n{at}" for at, name in enumerate(graph.nodes)}
    for name, node in graph.nodes.items():
        left, right = _SHAPES.get(node.kind, ("[", "]"))
        label = re.sub(r"[\x00-\x1f]", " ", node.name)
        label = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
        yield f'  {ids[name]}{left}"{label}"{right}'
    for source, target in dict.fromkeys((edge.source, edge.target) for edge in graph.edges):
        if source in ids and target in ids:
            yield f"  {ids[source]} --> {ids[target]}"
    for state, colour in _COLOURS.items():
        members = [ids[name] for name, node in graph.nodes.items() if node.state == state]
        if members:
            yield f"  classDef {state.lower()} stroke:{colour},stroke-width:2px"
            yield f"  class {','.join(members)} {state.lower()}"


def dot_lines(graph: FlowGraph) -> Iterator[str]:
    yield "digraph pipeline {"
    yield "  rankdir=LR;"
    yield '  node [shape=box, fontname="sans-serif"];'
    for name, node in graph.nodes.items():
        more = f", shape={_DOT_SHAPES[node.kind]}" if node.kind in _DOT_SHAPES else ""
        if node.state in _COLOURS:
            more += f', color="{_COLOURS[node.state]}"'
        yield f"  {_quoted(name)} [label={_quoted(node.name)}, tooltip={_quoted(node.kind)}{more}];"
    for edge in graph.edges:
        yield f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [tooltip={_quoted(edge.flow)}];"
    yield "}"


def _quoted(text: str) -> str:
    flat = re.sub(r"[\x00-\x1f]", " ", text)
    return '"' + flat.replace("\\", "\\\\").replace('"', '\\"') + '"'
