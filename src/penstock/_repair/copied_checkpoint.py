"""Lets a flow that has never run continue where a query of another program stopped.

The flow gets a copy of the query's checkpoint: it continues with the same offsets, files that were
read and batch ids in every source, and sinks that identify batches by id do not skip new ones.
"""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock._execution.flow_state import FlowState
from penstock._graph.dataflow import FlowNode
from penstock._launch import open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._repair.reset import ResetPlan, check_resettable, reset_would_double
from penstock._tables.files import StorageFiles
from penstock._tables.layout import layout_of
from penstock._tables.read.checkpoint_files import Checkpoint, read_checkpoint
from penstock.errors import PlanError, SpecError


def reset_to_checkpoint(
    settings: PipelineSettings,
    flow: str,
    checkpoint: str,
    *,
    accept_duplicates: bool = False,
    execute: bool = False,
) -> ResetPlan:
    """Plan a flow's start with a copy of a checkpoint, and make the copy with `execute`.

    `checkpoint` is the path or URI of another query's checkpoint, which is not changed. With
    `accept_duplicates`, the flow may have run, and the newest batch may be unfinished.

    Raises:
        SpecError: `CHECKPOINT_NOT_FOUND`.
        PlanError: `RESET_NOT_POSSIBLE`, `RESET_WOULD_DOUBLE`.
    """
    with (
        open_for_command(settings, "checkpoint reset") as pipeline,
        TemporaryDirectory(prefix="penstock-checkpoint-") as scratch,
    ):
        node = pipeline.flow(flow)
        name = node.flow.name
        pipeline.check_migration(node)
        check_resettable(pipeline, node, truncate=False)
        before = pipeline.state.flow(name)
        files, copied = StorageFiles(pipeline.spark), f"{Path(scratch).as_uri()}/checkpoint"
        if not files.copy_tree(checkpoint, copied):
            raise SpecError(
                "CHECKPOINT_NOT_FOUND",
                f"there is no folder {checkpoint}",
                hint="give the folder that the query has as checkpointLocation",
            )
        old = read_checkpoint(name, "", Path(scratch) / "checkpoint")
        _check(node, checkpoint, old)
        plan = ResetPlan(
            flow=name,
            target=pipeline.graph.target_name(node),
            start=f"checkpoint {checkpoint}",
            old_epoch="" if before is None else before.epoch,
            new_epoch=None,
            old_checkpoint=checkpoint,
            sources=(),
            effect="added",
            truncates=False,
            refused=None if accept_duplicates else _why_refused(before, old),
            hint="--accept-duplicates resets it anyway",
            steps=(
                f"the flow gets a new epoch with a copy of {checkpoint}, which stays as it is",
                f"it continues after batch {old.last_finished}, after the offsets {_offsets(old)}",
            ),
        )
        if not execute:
            return plan
        if plan.refused is not None:
            raise reset_would_double(node, plan.refused, plan.hint)
        state = FlowState(epoch=uuid.uuid4().hex)
        copy_checkpoint(files, copied, layout_of(settings).checkpoint_path(name, state.epoch))
        pipeline.state.save_flow(name, state)
        return replace(plan, new_epoch=state.epoch)


def copy_checkpoint(files: StorageFiles, source: str, target: str) -> bool:
    """Copy a checkpoint, with a new query id; `False` if it does not exist."""
    if not files.copy_tree(source, target):
        return False
    files.write(f"{target}/metadata", json.dumps({"id": str(uuid.uuid4())}))
    return True


def _check(node: FlowNode, path: str, old: Checkpoint) -> None:
    if old.last_finished is None:
        raise SpecError(
            "CHECKPOINT_NOT_FOUND",
            f"{path} has no finished batch of a query",
            hint="give the folder that the query has as checkpointLocation",
        )
    operators = node.analysis.stateful_operators
    state = [line for line in operators if not line.startswith("source")]
    count = len(old.planned[-1].offsets) if old.planned else 0
    reason, hint = "", f"`penstock checkpoint reset {node.flow.name} --from` takes other positions"
    if state:
        reason = f"its query keeps state, which is not taken from other programs: {state[0]}"
        hint = "let the flow read its sources from the start, into an empty table"
    elif old.damaged:
        file, problem = next(iter(old.damaged.items()))
        reason = f"{file} of {path} {problem}"
    elif count != len(operators):
        reason = f"its query reads {len(operators)} streams, and {path} has offsets of {count}"
    if reason:
        raise PlanError(
            "RESET_NOT_POSSIBLE",
            f"flow {node.flow.name!r} cannot start with this checkpoint: {reason}",
            origin=node.flow.origin,
            hint=hint,
        )


def _why_refused(before: FlowState | None, old: Checkpoint) -> str | None:
    if before is not None and before.stateful_operators is not None:
        return "it has run: rows after the checkpoint may be in its target already"
    if old.last_planned != old.last_finished:
        return (
            f"batch {old.last_planned} of the checkpoint is planned and not finished: its rows may "
            "be in the target already; let the program finish it first"
        )
    return None


def _offsets(old: Checkpoint) -> str:
    last = next((batch for batch in old.planned if batch.batch_id == old.last_finished), None)
    return json.dumps([] if last is None else last.offsets)
