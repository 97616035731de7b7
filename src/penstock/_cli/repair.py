"""`backfill` and `migrate`: recompute the table of a flow, partly or completely."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import options

if TYPE_CHECKING:
    from penstock._repair.migration_plan import MigrationReport

app = typer.Typer()


@app.command(
    "backfill",
    epilog="Examples: penstock backfill bronze --from 2026-03-01 --to 2026-03-02 "
    "--by partition,offset | penstock backfill silver --from version=4 --to version=9 --yes | "
    "penstock backfill daily --files 'orders-03-*.json' --replace-where \"day = '2026-03-01'\" "
    "--yes | penstock backfill bronze --resume",
)
@options.grouped
def backfill(
    flow: options.FlowName,
    begin: options.From = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="End of the range: a timestamp, `key=900` or offsets (not included), or "
            "`version=9` (included). Default: as far as the flow has read.",
            metavar="POSITION",
        ),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option("--files", help="Read only files whose names match.", metavar="PATTERN"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Columns that identify a row or its source position: rows that the table already "
            "has are skipped.",
            metavar="A,B",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--replace-where",
            help="Replace the rows that match this condition with the matching rows of the range.",
            metavar="CONDITION",
        ),
    ] = None,
    accept_fewer: Annotated[
        bool,
        typer.Option(
            "--accept-fewer",
            help="Proceed even if the range has fewer matching rows than the table.",
        ),
    ] = False,
    resume: options.Resume = False,
    abandon: options.Abandon = False,
    yes: options.Yes = False,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> None:
    """Reprocess a range of a flow's sources into its table without duplicate rows.

    Prints the plan first. The flow must have read the range before. An interrupted backfill
    continues with --resume. The flow's checkpoint does not change. Not possible while the pipeline
    runs.
    """
    options.check_conflicts(
        {"--resume": resume, "--abandon": abandon},
        {
            "--from": begin,
            "--to": end,
            "--files": files,
            "--by": by,
            "--replace-where": where,
            "--accept-fewer": accept_fewer,
        },
    )
    settings = project.settings()
    from penstock._repair.backfill import BackfillOptions, backfill_flow
    from penstock.sources.base import parse_start

    backfill_options = BackfillOptions(
        begin=None if begin is None else parse_start(begin),
        end=None if end is None else parse_start(end, "--to"),
        files=files,
        by=options.names(None if by is None else [by], "--by"),
        where=where,
        accept_fewer=accept_fewer,
        resume=resume,
        abandon=abandon,
        execute=yes,
    )
    with options.stdout_to_stderr():
        report = backfill_flow(settings, flow, backfill_options)
    if output == "json":
        options.print_json(asdict(report))
        return
    print(f"backfill of flow {report.flow} into {report.target}: {report.range}")
    for step in report.steps:
        print(f"  {step}")
    if report.state == "planned":
        print("nothing was changed; --yes applies the plan")
        return
    resumed = "resumed and " if report.resumed else ""
    print(f"{resumed}{report.state}")
    for name, count in report.counts.items():
        if count:
            print(f"  {name}: {count:,}")


@app.command(
    "migrate",
    epilog="Examples: penstock migrate per_hour | penstock migrate per_hour --yes | "
    "penstock migrate per_hour --from 2026-03-01 --accept-less --yes | "
    "penstock migrate per_hour --resume | penstock migrate per_hour --undo --yes",
)
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
    output: options.Output = "text",
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
    if output == "json":
        options.print_json(_migration_body(report))
        return
    if undo:
        print(f"undo the migration of flow {report.flow}: restore {report.start}")
    else:
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


def _migration_body(report: "MigrationReport") -> dict[str, object]:
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
