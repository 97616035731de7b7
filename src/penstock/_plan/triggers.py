"""Reads the trigger of a flow, and checks whether the flow supports it."""

from collections.abc import Mapping

from penstock._graph.dataflow import DataflowGraph, FlowNode
from penstock._model.flow import OutputMode
from penstock._model.trigger import TRIGGER_FORMS, Trigger, TriggerKind, parse_trigger
from penstock._plan.settings import flow_setting
from penstock.errors import PlanError, SpecError

TRIGGER = "pipelines.trigger"
"""Setting of a flow, a table or the pipeline: the trigger, in a form of `parse_trigger`."""
INTERVAL = "pipelines.trigger.interval"
"""Setting: only the interval, as in Databricks."""

# Shortest batch that Spark accepts in real-time mode.
_REAL_TIME_SECONDS = 5.0
_SOURCES = {TriggerKind.CONTINUOUS: ("kafka", "rate"), TriggerKind.REAL_TIME: ("kafka",)}
_NAMES = {TriggerKind.CONTINUOUS: "continuous processing", TriggerKind.REAL_TIME: "real-time mode"}


def declared_trigger(
    graph: DataflowGraph, flow: FlowNode, conf: Mapping[str, str]
) -> Trigger | None:
    setting = flow_setting(graph, flow, conf, TRIGGER, INTERVAL)
    if setting is None:
        return None
    key, text = setting
    trigger = parse_trigger(text)
    if key == INTERVAL and (trigger is None or trigger.kind is not TriggerKind.PROCESSING_TIME):
        raise SpecError(
            "INVALID_TRIGGER_INTERVAL",
            f"{INTERVAL} of flow {flow.flow.name!r} is {text!r}",
            origin=flow.flow.origin,
            hint='a number and a unit: "5 seconds", "1 minute", "2 hours"',
        )
    if trigger is None:
        raise SpecError(
            "INVALID_TRIGGER",
            f"{TRIGGER} of flow {flow.flow.name!r} is {text!r}",
            origin=flow.flow.origin,
            hint=TRIGGER_FORMS,
        )
    return trigger


def check_trigger(graph: DataflowGraph, flow: FlowNode, trigger: Trigger) -> None:
    """Refuse a trigger that a flow does not support in a continuous update."""
    name = flow.flow.name
    if trigger.ends:
        raise PlanError(
            "TRIGGER_NOT_SUPPORTED",
            f"flow {name!r} has the trigger {trigger.kind.value}, which ends when everything is "
            "read, but the update is continuous",
            origin=flow.flow.origin,
            hint="set an interval, such as processingTime=1 hour, or run a triggered update",
        )
    if trigger.kind not in _NAMES:
        return
    reason = ""
    sink = graph.sinks.get(flow.target)
    hint = 'use "processingTime=0 seconds", which starts a batch as soon as the last one is done'
    sources = [
        text.partition(":")[0].split(" ")[0].lower() for text in flow.analysis.external_inputs
    ]
    known = _SOURCES[trigger.kind]
    if sink is None:
        mode = _NAMES[trigger.kind]
        reason = f"it writes to a table: {mode} has no batches that could be committed"
    elif trigger.kind not in sink.facts.triggers:
        reason = f"its sink has the format {sink.format}, which is written in micro-batches"
    elif sink.facts.needs_batches:
        reason = sink.facts.needs_batches
    elif flow.upstream or not sources or any(source not in known for source in sources):
        reason = f"it reads other sources than {' or '.join(known)}"
    elif any(not line.startswith("source") for line in flow.analysis.stateful_operators):
        reason = "it keeps state: an aggregation, a de-duplication or a join of streams"
    elif trigger.kind is TriggerKind.REAL_TIME and (trigger.seconds or 0) < _REAL_TIME_SECONDS:
        reason = f"a batch in real-time mode takes at least {_REAL_TIME_SECONDS:g} seconds"
        hint = 'rows are still passed on immediately: "realTime=5 minutes"'
    elif (
        trigger.kind is TriggerKind.CONTINUOUS and flow.analysis.output_mode is OutputMode.COMPLETE
    ):
        reason = "it is in complete mode"
    if reason:
        raise PlanError(
            "TRIGGER_NOT_SUPPORTED",
            f"flow {name!r} cannot have the trigger {trigger}: {reason}",
            origin=flow.flow.origin,
            hint=hint,
        )
