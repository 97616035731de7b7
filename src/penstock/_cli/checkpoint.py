"""`checkpoint` and `state`: the checkpoints of flows, and the state of their operators."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.tables import print_table, shown_id
from penstock._display.text import size
from penstock._model.quantity import plural

if TYPE_CHECKING:
    from penstock._tables.read.checkpoint_files import Checkpoint

_app = typer.Typer(help="List, inspect, diagnose and reset the checkpoints of flows.")
_state = typer.Typer(help="State of stateful operators, read from the checkpoint.")
app = typer.Typer()
app.add_typer(_app, name="checkpoint", no_args_is_help=True)
app.add_typer(_state, name="state", no_args_is_help=True)


@_app.command("list", epilog="Example: penstock checkpoint list --output json")
@options.grouped
def list_all(*, project: options.ReadOptions, output: options.Output = "text") -> None:
    """List the checkpoints of all flows, current and earlier ones."""
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_files import checkpoints

    settings = project.settings()
    with readable_storage(settings) as readable:
        listed = checkpoints(readable.settings)
    if output == "json":
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
                shown_id(checkpoint.epoch),
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


@_app.command("inspect", epilog="Example: penstock checkpoint inspect silver")
@options.grouped
def inspect(
    flow: options.FlowName,
    epoch: Annotated[
        str | None,
        typer.Option("--epoch", help="Epoch to show, or its prefix; default: the current one."),
    ] = None,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print the contents of a checkpoint: offsets per source, watermark, state, pinned settings."""
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_files import checkpoints

    settings = project.settings()
    with readable_storage(settings) as readable:
        listed = checkpoints(readable.settings, flow)
    chosen = next((each for each in listed if each.epoch.startswith(epoch or "")), None)
    if chosen is None:
        raise typer.BadParameter(
            f"epochs of {flow!r}: {', '.join(each.epoch for each in listed)}", param_hint="--epoch"
        )
    body = _details(chosen, readable.shown)
    if output == "json":
        options.print_json(body)
        return
    print(f"flow {flow}, epoch {chosen.epoch}{'' if chosen.is_current else ' (not used)'}")
    print(f"path {body['path']}")
    print(f"query id {chosen.query_id or 'unknown'}")
    print(
        f"batch {_number(chosen.last_planned)} planned at {body['planned_at'] or '-'}, "
        f"{_number(chosen.last_finished)} finished, watermark {body['watermark'] or 'none'}"
    )
    for number, offset in enumerate(body["offsets"]):
        print(f"source {number}: {json.dumps(offset, ensure_ascii=False)}")
    for operator in body["state"]:
        print(
            f"stateful operator {operator['operator']}: "
            f"{plural(operator['partitions'], 'partition')}, "
            f"newest version {_number(operator['version'])}, {size(operator['bytes'])}"
        )
    for key, value in body["conf"].items():
        print(f"pinned {key} = {value}")
    for name, reason in chosen.damaged.items():
        print(f"damaged: {name} {reason}")


