"""`migrate`: a changed flow on a new checkpoint, its table recomputed and replaced at once."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import options
from penstock._cli.options import OutputFormat

if TYPE_CHECKING:
    from penstock._repair.migration_plan import MigrationReport


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "migrate",
        epilog="Examples: penstock migrate per_hour | penstock migrate per_hour --yes | "
        "penstock migrate per_hour --from 2026-03-01 --accept-less --yes | "
        "penstock migrate per_hour --resume | penstock migrate per_hour --undo --yes",
    )(migrate)


def migrate(
    flow: options.FlowName,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start position: `earliest` (the default), a timestamp, `version=4`, `key=500`, "
            "or offsets as JSON.",
            metavar="POSITION",
        ),
    ] = None,
    accept_less: Annotated[
        bool,
        typer.Option(
            "--accept-less", help="Though its sources have less than its table was made of."
        ),
    ] = False,
    resume: options.Resume = False,
    abandon: options.Abandon = False,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Go back to the table and the checkpoint before the last one."),
    ] = False,
    yes: options.Yes = False,
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Give a flow whose query changed a new checkpoint, and recompute its table.

    Prints the plan first. The new table is filled beside the old one, and takes its place in one
    commit; the next update continues from there. Killed half-way, it continues with --resume.
    Refused while the pipeline runs, and where the sources have less than the table was made of.
    """
    options.check_ways(
        {"--resume": resume, "--abandon": abandon, "--undo": undo},
        {"--from": begin, "--accept-less": accept_less},
    )
    settings = options.settings_of(project, spec, storage, conf, pipeline=pipeline, target=target)
    from penstock._repair.migrate import MigrationOptions, migrate_flow
    from penstock.sources.base import parse_start

    options_of_migration = MigrationOptions(
        begin=None if begin is None else parse_start(begin),
        accept_less=accept_less,
        resume=resume,
        abandon=abandon,
        undo=undo,
        execute=yes,
    )
    with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
        report = migrate_flow(settings, flow, options_of_migration)
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
        print("  --accept-less does it nevertheless")
    print("nothing was changed: --yes does it")


def _as_json(report: "MigrationReport") -> dict[str, object]:
    return {
        "flow": report.flow,
        "target": report.target,
        "state": report.state,
        "migration_id": report.migration_id,
        "resumed": report.resumed,
        "from": report.start,
        "old_epoch": report.old_epoch,
        "new_epoch": report.new_epoch,
        "old_version": report.old_version,
        "new_version": report.new_version,
        "rows": report.rows,
        "bytes": report.size,
        "operators": list(report.operators),
        "columns": list(report.columns),
        "sources": [
            {
                "source": source.source,
                "unit": source.unit,
                "again": source.again,
                "bytes": source.size,
                "missing": source.missing or None,
                "note": source.note or None,
            }
            for source in report.sources
        ],
        "readers": [
            {
                "flow": source.flow,
                "target": source.target,
                "effect": source.effect,
                "text": source.text,
            }
            for source in report.readers
        ],
        "refused": report.refused,
        "steps": list(report.steps),
    }
