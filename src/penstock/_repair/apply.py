"""Deploys a project: carries out what `penstock plan` prints.

There is no journal of the whole deployment: each decision is stored in the affected state before
anything depends on it, so the plan after an interruption contains the remaining changes. New
checkpoints and full refreshes are marked first, each table before the tables that it streams from.
Then tables are migrated, upstream first, each with its own journal. Updates apply other changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._execution.declaration_changes import Need
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._repair.deployment import compare
from penstock._repair.deployment_plan import Change, DeploymentPlan
from penstock._repair.migrate import MigrationOptions, check_migration, migrate_flow
from penstock._tables.kill_points import kill_point
from penstock.errors import PlanError

Update = Callable[[Sequence[str], Sequence[str]], bool]
"""Runs a triggered update of some or all tables, with a full refresh of others; returns whether
all flows succeeded."""


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    accept_duplicates: bool = False  # targets may get duplicate rows
    accept_less: bool = False  # migrate even if sources have lost rows
    execute: bool = False  # otherwise only planned


@dataclass(frozen=True, kw_only=True)
class ApplyResult:
    plan: DeploymentPlan
    succeeded: bool = True


def apply_deployment(
    settings: PipelineSettings,
    options: ApplyOptions,
    update: Update,
    *,
    on_plan: Callable[[DeploymentPlan], None] = lambda _: None,
) -> ApplyResult:
    """Plan a deployment and carry it out; called again after an interruption, it continues.

    Called on the main thread. Each step holds the leases of an update. `on_plan` is called before
    anything changes.

    Raises:
        PlanError: `DEPLOYMENT_NOT_POSSIBLE`, or an error of a migration. Errors that can be
            detected in advance are raised before anything changes.
    """
    with open_for_command(settings, "apply") as pipeline:
        plan = compare(pipeline)
        on_plan(plan)
        if not options.execute or not plan.pending:
            return ApplyResult(plan=plan)
        _check(plan, options)
        migrations = plan.with_need(Need.MIGRATION)
        upstream = {change.key: _upstream(pipeline, change.key) for change in migrations}
        pending = {change.key for change in plan.pending}
        for change in migrations:
            if not (change.resumes or upstream[change.key] & pending):
                check_migration(
                    pipeline, change.flows[0], MigrationOptions(accept_less=options.accept_less)
                )
        _mark(pipeline, plan)
    updated: set[str] = set()
    others = plan.with_need(Need.UPDATE, Need.CHECKPOINT, Need.FULL_REFRESH)
    for change in migrations:
        # Columns and tables that the new query reads must exist.
        if before := [each for each in others if each.key in upstream[change.key] - updated]:
            if not update([each.name for each in before], _views(before)):
                return ApplyResult(plan=plan, succeeded=False)
            updated |= {each.key for each in before}
            kill_point("apply_updated_before", change.name, None)
        migration = MigrationOptions(
            accept_less=options.accept_less, resume=change.resumes, execute=True
        )
        migrate_flow(settings, change.flows[0], migration)
    views = _views([change for change in plan.pending if change.key not in updated])
    if views and not update((), views):
        return ApplyResult(plan=plan, succeeded=False)
    succeeded = update((), ())
    kill_point("apply_updated", "", None)
    return ApplyResult(plan=plan, succeeded=succeeded)


def _check(plan: DeploymentPlan, options: ApplyOptions) -> None:
    blocked = plan.with_need(Need.IMPOSSIBLE)
    hint = "revert the change, or allow the full refresh of the table"
    if not blocked and not options.accept_duplicates:
        blocked = tuple(change for change in plan.changes if change.refused is not None)
        hint = (
            "--accept-duplicates proceeds anyway; or choose the start of the flow first: `penstock "
            "checkpoint reset FLOW --from POSITION`"
        )
    if blocked:
        change = blocked[0]
        raise PlanError(
            "DEPLOYMENT_NOT_POSSIBLE",
            f"the deployment stops at {change.name}: {change.refused or change.reasons[0]}",
            hint=hint,
        )


def _mark(pipeline: OpenPipeline, plan: DeploymentPlan) -> None:
    """Give flows a new checkpoint, or mark them for a full refresh by the next update."""
    for change in plan.with_need(Need.CHECKPOINT):
        for flow in change.flows:
            pipeline.state.new_flow(flow, {})
            kill_point("apply_new_checkpoint", flow, None)
    for change in reversed(plan.with_need(Need.FULL_REFRESH)):
        if change.kind == "materialized view":
            continue
        pipeline.lease(pipeline.graph.datasets[change.key])
        for flow in change.flows:
            state = pipeline.state.flow(flow)
            if state is None or not state.reset_pending:  # a pending reset keeps its position
                pipeline.state.mark_reset(flow)
        kill_point("apply_marked", change.name, None)


def _views(changes: Sequence[Change]) -> list[str]:
    """Materialized views that need a full refresh; they have no checkpoint to mark."""
    return [
        change.name
        for change in changes
        if change.need is Need.FULL_REFRESH and change.kind == "materialized view"
    ]


def _upstream(pipeline: OpenPipeline, key: str) -> set[str]:
    seen: set[str] = set()
    pending = [key]
    while pending:
        new = pipeline.graph.datasets[pending.pop()].upstream - seen
        seen |= new
        pending += new
    return seen
