"""A new checkpoint for a flow: planned, weighed, then made in one step.

What makes it safe is the epoch: it is part of the checkpoint's path and of the identity under which
tables remember batches. The new one is born with the file that names it, which is replaced as a
whole. So a crash leaves the old checkpoint or the new one, and batch ids that begin at 0 again are
never taken for those of the old.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.flow import OutputMode
from penstock._model.pipeline import PipelineSettings
from penstock._plan.planner import reset_allowed
from penstock._tables.checkpoint_files import Checkpoint, checkpoints, flow_records
from penstock.errors import PlanError, SpecError
from penstock.sources.base import StartPosition, StartReport
from penstock.sources.flow import start_position

MARKED, EMPTIED = "marked", "emptied"
"""Steps of a reset that empties the table, after which it may die; given to `on_step`."""


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    """What a reset of a flow does.

    Attributes:
        flow: Its name.
        target: Table or sink.
        start: Where it begins, in words.
        old_epoch: Of the checkpoint that it had.
        new_epoch: Of the one that it gets; `None` while it is only a plan.
        old_checkpoint: The folder that is used no more.
        sources: What the start means for each source.
        effect: What the target does with rows that come again: `keyed`, `recomputed`, `added` or
            `refused`.
        truncates: Whether the table is emptied.
        refused: Why it is not done without more; `None` if it may be done.
        steps: One sentence each.
    """

    flow: str
    target: str
    start: str
    old_epoch: str
    new_epoch: str | None
    old_checkpoint: str
    sources: "tuple[StartReport, ...]"
    effect: str
    truncates: bool
    refused: str | None
    steps: tuple[str, ...]


def reset_flow(
    settings: PipelineSettings,
    flow: str,
    start: "StartPosition",
    *,
    truncate: bool = False,
    accept_duplicates: bool = False,
    execute: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> ResetPlan:
    """Plan a new checkpoint for a flow, and make it.

    Args:
        settings: The pipeline.
        flow: Its name.
        start: Where it begins to read.
        truncate: Empty its table first.
        accept_duplicates: Rows may be in the target twice, or computed of a part of the source.
        execute: Carry the plan out; otherwise it is only reported.
        on_step: Called after each step of a reset that empties the table.

    Raises:
        SpecError: `UNKNOWN_FLOW`, `CHECKPOINT_NOT_FOUND`, `STORAGE_NOT_LOCAL`.
        PlanError: `RESET_NOT_POSSIBLE`, `START_NOT_AVAILABLE`; `RESET_WOULD_DOUBLE` if it is to be
            done and the plan says that it is refused.
        SetupError: The pipeline runs.
    """
    checkpoints(settings)  # the storage must be on this machine: before Spark is started
    with open_for_command(settings, "checkpoint reset") as pipeline:
        node = pipeline.flow(flow)
        pipeline.check_migration(node)
        _check_flow(pipeline, node, truncate=truncate)
        one = _current(settings, node.flow.name)
        _, sources = pipeline.query(node)
        now_ms = round(time.time() * 1000)
        position, reports = start_position(sources, start, [one], now_ms)
        effect = effect_on_target(pipeline.graph, node)
        refused = None
        if not (truncate or accept_duplicates):
            refused = why_refused(effect, reports, is_whole=start.kind.value == "earliest")
        plan = ResetPlan(
            flow=node.flow.name,
            target=pipeline.target_name(node),
            start=str(start),
            old_epoch=one.epoch,
            new_epoch=None,
            old_checkpoint=str(one.path),
            sources=reports,
            effect=effect,
            truncates=truncate,
            refused=refused,
            steps=tuple(_steps(one, start, reports, effect, truncate=truncate)),
        )
        if not execute:
            return plan
        if refused is not None:
            raise PlanError(
                "RESET_WOULD_DOUBLE",
                f"flow {plan.flow!r} is not reset: {refused}",
                origin=node.flow.origin,
                hint="--truncate empties the table first; --from latest reads nothing again; "
                "--accept-duplicates does it nevertheless",
            )
        name, body = node.flow.name, position
        if truncate:
            target = pipeline.graph.datasets[node.target]
            pipeline.lease(target)
            pipeline.state.mark_reset(name, body)
            on_step(MARKED)
            pipeline.tables.reset(target)
            on_step(EMPTIED)
        return replace(plan, new_epoch=pipeline.state.new_flow(name, body).epoch)


def why_refused(effect: str, reports: "tuple[StartReport, ...]", *, is_whole: bool) -> str | None:
    """Why a target must not get the rows of a start; `None` if it may.

    Args:
        effect: Of the target.
        reports: What the start means for each source.
        is_whole: Whether everything is read from its beginning.
    """
    if effect == "keyed":
        return None
    if effect == "refused":
        return (
            "its sink takes no rows of a new checkpoint as long as it has those of the old one "
            "(SINK_CHECKPOINT_LOST): it has to be emptied before the next update"
        )
    if effect == "recomputed":
        if is_whole:
            return None
        return (
            "its rows are computed of all rows of a key, and the start leaves out some: the target "
            "would get wrong values"
        )
    known = [f"{report.again:,} {report.unit}" for report in reports if report.again]
    unknown = [report.source for report in reports if report.again is None]
    if known:
        return f"its target just adds rows, and {' and '.join(known)} would be in it twice"
    if unknown:
        return (
            "its target just adds rows, and nobody knows how many of "
            f"{', '.join(unknown)} would be in it twice"
        )
    return None


def _check_flow(pipeline: OpenPipeline, node: "FlowNode", *, truncate: bool) -> None:
    reason = hint = ""
    dataset = pipeline.graph.datasets.get(node.target)
    if not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it has no checkpoint: it is not a streaming flow, or one that runs once"
        hint = f"--full-refresh {node.flow.target} computes it anew"
    elif truncate and dataset is None:
        reason, hint = (
            "a sink cannot be emptied from here",
            "empty it, and reset without --truncate",
        )
    elif dataset is None:
        return
    elif truncate and len(dataset.flows) > 1:
        reason = f"{dataset.display} has {len(dataset.flows)} flows, and only one would begin anew"
        hint = f"--full-refresh {dataset.display} empties it and restarts all of them"
    elif truncate and not reset_allowed(dataset, pipeline.settings.configuration):
        reason = f"{dataset.display} has pipelines.reset.allowed = false"
        hint = "reset without --truncate, or change the property"
    if reason:
        raise PlanError(
            "RESET_NOT_POSSIBLE",
            f"flow {node.flow.name!r} cannot be reset like this: {reason}",
            origin=node.flow.origin,
            hint=hint,
        )


def _current(settings: PipelineSettings, flow: str) -> Checkpoint:
    found = checkpoints(settings, flow)
    one = next((one for one in found if one.is_current), None)
    if one is None and flow not in flow_records(settings):
        # Its state is lost, and with it which one it was: the one that was written last.
        one = max(found, key=lambda one: one.path.stat().st_mtime)
    if one is None:
        raise SpecError(
            "CHECKPOINT_NOT_FOUND",
            f"flow {flow!r} goes on with none of its {len(found)} old checkpoints",
            hint="its next start makes a new one anyway",
        )
    return one


def effect_on_target(graph: "DataflowGraph", node: "FlowNode") -> str:
    """What the target of a flow does with rows that it gets again: the table in the docs."""
    sink = graph.sinks.get(node.target)
    if sink is not None:
        if sink.facts.refuses_new_checkpoint:
            return "refused"
        return "keyed" if sink.facts.is_keyed else "added"
    if is_cdc(node.flow) or graph.datasets[node.target].declared.deduplicate_by:
        return "keyed"
    if node.analysis.output_mode in (OutputMode.UPDATE, OutputMode.COMPLETE):
        return "recomputed"
    return "added"


def _steps(
    one: Checkpoint,
    start: "StartPosition",
    reports: "tuple[StartReport, ...]",
    effect: str,
    *,
    truncate: bool,
) -> list[str]:
    steps = [
        f"the checkpoint of epoch {one.epoch} (batch {one.last_finished}) is used no more; its "
        f"{one.size:,} bytes stay in {one.path}",
        f"the flow gets a new epoch, and begins at {start} whatever its query says",
    ]
    for report in reports:
        again = "an unknown number of" if report.again is None else f"{report.again:,}"
        text = f"{report.source}: {again} {report.unit} are read again"
        if report.skipped:
            text += f", {report.skipped:,} that were not read yet are never read"
        elif report.skipped is None:
            text += "; older ones that were not read yet are never read"
        steps.append(text)
    if truncate:
        steps.append("its table and quarantine are emptied first")
    elif effect == "keyed":
        steps.append("the target knows rows that it has by their key: they are not there twice")
    elif effect == "refused":
        steps.append("its sink refuses rows of the new checkpoint until it is emptied")
    elif effect == "recomputed":
        steps.append("the target gets the values that are computed anew, by key")
    else:
        steps.append("the rows in its target stay, and those that come again are there TWICE")
    steps.append("state (windows, joins, duplicates that were seen) begins empty")
    return steps
