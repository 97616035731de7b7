"""`graph` and `explain`: the dataflow graph of a pipeline, and the details of one dataset."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock._cli import options
from penstock._model.name import find_name

if TYPE_CHECKING:
    from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
    from penstock._model.pipeline import PipelineSettings


app = typer.Typer()


@app.command(
    "graph",
    epilog="Examples: penstock graph | penstock graph --format mermaid | "
    "penstock graph --update latest --format dot | penstock graph shop --output json",
)
@options.grouped
def graph(
    *,
    project: options.GraphOptions,
    form: Annotated[
        Literal["text", "mermaid", "dot"],
        typer.Option("--format", help="A tree, Mermaid, or DOT for Graphviz."),
    ] = "text",
    update: Annotated[
        str | None,
        typer.Option(
            "--update",
            help="Draw a recorded update with its states, without Spark: `latest`, or an id.",
        ),
    ] = None,
    output: options.Output = "text",
) -> None:
    """Draw the dataflow graph of a pipeline: datasets, sinks and sources; nothing runs."""
    from penstock._observe import flow_graph as drawing
    from penstock._observe.masking import shown

    deferral: dict[str, str] = {}
    flow_graph = drawing.flow_graph(_events(project.settings(), update, deferral))
    for key, text in deferral.items():
        flow_graph.nodes[key].state = text
    if output == "json":
        options.print_json(flow_graph.as_json())
        return
    if not flow_graph.nodes:
        print("no datasets are recorded; `penstock history` lists the updates", file=sys.stderr)
    draw = {
        "text": drawing.text_lines,
        "mermaid": drawing.mermaid_lines,
        "dot": drawing.dot_lines,
    }[form]
    for line in draw(flow_graph):
        print(shown(line))


def _events(
    settings: "PipelineSettings", update: str | None, deferral: dict[str, str]
) -> Iterator[Any]:
    """Definitions, or events of an update; adds deferred datasets to `deferral`."""
    from penstock._observe import log
    from penstock._observe.events import EventOrigin
    from penstock._observe.masking import without_secrets
    from penstock._project.event_store import read_events_of

    if update is not None:
        directory = read_events_of(settings)
        for event in log.recorded_events(directory, options.one_update(directory, update)):
            yield without_secrets(event)
        return
    from penstock._runtime.definitions import definitions
    from penstock._update import UpdateOptions, plan_update

    with options.stdout_to_stderr():
        planned, _ = plan_update(settings, UpdateOptions())
    deferral.update(planned.deferral_texts())
    for defined in definitions(planned, EventOrigin(pipeline_name=settings.name), {}):
        yield without_secrets(defined)


@app.command(
    "explain",
    epilog="Examples: penstock explain silver | penstock explain revenue --project shop | "
    "penstock explain silver --output json",
)
@options.grouped
def explain(
    dataset: Annotated[str, typer.Argument(help="Table, view or sink.", metavar="DATASET")],
    *,
    project: options.ExplainOptions,
    output: options.Output = "text",
) -> None:
    """Describe a dataset: its queries, expectations, state and columns; nothing runs.

    Also prints its checkpoints and, for a materialized view, the technique of its last refresh and
    the reason.
    """
    body = _explanation(project.settings(), dataset)
    options.show(output, body, _lines(body))


def _explanation(settings: "PipelineSettings", dataset: str) -> dict[str, Any]:
    from penstock._tables.layout import layout_of
    from penstock._update import UpdateOptions, plan_update

    plans: dict[str, str] = {}
    with options.stdout_to_stderr():
        graph, _ = plan_update(settings, UpdateOptions(), plan_texts=plans)
    node = graph.find(dataset)
    key = find_name(dataset, graph.sinks) if node is None else node.key
    if key is None:
        known = [*(each.display for each in graph.datasets.values()), *graph.sinks]
        raise typer.BadParameter(
            f"there is no dataset {dataset!r}; the datasets are {', '.join(known)}",
            param_hint="DATASET",
        )
    layout = layout_of(settings)
    body: dict[str, Any] = {"version": 1, "name": key, "kind": "sink"}
    if node is None:
        body["declared_at"] = str(graph.sinks[key].origin)
    else:
        stored = node.is_stored
        override = node.declared.path if stored else node.read_from
        body |= {
            "name": node.display,
            "full_name": str(node.name),
            "kind": node.kind.value,
            "declared_at": str(node.declared.origin),
            "path": layout.table_path(node.name, override) if stored else node.read_from,
            "deferral": graph.deferral_text(node) or None,
            "read_by": sorted(graph.datasets[reader].display for reader in node.downstream),
            "rules": _rules(node, layout.quarantine_path(node.name, override), settings),
            "last_refresh": _last_refresh(settings, node.key),
        }
    flows = {name: flow for name, flow in graph.flows.items() if flow.target == key}
    streams = [name for name, flow in flows.items() if flow.analysis.is_streaming]
    checkpoints = _checkpoints(settings, streams) if streams else {}
    body["flows"] = [
        _flow(name, flow, graph, plans.get(name, ""), checkpoints.get(name))
        for name, flow in flows.items()
    ]
    return body


def _rules(node: "DatasetNode", quarantine: str, settings: "PipelineSettings") -> list[Any]:
    kept = f"the rows go to {quarantine}"
    wanted = node.declared.quarantine
    acts = {
        "warn": "counted; the rows are written",
        "drop": kept if (settings.quarantine if wanted is None else wanted) else "dropped, counted",
        "quarantine": kept,
        "fail": "the flow fails before it writes the batch",
    }
    if not node.is_stored:
        removed = "filtered, where the view is read"
        acts = {"warn": "no effect in a view", "drop": removed, "quarantine": removed}
        acts["fail"] = "flows that read the view fail"
    return [
        {
            "name": rule.name,
            "condition": str(rule.condition),
            "on_violation": rule.on_violation.value,
            "acts": acts.get(rule.on_violation.value, ""),
        }
        for rule in node.declared.expectations
    ]


def _flow(
    name: str,
    flow: "FlowNode",
    graph: "DataflowGraph",
    plan: str,
    checkpoint: Mapping[str, Any] | None,
) -> dict[str, Any]:
    from penstock._observe.masking import shown

    analysis = flow.analysis
    lineage = analysis.lineage
    columns: dict[str, list[str]] = {}
    if lineage is not None:

        def source_name(number: int) -> str:
            source = lineage.sources[number]
            read = graph.datasets.get(source.dataset)
            return read.display if read is not None else source.dataset or source.name

        columns = {
            column: [
                f"{source_name(each.source)}.{each.column} {each.transformation}" for each in inputs
            ]
            for column, inputs in lineage.columns.items()
        }
    return {
        "flow": name,
        "type": flow.type_name(graph.datasets.get(flow.target)),
        "declared_at": str(flow.flow.origin),
        "reads": sorted(graph.datasets[key].display for key in analysis.inputs),
        "reads_external": [shown(name) for name in analysis.external_inputs],
        "output_mode": analysis.output_mode and analysis.output_mode.value,
        "merge_keys": list(analysis.merge_keys),
        "state": [name for name in analysis.stateful_operators if not name.startswith("source ")],
        "state_grows": list(analysis.growing_state),
        "checkpoint": checkpoint,
        "plan": shown(plan).splitlines(),
        "columns": columns,
    }


def _checkpoints(settings: "PipelineSettings", flows: list[str]) -> dict[str, dict[str, Any]]:
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_files import checkpoints
    from penstock.errors import PenstockError

    try:
        with readable_storage(settings, flows=flows) as readable:
            listed = checkpoints(readable.settings)
    except PenstockError:  # the storage cannot be read, or does not exist yet
        return {}
    return {
        checkpoint.flow: {
            "path": readable.shown(str(checkpoint.path)),
            "last_batch": checkpoint.last_finished,
            "state_bytes": sum(part.size for part in checkpoint.state),
        }
        for checkpoint in listed
        if checkpoint.is_current and checkpoint.exists
    }


def _last_refresh(settings: "PipelineSettings", key: str) -> dict[str, Any] | None:
    from penstock._observe.codec import time_text
    from penstock._observe.events import PlanningInformation
    from penstock._observe.log import recorded_events
    from penstock._observe.segments import updates
    from penstock._project.event_store import read_events_of

    directory = read_events_of(settings)
    kind = PlanningInformation.event_type
    for update in reversed(updates(directory)[-50:]):
        events = recorded_events(directory, update.update_id, event_type=kind, dataset=key)
        for event in reversed(list(events)):
            if isinstance(event.body, PlanningInformation):
                return {
                    "technique": event.body.technique,
                    "reason": event.body.reason,
                    "timestamp": time_text(event.timestamp),
                    "update_id": update.update_id,
                }
    return None


def _lines(body: Mapping[str, Any]) -> Iterator[str]:
    yield f"{body['name']} [{body['kind']}] declared at {body['declared_at']}"
    if body.get("path"):
        yield f"  path: {body['path']}"
    if body.get("deferral"):
        yield f"  {body['deferral']}"
    if body.get("read_by"):
        yield f"  read by {', '.join(body['read_by'])}"
    refresh = body.get("last_refresh")
    if refresh is not None:
        yield (
            f"  last refresh: {refresh['technique']}, {refresh['reason']} "
            f"({refresh['timestamp']}, update {refresh['update_id'][:8]})"
        )
    for flow in body["flows"]:
        yield ""
        yield f"flow {flow['flow']} [{flow['type']}] declared at {flow['declared_at']}"
        sources = [*flow["reads"], *flow["reads_external"]]
        yield f"  reads {', '.join(sources) or 'no sources'}"
        if flow["merge_keys"]:
            yield f"  merges by {', '.join(flow['merge_keys'])}"
        yield from (f"  state: {operator}" for operator in flow["state"] or ["none"])
        yield from (f"  warning: {warning}" for warning in flow["state_grows"])
        checkpoint = flow["checkpoint"]
        if checkpoint is not None:
            last = checkpoint["last_batch"]
            batch = "no batch yet" if last is None else f"batch {last} is finished"
            yield f"  checkpoint: {checkpoint['path']}, {batch}"
        yield "  query, as analysed"
        yield from (f"    {line}" for line in flow["plan"])
        if flow["columns"]:
            yield "  columns"
            for name, inputs in flow["columns"].items():
                yield f"    {name} <- {', '.join(inputs) or 'nothing'}"
    if body.get("rules"):
        yield ""
        yield "expectations, checked on the rows of the queries before they are written"
        for rule in body["rules"]:
            yield f"  {rule['name']}: {rule['condition']} [{rule['on_violation']}] {rule['acts']}"
