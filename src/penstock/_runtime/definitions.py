"""What a pipeline consists of, as events: the first thing that readers of its log need."""

from collections.abc import Iterator
from dataclasses import replace

from penstock._graph.dataflow import DataflowGraph
from penstock._observe.events import Event, EventOrigin, definition


def definitions(graph: DataflowGraph, origin: EventOrigin) -> Iterator[Event]:
    """One event for each dataset, sink and flow, in the order of the graph."""
    for node in graph.datasets.values():
        yield definition(
            "dataset_definition",
            replace(origin, dataset_name=node.key),
            f"{node.display} is a {node.kind.value}",
            {
                "dataset_type": node.kind.value.upper().replace(" ", "_"),
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
            {"format": sink.format},
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
