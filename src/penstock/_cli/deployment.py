"""`plan` and `apply`: the changes that a deployment of the project makes, and the deployment."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options

if TYPE_CHECKING:
    from penstock._repair.deployment_plan import DeploymentPlan

app = typer.Typer()


@app.command("plan", epilog="Examples: penstock plan | penstock plan shop --output json")
@options.grouped
def plan(*, project: options.GraphOptions, output: options.Output = "text") -> None:
    """Compare the project with what is deployed at its storage. Changes nothing.

    Prints the tables and sinks that were added, changed or removed, and what each needs: the next
    update, a new checkpoint, a migration or a full refresh. Rows are not read. `dry-run` prints the
    steps of an update instead, and does not look at the storage.
    """
    settings = project.settings()
    from penstock._repair.deployment import plan_deployment

    with options.stdout_to_stderr():
        planned = plan_deployment(settings)
    if output == "json":
        options.print_json(_body(planned))
        return
    _print(planned)
    if planned.pending:
        print("nothing was changed; `penstock apply --yes` deploys it")


@app.command(
    "apply",
    epilog="Examples: penstock apply | penstock apply --yes | "
    "penstock apply --yes --accept-duplicates",
)
@options.grouped
def apply(
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Proceed even if new checkpoints write rows into append-only targets again.",
        ),
    ] = False,
    accept_less: Annotated[
        bool,
        typer.Option(
            "--accept-less",
            help="Proceed even if the sources no longer have all the data of a migrated table.",
        ),
    ] = False,
    yes: options.Yes = False,
    *,
    project: options.GraphOptions,
    output: options.Output = "text",
) -> int:
    """Deploy the project: print the plan, and carry it out.

    Migrates tables, starts flows over, and runs a triggered update. An interrupted deployment
    continues when the command is run again. Not possible while the pipeline runs.
    """
    settings = project.settings()
    from penstock._cli.update import show_failures
    from penstock._repair.apply import ApplyOptions, apply_deployment
    from penstock._update import UpdateOptions
    from penstock.pipelines import UpdateState, watch_update

    is_json = output == "json"

    def update(refresh: Sequence[str], full_refresh: Sequence[str]) -> bool:
        update_options = UpdateOptions(refresh=tuple(refresh), full_refresh=tuple(full_refresh))
        result = watch_update(settings, update_options).result
        show_failures(result)
        return result.state is UpdateState.COMPLETED

    apply_options = ApplyOptions(
        accept_duplicates=accept_duplicates, accept_less=accept_less, execute=yes
    )
    with options.stdout_to_stderr() if is_json else nullcontext():
        result = apply_deployment(settings, apply_options, update, on_plan=_print)
    is_done = yes and result.succeeded
    if is_json:
        options.print_json({**_body(result.plan), "done": is_done})
    elif not result.plan.pending and result.succeeded:
        pass  # The plan already states that there are no changes.
    elif not yes:
        print("nothing was changed; --yes applies the plan")
    elif result.succeeded:
        print("done")
    else:
        print("not complete; `penstock apply --yes` continues when the cause is removed")
    return exit_codes.OK if result.succeeded else exit_codes.UPDATE_FAILED


def _print(planned: "DeploymentPlan") -> None:
    from penstock._repair.deployment_plan import plan_lines

    print("\n".join(plan_lines(planned)), flush=True)


def _body(planned: "DeploymentPlan") -> dict[str, Any]:
    changes = [{**asdict(change), "need": change.need.text} for change in planned.changes]
    return {**asdict(planned), "changes": changes}
