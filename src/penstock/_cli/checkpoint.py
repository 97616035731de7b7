"""`checkpoint`: how far flows have read, what is wrong with their checkpoints, and a new one."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.inspection import print_table
from penstock._cli.options import OutputFormat
from penstock._display.text import size

if TYPE_CHECKING:
    from penstock._tables.read.checkpoint_files import Checkpoint

_app = typer.Typer(help="Checkpoints of flows: how far they have read, and what is wrong.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    _app.command("list", epilog="Example: penstock checkpoint list --output json")(list_all)
    _app.command("inspect", epilog="Example: penstock checkpoint inspect silver")(inspect)
    _app.command("doctor", epilog="Examples: penstock checkpoint doctor | ... doctor silver")(
        doctor
    )
    _app.command(
        "reset",
        epilog="Examples: penstock checkpoint reset silver --from 2026-03-01T10:00:00Z | "
        "penstock checkpoint reset silver --from earliest --truncate --yes | "
        "penstock checkpoint reset gold --from version=12 --yes",
    )(reset)
    app.add_typer(_app, name="checkpoint", no_args_is_help=True)


def list_all(
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print all checkpoints: those that flows continue with, and those of earlier epochs."""
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_files import checkpoints

    settings = options.settings_of(project, spec, storage, pipeline=pipeline, target=target)
    with readable_storage(settings) as readable:
        listed = checkpoints(readable.settings)
    if output is OutputFormat.JSON:
        options.print_json([_summary(checkpoint, readable.shown) for checkpoint in listed])
        return
    if not listed:
        print("no flow has a checkpoint yet")
        return
    heads = ("flow", "epoch", "used", "planned", "finished", "state", "size")
    print_table(
        heads,
        [
            (
                checkpoint.flow,
                checkpoint.epoch,
                "yes" if checkpoint.is_current else "no",
                _number(checkpoint.last_planned),
                _number(checkpoint.last_finished),
                size(sum(part.size for part in checkpoint.state)) if checkpoint.state else "-",
                size(checkpoint.size),
            )
            for checkpoint in listed
        ],
        right=heads[3:],
    )


