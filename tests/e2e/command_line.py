"""Commands of `penstock` in this process, on the session of the tests."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

from penstock._cli.main import main


class Answer(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def penstock(folder: Path, *arguments: str) -> Answer:
    """Run a command with this folder as the working directory."""
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())
