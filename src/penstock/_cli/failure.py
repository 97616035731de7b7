"""Reports exceptions: a message on stderr, and an exit code."""

import re
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

import typer
from typer.exceptions import TyperException

from penstock._cli import exit_codes
from penstock._display.terminal import Output, silence
from penstock._model.exception_text import first_line
from penstock._runtime.boundary import refused_by_system
from penstock.errors import DefinitionErrors, InternalError, PenstockError

_INVALID = re.compile(r"Input should be (.+?)(?:, unable to parse .*)?$")


def report(error: BaseException, *, debug: bool) -> int:
    """Report the error of a command; returns the exit code. `debug` adds the traceback."""
    output = Output(sys.stderr)
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return exit_codes.OK
    if debug and not isinstance(error, KeyboardInterrupt | typer.Abort):
        for line in "".join(traceback.format_exception(error)).splitlines():
            output.line(line)
    error = refused_by_system(error, "running the command") or error
    match error:
        case KeyboardInterrupt() | typer.Abort():
            output.line("interrupted")
            return exit_codes.INTERRUPTED
        case DefinitionErrors():
            for single in error.errors:
                output.line(f"Error: {single}")
            return error.exit_code
        case PenstockError():
            output.line(f"Error: {error}")
            if isinstance(error, InternalError):
                _ask_for_report(error, output)
            return error.exit_code
        case TyperException():  # the base class of usage errors, whose classes are not public
            # Pydantic's message about the value of an option.
            message = error.message.removeprefix("Value error, ")
            error.message = _INVALID.sub(r"it must be \1", message)
            show = getattr(error, "show", None)  # with the usage line of the command
            if show is not None:
                show()
            else:
                output.line(f"Error: {error}")
            return exit_codes.USAGE
        case _:
            output.line(f"Error: unexpected {type(error).__name__}: {first_line(error)}")
            _ask_for_report(error, output)
            return exit_codes.BUG


def _ask_for_report(error: BaseException, output: Output) -> None:
    path = _write_crash(error)
    output.line("  this is a bug in Penstock, not in your pipeline: please report it")
    if path is not None:
        output.line(f"  with the log {path} (review it first: it may contain your data)")


def _write_crash(error: BaseException) -> Path | None:
    """Write the traceback to a new file that only the user can read."""
    from penstock import __version__
    from penstock._observe.masking import shown

    text = shown("".join(traceback.format_exception(error)))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="penstock-crash-", suffix=".log", encoding="utf-8", delete=False
        ) as file:
            file.write(f"penstock {__version__}, Python {sys.version}, {now}\n\n{text}")
    except OSError:
        return None
    return Path(file.name)
