"""`maintain`: compaction, ordering and VACUUM of tables."""

from typing import Annotated

import typer

from penstock._cli import exit_codes, options

app = typer.Typer()


@app.command(
    "maintain",
    epilog="Examples: penstock maintain | penstock maintain bronze silver --no-vacuum | "
    "penstock maintain --output json",
)
@options.grouped
def maintain(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables; default: all.", metavar="TABLE")
    ] = None,
    vacuum: Annotated[
        bool | None,
        typer.Option(
            "--vacuum/--no-vacuum",
            help="Delete files that no version of the retention period needs; default: settings.",
            show_default=False,
        ),
    ] = None,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> int:
    """Compact, order and VACUUM the tables of a pipeline.

    An update does this by itself while it runs, within the limits of the `maintenance` settings.
    Not possible while the pipeline runs.
    """
    settings = project.settings()
    from penstock._observe.events import MaintenanceProgress
    from penstock._repair.maintain import maintain_tables

    if vacuum is None:
        vacuum = settings.maintenance.vacuum_interval_hours is not None
    with options.stdout_to_stderr():
        events = maintain_tables(settings, tuple(tables or ()), vacuum=vacuum)
    bodies = [event.body for event in events if isinstance(event.body, MaintenanceProgress)]
    if output == "json":
        names = ("table", "operation", "status", "table_version", "reason")
        options.print_json(
            [{**options.attributes(body, *names), "metrics": dict(body.metrics)} for body in bodies]
        )
    elif not events:
        print("nothing to do")
    else:
        for event in events:
            print(event.message)
    failed = any(body.status == "FAILED" for body in bodies)
    return exit_codes.UPDATE_FAILED if failed else exit_codes.OK
