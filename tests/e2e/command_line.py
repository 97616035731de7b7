"""Commands of `penstock` in this process, on the session of the tests."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

from penstock._cli.main import main


class Answer(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def penstock(folder: Path, *arguments: str) -> Answer:
    """Run a command in a folder, as a shell there would."""
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())
