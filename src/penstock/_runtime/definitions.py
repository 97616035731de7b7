"""Events with the definitions of a pipeline, which readers of the log need first."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock._graph.dataflow import DataflowGraph
from penstock._observe.events import (
    ColumnLineage,
    DatasetDefinition,
    Event,
    EventOrigin,
    FlowDefinition,
    Rule,
    SinkDefinition,
)


def definitions(
    graph: DataflowGraph, origin: EventOrigin, paths: Mapping[str, str]
) -> Iterator[Event]:
    """One event for each dataset, sink and flow, in the order of the graph."""
    for node in graph.datasets.values():
        dataset = DatasetDefinition(
            dataset_type=node.kind.value.upper().replace(" ", "_"),
            path=node.read_from or paths.get(node.key),
            num_flows=len(node.flows),
            declared_at=str(node.declared.origin),
            schema_json=node.schema_json,
            expectations=tuple(
                Rule(name=rule.name, condition=str(rule.condition), action=rule.on_violation.value)
                for rule in node.declared.expectations
            ),
        )
        named = replace(origin, dataset_name=node.key)
        yield Event(named, dataset, f"{node.display} is a {node.kind.value}")
    for sink in graph.sinks.values():
        body = SinkDefinition(format=sink.format, place=sink.facts.location)
        text = f"{sink.name} is a {sink.format} sink"
        yield Event(replace(origin, sink_name=sink.name), body, text)
    for name, flow in graph.flows.items():
        is_sink = flow.target in graph.sinks
        dataset_name, sink_name = ("", flow.target) if is_sink else (flow.target, "")
        definition = FlowDefinition(
            output_dataset=dataset_name,
            output_sink=sink_name,
            input_datasets=tuple(sorted(flow.analysis.inputs)),
            external_inputs=tuple(flow.analysis.external_inputs),
            flow_type=flow.type_name(graph.datasets.get(flow.target)),
            once=flow.flow.once,
            language=flow.flow.language,
            comment=flow.flow.comment,
        )
        yield Event(replace(origin, flow_name=name), definition, f"flow {name}")
        lineage = flow.analysis.lineage
        if lineage is not None:
            named = replace(origin, flow_name=name, dataset_name=dataset_name, sink_name=sink_name)
            yield Event(named, ColumnLineage(lineage))
