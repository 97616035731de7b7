"""`state show`: the state of a flow's stateful operators."""

import json
from typing import Annotated

import typer

from penstock._cli import options
from penstock._cli.options import OutputFormat

_state = typer.Typer(help="State of stateful operators, read from the checkpoint.")


def register(app: typer.Typer) -> None:
    _state.command(
        "show",
        epilog="Examples: penstock state show revenue_5m | "
        "penstock state show revenue_5m --operator 0 --output json",
    )(show)
    app.add_typer(_state, name="state", no_args_is_help=True)


@_state.callback()
def _root() -> None:
    pass


@options.grouped
def show(
    flow: options.FlowName,
    operator: Annotated[
        int | None,
        typer.Option("--operator", min=0, help="Show only the operator with this number."),
    ] = None,
    limit: options.Limit = 20,
    *,
    project: options.ReadOptions,
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print the state of a flow; the pipeline must be stopped."""
    from penstock._cli.inspection import print_table
    from penstock._repair.state import read_flow_state

    settings = project.settings()
    sections = read_flow_state(settings, flow, operator=operator, limit=limit)
    if output is OutputFormat.JSON:
        names = ("operator", "operator_name", "name", "batch_id", "total", "rows")
        options.print_json([options.attributes(section, *names) for section in sections])
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
