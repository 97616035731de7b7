"""Tables in the output of commands."""

import sys
from collections.abc import Iterable, Sequence

WIDE = 110
"""Minimum terminal width for all columns, and for complete ids."""
_UNBOUNDED = 1_000_000
_SHORT_ID = 8


def is_narrow() -> bool:
    from penstock._display.terminal import detect

    return sys.stdout.isatty() and detect(sys.stdout).width < WIDE


def shown_id(text: str) -> str:
    """An id; in a narrow terminal only a prefix, which commands accept."""
    return text[:_SHORT_ID] if is_narrow() else text


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    width: int | None = None,
) -> None:
    """Print a table that fits the terminal, with shortened cells; complete in a pipe.

    The columns named in `right` are aligned to the right. `width` is for a table whose text is
    shown on a terminal later.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    from penstock._display.terminal import console, detect
    from penstock._display.text import printable
    from penstock._tables.read.cells import MAX_CELL

    terminal = detect(sys.stdout)
    drawing = console(terminal)
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        drawn.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    most = MAX_CELL if sys.stdout.isatty() else sys.maxsize
    for row in rows:
        drawn.add_row(
            *(
                Text(printable(cell if len(cell) <= most else f"{cell[: most - 1]}…"))
                for cell in row
            )
        )
    if width is not None:
        drawing.width = width
    elif not sys.stdout.isatty():
        drawing.width = _UNBOUNDED
        drawing.width = max(terminal.width, drawing.measure(drawn).maximum)
    drawing.print(drawn)
