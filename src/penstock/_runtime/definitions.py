"""What a pipeline consists of, as events: the first thing that readers of its log need."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from penstock._graph.dataflow import DataflowGraph
from penstock._model.dataset import Sink
from penstock._model.lineage import LineageSource, place_of
from penstock._observe.events import Event, EventOrigin, column_lineage, definition


def definitions(
    graph: DataflowGraph, origin: EventOrigin, paths: Mapping[str, str]
) -> Iterator[Event]:
    """One event for each dataset, sink and flow, in the order of the graph.

    Args:
        graph: Of the pipeline.
        origin: Of the update.
        paths: Where the tables lie, by dataset.
    """
    for node in graph.datasets.values():
        yield definition(
            "dataset_definition",
            replace(origin, dataset_name=node.key),
            f"{node.display} is a {node.kind.value}",
            {
                "dataset_type": node.kind.value.upper().replace(" ", "_"),
                **({"path": paths[node.key]} if node.key in paths else {}),
                "num_flows": len(node.flows),
                "declared_at": str(node.declared.origin),
                "schema_json": node.schema_json,
                "expectations": [
                    {
                        "name": rule.name,
                        "condition": str(rule.condition),
                        "action": rule.on_violation.value,
                    }
                    for rule in node.declared.expectations
                ],
            },
        )
    for sink in graph.sinks.values():
        yield definition(
            "sink_definition",
            replace(origin, sink_name=sink.name),
            f"{sink.name} is a {sink.format} sink",
            {"format": sink.format, **_place(sink)},
        )
    for name, flow in graph.flows.items():
        is_sink = flow.target in graph.sinks
        yield definition(
            "flow_definition",
            replace(origin, flow_name=name),
            f"flow {name}",
            {
                "output_dataset": "" if is_sink else flow.target,
                "output_sink": flow.target if is_sink else "",
                "input_datasets": sorted(flow.analysis.inputs),
                "external_inputs": list(flow.analysis.external_inputs),
                "flow_type": flow.type_name(graph.datasets.get(flow.target)),
                "once": flow.flow.once,
                "language": flow.flow.language,
                "comment": flow.flow.comment,
            },
        )
        lineage = flow.analysis.lineage
        if lineage is not None:
            named = replace(
                origin,
                flow_name=name,
                dataset_name="" if is_sink else flow.target,
                sink_name=flow.target if is_sink else "",
            )
            yield column_lineage(named, lineage.as_json())


def _place(sink: Sink) -> dict[str, Any]:
    """Where a sink writes to, as OpenLineage names it, if its options say so."""
    given = {key.lower(): str(value) for key, value in sink.options.items()}
    topic, servers = given.get("topic"), given.get("kafka.bootstrap.servers")
    if topic and servers and "${" not in servers:
        return {"place": LineageSource(namespace=f"kafka://{servers}", name=topic).as_json()}
    path = given.get("path")
    return {"place": place_of(path).as_json()} if path and "${" not in path else {}