@_app.command("doctor", epilog="Examples: penstock checkpoint doctor | ... doctor silver")
@options.grouped
def doctor(
    flow: Annotated[
        str | None, typer.Argument(help="Check only this flow.", metavar="FLOW", show_default=False)
    ] = None,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> int:
    """Check checkpoints for damage and for mismatches with their tables. Changes nothing.

    Exit code 1 if the next start would fail or lose rows.
    """
    from penstock._repair.reading import readable_storage
    from penstock._tables.read.checkpoint_doctor import Severity, examine

    settings = project.settings()
    with readable_storage(settings) as readable:
        findings = examine(readable.settings, flow)
    if output == "json":
        options.print_json(
            [
                {
                    **options.attributes(finding, "flow", "epoch", "kind"),
                    "weight": finding.severity.value,
                    "message": readable.shown(finding.message),
                    "hint": readable.shown(finding.hint),
                }
                for finding in findings
            ]
        )
    else:
        for finding in findings:
            message = readable.shown(finding.message)
            print(f"{finding.severity} {finding.flow} {finding.kind}: {message}")
            if finding.hint:
                print(f"    hint: {readable.shown(finding.hint)}")
        if not findings:
            print("no problems found")
    has_error = any(finding.severity is Severity.ERROR for finding in findings)
    return exit_codes.UPDATE_FAILED if has_error else exit_codes.OK


@_app.command(
    "reset",
    epilog="Examples: penstock checkpoint reset silver --from 2026-03-01T10:00:00Z | "
    "penstock checkpoint reset silver --from earliest --truncate --yes | "
    "penstock checkpoint reset gold --from version=12 --yes | "
    "penstock checkpoint reset bronze --from-checkpoint checkpoints/orders --yes",
)
@options.grouped
def reset(
    flow: options.FlowName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start position: `earliest`, `latest`, a timestamp (`2026-03-01T10:00:00Z`), "
            "`version=12` of a Delta table, `key=500` of a table in a database, or offsets as "
            "JSON.",
            metavar="POSITION",
        ),
    ] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            help="Continue where a query of another program stopped: its checkpoint, a folder or "
            "URI, is copied. For stateless flows that have not run yet.",
            metavar="LOCATION",
        ),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Truncate the table and its quarantine first.")
    ] = False,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Proceed even if the target will have duplicate or wrong rows.",
        ),
    ] = False,
    yes: options.Yes = False,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> None:
    """Give a flow a new checkpoint that starts at another position of its sources.

    Prints what is read again and what the target does with these rows. A reset that would
    duplicate rows is refused. The old checkpoint is kept, and so are the rows of the target unless
    they are removed first. Not possible while the pipeline runs.
    """
    if (start is None) is (from_checkpoint is None):
        raise typer.BadParameter(
            "one of the two is required", param_hint="--from, --from-checkpoint"
        )
    if from_checkpoint is not None and truncate:
        raise typer.BadParameter("not with --from-checkpoint", param_hint="--truncate")
    settings = project.settings()
    from penstock._project.locations import absolute_location
    from penstock._repair.copied_checkpoint import reset_to_checkpoint
    from penstock._repair.reset import reset_flow
    from penstock.sources.base import parse_start

    with options.stdout_to_stderr():
        if from_checkpoint is not None:
            place = absolute_location(from_checkpoint, Path.cwd())
            plan = reset_to_checkpoint(
                settings, flow, place, accept_duplicates=accept_duplicates, execute=yes
            )
        else:
            plan = reset_flow(
                settings,
                flow,
                parse_start(start or ""),
                truncate=truncate,
                accept_duplicates=accept_duplicates,
                execute=yes,
            )
    if output == "json":
        options.print_json(
            {
                **options.attributes(plan, "flow", "target", "old_epoch", "new_epoch"),
                **options.attributes(plan, "old_checkpoint", "effect", "refused", "steps"),
                "done": yes,
                "from": plan.start,
                "truncate": plan.truncates,
                "sources": [
                    options.attributes(source, "source", "unit", "again", "skipped")
                    for source in plan.sources
                ],
            }
        )
        return
    print(f"reset of flow {plan.flow} into {plan.target}, from {plan.start}:")
    for step in plan.steps:
        print(f"  {step}")
    if plan.refused is not None:
        print(f"refused: {plan.refused}")
        print(f"  {plan.hint}")
    print("done" if yes else "nothing was changed; --yes applies the plan")


@_state.command(
    "show",
    epilog="Examples: penstock state show revenue_5m | "
    "penstock state show revenue_5m --operator 0 --output json",
)
@options.grouped
def show_state(
    flow: options.FlowName,
    operator: Annotated[
        int | None,
        typer.Option("--operator", min=0, help="Show only the operator with this number."),
    ] = None,
    limit: options.Limit = 20,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print the state of a flow; the pipeline must be stopped."""
    from penstock._repair.reading import read_flow_state

    settings = project.settings()
    sections = read_flow_state(settings, flow, operator=operator, limit=limit)
    if output == "json":
        options.print_json([asdict(section) for section in sections])
        return
    for section in sections:
        print(
            f"operator {section.operator} ({section.operator_name}), {section.name}, "
            f"batch {section.batch_id}"
        )
        rows = section.rows
        if rows:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            print_table(columns, [[_cell(row.get(name)) for name in columns] for row in rows])
        print(f"{len(rows):,} of {section.total:,} entr{'y' if section.total == 1 else 'ies'}")


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(inner)}" for key, inner in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _summary(checkpoint: "Checkpoint", shown: Callable[[str], str]) -> dict[str, Any]:
    return {
        **options.attributes(checkpoint, "flow", "epoch", "exists", "query_id"),
        "used": checkpoint.is_current,
        "path": shown(str(checkpoint.path)),
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
        "planned_at": _timestamp(None if last is None else last.timestamp_ms),
        "watermark": _timestamp(None if last is None else last.watermark_ms or None),
        "offsets": [] if last is None else list(last.offsets),
        "state": state,
        "conf": {} if last is None else dict(last.conf),
    }


def _timestamp(milliseconds: int | None) -> str | None:
    from penstock._observe.codec import time_text

    if milliseconds is None:
        return None
    try:
        return time_text(datetime.fromtimestamp(milliseconds / 1000, UTC))
    except (ValueError, OverflowError):  # after the year 9999
        return f"{milliseconds} ms since 1970"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
