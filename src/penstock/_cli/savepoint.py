"""`savepoint`: create, list, restore and delete savepoints."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import options
from penstock._cli.tables import print_table

if TYPE_CHECKING:
    from penstock._execution.savepoints import Savepoint

_app = typer.Typer(help="Save the state of a pipeline, and restore it.")
_Name = Annotated[
    str, typer.Argument(help="Name of the savepoint.", metavar="NAME", show_default=False)
]

app = typer.Typer()
app.add_typer(_app, name="savepoint", no_args_is_help=True)


@_app.command("create", epilog="Example: penstock savepoint create before-release-7")
@options.grouped
def create(name: _Name, *, project: options.RepairOptions, output: options.Output = "text") -> None:
    """Save the versions of all tables, and copy the checkpoints of all flows.

    Each flow into a table must have finished its last micro-batch, and read all rows of the
    pipeline's own tables, as after a triggered update. Not possible while the pipeline runs.
    """
    settings = project.settings()
    from penstock._repair.savepoint import create_savepoint

    with options.stdout_to_stderr():
        savepoint = create_savepoint(settings, name)
    options.show(output, _body(savepoint), _lines(savepoint))


@_app.command("list", epilog="Example: penstock savepoint list --output json")
@options.grouped
def list_all(*, project: options.ReadOptions, output: options.Output = "text") -> None:
    """List the savepoints of a pipeline, oldest first."""
    settings = project.settings()
    from penstock._repair.savepoint import list_savepoints

    savepoints = list_savepoints(settings)
    if output == "json":
        options.print_json([_body(savepoint) for savepoint in savepoints])
        return
    if not savepoints:
        print("the pipeline has no savepoint")
        return
    heads = ("savepoint", "created", "tables", "flows")
    rows = [
        (point.name, point.created_at, str(len(point.tables)), str(len(point.flows)))
        for point in savepoints
    ]
    print_table(heads, rows, right=heads[2:])


@_app.command(
    "restore",
    epilog="Examples: penstock savepoint restore before-release-7 | "
    "penstock savepoint restore before-release-7 --yes",
)
@options.grouped
def restore(
    name: _Name,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Proceed even if flows write rows into sinks a second time.",
        ),
    ] = False,
    no_undo: Annotated[
        bool,
        typer.Option("--no-undo", help="Do not take a savepoint of the present state first."),
    ] = False,
    yes: options.Yes = False,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> None:
    """Restore all tables and checkpoints of a pipeline to a savepoint.

    Prints the plan first. The present state is saved under another name, to which the pipeline can
    be restored in turn. An interrupted restore is completed when the command is run again; updates
    are refused until then. Rows in sinks stay. Not possible while the pipeline runs.
    """
    settings = project.settings()
    from penstock._repair.restore import RestoreOptions, restore_savepoint

    restore_options = RestoreOptions(
        accept_duplicates=accept_duplicates, keeps_undo=not no_undo, execute=yes
    )
    with options.stdout_to_stderr():
        report = restore_savepoint(settings, name, restore_options)
    if output == "json":
        options.print_json({**asdict(report), "done": yes})
        return
    print(f"restore of savepoint {report.savepoint}, created at {report.created_at}:")
    for step in report.steps:
        print(f"  {step}")
    if not yes:
        print("nothing was changed; --yes applies the plan")
        return
    print("done" if report.undo is None else f"done; the state before is savepoint {report.undo}")


@_app.command("delete", epilog="Example: penstock savepoint delete before-release-7 --yes")
@options.grouped
def delete(
    name: _Name,
    yes: options.Yes = False,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> None:
    """Delete a savepoint. Tables and flows do not change."""
    settings = project.settings()
    from penstock._repair.savepoint import delete_savepoint

    with options.stdout_to_stderr():
        savepoint = delete_savepoint(settings, name, execute=yes)
    end = "deleted" if yes else "nothing was changed; --yes deletes it"
    options.show(output, {**_body(savepoint), "done": yes}, [*_lines(savepoint), end])


def _lines(savepoint: "Savepoint") -> Iterator[str]:
    yield f"savepoint {savepoint.name}, created at {savepoint.created_at}"
    for table in savepoint.tables:
        yield f"  {table.name}: version {table.version}"
    for flow in savepoint.flows:
        batch = "no micro-batch" if flow.batch_id is None else f"micro-batch {flow.batch_id}"
        yield f"  flow {flow.flow}: {batch}"


def _body(savepoint: "Savepoint") -> dict[str, Any]:
    return {
        **options.attributes(savepoint, "name", "created_at"),
        "tables": [options.attributes(table, "name", "version") for table in savepoint.tables],
        "flows": [options.attributes(flow, "flow", "batch_id") for flow in savepoint.flows],
    }
