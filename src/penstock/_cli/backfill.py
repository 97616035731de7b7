"""`backfill`: a flow once more over a range of its sources, without doubled rows."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import options
from penstock._cli.options import OutputFormat

if TYPE_CHECKING:
    from penstock._repair.backfill import BackfillReport


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "backfill",
        epilog="Examples: penstock backfill bronze --from 2026-03-01 --to 2026-03-02 "
        "--by partition,offset | penstock backfill silver --from version=4 --to version=9 --yes | "
        "penstock backfill daily --files 'orders-03-*.json' --replace-where \"day = '2026-03-01'\" "
        "--yes | penstock backfill bronze --resume",
    )(backfill)


def backfill(
    flow: options.FlowName,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start of the range: `earliest` (the default), a timestamp, `version=4`, "
            "`key=500`, or offsets as JSON.",
            metavar="POSITION",
        ),
    ] = None,
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
        typer.Option("--files", help="Only files with such a name.", metavar="PATTERN"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Columns that say where a row comes from, or identify it: rows that the table has "
            "are left out.",
            metavar="A,B",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--replace-where",
            help="Replace the rows that fulfil this by those of the range that do.",
            metavar="CONDITION",
        ),
    ] = None,
    accept_fewer: Annotated[
        bool,
        typer.Option("--accept-fewer", help="Though the range has fewer of these than the table."),
    ] = False,
    resume: options.Resume = False,
    abandon: options.Abandon = False,
    yes: options.Yes = False,
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    conf: options.Conf = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Read a range of a flow's sources again, into its table, without doubling rows.

    Prints the plan first. The range must have been read by the flow. Killed half-way, it continues
    with --resume. The flow's own checkpoint is not touched. Refused while the pipeline runs.
    """
    range_ = {"--from": begin, "--to": end, "--files": files}
    how = {"--by": by, "--replace-where": where, "--accept-fewer": accept_fewer}
    options.check_ways({"--resume": resume, "--abandon": abandon}, {**range_, **how})
    settings = options.settings_of(project, spec, storage, conf, pipeline=pipeline, target=target)
    from penstock._repair.backfill import BackfillOptions, backfill_flow
    from penstock.sources.base import parse_start

    options_of_backfill = BackfillOptions(
        begin=None if begin is None else parse_start(begin),
        end=None if end is None else parse_start(end, "--to"),
        files=files,
        by=tuple(name.strip() for name in (by or "").split(",") if name.strip()),
        where=where,
        accept_fewer=accept_fewer,
        resume=resume,
        abandon=abandon,
        execute=yes,
    )
    with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
        report = backfill_flow(settings, flow, options_of_backfill)
    if output is OutputFormat.JSON:
        options.print_json(_as_json(report))
        return
    print(f"backfill of flow {report.flow} into {report.target}: {report.range}")
    for step in report.steps:
        print(f"  {step}")
    if report.state == "planned":
        print("nothing was changed: --yes does it")
        return
    resumed = "resumed and " if report.resumed else ""
    print(f"{resumed}{report.state}")
    for name, count in report.counts.items():
        if count:
            print(f"  {name}: {count:,}")


def _as_json(report: "BackfillReport") -> dict[str, object]:
    return {
        "flow": report.flow,
        "target": report.target,
        "state": report.state,
        "backfill_id": report.backfill_id,
        "resumed": report.resumed,
        "way": report.way,
        "range": report.range,
        "sources": [
            {
                "source": source.source,
                "unit": source.unit,
                "count": source.count,
                "text": source.text,
            }
            for source in report.sources
        ],
        "counts": dict(report.counts),
        "steps": list(report.steps),
    }
