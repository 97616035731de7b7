"""The command line: its commands, and the handling of their errors."""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock._cli import (
    adopt,
    check,
    checkpoint,
    cluster,
    dashboard,
    deployment,
    exit_codes,
    graph,
    inspection,
    jars,
    lint,
    machine,
    maintain,
    package,
    pipelines,
    repair,
    savepoint,
    scaffold,
    status,
    update,
)
from penstock._cli.failure import report
from penstock._cli.masked_output import masked_output

# Python collects garbage several times at exit, which takes 0.3 s if pandas is imported.
atexit.register(gc.freeze)


class _Commands(TyperGroup):
    """All commands. Typer exits silently if a command is interrupted; this class reports it."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    help="Declarative streaming pipelines on any open-source Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 ok, 1 the update failed, 2 wrong input, 3 the machine is not ready, "
        "70 a bug in Penstock, 130 interrupted."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors; also PENSTOCK_DEBUG=1.")
    ] = False,
) -> None:
    pass


for module in (
    update,
    check,
    lint,
    adopt,
    graph,
    scaffold,
    inspection,
    status,
    pipelines,
    checkpoint,
    repair,
    savepoint,
    deployment,
    maintain,
    jars,
    machine,
    cluster,
    dashboard,
    package,
):
    app.registered_commands += module.app.registered_commands
    app.registered_groups += module.app.registered_groups


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. `--debug` may be anywhere before a `--`."""
    own = list(sys.argv[1:] if arguments is None else arguments)
    rest: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, rest = own[:at], own[at:]
    debug = "--debug" in own or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")
    own = [argument for argument in own if argument != "--debug"]
    with masked_output():
        return _run([*own, *rest], debug=debug)


def _run(arguments: list[str], *, debug: bool) -> int:
    _quieten_logging(debug=debug)
    try:
        command = typer.main.get_command(app)
        code = command.main(arguments, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as error:
        # Typer exits with 1 if the reader of a pipe has closed it, which is not a failure.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        code = report(error.__context__, debug=debug)
    except (Exception, KeyboardInterrupt) as error:
        code = report(error, debug=debug)
    return code if isinstance(code, int) else exit_codes.OK


def _quieten_logging(*, debug: bool) -> None:
    """Log Penstock's warnings to stderr; those of libraries (py4j on Ctrl-C) with `--debug`."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    if not debug:
        handler.addFilter(logging.Filter("penstock"))
    root.addHandler(handler)
