"""`state show`: what the stateful operations of a flow remember."""

import json
from typing import Annotated

import typer

from penstock._cli import options
from penstock._cli.options import OutputFormat

_state = typer.Typer(help="What stateful operations remember, read from the checkpoint.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    _state.command(
        "show",
        epilog="Examples: penstock state show revenue_5m | "
        "penstock state show revenue_5m --operator 0 --output json",
    )(show)
    app.add_typer(_state, name="state", no_args_is_help=True)


@_state.callback()
def _root() -> None:
    pass


def show(
    flow: options.FlowName,
    operator: Annotated[
        int | None,
        typer.Option("--operator", min=0, help="Only the operation with this number."),
    ] = None,
    limit: options.Limit = 20,
    project: options.Project = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print the state of a flow, while its pipeline is stopped."""
    from penstock._cli.inspection import print_table
    from penstock._repair.state import read_flow_state

    settings = options.settings_of(project, spec, storage, pipeline=pipeline, target=target)
    sections = read_flow_state(settings, flow, operator=operator, limit=limit)
    if output is OutputFormat.JSON:
        body = [
            {
                "operator": section.operator,
                "operator_name": section.operator_name,
                "name": section.name,
                "batch_id": section.batch_id,
                "total": section.total,
                "rows": list(section.rows),
            }
            for section in sections
        ]
        options.print_json(body)
        return
    for section in sections:
        operator = f"operator {section.operator} ({section.operator_name})"
        print(f"{operator}, {section.name}, batch {section.batch_id}")
        if section.rows:
            columns = list(dict.fromkeys(name for row in section.rows for name in row))
            print_table(
                columns, [[_cell(row.get(name)) for name in columns] for row in section.rows]
            )
        print(
            f"{len(section.rows):,} of {section.total:,} entr{'y' if section.total == 1 else 'ies'}"
        )


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(inner)}" for key, inner in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
