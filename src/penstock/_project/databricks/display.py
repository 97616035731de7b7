"""`display`, `displayHTML` and `df.display()`: in a pipeline there is nobody to show things to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def display(*_objects: Any, **_options: Any) -> None:
    """Ignore the arguments; starts no query."""


def display_html(_html: str = "", *_options: Any, **_more: Any) -> None:
    """Ignore the HTML."""


@contextmanager
def displayable_frames() -> Iterator[None]:
    """Add `DataFrame.display` for the duration of the context."""
    # Looked up rather than imported: without Spark there are no DataFrames.
    frames: Any = getattr(sys.modules.get("pyspark.sql"), "DataFrame", None)
    if frames is None or "display" in vars(frames):
        yield
        return
    frames.display = display
    try:
        yield
    finally:
        del frames.display
