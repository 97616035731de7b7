"""Gives a flow a new checkpoint.

The epoch makes it safe: it is part of the checkpoint's path and of the application id of the flow's
transactions. The new epoch takes effect with the state file of the flow, which is replaced
atomically. So after a crash the flow has the old checkpoint or the new one, and batch ids that
start at 0 again never match those of the old one. A reset that empties the table is marked in the
same file, and finished by the next update.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.flow import OutputMode
from penstock._model.pipeline import PipelineSettings
from penstock._plan.settings import reset_allowed
from penstock._repair.migration_plan import MigrationFacts
from penstock._repair.migration_plan import why_refused as why_incomplete
from penstock._repair.reading import pipeline_storage
from penstock._tables.kill_points import kill_point
from penstock._tables.read.checkpoint_files import Checkpoint, checkpoints, flow_records
from penstock.errors import PlanError, SpecError
from penstock.sources.base import StartKind, StartPosition, StartReport
from penstock.sources.checkpoints import that_count
from penstock.sources.flow import source_history, start_position

MARKED, EMPTIED = "reset_marked", "reset_emptied"
"""Kill points of a reset that empties the table; it can be resumed after each."""


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    flow: str
    target: str  # table or sink
    start: str  # for messages
    old_epoch: str
    new_epoch: str | None  # None for a plan
    old_checkpoint: str  # folder
    sources: tuple[StartReport, ...]  # rows that each source repeats or skips
    effect: str  # effect of repeated rows on the target: keyed, recomputed, added or refused
    truncates: bool  # the table is emptied
    refused: str | None  # why it needs an option of the user
    hint: str  # options that allow it
    steps: tuple[str, ...]  # one sentence each


def reset_flow(
    settings: PipelineSettings,
    flow: str,
    start: StartPosition,
    *,
    truncate: bool = False,
    accept_duplicates: bool = False,
    execute: bool = False,  # otherwise the plan is only reported
) -> ResetPlan:
    """Plan a new checkpoint for a flow, and create it.

    `accept_duplicates` also allows results that are computed from a part of the source.
    """
    with (
        open_for_command(settings, "checkpoint reset") as pipeline,
        pipeline_storage(pipeline, flow) as stored,
    ):
        node = pipeline.flow(flow)
        pipeline.check_migration(node)
        check_resettable(pipeline, node, truncate=truncate)
        checkpoint = _current(stored.settings, node.flow.name)
        _, sources = pipeline.query(node)
        now_ms = round(time.time() * 1000)
        position, reports = start_position(sources, start, [checkpoint], now_ms)
        effect = effect_on_target(pipeline.graph, node)
        refused, is_whole = None, start.kind is StartKind.EARLIEST
        if not (truncate or accept_duplicates):
            lost = None
            if effect == "recomputed" and is_whole:
                facts = MigrationFacts(pipeline, node, pipeline.graph.datasets[node.target])
                every = checkpoints(stored.settings, node.flow.name)
                relevant = that_count(every, facts.replaced_at())
                lost = why_incomplete(source_history(sources, start, relevant, now_ms)[1])
            refused = why_refused(effect, reports, is_whole=is_whole, lost=lost)
        steps = [
            *_steps(checkpoint, start, reports),
            *steps_of_target(pipeline, node, effect, truncate=truncate),
            "state (windows, joins, deduplication) starts empty",
        ]
        plan = ResetPlan(
            flow=node.flow.name,
            target=pipeline.graph.target_name(node),
            start=str(start),
            old_epoch=checkpoint.epoch,
            new_epoch=None,
            old_checkpoint=stored.shown(str(checkpoint.path)),
            sources=reports,
            effect=effect,
            truncates=truncate,
            refused=refused,
            hint=ways_out(pipeline, node, effect, is_whole=is_whole),
            steps=tuple(map(stored.shown, steps)),
        )
        if not execute:
            return plan
        if refused is not None:
            raise reset_would_double(node, refused, plan.hint)
        name = node.flow.name
        if truncate:
            target = pipeline.graph.datasets[node.target]
            pipeline.lease(target)
            pipeline.state.mark_reset(name, position)
            kill_point(MARKED, name, None)
            pipeline.tables.reset(target)
            kill_point(EMPTIED, name, None)
        return replace(plan, new_epoch=pipeline.state.new_flow(name, position).epoch)


def reset_would_double(node: FlowNode, reason: str, hint: str) -> PlanError:
    """The error for a reset that needs an option of the user."""
    return PlanError(
        "RESET_WOULD_DOUBLE",
        f"flow {node.flow.name!r} is not reset: {reason}",
        origin=node.flow.origin,
        hint=hint,
    )


def why_refused(
    effect: str, reports: tuple[StartReport, ...], *, is_whole: bool, lost: str | None = None
) -> str | None:
    """Why a reset needs an option of the user; `None` if it does not.

    `is_whole` means that all sources are read from their start; `lost` describes rows that they no
    longer have.
    """
    if effect == "keyed":
        return None
    if effect == "refused":
        return (
            "its sink refuses rows of a new checkpoint while it has those of the old one "
            "(SINK_CHECKPOINT_LOST): it must be emptied before the next update"
        )
    if effect == "recomputed":
        if is_whole:
            return lost
        return (
            "its rows are computed from all rows of a key, and the start position skips some: the "
            "target would get wrong values"
        )
    again = [
        f"an unknown number of rows of {report.source}"
        if report.again is None
        else f"{report.again:,} {report.unit}"
        for report in reports
        if report.again != 0
    ]
    if not again:
        return None
    return f"its target is append-only, and {' and '.join(again)} would be duplicated"


def ways_out(pipeline: OpenPipeline, node: FlowNode, effect: str, *, is_whole: bool) -> str:
    """Options that allow a refused reset."""
    ways = []
    with suppress(PlanError):
        check_resettable(pipeline, node, truncate=True)
        ways.append("--truncate empties the table first")
    if effect == "added":
        ways.append("--from latest reads nothing again")
    elif effect == "recomputed" and not is_whole:
        ways.append("--from earliest reads all rows again")
    if effect == "refused":
        ways.append("--accept-duplicates, then empty the sink before the next update")
    else:
        ways.append("--accept-duplicates resets it anyway")
    return "; ".join(ways)


def check_resettable(pipeline: OpenPipeline, node: FlowNode, *, truncate: bool) -> None:
    """Refuse a flow without a checkpoint, and a target that cannot be emptied."""
    reason = hint = ""
    dataset = pipeline.graph.datasets.get(node.target)
    state = pipeline.state.flow(node.flow.name)
    if not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it has no checkpoint: it is not a streaming flow, or one that runs once"
        hint = f"--full-refresh {node.flow.target} recomputes it"
    elif not truncate and state is not None and state.reset_pending:
        # Some rows may be deleted already: the table must be emptied before new ones are added.
        reason = "its full refresh is unfinished"
        hint = "run the pipeline first; or reset with --truncate"
    elif truncate and dataset is None:
        reason = "Penstock cannot empty a sink"
        hint = "empty it, and reset without --truncate"
    elif dataset is None:
        return
    elif truncate and len(dataset.flows) > 1:
        reason = (
            f"{dataset.display} has {len(dataset.flows)} flows, and only one would be restarted"
        )
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
    every = checkpoints(settings, flow)
    current = next((checkpoint for checkpoint in every if checkpoint.is_current), None)
    if current is None and flow not in flow_records(settings):
        # Without the state file, the checkpoint that was written last is assumed to be current.
        current = max(every, key=lambda checkpoint: checkpoint.path.stat().st_mtime)
    if current is None:
        raise SpecError(
            "CHECKPOINT_NOT_FOUND",
            f"flow {flow!r} uses none of its {len(every)} old checkpoints",
            hint="its next start creates a new one",
        )
    return current


def effect_on_target(graph: DataflowGraph, node: FlowNode) -> str:
    """The effect of repeated rows on the target of a flow; see docs/checkpoints.md."""
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
    checkpoint: Checkpoint, start: StartPosition, reports: tuple[StartReport, ...]
) -> list[str]:
    steps = [
        f"the checkpoint of epoch {checkpoint.epoch} (batch {checkpoint.last_finished}) is not "
        f"used any more; its {checkpoint.size:,} bytes stay in {checkpoint.path}",
        f"the flow gets a new epoch, and starts at {start}, regardless of options in its query",
    ]
    for report in reports:
        again = "an unknown number of" if report.again is None else f"{report.again:,}"
        text = f"{report.source}: {again} {report.unit} are read again"
        if report.skipped:
            text += f"; {report.skipped:,} that were not read yet are skipped"
        elif report.skipped is None:
            text += "; older ones that were not read yet are skipped"
        steps.append(text)
    return steps


def steps_of_target(
    pipeline: OpenPipeline, node: FlowNode, effect: str, *, truncate: bool
) -> Iterator[str]:
    """What happens to the rows of the target, one sentence each."""
    if truncate:
        yield "its table and quarantine are emptied first"
        return
    is_complete = node.analysis.output_mode is OutputMode.COMPLETE
    effects = {
        "keyed": "the target identifies rows by their key: repeated rows are not duplicated",
        "refused": "its sink refuses rows of the new checkpoint until it is emptied",
        "recomputed": "the target gets the recomputed values"
        + ("" if is_complete else ", by key; rows of keys that no longer occur stay"),
        "added": "the rows in its target stay, and repeated rows are DUPLICATED",
    }
    yield effects[effect]
    if is_cdc(node.flow):
        yield (
            "events that were applied before stay in the CDC state: after the query was corrected, "
            "--truncate or --full-refresh is needed"
        )
    dataset = pipeline.graph.datasets.get(node.target)
    if dataset is not None and not is_complete and pipeline.tables.wants_quarantine(dataset):
        yield "repeated rows that violate a rule are added to its quarantine again"
