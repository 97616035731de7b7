"""Views of an update as Rich tables: while it runs, and when it has ended."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from penstock._display.text import count, error_line, rate, seconds
from penstock._observe.events import FlowStatus, UpdateState
from penstock._observe.snapshot import STATE_ORDER, DatasetView, UpdateView

WIDE = 110
"""Minimum width for a column with the last error; otherwise it is below the table."""

_MOST_ERRORS = 5

_STYLES = {
    FlowStatus.RUNNING: "cyan",
    FlowStatus.STARTING: "cyan",
    FlowStatus.COMPLETED: "green",
    FlowStatus.FAILED: "bold red",
    FlowStatus.SKIPPED: "yellow",
    FlowStatus.STOPPED: "yellow",
    FlowStatus.QUEUED: "dim",
    FlowStatus.IDLE: "dim",
    FlowStatus.EXCLUDED: "dim",
}
_UPDATE_STYLES = {
    UpdateState.COMPLETED: "bold green",
    UpdateState.FAILED: "bold red",
    UpdateState.CANCELED: "bold yellow",
    UpdateState.STOPPING: "bold yellow",
}


def live_view(view: UpdateView, *, width: int, height: int, note: str = "") -> RenderableType:
    """The running update: a head line, rows of datasets, errors, the newest warnings, and a `note`.

    If not all datasets fit, those that failed or run are shown, and the others are counted.
    """
    datasets = view.datasets
    urgent = sorted(datasets, key=lambda dataset: STATE_ORDER.index(dataset.state))
    below: list[RenderableType] = _errors(urgent)[:_MOST_ERRORS] if width < WIDE else []
    below += [
        Text(warning.partition("\n")[0], style="yellow", no_wrap=True, overflow="ellipsis")
        for warning in view.warnings[-2:]
    ]
    if note:
        below.append(Text(note, style="bold yellow", no_wrap=True, overflow="ellipsis"))
    # The terminal echoes ^C at the cursor. At the end of a full line that would wrap,
    # and the next frame would be drawn one line too low.
    below.append(Text(""))
    room = max(1, height - len(below) - 2)
    if len(datasets) > room:
        rest = urgent[max(1, room - 1) :]
        hidden = {dataset.name for dataset in rest}
        datasets = tuple(dataset for dataset in datasets if dataset.name not in hidden)
        states = Counter(dataset.state.value for dataset in rest)
        text = ", ".join(f"{number} {state}" for state, number in states.items())
        below.insert(0, Text(f"and {text}", style="dim", no_wrap=True, overflow="ellipsis"))
    table = _table(
        ("dataset", "state", "rows", "rows/s", "batch", "quarantined", "lag"),
        [
            (
                *_name_and_state(dataset),
                _cell(count(dataset.rows)),
                _cell(rate(dataset.rows_per_second)),
                _cell(seconds(dataset.batch_seconds)),
                _bad(dataset.quarantined),
                _cell(count(dataset.lag)),
                _error(dataset),
            )
            for dataset in datasets
        ],
        width=width,
    )
    return Group(_head(view), table, *below)


def summary_table(view: UpdateView, *, width: int) -> Table:
    return _table(
        ("dataset", "state", "rows", "quarantined", "dropped", "time"),
        [
            (
                *_name_and_state(dataset),
                _cell(count(dataset.rows)),
                _bad(dataset.quarantined),
                _bad(dataset.discarded),
                _cell(seconds(dataset.duration_seconds)),
                _error(dataset),
            )
            for dataset in view.datasets
        ],
        width=width,
    )


def _head(view: UpdateView) -> Text:
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(view.pipeline_name or "pipeline", style="bold")
    if view.update_id:
        head.append(f"  update {view.update_id[:8]}", style="dim")
    if view.state is not None:
        style = _UPDATE_STYLES.get(view.state, "bold cyan")
        head.append(f"  {view.state.value}", style=style)
    head.append(f"  {seconds(view.duration_seconds)}", style="dim")
    if not view.datasets and view.message:
        head.append(f"  {view.message}")
    return head


def _table(columns: tuple[str, ...], rows: list[tuple[Text, ...]], *, width: int) -> Table:
    """A table of at most `width` columns: long names are truncated, figures never."""
    # All widths are set: if columns do not fit, Rich would truncate figures before names.
    is_wide = width >= WIDE
    gap = 2 if is_wide else 1
    figures = {name: max(len(name), _WIDTHS[name]) for name in columns[1:]}
    free = width - sum(size + gap for size in figures.values())
    longest = max((len(row[0]) for row in rows), default=0)
    most = free - (_ERROR_WIDTH + gap if is_wide else 0)
    name_width = max(len(columns[0]), min(longest, most))
    table = Table(
        box=None, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold"
    )
    table.add_column(columns[0], no_wrap=True, overflow="ellipsis", width=name_width)
    for name, size in figures.items():
        side: JustifyMethod = "left" if name == "state" else "right"
        table.add_column(name, no_wrap=True, justify=side, width=size)
    if is_wide:
        rest = max(_ERROR_WIDTH, free - name_width - gap)
        table.add_column("last error", no_wrap=True, overflow="ellipsis", width=rest)
    for row in rows:
        table.add_row(*(row if is_wide else row[:-1]))
    return table


_ERROR_WIDTH = 24
_WIDTHS = {
    "state": 9,
    "rows": 9,
    "rows/s": 9,
    "batch": 6,
    "quarantined": 9,
    "dropped": 9,
    "lag": 9,
    "time": 6,
}


def _name_and_state(dataset: DatasetView) -> tuple[Text, Text]:
    style = _STYLES[dataset.state]
    return Text(dataset.display), Text(dataset.state.value, style=style)


def _cell(text: str) -> Text:
    return Text(text, style="dim" if text == "-" else "")


def _bad(number: int) -> Text:
    return Text(count(number), style="yellow" if number else "dim")


def _error(dataset: DatasetView) -> Text:
    if dataset.last_error is None:
        return Text("")
    return Text(error_line(dataset.last_error), style="red")


def _errors(datasets: Sequence[DatasetView]) -> list[RenderableType]:
    return [
        Text(
            f"{dataset.display}: {error_line(dataset.last_error)}",
            style="red",
            no_wrap=True,
            overflow="ellipsis",
        )
        for dataset in datasets
        if dataset.last_error is not None
    ]
