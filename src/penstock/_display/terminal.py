"""Abilities of the terminal, and output to one that may be closed."""

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from penstock._display.text import printable

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """The abilities of an output stream; `is_live` means that lines can be redrawn."""

    is_live: bool
    has_colour: bool
    width: int


def detect(stream: TextIO, environ: Mapping[str, str] | None = None) -> Terminal:
    """Detect the abilities of a stream; honours `NO_COLOR`, `CI` and `TERM=dumb`."""
    env = os.environ if environ is None else environ
    is_tty = stream.isatty() and env.get("TERM", "") not in ("dumb", "unknown")
    is_ci = env.get("CI", "").lower() not in ("", "0", "false", "no")
    if env.get("COLUMNS", "").isdigit() and int(env["COLUMNS"]) > 0:
        width = int(env["COLUMNS"])
    elif stream.isatty():
        width = shutil.get_terminal_size().columns
    else:
        width = _PLAIN_WIDTH
    return Terminal(
        is_live=is_tty and not is_ci,
        has_colour=is_tty and not env.get("NO_COLOR"),
        width=max(40, width),
    )


def console(terminal: Terminal, stream: TextIO | None = None) -> "Console":
    """A Rich console with the abilities of `terminal` instead of Rich's own detection."""
    from rich.console import Console

    return Console(
        file=stream,
        width=None if terminal.is_live else terminal.width,
        force_terminal=terminal.is_live or terminal.has_colour,
        no_color=not terminal.has_colour,
        color_system="auto" if terminal.has_colour else None,
        force_interactive=terminal.is_live,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


class Output:
    """Writes lines to a stream and flushes each one; ignores lines once the reader is gone.

    An update continues when its progress is no longer read.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._is_broken = False

    def line(self, text: str, *, is_masked: bool = False) -> None:
        """Write one line, replacing unencodable characters; `is_masked` JSON has no secrets."""
        if self._is_broken:
            return
        stream = self._stream if self._stream is not None else sys.stdout
        if not is_masked:
            text = printable(text)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
        try:
            write = getattr(stream, "write_as_is", stream.write) if is_masked else stream.write
            write(text + "\n")
            stream.flush()
        except OSError:  # the reader ended, the terminal was closed, the disk is full
            self._is_broken = True
            silence(stream)


def silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null, so that its last flush cannot fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
