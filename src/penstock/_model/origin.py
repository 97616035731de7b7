"""Locations of declarations in the user's source."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

# Not resolved: code objects have the paths that modules were imported from.
_PACKAGE_ROOT = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class SourceLocation:
    """A file and a line (counted from 1) in the user's source.

    The path is relative to the project if the file is inside it.
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_ours(filename: str) -> bool:
    """Whether a file of a traceback belongs to Penstock; the demo's pipeline is user code."""
    return filename.startswith(_PACKAGE_ROOT) and "/_local/demo/" not in filename


def source_location(file: str, line: int) -> SourceLocation:
    """Return a location whose file is relative to the working directory if it is inside it."""
    try:
        shown = str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        shown = file
    return SourceLocation(shown, line)


def capture_origin() -> SourceLocation:
    """Return the location of the nearest caller outside of Penstock.

    Called by every decorator and function of the declarative API, on the thread that runs the
    user's file. For a decorator this is the line on which the decorator is applied.
    """
    frame = sys._getframe(1)
    between = contextlib.__file__  # enters our context managers
    while frame.f_back is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename == between
    ):
        frame = frame.f_back
    return source_location(frame.f_code.co_filename, frame.f_lineno)