def inspect(
    flow: options.FlowName,
    epoch: Annotated[
        str | None, typer.Option("--epoch", help="Instead of the one that is used.")
    ] = None,
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print what a checkpoint holds: offsets per source, watermark, state, pinned settings."""
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_files import checkpoints

    settings = options.settings_of(project, spec, storage, pipeline=pipeline, target=target)
    with readable_storage(settings) as readable:
        listed = checkpoints(readable.settings, flow)
    chosen = [
        checkpoint for checkpoint in listed if epoch is None or checkpoint.epoch.startswith(epoch)
    ]
    if not chosen:
        raise typer.BadParameter(
            f"epochs of {flow!r}: {', '.join(checkpoint.epoch for checkpoint in listed)}",
            param_hint="--epoch",
        )
    checkpoint = chosen[0]
    if output is OutputFormat.JSON:
        options.print_json(_details(checkpoint, readable.shown))
        return
    body = _details(checkpoint, readable.shown)
    unused = "" if checkpoint.is_current else " (not used)"
    print(f"flow {checkpoint.flow}, epoch {checkpoint.epoch}{unused}")
    print(f"path {body['path']}")
    print(f"query id {checkpoint.query_id or 'unknown'}")
    print(
        f"batch {_number(checkpoint.last_planned)} planned at {body['planned_at'] or '-'}, "
        f"{_number(checkpoint.last_finished)} finished, watermark {body['watermark'] or 'none'}"
    )
    for number, offset in enumerate(body["offsets"]):
        print(f"source {number}: {json.dumps(offset, ensure_ascii=False)}")
    for operator in body["state"]:
        print(
            f"stateful operator {operator['operator']}: {operator['partitions']} partitions, "
            f"newest version {_number(operator['version'])}, {size(operator['bytes'])}"
        )
    for key, value in body["conf"].items():
        print(f"pinned {key} = {value}")
    for name, reason in checkpoint.damaged.items():
        print(f"damaged: {name} {reason}")


def doctor(
    flow: Annotated[
        str | None, typer.Argument(help="Only this flow.", metavar="FLOW", show_default=False)
    ] = None,
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> int:
    """Look for damage, and for checkpoints that do not fit their tables. Changes nothing.

    Exit code 1 if something would make the next start fail or lose rows.
    """
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_doctor import Severity, examine

    settings = options.settings_of(project, spec, storage, pipeline=pipeline, target=target)
    with readable_storage(settings) as readable:
        diagnosis = examine(readable.settings, flow)
    if output is OutputFormat.JSON:
        options.print_json(
            [
                {
                    "flow": problem.flow,
                    "epoch": problem.epoch,
                    "kind": problem.kind,
                    "weight": problem.severity.value,
                    "message": readable.shown(problem.message),
                    "hint": readable.shown(problem.hint),
                }
                for problem in diagnosis
            ]
        )
    else:
        for problem in diagnosis:
            message = readable.shown(problem.message)
            print(f"{problem.severity} {problem.flow} {problem.kind}: {message}")
            if problem.hint:
                print(f"    hint: {readable.shown(problem.hint)}")
        if not diagnosis:
            print("nothing is wrong")
    bad = any(problem.severity is Severity.ERROR for problem in diagnosis)
    return exit_codes.UPDATE_FAILED if bad else exit_codes.OK


def reset(
    flow: options.FlowName,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Start position: `earliest`, `latest`, a timestamp (`2026-03-01T10:00:00Z`), "
            "`version=12` of a Delta table, `key=500` of a table in a database, or offsets as "
            "JSON.",
            metavar="POSITION",
        ),
    ],
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Empty its table and quarantine first.")
    ] = False,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates", help="Though rows will be in the target twice, or wrong."
        ),
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
    """Give a flow a new checkpoint: it reads its sources from another place.

    Prints what will be read again and what the target does with it. A reset that would double rows
    is refused. The old checkpoint stays; so do the rows in the target, unless they are removed
    first. Refused while the pipeline runs.
    """
    settings = options.settings_of(project, spec, storage, conf, pipeline=pipeline, target=target)
    from penstock._repair.reset import reset_flow
    from penstock.sources.base import parse_start

    place = parse_start(start)
    with redirect_stdout(sys.stderr):  # whatever the pipeline's own code prints
        plan = reset_flow(
            settings,
            flow,
            place,
            truncate=truncate,
            accept_duplicates=accept_duplicates,
            execute=yes,
        )
    if output is OutputFormat.JSON:
        options.print_json(
            {
                "flow": plan.flow,
                "target": plan.target,
                "done": yes,
                "from": plan.start,
                "old_epoch": plan.old_epoch,
                "new_epoch": plan.new_epoch,
                "old_checkpoint": plan.old_checkpoint,
                "effect": plan.effect,
                "truncate": plan.truncates,
                "refused": plan.refused,
                "sources": [
                    {
                        "source": source.source,
                        "unit": source.unit,
                        "again": source.again,
                        "skipped": source.skipped,
                    }
                    for source in plan.sources
                ],
                "steps": list(plan.steps),
            }
        )
        return
    print(f"reset of flow {plan.flow} into {plan.target}, from {plan.start}:")
    for step in plan.steps:
        print(f"  {step}")
    if plan.refused is not None:
        print(f"refused: {plan.refused}")
        print("  --truncate, --accept-duplicates or another place")
    print("done" if yes else "nothing was changed: --yes does it")


def _summary(checkpoint: "Checkpoint", shown: Callable[[str], str]) -> dict[str, Any]:
    return {
        "flow": checkpoint.flow,
        "epoch": checkpoint.epoch,
        "used": checkpoint.is_current,
        "path": shown(str(checkpoint.path)),
        "exists": checkpoint.exists,
        "query_id": checkpoint.query_id,
        "planned_batch": checkpoint.last_planned,
        "finished_batch": checkpoint.last_finished,
        "state_bytes": sum(part.size for part in checkpoint.state),
        "bytes": checkpoint.size,
        "damaged": dict(checkpoint.damaged),
    }


def _details(checkpoint: "Checkpoint", shown: Callable[[str], str]) -> dict[str, Any]:
    last = checkpoint.planned[-1] if checkpoint.planned else None
    operators = sorted({part.operator for part in checkpoint.state})
    state = []
    for operator in operators:
        parts = [part for part in checkpoint.state if part.operator == operator]
        newest = [part.versions[-1] for part in parts if part.versions]
        state.append(
            {
                "operator": operator,
                "partitions": len(parts),
                "version": min(newest) if newest else None,
                "bytes": sum(part.size for part in parts),
            }
        )
    return {
        **_summary(checkpoint, shown),
        "planned_at": _moment(None if last is None else last.timestamp_ms),
        "watermark": _moment(None if last is None else last.watermark_ms or None),
        "offsets": [] if last is None else list(last.offsets),
        "state": state,
        "conf": {} if last is None else dict(last.conf),
    }


def _moment(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
