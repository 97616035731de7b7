"""`migrate`: recompute the table of a changed flow on a new checkpoint and swap it in."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import options
from penstock._cli.options import OutputFormat

if TYPE_CHECKING:
    from penstock._repair.migration_plan import MigrationReport


def register(app: typer.Typer) -> None:
    app.command(
        "migrate",
        epilog="Examples: penstock migrate per_hour | penstock migrate per_hour --yes | "
        "penstock migrate per_hour --from 2026-03-01 --accept-less --yes | "
        "penstock migrate per_hour --resume | penstock migrate per_hour --undo --yes",
    )(migrate)


@options.grouped
def migrate(
    flow: options.FlowName,
    begin: options.From = None,
    accept_less: Annotated[
        bool,
        typer.Option(
            "--accept-less",
            help="Proceed even if the sources no longer have all the data of the table.",
        ),
    ] = False,
    resume: options.Resume = False,
    abandon: options.Abandon = False,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo", help="Restore the table and the checkpoint from before the last migration."
        ),
    ] = False,
    yes: options.Yes = False,
    *,
    project: options.RepairOptions,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Give a flow with a changed query a new checkpoint and recompute its table.

    Prints the plan first. The new table is written beside the old one and replaces it in one
    commit; the next update continues from there. An interrupted migration continues with --resume.
    Not possible while the pipeline runs, or if the sources no longer have all the data of the
    table.
    """
    options.check_conflicts(
        {"--resume": resume, "--abandon": abandon, "--undo": undo},
        {"--from": begin, "--accept-less": accept_less},
    )
    settings = project.settings()
    from penstock._repair.migrate import MigrationOptions, migrate_flow
    from penstock.sources.base import parse_start

    migration_options = MigrationOptions(
        begin=None if begin is None else parse_start(begin),
        accept_less=accept_less,
        resume=resume,
        abandon=abandon,
        undo=undo,
        execute=yes,
    )
    with options.stdout_to_stderr():
        report = migrate_flow(settings, flow, migration_options)
    if output is OutputFormat.JSON:
        options.print_json(_as_json(report))
        return
    print(f"migration of flow {report.flow}, table {report.target}, from {report.start}:")
    for line in (*report.operators, *report.columns):
        print(f"  {line}")
    for step in report.steps:
        print(f"  - {step}")
    if report.state != "planned":
        print(f"resumed and {report.state}" if report.resumed else report.state)
        return
    if report.refused is not None:
        print(f"refused: {report.refused}")
        print("  --accept-less proceeds anyway")
    print("nothing was changed; --yes applies the plan")


def _as_json(report: "MigrationReport") -> dict[str, object]:
    names = ("flow", "target", "state", "migration_id", "resumed", "old_epoch", "new_epoch")
    more = ("old_version", "new_version", "rows", "operators", "columns", "refused", "steps")
    return {
        **options.attributes(report, *names, *more),
        "from": report.start,
        "bytes": report.size,
        "sources": [
            {
                **options.attributes(source, "source", "unit", "again"),
                "bytes": source.size,
                "missing": source.missing or None,
                "note": source.note or None,
            }
            for source in report.sources
        ],
        "readers": [
            options.attributes(reader, "flow", "target", "effect", "text")
            for reader in report.readers
        ],
    }
