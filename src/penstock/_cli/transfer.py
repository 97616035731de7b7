"""The progress bar of `penstock jars sync`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock._display.terminal import Output, console, detect
from penstock._display.text import size

if TYPE_CHECKING:
    from penstock._local.jars import SyncProgress


@contextmanager
def shown_progress(*, quiet: bool) -> "Iterator[Callable[[SyncProgress], None] | None]":
    """A callback that shows a sync: a progress bar on a terminal, else a line per jar."""
    if quiet:
        yield None
        return
    terminal = detect(sys.stderr)
    if not terminal.is_live:
        yield _line_per_jar(Output(sys.stderr))
        return

    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console(terminal, sys.stderr),
        refresh_per_second=4,
        expand=True,
    )
    with bar:
        task = bar.add_task("jars", total=None, start=False)

        def show(progress: "SyncProgress") -> None:
            if not bar.tasks[0].started:
                bar.start_task(task)
            bar.update(
                task,
                description=f"jars {progress.done_files}/{progress.total_files}",
                completed=progress.done_bytes,
                total=progress.total_bytes,
            )

        yield show
        if not bar.tasks[0].started:
            bar.update(task, visible=False)


def _line_per_jar(output: Output) -> "Callable[[SyncProgress], None]":
    done = 0

    def show(progress: "SyncProgress") -> None:
        nonlocal done
        if progress.done_files > done:
            done = progress.done_files
            output.line(
                f"{progress.done_files} of {progress.total_files} {progress.file_name} "
                f"({size(progress.done_bytes)} of {size(progress.total_bytes)})"
            )

    return show
