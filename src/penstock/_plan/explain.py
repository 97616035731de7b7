"""Renders a plan for `penstock dry-run`: as lines of text, or as a dictionary for JSON."""

import json
from collections.abc import Iterator
from typing import Any

from penstock._graph.cdc import cdc_text, is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode
from penstock._graph.replacing import replaces_rows, window_text
from penstock._model.flow import Flow
from penstock._model.quantity import plural
from penstock._plan.steps import Plan, RefreshView, RunOnceFlow, RunStep, StartFlow


def explain_text(graph: DataflowGraph, plan: Plan) -> list[str]:
    """The plan as a tree: each table below its sources, with its flows, rules and columns."""
    mode = "continuous" if plan.continuous else "triggered"
    stored = graph.stored()
    tables = plural(len(stored) - len(plan.excluded), "table")
    lines = [f"Plan: {mode} update of {tables}"]
    if plan.resets:
        names = ", ".join(graph.datasets[step.dataset].display for step in plan.resets)
        lines.append(f"Reset first (rows, quarantine, checkpoints): {names}")
    steps = {(step.target, step.flow): step for step in plan.runs}
    roots = [node for node in graph.datasets.values() if not node.upstream]
    seen: set[str] = set()
    for node in roots:
        lines += _tree(graph, plan, steps, node, "", seen)
    for name, sink in graph.sinks.items():
        for (target, flow), step in steps.items():
            if target == name:
                lines.append(f"sink {name} [{sink.format}] <- {_step_text(graph, step, flow)}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines += [f"note: {note}" for note in plan.notes]
    return lines


def _tree(
    graph: DataflowGraph,
    plan: Plan,
    steps: dict[tuple[str, str], RunStep],
    node: DatasetNode,
    indent: str,
    seen: set[str],
) -> Iterator[str]:
    head = f"{indent}{node.display} [{node.kind.value}]"
    if node.key in seen:
        yield f"{head} (shown above)"
        return
    seen.add(node.key)
    yield f"{head} (not selected)" if node.key in plan.excluded else head
    pad = indent + "  | "
    if text := graph.deferral_text(node):
        yield f"{pad}{text}"
    for table in plan.tables:
        if table.dataset == node.key and table.registered_as is not None:
            yield f"{pad}registered in the Hive metastore as {table.registered_as}"
    for name in node.flows:
        step = steps.get((node.key, name))
        outside = graph.flows[name].analysis.external_inputs
        source = f" from {', '.join(outside)}" if outside else ""
        if step is not None:
            yield f"{pad}{_step_text(graph, step, name)}{source}"
        elif source:
            yield f"{pad}flow {name}{source}"
    for rule in node.declared.expectations:
        yield f"{pad}expect {rule.name}: {rule.condition} [{rule.on_violation.value}]"
    fields = json.loads(node.schema_json)["fields"]
    columns = ", ".join(f"{field['name']} {_type_text(field['type'])}" for field in fields)
    yield f"{pad}columns: {columns}"
    for key in graph.datasets:
        if key in node.downstream:
            yield from _tree(graph, plan, steps, graph.datasets[key], indent + "  ", seen)


def _step_text(graph: DataflowGraph, step: RunStep, name: str) -> str:
    flow = graph.flows[name].flow
    if is_cdc(flow):
        return f"flow {name}: {cdc_text(flow)}, {_when(flow, step)}"
    match step:
        case RefreshView() if replaces_rows(flow):
            when = "fully recomputed" if step.full else "if a source changed"
            if step.interval_seconds is not None:
                when = f"checked every {step.interval_seconds:g} s"
            return f"flow {name}: replaces rows where {window_text(flow)}, {when}"
        case StartFlow():
            return f"flow {name}: {step.output_mode.value}, {_when(flow, step)}"
        case RunOnceFlow():
            return f"flow {name}: once"
        case RefreshView(interval_seconds=None, full=True):
            return "refresh: recompute"
        case RefreshView(interval_seconds=seconds):
            policy = graph.datasets[step.target].declared.refresh_policy or "auto"
            first = "recompute, then " if step.full else ""
            when = "" if seconds is None else f", checked every {seconds:g} s"
            return f"refresh: {first}if a source changed{when}, refresh policy {policy}"


def _when(flow: Flow, step: RunStep) -> str:
    if flow.once or isinstance(step, RunOnceFlow):
        return "once"
    if isinstance(step, StartFlow) and step.is_eager:
        return "as rows arrive"
    if isinstance(step, StartFlow) and step.trigger is not None:
        return str(step.trigger)
    if step.interval_seconds is not None:
        return f"every {step.interval_seconds:g} s"
    return "everything available" if flow.snapshot is None else "what is new"


def _type_text(data_type: Any) -> str:
    if isinstance(data_type, str):
        return data_type
    kind = data_type["type"]
    if kind == "array":
        return f"array<{_type_text(data_type['elementType'])}>"
    if kind == "map":
        return f"map<{_type_text(data_type['keyType'])}, {_type_text(data_type['valueType'])}>"
    if kind == "struct":
        inner = ", ".join(f"{f['name']}: {_type_text(f['type'])}" for f in data_type["fields"])
        return f"struct<{inner}>"
    return str(kind)


def explain_json(graph: DataflowGraph, plan: Plan) -> dict[str, Any]:
    """The plan as a dictionary for JSON. Keys are stable; new keys may be added."""
    registered = {table.dataset: table.registered_as for table in plan.tables}
    return {
        "mode": "continuous" if plan.continuous else "triggered",
        "resets": [graph.datasets[step.dataset].display for step in plan.resets],
        "excluded": [graph.datasets[key].display for key in plan.excluded],
        "notes": list(plan.notes),
        "warnings": list(plan.warnings),
        "datasets": [
            {
                "name": node.display,
                "full_name": str(node.name),
                "kind": node.kind.value,
                "registered_as": registered.get(node.key),
                "flows": list(node.flows),
                **({"deferral": text} if (text := graph.deferral_text(node)) else {}),
                "reads": sorted(graph.datasets[key].display for key in node.upstream),
                "read_by": sorted(graph.datasets[key].display for key in node.downstream),
                "schema": json.loads(node.schema_json),
                "declared_at": str(node.declared.origin),
                "expectations": [
                    {
                        "name": rule.name,
                        "condition": str(rule.condition),
                        "on_violation": rule.on_violation.value,
                    }
                    for rule in node.declared.expectations
                ],
            }
            for node in graph.datasets.values()
        ],
        "steps": [_step_json(graph, step) for step in plan.runs],
    }


def _step_json(graph: DataflowGraph, step: RunStep) -> dict[str, Any]:
    node = graph.datasets.get(step.target)
    body: dict[str, Any] = {
        "step": type(step).__name__,
        "flow": step.flow,
        "target": node.display if node is not None else step.target,
        "after": [graph.datasets[key].display for key in step.upstream],
        "reads_external": list(graph.flows[step.flow].analysis.external_inputs),
    }
    flow = graph.flows[step.flow].flow
    if is_cdc(flow):
        body["cdc"] = cdc_text(flow)
    if replaces_rows(flow):
        body["replace_where"] = window_text(flow)
    if isinstance(step, StartFlow):
        body["output_mode"] = step.output_mode.value
    if not isinstance(step, RunOnceFlow):
        body["interval_seconds"] = step.interval_seconds
    return body
