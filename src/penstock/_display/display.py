"""Chooses how a running update is shown: a live table, lines of text or JSON."""

import sys
import uuid
from contextlib import AbstractContextManager, redirect_stdout, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from penstock._display.lines import JsonPrinter, LinePrinter
from penstock._display.terminal import Output, Terminal, console, detect
from penstock._display.text import rows_text, seconds
from penstock._model.quantity import plural
from penstock._observe.bus import EventBus
from penstock._observe.codec import time_text
from penstock._observe.events import FlowStatus, UpdateState
from penstock._observe.snapshot import UpdateView, update_view
from penstock._observe.state import ObservedUpdate

if TYPE_CHECKING:
    from rich.console import RenderableType

_REFRESH_PER_SECOND = 4
_MOST_WARNINGS = 5
_STOP_NOTE = "stopping after the micro-batches in flight; press Ctrl-C again to interrupt them"


class LogFormat(StrEnum):
    """How `run` shows its progress on stdout."""

    TEXT = "text"
    JSON = "json"


def choose_display(
    bus: EventBus, update: ObservedUpdate, *, log_format: LogFormat, quiet: bool
) -> AbstractContextManager[object]:
    """The display for these options and this terminal, subscribed to the bus."""
    terminal = detect(sys.stdout)
    if log_format is LogFormat.JSON:
        lines = Output(sys.stdout)
        bus.subscribe(JsonPrinter(lines, instance=str(uuid.uuid4()), quiet=quiet))
        return redirect_stdout(sys.stderr)  # all other output
    if terminal.is_live and not quiet:
        return LiveDisplay(update, terminal)
    bus.subscribe(LinePrinter(Output(sys.stderr if quiet else None), update, quiet=quiet))
    return LineDisplay(update, terminal, quiet=quiet)


class LineDisplay:
    """Adds the summary to the lines that a `LinePrinter` prints."""

    def __init__(self, update: ObservedUpdate, terminal: Terminal, *, quiet: bool) -> None:
        self._update = update
        self._terminal = terminal
        self._quiet = quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        view = update_view(self._update)
        output = Output()
        if not self._quiet:
            if view.datasets:
                from penstock._display.render import summary_table

                drawing = console(self._terminal)
                with drawing.capture() as captured:
                    drawing.print(summary_table(view, width=self._terminal.width))
                output.line("")
                for line in captured.get().splitlines():
                    output.line(line.rstrip())
            for line in summary_lines(view):
                output.line(line)
        if view.has_ended:
            output.line(final_line(view))


class LiveDisplay:
    """A table that is redrawn in place and becomes the summary at the end."""

    def __init__(self, update: ObservedUpdate, terminal: Terminal) -> None:
        from rich.live import Live

        self._update = update
        self._console = console(terminal)
        self._has_ended = False
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=_REFRESH_PER_SECOND,
            vertical_overflow="ellipsis",
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        with suppress(OSError):  # the terminal may have been closed meanwhile
            self._live.stop()
            view = update_view(self._update)
            ending = [final_line(view)] if view.has_ended else []
            warnings = dict.fromkeys(text.partition("\n")[0] for text in view.warnings)
            newest = [f"WARN {text}" for text in warnings][-_MOST_WARNINGS:]
            for line in (*newest, *summary_lines(view), *ending):
                self._console.print(line, soft_wrap=True)

    def _render(self) -> "RenderableType":
        from rich.text import Text

        from penstock._display.render import live_view, summary_table

        view = update_view(self._update)
        width, height = self._console.size
        if self._has_ended:
            return summary_table(view, width=width) if view.datasets else Text("")
        if view.state is None and not view.datasets:
            return Text("starting Spark ...", style="dim")
        note = _STOP_NOTE if view.state is UpdateState.STOPPING else ""
        return live_view(view, width=width, height=height, note=note)


def summary_lines(view: UpdateView) -> list[str]:
    """The lines below the summary table: violated rules and the paths of the logs."""
    lines = []
    for dataset in view.datasets:
        for rule in dataset.rules:
            if rule.failed:
                total = rule.passed + rule.failed
                lines.append(
                    f"rule {rule.name} of {dataset.display}: violated by {rule.failed:,} of "
                    f"{plural(total, 'row')}"
                )
        if dataset.deleted:
            lines.append(f"{plural(dataset.deleted, 'row')} of {dataset.display} deleted")
        if dataset.late:
            why = ""
            if dataset.early_watermark is not None:
                until = time_text(dataset.early_watermark)
                why = f": the watermark is ahead of the clock, at {until}"
            lines.append(f"{plural(dataset.late, 'late row')} of {dataset.display}{why}")
        if dataset.duplicates:
            duplicates = plural(dataset.duplicates, "duplicate")
            lines.append(f"{duplicates} of {dataset.display} left out")
    if view.properties.get("event_log"):
        lines.append(f"event log: {view.properties['event_log']}")
    if view.properties.get("spark_log"):
        lines.append(f"Spark log: {view.properties['spark_log']}")
    return lines


def final_line(view: UpdateView) -> str:
    """The update in one line; also printed with `--quiet`."""
    ending = view.state.value if view.state is not None else "ended"
    parts = [
        plural(len(view.datasets), "dataset"),
        f"{rows_text(view.rows)} written",
    ]
    quarantined = sum(dataset.quarantined for dataset in view.datasets)
    if quarantined:
        parts.append(f"{quarantined:,} quarantined")
    dropped = sum(dataset.discarded for dataset in view.datasets)
    if dropped:
        parts.append(f"{dropped:,} dropped")
    for state, verb in ((FlowStatus.FAILED, "failed"), (FlowStatus.SKIPPED, "skipped")):
        if names := [dataset.display for dataset in view.datasets if dataset.state is state]:
            parts.append(f"{verb}: {', '.join(names)}")
    name = view.pipeline_name or "pipeline"
    return f"{name} {ending} in {seconds(view.duration_seconds)}: {', '.join(parts)}"
